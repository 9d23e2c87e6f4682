from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_prometheus.settings import Settings, SettingsError


def load(section: Any, **environment: str) -> Settings:
    return Settings.load({"trainer": {"prometheus": section}}, environment)


@pytest.mark.parametrize("config", [None, {}, {"trainer": {}}, {"trainer": None}, {"trainer": {"prometheus": None}}])
def test_defaults(config: Any) -> None:
    assert Settings.load(config, {}) == Settings()
    assert Settings().port == 9400


def test_config_wins_over_environment_and_that_over_defaults() -> None:
    settings = load({"port": 9500}, VERL_PROMETHEUS_PORT="9600", VERL_PROMETHEUS_LINGER_SECONDS="5", PORT="1")
    assert (settings.port, settings.linger_seconds, settings.max_series) == (9500, 5.0, 20_000)


def test_verls_own_config_object() -> None:
    config = OmegaConf.create({"trainer": {"prometheus": {"port": 9500, "labels": {"team": "rl"}}}})
    OmegaConf.set_struct(config, True)
    assert Settings.load(config, {}) == Settings(port=9500, labels={"team": "rl"})


@pytest.mark.parametrize("labels", [{"team": "rl", "gpus": 8}, "team=rl,gpus=8", " team = rl , gpus = 8 "])
def test_labels(labels: Any) -> None:
    assert load({"labels": labels}).labels == {"team": "rl", "gpus": "8"}
    if isinstance(labels, str):
        assert load({}, VERL_PROMETHEUS_LABELS=labels).labels == {"team": "rl", "gpus": "8"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"port": "abc"}, r"trainer\.prometheus\.port is 'abc': it must be a whole number from 0 to 65535"),
        ({"port": 70000}, r"trainer\.prometheus\.port is 70000: it must be from 0 to 65535"),
        ({"port": True}, r"trainer\.prometheus\.port is True: it must be a whole number"),
        ({"port": 9400.5}, r"trainer\.prometheus\.port is 9400\.5"),
        ({"port": None}, r"trainer\.prometheus\.port is None"),
        (
            {"linger_seconds": -1},
            r"trainer\.prometheus\.linger_seconds is -1: it must be a number of seconds, 0 or more",
        ),
        ({"linger_seconds": float("nan")}, r"trainer\.prometheus\.linger_seconds is nan"),
        ({"max_series": 0}, r"trainer\.prometheus\.max_series is 0: it must be from 1"),
        ({"targets_dir": 5}, r"trainer\.prometheus\.targets_dir is 5: it must be text"),
        ({"labels": [1]}, r"trainer\.prometheus\.labels is \[1\]: it must be a mapping"),
        ({"labels": "team"}, r"trainer\.prometheus\.labels is 'team': it must be name=value pairs"),
        ({"labels": {"my-team": "rl"}}, r"'my-team' is no label name"),
        ({"labels": {"__name__": "rl"}}, r"'__name__' is no label name"),
        ({"labels": {"project": "rl"}}, r"the label 'project' is the exporter's own"),
        ({"window": 1}, r"trainer\.prometheus\.window is 1: it must be from 2"),
        ({"thresholds": {"VerlKLExplosion": "x"}}, r"VerlKLExplosion must be a number, not 'x'"),
        ({"thresholds": {"VerlKLExplosoin": 1}}, r"'VerlKLExplosoin' is no alert: did you mean VerlKLExplosion\?"),
        ({"thresholds": 3}, r"trainer\.prometheus\.thresholds is 3: it must be a mapping of alerts to numbers"),
        ({"prot": 9400}, r"trainer\.prometheus\.prot is no setting: did you mean trainer\.prometheus\.port\?"),
        ({"linger": 3}, r"did you mean trainer\.prometheus\.linger_seconds\?"),
        (9400, r"trainer\.prometheus is 9400: it must hold settings, such as trainer\.prometheus\.port=9400"),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(section: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(section)


def test_thresholds() -> None:
    assert load({"thresholds": {"VerlKLExplosion": "0.5"}}).thresholds == {"VerlKLExplosion": 0.5}
    assert load({}, VERL_PROMETHEUS_THRESHOLDS="VerlKLExplosion=0.5").thresholds == {"VerlKLExplosion": 0.5}


def test_a_wrong_environment_variable_is_named_with_its_remedy() -> None:
    with pytest.raises(SettingsError, match=r"VERL_PROMETHEUS_PROT is no setting: did you mean VERL_PROMETHEUS_PORT\?"):
        load({}, VERL_PROMETHEUS_PROT="1")
    with pytest.raises(SettingsError, match=r"VERL_PROMETHEUS_PORT is 'x': it must be a whole number"):
        load({}, VERL_PROMETHEUS_PORT="x")

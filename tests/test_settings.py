import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_prometheus.cli import main
from verl_prometheus.settings import Settings, SettingsError
from verl_prometheus.settings_command import markdown


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
        ({"journal": 3}, r"trainer\.prometheus\.journal is 3: it must be text"),
        (
            {"remote_write": "http://x"},
            r"remote_write is 'http://x': it must hold settings, such as .*remote_write\.url",
        ),
        ({"remote_write": {"ulr": "http://x"}}, r"remote_write\.ulr is no setting: did you mean .*remote_write\.url\?"),
        ({"remote_write": {"url": "prometheus:9090"}}, r"remote_write\.url is 'prometheus:9090': it must be an http"),
        ({"remote_write": {"url": "http://h:x/"}}, r"remote_write\.url is 'http://h:x/': it must be an http"),
        ({"remote_write": {"url": "http://me:pw@h/"}}, r"must not hold credentials"),
        ({"remote_write": {"headers": {"a b": "c"}}}, r"cannot hold the header 'a b'"),
        ({"remote_write": {"headers": "team"}}, r"must be name=value pairs"),
        ({"remote_write": {"timeout_seconds": 0}}, r"must be more than 0 seconds"),
        ({"remote_write": {"bearer_token_file": "/none"}}, r"must be a file that can be read \(No such file"),
        ({"remote_write": {"tls_insecure_skip_verify": "si"}}, r"must be true or false"),
        ({"remote_write": {"username": "me"}}, r"username and .*password_file need each other"),
        ({"remote_write": {"tls_key_file": __file__}}, r"tls_cert_file and .*tls_key_file need each other"),
        (
            {"remote_write": {"username": "me", "password_file": __file__, "bearer_token_file": __file__}},
            r"username and .*bearer_token_file exclude each other",
        ),
        (9400, r"trainer\.prometheus is 9400: it must hold settings, such as trainer\.prometheus\.port=9400"),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(section: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(section)


def test_a_section_from_config_and_environment() -> None:
    settings = load(
        {"remote_write": {"url": "https://host/api/v1/write", "headers": {"X-Scope-OrgID": 7}}},
        VERL_PROMETHEUS_REMOTE_WRITE_URL="http://other",
        VERL_PROMETHEUS_REMOTE_WRITE_TIMEOUT_SECONDS="5",
    ).remote_write
    assert (settings.url, settings.headers) == ("https://host/api/v1/write", {"X-Scope-OrgID": "7"})
    assert settings.timeout_seconds == 5.0
    assert load({"remote_write": None}) == Settings()
    with pytest.raises(SettingsError, match=r"did you mean VERL_PROMETHEUS_REMOTE_WRITE_URL\?"):
        load({}, VERL_PROMETHEUS_REMOTE_WRITE_ULR="x")


@pytest.mark.parametrize(
    ("given", "journal"), [(False, ""), (True, "auto"), ("false", ""), ("auto", "auto"), ("/j.jsonl", "/j.jsonl")]
)
def test_the_journal_is_a_path_or_false(given: Any, journal: str) -> None:
    assert load({"journal": given}).journal == journal


def test_thresholds() -> None:
    assert load({"thresholds": {"VerlKLExplosion": "0.5"}}).thresholds == {"VerlKLExplosion": 0.5}
    assert load({}, VERL_PROMETHEUS_THRESHOLDS="VerlKLExplosion=0.5").thresholds == {"VerlKLExplosion": 0.5}


def test_a_wrong_environment_variable_is_named_with_its_remedy() -> None:
    with pytest.raises(SettingsError, match=r"VERL_PROMETHEUS_PROT is no setting: did you mean VERL_PROMETHEUS_PORT\?"):
        load({}, VERL_PROMETHEUS_PROT="1")
    with pytest.raises(SettingsError, match=r"VERL_PROMETHEUS_PORT is 'x': it must be a whole number"):
        load({}, VERL_PROMETHEUS_PORT="x")


def test_the_docs_are_current() -> None:
    docs = Path(__file__).parent.parent / "docs" / "settings.md"
    assert docs.read_text() == markdown(), "run `make docs`"


def test_the_command_shows_what_the_environment_gives(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("VERL_PROMETHEUS_PORT", "9999")
    assert main(["settings"]) == 0
    assert re.search(r"trainer\.prometheus\.port +9999 ", capsys.readouterr().out)
    monkeypatch.setenv("VERL_PROMETHEUS_PORT", "x")
    assert main(["settings"]) == 2
    assert "VERL_PROMETHEUS_PORT is 'x': it must be a whole number" in capsys.readouterr().err

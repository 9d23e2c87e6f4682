import math
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.fixtures import RUNS, calls
from helpers.prometheus import get
from helpers.scrape import OPENMETRICS, Scrape
from verl_prometheus import __version__, catalog
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.settings import Settings, SettingsError

Build = Callable[..., PrometheusBackend]
CONFIG: dict[str, Any] = {
    "algorithm": {"adv_estimator": "grpo", "kl_ctrl": {"kl_coef": 0.001}},
    "actor_rollout_ref": {
        "model": {"path": "s3://key:secret@models/qwen", "hf_token": "secret"},
        "actor": {"optim": {"lr": 1e-6, "total_training_steps": 300}, "use_kl_loss": True},
        "rollout": {"n": 8, "name": "vllm"},
    },
    "trainer": {"total_training_steps": None, "nnodes": 2, "wandb_api_key": "secret"},
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
def test_every_value_of_a_real_run_is_served_under_its_key(backend: Build, name: str, accept: str) -> None:
    one = backend()
    shipped = catalog.load()
    for step, data in calls(name):
        one.log(data, step)
        scrape = Scrape(one.url, accept)
        assert scrape.value("verl_step") == step
        keyed = scrape.keyed()
        for key, value in data.items():
            assert keyed[key] == pytest.approx(value * shipped.series(key).scale, rel=1e-15, nan_ok=True), key
    assert scrape.value("verl_exporter_series") == len(keyed)
    assert not scrape.values("verl_exporter_errors_total")
    assert not scrape.values("verl_exporter_dropped_values_total")


def test_every_series_carries_the_run_and_the_users_labels(backend: Build) -> None:
    one = backend(labels={"team": "rl"})
    one.log({"actor/entropy": 1.0}, 1)
    scrape = Scrape(one.url)
    assert "process_resident_memory_bytes" in scrape.families
    expected = {"project": "project", "experiment": "experiment", "team": "rl"}
    assert [sample for sample in scrape.samples if not expected.items() <= sample.labels.items()] == []


def test_the_exporters_families_are_those_it_promises(backend: Build) -> None:
    one = backend(CONFIG)
    data = {"training/epoch": 1, "perf/time_per_step": 2.0, "timing_s/gen": 1.0, "timing_s/save_checkpoint": 1.0}
    one.log({**data, "val/loss": 1.0, "bad": math.nan, "text": "x"}, 1)
    one.log(None, 2)  # type: ignore[arg-type]
    promised = catalog.load().families
    families = Scrape(one.url).families
    for name, family in families.items():
        full_name = f"{name}_total" if family.type == "counter" else name
        if full_name in promised:
            assert family.type == promised[full_name].type
            assert family.documentation == promised[full_name].help
            labels = {label for sample in family.samples for label in sample.labels}
            if family.samples:
                assert labels - {"project", "experiment", "le"} == set(promised[full_name].labels), name
    for name in ("verl_run_info", "verl_epoch", "verl_steps_per_second", "verl_checkpoint_step", "verl_step_target"):
        assert families[name].samples


def test_identity_and_hyperparameters_without_secrets(backend: Build) -> None:
    scrape = Scrape(backend(CONFIG).url)
    (info,) = scrape.label_sets("verl_run_info")
    assert info["algorithm"] == "grpo"
    assert info["model"] == "s3://models/qwen"
    assert info["exporter_version"] == __version__
    assert (info["attempt"], len(info["run_id"])) == ("1", 32)
    config = {labels["path"]: labels["value"] for labels in scrape.label_sets("verl_run_config_info")}
    assert config["actor_rollout_ref.rollout.n"] == "8"
    assert config["actor_rollout_ref.actor.use_kl_loss"] == "True"
    assert config["algorithm.kl_ctrl.kl_coef"] == "0.001"
    assert scrape.value("verl_step_target") == 300
    assert "secret" not in scrape.text


@pytest.mark.parametrize(
    ("data", "step"), [(None, 1), ("text", 1), (3, 1), ([1], 1), ({"a": 1.0}, None), ({"a": object()}, 1)]
)
def test_log_raises_nothing(backend: Build, data: Any, step: Any) -> None:
    one = backend()
    one.log(data, step)
    one.log({"fine": 1.0}, 2)
    assert Scrape(one.url).keyed()["fine"] == 1.0


def test_an_error_in_log_is_counted_and_logged_once(backend: Build, caplog: pytest.LogCaptureFixture) -> None:
    one = backend()
    for step in range(5):
        one.log(None, step)  # type: ignore[arg-type]
    assert Scrape(one.url).value("verl_exporter_errors_total", component="log") == 5
    assert caplog.text.count("log failed, training goes on") == 1


def test_what_log_costs_is_counted(backend: Build) -> None:
    one = backend()
    for step in range(7):
        one.log({"a": 1.0}, step)
    assert Scrape(one.url).value("verl_exporter_log_duration_seconds_count") == 7


def test_states_and_the_end(backend: Build, tmp_path: Path) -> None:
    one = backend(linger_seconds=30)
    assert Scrape(one.url).value("verl_run_state", state="starting") == 1
    one.log({"a": 1.0}, 1)
    scrape = Scrape(one.url)
    assert scrape.value("verl_run_state", state="running") == 1
    assert sum(scrape.values("verl_run_state")) == 1

    ended = threading.Thread(target=one.finish, args=(3,))
    ended.start()
    time.sleep(0.3)
    assert ended.is_alive(), "finish lingers for somebody who has been scraping"
    scrape = Scrape(one.url)
    assert scrape.value("verl_run_state", state="failed") == 1
    ended.join(timeout=10)
    assert not ended.is_alive(), "the final scrape ends the wait"
    assert list((tmp_path / "targets").iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(one.url.rpartition(":")[2])), timeout=1)
    one.finish(0)


def test_nobody_scraped_nobody_is_waited_for(backend: Build) -> None:
    one = backend(linger_seconds=600)
    ended = threading.Thread(target=one.finish)
    ended.start()
    ended.join(timeout=30)
    assert not ended.is_alive()


def test_two_runs_on_one_machine(tmp_path: Path) -> None:
    settings = Settings(port=19400, address="127.0.0.1", targets_dir=str(tmp_path), linger_seconds=0)
    first, second = (PrometheusBackend("project", name, settings) for name in ("first", "second"))
    try:
        assert first.url != second.url
        assert Scrape(first.url).value("verl_run_state", experiment="first", state="starting") == 1
        assert Scrape(second.url).value("verl_run_state", experiment="second", state="starting") == 1
        assert len(list(tmp_path.iterdir())) == 2
    finally:
        first.finish()
        second.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_discovery_folder_that_cannot_be_written_is_a_warning(
    backend: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    one = backend(targets_dir=str(tmp_path / "file" / "targets"))
    assert Scrape(one.url).value("verl_exporter_errors_total", component="discovery") == 1
    assert "trainer.prometheus.targets_dir" in caplog.text


def test_an_address_that_cannot_be_served_is_an_error_before_training(tmp_path: Path) -> None:
    settings = Settings(address="192.0.2.77", targets_dir=str(tmp_path))
    with pytest.raises(SettingsError, match=r"trainer\.prometheus\.address '192\.0\.2\.77'"):
        PrometheusBackend("project", "experiment", settings)
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_a_run(backend: Build) -> None:
    one = backend(CONFIG)
    one.log({"actor/entropy": 1.0}, 17)
    text = get(f"{one.url}/").decode()
    assert "project / experiment" in text
    assert "17 of 300" in text

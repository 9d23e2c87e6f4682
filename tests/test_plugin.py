"""The plugin on the verl that is installed; other versions: test_verl_versions.py."""

import asyncio
import gc
import json
import logging
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
from verl.utils.debug import marked_timer
from verl.utils.profiler import simple_timer
from verl.utils.tracking import Tracking

from helpers.prometheus import get
from helpers.scrape import Scrape
from verl_prometheus import plugin
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.phases import TRACKER, PhaseTracker


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    section = {"port": 0, "address": "127.0.0.1", "targets_dir": str(tmp_path / "targets"), "linger_seconds": 0}
    return {"trainer": {"prometheus": section}}


def listens(url: str) -> bool:
    try:
        get(f"{url}/-/healthy")
    except OSError:
        return False
    return True


def test_verl_finds_the_plugin_by_itself() -> None:
    assert "prometheus" in Tracking.supported_backend


def test_patching_twice_changes_nothing() -> None:
    before = Tracking.__init__, Tracking.finish, Tracking.__del__, list(Tracking.supported_backend)
    plugin.install()
    plugin.patch_tracking(Tracking)
    assert (Tracking.__init__, Tracking.finish, Tracking.__del__, Tracking.supported_backend) == before
    assert Tracking.supported_backend.count("prometheus") == 1


def test_a_tracking_with_other_backends_beside(config: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "log.jsonl"))

    class Trainer:
        total_training_steps = 12

        def fit(self) -> Tracking:
            return Tracking("p", "e", ["file", "prometheus"], config)

    tracking = Trainer().fit()
    url = tracking.logger["prometheus"].url
    tracking.log({"actor/entropy": 1.5}, step=3)
    scrape = Scrape(url)
    assert scrape.keyed() == {"actor/entropy": 1.5}
    assert scrape.value("verl_step_target") == 12
    assert scrape.label_sets("verl_run_info")[0]["trainer"] == "Trainer"
    tracking.finish(exit_code=1)
    assert not listens(url)
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {"step": 3, "data": {"actor/entropy": 1.5}}


def test_garbage_collection_finishes(config: dict[str, Any], tmp_path: Path) -> None:
    tracking = Tracking("p", "e", "prometheus", config)
    url = tracking.logger["prometheus"].url
    assert listens(url)
    del tracking
    gc.collect()
    assert not listens(url)
    assert list((tmp_path / "targets").iterdir()) == []


def test_two_trackings_in_one_process(config: dict[str, Any]) -> None:
    first, second = Tracking("p", "first", ["prometheus"], config), Tracking("p", "second", ["prometheus"], config)
    urls = [one.logger["prometheus"].url for one in (first, second)]
    assert all(map(listens, urls))
    first.finish()
    assert [listens(url) for url in urls] == [False, True]
    second.finish()


def test_a_wrong_setting_stops_before_other_backends_begin(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "log.jsonl"))
    with pytest.raises(ValueError, match=r"trainer\.prometheus\.prot is no setting"):
        Tracking("p", "e", ["file", "prometheus"], {"trainer": {"prometheus": {"prot": 1}}})
    assert not (tmp_path / "log.jsonl").exists()


def test_trackings_without_us_are_left_alone() -> None:
    tracking = Tracking("p", "e", ["console"])
    assert list(tracking.logger) == ["console"]
    with pytest.raises(AssertionError, match="nonsense"):
        Tracking("p", "e", ["nonsense"])


@pytest.mark.parametrize("timer", [marked_timer, simple_timer])
def test_verls_timers_tell_the_phase_while_it_runs(timer: Any) -> None:
    raw: dict[str, float] = {}
    with timer("outer", raw):
        with timer("timing_s/inner", raw):
            assert list(TRACKER.read().active) == ["outer", "inner"]
        assert list(TRACKER.read().active) == ["outer"]
    assert TRACKER.read().active == {}
    assert set(raw) == {"outer", "timing_s/inner"}


def test_a_phase_that_raises_is_left() -> None:
    with pytest.raises(RuntimeError, match="oom"), marked_timer("gen", {}):
        raise RuntimeError("oom")
    assert TRACKER.read().active == {}


def test_a_verl_without_that_timer_loses_only_the_phases(config: dict[str, Any], caplog: Any) -> None:
    tracker = PhaseTracker()
    module = types.ModuleType("verl.utils.profiler.performance")
    plugin.patch_timers(module, tracker)
    assert tracker.missing == "verl.utils.profiler.performance has no timer to listen to"
    TRACKER.missing = tracker.missing
    try:
        Tracking("p", "e", ["prometheus"], config).finish()
    finally:
        TRACKER.missing = None
    assert caplog.text.count("verl_phase_active stays empty") == 1


def test_another_plugin_that_has_wrapped_tracking_does_no_harm(config: dict[str, Any]) -> None:
    class Wrapped(Tracking):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:  # says nothing of its arguments
            self.logger: dict[str, Any] = {}

        def __del__(self) -> None:
            pass

    setattr(Wrapped, plugin.MARK, False)
    plugin.patch_tracking(Wrapped)
    tracking = Wrapped("p", "e", default_backend=["prometheus"], config=config)
    assert listens(tracking.logger["prometheus"].url)
    tracking.finish()


class Trainer:
    """As verl's trainers before V1 are: nobody finishes the Tracking, and something else may hold it."""

    held: ClassVar[list[Tracking]] = []

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def fit(self, error: Exception | None = None) -> str:
        self.held.append(Tracking("p", "e", ["prometheus"], self.config))
        if error is not None:
            raise error
        return "trained"


plugin.patch_trainer(Trainer)


class AsyncTrainer(Trainer):
    async def fit(self, error: Exception | None = None) -> str:  # type: ignore[override]
        return Trainer.fit(self, error)


class Inherits(Trainer):
    pass


@pytest.fixture
def ended(monkeypatch: Any) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr(PrometheusBackend, "finish", lambda self, exit_code=0: codes.append(exit_code))
    return codes


@pytest.mark.parametrize("kind", [Trainer, Inherits])
def test_the_end_of_fit_is_the_end_of_the_run(kind: type[Trainer], config: dict[str, Any], ended: list[int]) -> None:
    assert kind(config).fit() == "trained"
    assert ended == [0]
    with pytest.raises(RuntimeError, match="boom"):
        kind(config).fit(RuntimeError("boom"))
    assert ended == [0, 1]


def test_the_end_of_an_asynchronous_fit(config: dict[str, Any], ended: list[int]) -> None:
    assert asyncio.run(AsyncTrainer(config).fit()) == "trained"
    assert ended[-1] == 0
    with pytest.raises(RuntimeError, match="boom"):
        asyncio.run(AsyncTrainer(config).fit(RuntimeError("boom")))
    assert ended[-1] == 1


def test_verls_own_trainers_are_patched() -> None:
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    assert getattr(RayPPOTrainer.fit, plugin.MARK)
    from verl.experimental.separation.ray_trainer import SeparateRayPPOTrainer

    assert getattr(SeparateRayPPOTrainer.fit, plugin.MARK)


def test_a_verl_that_cannot_be_patched_is_said_and_raises_nothing(caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "verl.utils.tracking", types.ModuleType("verl.utils.tracking"))
    with caplog.at_level(logging.WARNING):
        plugin.install()
    assert "this verl cannot be taught trainer.logger=[prometheus]" in caplog.text


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_importing_starts_nothing_and_loads_nothing_of_ours_but_the_plugin() -> None:
    code = """
    import sys, threading, os
    import verl
    ours = sorted(name for name in sys.modules if name.startswith("verl_prometheus"))
    sockets = [fd for fd in os.listdir("/proc/self/fd") if "socket:" in os.path.realpath(f"/proc/self/fd/{fd}")]
    print(ours, "prometheus_client" in sys.modules, sockets)
    print([thread.name for thread in threading.enumerate() if "verl" in thread.name])
    """
    assert python(code).splitlines() == [
        "['verl_prometheus', 'verl_prometheus.after_import', 'verl_prometheus.phases', 'verl_prometheus.plugin'] False []",
        "[]",
    ]


@pytest.mark.parametrize(
    ("ending", "state"), [("", "finished"), ("raise RuntimeError('boom')", "failed"), ("tracking.finish(2)", "failed")]
)
def test_the_end_of_the_process_is_the_end_of_the_run(tmp_path: Path, ending: str, state: str) -> None:
    """What the last scrape sees of a process that finishes, never calls finish, or raises."""
    code = f"""
    import sys
    from verl.utils.tracking import Tracking
    section = dict(port=0, address="127.0.0.1", targets_dir={str(tmp_path)!r}, linger_seconds=20)
    tracking = Tracking("p", "e", ["prometheus"], {{"trainer": {{"prometheus": section}}}})
    tracking.log({{"a": 1.0}}, 1)
    sys.stdin.readline()
    {ending}
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().split()[2].removesuffix("/metrics,")
        states = [state_at(url)]
        process.stdin.write("\n")
        process.stdin.flush()
        while states[-1] == "running":
            states.append(state_at(url))
        assert states[-1] == state
    assert list(tmp_path.iterdir()) == []


def state_at(url: str) -> str:
    (state,) = [labels["state"] for labels in Scrape(url).label_sets("verl_run_state")]
    return state

"""From a real training run to a notification: shipped Prometheus and Alertmanager configuration, a webhook in between."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from helpers.prometheus import free_port, get
from helpers.runs import training_folder
from helpers.waiting import wait_for
from verl_prometheus.demo import progress, training
from verl_prometheus.demo.process import TrainingProcess

pytestmark = pytest.mark.real_run

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "prometheus"
FAULTS = ROOT / "tests" / "scenarios" / "faults.py"
# Where Debian's Alertmanager looks for templates. It may be unpacked, not installed: then they are missing; empty ones do.
TEMPLATES = Path("/usr/share/prometheus/alertmanager")
STALLED_SECONDS = 60
PATIENCE = 420.0  # seconds; NaN holds for 5 minutes


class Webhook:
    """Receives what Alertmanager sends, as the shipped configuration tells it to."""

    TOKEN = "t0ken"

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/alerts" and self.headers["Authorization"] == f"Bearer {Webhook.TOKEN}":
                    webhook.alerts += json.loads(body)["alerts"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def urgent(self, experiment: str) -> set[str]:
        """The names of the alerts of a run that somebody must look at, whatever became of them."""
        return {
            one["labels"]["alertname"]
            for one in self.alerts
            if one["labels"]["experiment"] == experiment and one["labels"]["severity"] != "info"
        }

    def wait(self, experiment: str, alert: str, status: str = "firing") -> dict[str, Any]:
        """The first notification of an alert with that status."""

        def arrived() -> dict[str, Any] | None:
            for one in list(self.alerts):
                labels = one["labels"]
                if (labels["experiment"], labels["alertname"], one["status"]) == (experiment, alert, status):
                    return one
            return None

        found = wait_for(arrived, f"{alert} of {experiment} to be {status}", seconds=PATIENCE, pause=0.5)
        assert found is not None
        return found


@dataclass
class Run:
    """A real GRPO run whose reward function does what `fault` says."""

    experiment: str
    folder: Path
    targets: Path
    steps: int
    process: TrainingProcess = field(init=False)

    def __post_init__(self) -> None:
        self._fault = self.folder / f"{self.experiment}.fault"
        ours = {
            "port": 0,
            "address": "127.0.0.1",
            "targets_dir": self.targets,
            "linger_seconds": 30,
            "gpu.enabled": "false",
        }
        overrides = [f"+trainer.prometheus.{name}={value}" for name, value in ours.items()]
        overrides += [
            f"+trainer.prometheus.thresholds.VerlRunStalled={STALLED_SECONDS}",
            f"reward.custom_reward_function.path={FAULTS}",
            "reward.custom_reward_function.name=scripted",
            "trainer.test_freq=-1",
        ]
        command = training.command(
            "grpo",
            training_folder(),
            steps=self.steps,
            logger=["console", "prometheus"],
            experiment=self.experiment,
            overrides=overrides,
        )
        environment = training.environment(training_folder()) | {"SCENARIO_FAULT_FILE": str(self._fault)}
        self._log = self.folder / f"{self.experiment}.log"
        self.process = TrainingProcess(command, environment, self._log)

    def output(self) -> str:
        """The end of what the run printed, for messages of failed assertions."""
        return self._log.read_text()[-4000:]

    def fault(self, name: str) -> None:
        new = self._fault.with_suffix(".new")
        new.write_text(name)
        new.rename(self._fault)

    def recover(self) -> None:
        self._fault.unlink()

    @property
    def discovery_files(self) -> list[Path]:
        return [path for path, _ in progress.announced(self.targets, self.experiment)]

    def step(self) -> int:
        for _, url in progress.announced(self.targets, self.experiment):
            return progress.read(url).step or 0
        return 0

    def reach(self, step: int) -> None:
        def reached() -> bool:
            assert self.process.exit_status() is None, self.output()
            return self.step() >= step

        wait_for(reached, f"{self.experiment} to reach step {step}", seconds=PATIENCE, pause=0.5)


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    one = Webhook()
    yield one
    one.close()


@pytest.fixture
def targets(newest_prometheus_bin: Path, tmp_path: Path, webhook: Webhook) -> Iterator[Path]:
    """Where runs announce themselves to a Prometheus and an Alertmanager that are configured as shipped.

    Only addresses and folders are other ones: those of this test.
    """
    targets, prometheus, alertmanager = tmp_path / "targets", free_port(), free_port()
    targets.mkdir()
    moved = {
        "127.0.0.1:9090": f"127.0.0.1:{prometheus}",
        "127.0.0.1:9093": f"127.0.0.1:{alertmanager}",
        "127.0.0.1:9095": f"127.0.0.1:{webhook.port}",
        "/tmp/verl-prometheus/targets": str(targets),
        "/etc/alertmanager": str(tmp_path),
        "rules/*.yml": str(CONFIG / "rules" / "*.yml"),
    }
    for name in ("prometheus.yml", "alertmanager.yml"):
        text = (CONFIG / name).read_text()
        for old, new in moved.items():
            text = text.replace(old, new)
        (tmp_path / name).write_text(text)
    (tmp_path / "secrets").mkdir()
    for file in re.findall(r"secrets/\w+", (CONFIG / "alertmanager.yml").read_text()):
        (tmp_path / file).write_text(f"http://127.0.0.1:{webhook.port}/slack" if "url" in file else Webhook.TOKEN)
    commands = {
        "prometheus": [
            str(newest_prometheus_bin / "prometheus"),
            f"--web.listen-address=127.0.0.1:{prometheus}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        ],
        "alertmanager": [
            *alertmanager_command(newest_prometheus_bin),
            f"--web.listen-address=127.0.0.1:{alertmanager}",
            f"--storage.path={tmp_path / 'silences'}",
            "--cluster.listen-address=",
        ],
    }
    with ExitStack() as stack:
        for program, command in commands.items():
            log = stack.enter_context((tmp_path / f"{program}.log").open("wb"))
            process = subprocess.Popen([*command, f"--config.file={program}.yml"], cwd=tmp_path, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        for port in (prometheus, alertmanager):
            wait_for(lambda one=port: get(f"http://127.0.0.1:{one}/-/ready"), "Prometheus and Alertmanager")  # type: ignore[misc]
        yield targets


def alertmanager_command(folder: Path) -> list[str]:
    """How to start the Alertmanager in a folder, however it is called there."""
    packaged = folder / "prometheus-alertmanager"
    if not packaged.exists():
        return [str(folder / "alertmanager")]
    if TEMPLATES.exists():
        return [str(packaged)]
    files = f"{TEMPLATES}/default.tmpl {TEMPLATES}/email.tmpl"
    mount = f"mount -t tmpfs none /usr/share && mkdir -p {TEMPLATES} && touch {files}"
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$0" "$@"', str(packaged)]


def test_each_fault_of_a_real_run_arrives_as_its_own_notification(
    targets: Path, webhook: Webhook, tmp_path: Path
) -> None:
    sound = Run("sound", tmp_path, targets, steps=12)
    with sound.process:
        assert sound.process.wait(PATIENCE) == 0, sound.output()
    assert sound.discovery_files == []

    sick = Run("sick", tmp_path, targets, steps=100_000)
    with sick.process:
        sick.reach(6)
        sick.fault("nan")
        page = webhook.wait("sick", "VerlNonFiniteValue")
        assert page["labels"]["severity"] == "page"
        assert page["annotations"]["summary"].startswith("tiny/sick, step ")
        sick.recover()

        sick.fault("hang")
        stalled = webhook.wait("sick", "VerlRunStalled")
        assert (stalled["labels"]["severity"], stalled["labels"]["phase"]) == ("page", "gen")
        assert "phase gen" in stalled["annotations"]["summary"]
        step = sick.step()
        sick.recover()
        sick.reach(step + 2)
        webhook.wait("sick", "VerlRunStalled", "resolved")
        webhook.wait("sick", "VerlNonFiniteValue", "resolved")

        os.kill(sick.process.pid, signal.SIGKILL)
        vanished = webhook.wait("sick", "VerlRunVanished")
        assert vanished["labels"]["severity"] == "page"
        for file in sick.discovery_files:
            file.unlink()
        webhook.wait("sick", "VerlRunVanished", "resolved")

    failing = Run("failing", tmp_path, targets, steps=100_000)
    with failing.process:
        failing.reach(4)
        failing.fault("fail")
        failed = webhook.wait("failing", "VerlRunFailed")
        assert failed["labels"]["severity"] == "page"

    assert webhook.urgent("sound") == set()
    assert {"VerlNonFiniteValue", "VerlRunStalled", "VerlRunVanished"} <= webhook.urgent("sick")
    assert webhook.urgent("failing") == {"VerlRunFailed"}
    assert all(one["annotations"]["runbook_url"] for one in webhook.alerts)

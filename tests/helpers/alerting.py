"""Prometheus and Alertmanager with the shipped configuration, and what receives their notifications."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from helpers.prometheus import free_port, get
from helpers.waiting import wait_for

CONFIG = Path(__file__).parents[2] / "prometheus"
TOKEN = "t0ken"
PATIENCE = 420.0  # seconds; NaN holds for 5 minutes


class Receivers:
    """The webhook receiver, Slack and PagerDuty, as far as Alertmanager can tell: each keeps what it gets."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.slack: list[dict[str, Any]] = []
        self.pagerduty: list[dict[str, Any]] = []
        receivers = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/alerts":
                    assert self.headers["Authorization"] == f"Bearer {TOKEN}"
                    receivers.alerts += message["alerts"]
                elif self.path == "/slack":
                    receivers.slack += message["attachments"]
                else:
                    receivers.pagerduty.append(message)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ok")  # Slack's answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
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

    def wait(self, experiment: str, alert: str, status: str = "firing", **labels: str) -> dict[str, Any]:
        """The first alert with these labels and that status that came to the webhook."""
        labels |= {"experiment": experiment, "alertname": alert}

        def arrived() -> dict[str, Any] | None:
            for one in list(self.alerts):
                if one["status"] == status and labels.items() <= one["labels"].items():
                    return one
            return None

        found = wait_for(arrived, f"{alert} of {experiment} to be {status}", seconds=PATIENCE, pause=0.5)
        assert found is not None
        return found


@contextmanager
def shipped(bin_folder: Path, folder: Path, receivers: Receivers) -> Iterator[None]:
    """Both programs for the length of a `with` block, configured as shipped but for addresses and folders.

    Args:
        bin_folder: has the programs.
        folder: for their data and logs; runs announce themselves in `targets` below it.
    """
    prometheus, alertmanager = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    moved = {
        "127.0.0.1:9090": prometheus,
        "127.0.0.1:9093": alertmanager,
        "127.0.0.1:9095": receivers.address,
        "smtp.example.com:587": receivers.address,
        "global:\n  resolve": f"global:\n  pagerduty_url: http://{receivers.address}/pagerduty\n  resolve",
        "/tmp/verl-prometheus/targets": str(folder / "targets"),
        "/etc/alertmanager": str(folder),
        "rules/*.yml": str(CONFIG / "rules" / "*.yml"),
    }
    for name in ("prometheus.yml", "alertmanager.yml"):
        text = (CONFIG / name).read_text()
        for old, new in moved.items():
            text = text.replace(old, new)
        (folder / name).write_text(text)
    (folder / "secrets").mkdir()
    for file in re.findall(r"secrets/\w+", (CONFIG / "alertmanager.yml").read_text()):
        (folder / file).write_text(f"http://{receivers.address}/slack" if "url" in file else TOKEN)
    commands = {
        prometheus: ["prometheus", f"--storage.tsdb.path={folder / 'tsdb'}"],
        alertmanager: ["alertmanager", f"--storage.path={folder / 'silences'}", "--cluster.listen-address="],
    }
    with ExitStack() as stack:
        for address, (program, *flags) in commands.items():
            log = stack.enter_context((folder / f"{program}.log").open("wb"))
            flags += [f"--config.file={program}.yml", f"--web.listen-address={address}"]
            process = subprocess.Popen([bin_folder / program, *flags], cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        for address in commands:
            wait_for(lambda one=address: get(f"http://{one}/-/ready"), "Prometheus and Alertmanager")  # type: ignore[misc]
        yield

"""`verl-prometheus demo`: verl's real GRPO on the CPU, a Prometheus target while it trains."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from verl_prometheus.demo import progress, training
from verl_prometheus.demo.display import Display
from verl_prometheus.demo.process import TrainingProcess
from verl_prometheus.demo.progress import Progress

HELP = "train a tiny model with verl's real GRPO on the CPU, and watch it through its Prometheus metrics"
VERL = "0.9.1"  # the CPU platform leans on internals of exactly this one
OTHERS = ("torch", "ray", "transformers", "tensordict", "TransferQueue")
INSTALL = "pip install 'verl-prometheus[demo]'"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_SECONDS = 0.25
LOG_LINES = 25

LOOK_HERE = """\
The run is a Prometheus target now:
  http://127.0.0.1:{port}/         its page
  http://127.0.0.1:{port}/metrics  its metrics
Its GPU is simulated, and says so; it is a target of its own, as on every node of a cluster.
A Prometheus on this machine finds it with one more line under scrape_configs:
  - {{job_name: verl, file_sd_configs: [{{files: ["{targets}/*.json"]}}]}}"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=_number(1), default=20, help="training steps (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=_number(0, 65535),
        default=9400,
        help="port of the metrics; if taken, the next free one; 0: any (default: %(default)s)",
    )


def run(namespace: argparse.Namespace) -> int:
    """Train to the end, or until a signal. Returns the exit status; raises ValueError if a package is missing."""
    check_packages()
    folder = default_folder()
    display = Display(sys.stdout)
    with stop_requests() as requests:
        try:
            display.say(f"The demo keeps its files in {folder}")
            display.passing("Making the tiny model and its data, ten seconds, once")
            training.prepare(folder)
            status = 0 if requests else train(namespace.steps, namespace.port, folder, display, requests)
        except RuntimeError as error:
            if not requests:  # else it was the signal that broke the preparation off
                print(f"verl-prometheus demo: {error}", file=sys.stderr)
            status = 1
        if requests:
            display.say("Stopped, nothing is left running.")
            return 128 + requests[0]
    return status


def train(steps: int, port: int, folder: Path, display: Display, requests: list[int]) -> int:
    """Run the training and show it until it ends or `requests` has a signal; its exit status."""
    experiment = f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    targets, log = folder / "targets", folder / "logs" / f"{experiment}.log"
    command = training.command(
        "grpo",
        folder,
        steps=steps,
        logger=["console", "prometheus"],
        experiment=experiment,
        overrides=[
            f"+trainer.prometheus.port={port}",
            f'+trainer.prometheus.targets_dir="{targets}"',
            "+trainer.prometheus.gpu.backend=simulated",
        ],
    )
    display.say(
        f"Training a 2-layer model with verl's GRPO for {steps} steps, after a minute of start-up.\n"
        f"Its output goes to {log}"
    )
    began = time.monotonic()
    try:
        with TrainingProcess(command, training.environment(folder), log) as process:
            last = watch(process, targets, experiment, display, requests)
            if requests:
                display.say("Stopping ...")
    finally:
        for discovery_file, _ in progress.announced(targets, experiment):  # an exporter that is killed leaves its own
            discovery_file.unlink(missing_ok=True)
    status = process.wait()
    if status and not requests:
        display.say(f"{tail(log)}\nThe training failed with exit status {status}. All of its output: {log}")
    elif not requests:
        display.say(f"Trained {last.step} steps in {time.monotonic() - began:.0f} s, start-up included.")
    return status


def watch(process: TrainingProcess, targets: Path, experiment: str, display: Display, requests: list[int]) -> Progress:
    """Show the progress that the run's exporter reports; the last one, when the run has ended or `requests` has a signal."""
    began, last = time.monotonic(), Progress()
    url: str | None = None
    while process.exit_status() is None and not requests:
        if url is None:
            display.passing(f"Ray and verl's workers start: {time.monotonic() - began:.0f} s")
            for _, url in progress.announced(targets, experiment):
                display.say(LOOK_HERE.format(port=url.rpartition(":")[2], targets=targets))
        if url is not None:
            try:
                last = progress.read(url)
            except OSError:  # the run ends
                pass
            else:
                display.progress(last)
        time.sleep(POLL_SECONDS)
    return last


def check_packages() -> None:
    """Raises ValueError with the remedy unless the packages of the demo are there."""
    try:
        verl = importlib.metadata.version("verl")
        for name in OTHERS:
            importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise ValueError(f"the package {error.name} is missing: {INSTALL}") from None
    if verl != VERL:
        raise ValueError(f"it needs verl {VERL}, and {verl} is installed: {INSTALL}")


def default_folder() -> Path:
    """In the user's cache: the model and its data, the logs of the runs, their discovery files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "verl-prometheus", "demo")


def tail(log: Path) -> str:
    """The last lines of a log, without colours and progress bars."""
    text = re.sub(r"\x1b\[[0-9;]*m|[^\n]*\r(?!\n)", "", log.read_bytes().decode(errors="replace"))
    return "\n".join(text.splitlines()[-LOG_LINES:])


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """The signals to stop that came so far; none of them interrupts the program."""
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        requests.append(number)

    before = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _number(low: int, high: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text) if re.fullmatch(r"\d+", text) else -1
        if number < low or (high is not None and number > high):
            wanted = f"from {low} to {high}" if high is not None else f"of {low} or more"
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number {wanted}")
        return number

    return parse

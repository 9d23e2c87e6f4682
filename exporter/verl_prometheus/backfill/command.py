"""`verl-prometheus backfill`: old runs as OpenMetrics for promtool, or pushed."""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from verl_prometheus import parse
from verl_prometheus.backfill.formats import files, reader_of
from verl_prometheus.backfill.openmetrics import OpenMetricsColumns
from verl_prometheus.backfill.source import Hints
from verl_prometheus.delivery import Delivery, Frame, frame
from verl_prometheus.errors import ErrorLog
from verl_prometheus.push import BATCH_SAMPLES
from verl_prometheus.remote_write import RemoteWriteClient
from verl_prometheus.replay import Replay
from verl_prometheus.series import Moment, Selection
from verl_prometheus.settings import Settings

HELP = "Bring old runs into Prometheus."
FILL_MS = 60_000  # a step that takes longer is repeated: Prometheus forgets a value after 5 minutes
PATIENCE_SECONDS = 60.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"{HELP} Reads journals, logs of verl's `file` logger, TensorBoard event files and offline W&B runs; writes "
        "OpenMetrics for `promtool tsdb create-blocks-from openmetrics`, or pushes."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="what a run has written, or a folder of it")
    parser.add_argument("-o", "--output", type=Path, help="write OpenMetrics to this file (default: standard output)")
    parser.add_argument(
        "--push",
        metavar="URL",
        help="push to this remote write endpoint instead; VERL_PROMETHEUS_REMOTE_WRITE_* say how",
    )
    parser.add_argument("--project", help="label `project`; default: what the file, or its place, says")
    parser.add_argument("--experiment", help="label `experiment`; likewise")
    parser.add_argument("--labels", default="", metavar="A=B,...", help="further labels of every series")
    parser.add_argument(
        "--start",
        type=_time,
        metavar="TIME",
        help="when the run began: ISO 8601 (UTC unless it says so), or Unix seconds",
    )


def run(namespace: argparse.Namespace) -> int:
    """Raises ValueError, OSError for files and endpoints that cannot be used."""
    hints = Hints(namespace.project, namespace.experiment, parse.labels(namespace.labels), namespace.start)
    paths = files(namespace.files)
    bar = ProgressBar(sum(path.stat().st_size for path in paths))
    if namespace.push:
        return _push(namespace.push, _moments(paths, hints, bar), bar)
    columns = OpenMetricsColumns()
    for moment, selection in _moments(paths, hints, bar):
        columns.add(moment, selection)
    bar.end()
    if namespace.output is None:
        columns.write(sys.stdout)
        return 0
    with namespace.output.open("w", encoding="utf-8") as stream:
        columns.write(stream)
    _note(
        f"{columns.samples} samples. Now: promtool tsdb create-blocks-from --max-block-duration=24h openmetrics "
        f"{namespace.output} DATA, where DATA is Prometheus's --storage.tsdb.path"
    )
    return 0


def _moments(paths: list[Path], hints: Hints, bar: ProgressBar) -> Iterator[tuple[Moment, Selection]]:
    readers = [(path, reader_of(path)) for path in paths]  # all are known before the first is read
    for path, read in readers:
        replay, selection = Replay(FILL_MS), Selection(FILL_MS)
        for entry in read(path, hints, bar.note, bar.show):
            for moment in replay.feed(entry):
                yield moment, selection
        for moment in replay.finish():
            yield moment, selection
        bar.done(path.stat().st_size)


def _push(url: str, moments: Iterator[tuple[Moment, Selection]], bar: ProgressBar) -> int:
    section = {"trainer": {"prometheus": {"remote_write": {"url": url}}}}
    delivery = Delivery(RemoteWriteClient(Settings.load(section).remote_write), ErrorLog())

    def deliver(frames: list[Frame]) -> None:
        delivery.stop(PATIENCE_SECONDS)
        if not delivery.deliver(frames):
            raise OSError(f"{url} was not available for {PATIENCE_SECONDS:g} seconds; the rest is not pushed")

    frames: list[Frame] = []
    for moment, selection in moments:
        frames.append(frame(selection, moment))
        if sum(map(len, frames)) >= BATCH_SAMPLES:
            deliver(frames)
            frames = []
    deliver(frames)
    bar.end()
    _note(f"{delivery.samples['delivered']} samples delivered, {delivery.samples['rejected']} rejected")
    if delivery.samples["rejected"]:
        _note(
            "Prometheus takes only samples from the last hour, and none that are older than what it has of a series, unless "
            "storage.tsdb.out_of_order_time_window is set; for older ones use promtool."
        )
    return int(delivery.samples["rejected"] > 0)


class ProgressBar:
    """A line on a terminal's standard error; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = max(total, 1)
        self._before = 0
        self._shown_at = 0.0
        self._visible = sys.stderr.isatty()

    def show(self, read: int) -> None:
        """`read`: bytes of the present file."""
        now = time.monotonic()
        if self._visible and now - self._shown_at > 0.1:
            self._shown_at = now
            part = min((self._before + read) / self._total, 1.0)
            print(f"\r[{'#' * round(40 * part):<40}] {part:4.0%}", end="", file=sys.stderr, flush=True)

    def done(self, size: int) -> None:
        """A file of that many bytes has been read."""
        self._before += size

    def note(self, text: str) -> None:
        self.end()
        _note(text)

    def end(self) -> None:
        if self._visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _note(text: str) -> None:
    print(f"verl-prometheus backfill: {text}", file=sys.stderr)


def _time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)).timestamp()

"""`verl-prometheus replay`: which alerts a logged run would have raised, or the run itself once more."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from verl_prometheus import rule_evaluation, run_log
from verl_prometheus.gpu.recorded import Sample, read_samples
from verl_prometheus.rule_evaluation import Recording
from verl_prometheus.run_log import ENDS, Ending, LoggedRun
from verl_prometheus.settings import Settings
from verl_prometheus.virtual_gpus import VirtualGpus
from verl_prometheus.virtual_scrapes import VirtualRun

HELP = "Show which alerts a logged run raises, with the project's rules and Prometheus' own engine; or serve it again."
SHIPPED_RULES = Path(__file__).parents[2] / "prometheus" / "rules"
SCRAPE_SECONDS = 15  # as the shipped prometheus.yml
LONGEST_INTERVAL = 240  # Prometheus looks back 5 minutes for a sample
EVALUATIONS = 4000
TAIL_SECONDS = 600.0  # after the end: rules about it wait and hold


Gpus = int | Mapping[str, list[Sample]]


class Alert(NamedTuple):
    """An alert of a run, from step to step; a step is None before the first."""

    alert: str
    first_step: int | None
    last_step: int | None
    severity: str


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = run_log.__doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.jsonl", help="log of a run, may be gzipped")
    parser.add_argument("--json", action="store_true", help="print a list of {alert, first_step, last_step, severity}")
    parser.add_argument("--config", type=Path, help="verl's config as YAML, as Hydra keeps it in .hydra/config.yaml")
    parser.add_argument(
        "--end", type=_ending, help=f"how the run ended, in place of what the log says: {', '.join(ENDS)} or hung:PHASE"
    )
    parser.add_argument(
        "--step-seconds", type=float, default=10.0, help="of a step that logs neither time nor durations (%(default)s)"
    )
    parser.add_argument(
        "--gpus", default="0", metavar="FILE|COUNT", help="samples of GPUs, JSON lines; or how many to simulate"
    )
    parser.add_argument("--rules", type=Path, default=SHIPPED_RULES, help="folder of rule files (the project's)")
    parser.add_argument("--promtool", type=Path, help="default: in $PROMETHEUS_BIN or $PATH")
    parser.add_argument(
        "--realtime", type=float, metavar="SPEED", help="serve the run instead, so many times as fast as it was"
    )
    parser.add_argument("--port", type=int, default=9400, help="with --realtime (%(default)s)")
    parser.add_argument("--targets-dir", default="", help="with --realtime: folder for the discovery file")


def run(namespace: argparse.Namespace) -> int:
    """Replay. Raises ValueError or OSError with the reason if there is nothing to replay, or no promtool."""
    config: Mapping[str, Any] = yaml.safe_load(namespace.config.read_text()) if namespace.config else {}
    runs = [run_log.read(path, config, namespace.end, namespace.step_seconds) for path in namespace.runs]
    simulated = namespace.gpus.isdigit()
    gpus: Gpus = int(namespace.gpus) if simulated else read_samples(Path(namespace.gpus))
    if namespace.realtime is not None:
        return _serve(runs, namespace, gpus)
    rules, promtool = rule_files(namespace.rules), find_promtool(namespace.promtool)
    alerts = {run.experiment: evaluate(run, rules, promtool, gpus) for run in runs}
    if namespace.json:
        print(
            json.dumps([row for name, found in alerts.items() for row in _rows(name, found, len(runs) > 1)], indent=1)
        )
    else:
        print("\n\n".join(_table(run, alerts[run.experiment]) for run in runs))
    return 0


def _serve(runs: Sequence[LoggedRun], namespace: argparse.Namespace, gpus: Gpus) -> int:
    from verl_prometheus.live_replay import serve

    if len(runs) > 1:
        raise ValueError("--realtime serves one run: start a process for each")
    if not 0 < namespace.realtime < math.inf:
        raise ValueError(f"--realtime {namespace.realtime} must be more than 0")
    watched = (
        {"enabled": "true" if gpus else "false", "backend": "simulated"}
        if isinstance(gpus, int)
        else {"enabled": "false"}
    )
    ours = {"port": namespace.port, "targets_dir": namespace.targets_dir, "gpu": watched, "cluster": "off"}
    settings = Settings.load({"trainer": {"prometheus": ours}}, os.environ)
    return serve(runs[0], namespace.realtime, settings, {} if isinstance(gpus, int) else gpus)


def evaluate(run: LoggedRun, rules: Sequence[Path], promtool: Path, gpus: Gpus = 0) -> list[Alert]:
    """The alerts of a run, the earliest first. `gpus`: see `VirtualGpus`."""
    text = "\n".join(path.read_text("utf-8") for path in rules)
    names = frozenset(re.findall(r"\b(?:verl_\w+|up)\b", text))
    virtual = VirtualRun(run, names)
    agents = VirtualGpus(gpus, virtual)
    duration = virtual.end + _tail(run)
    recording = Recording(interval(duration))
    while recording.now <= duration:
        now = recording.now
        recording.add({**virtual.scrape(now), **agents.scrape(now)})
    return [
        Alert(one.alert, run.step_at(one.first - virtual.shift), run.step_at(one.last - virtual.shift), one.severity)
        for one in rule_evaluation.firing(promtool, rules, recording)
    ]


def rule_files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.yml"))
    if not found:
        raise ValueError(f"no rule files (*.yml) in {folder}: name the folder with --rules")
    return found


def find_promtool(named: Path | None) -> Path:
    if named is not None:
        return named
    folders = os.environ.get("PROMETHEUS_BIN", "").split(os.pathsep)
    found = shutil.which("promtool", path=os.pathsep.join([*filter(None, folders), os.environ.get("PATH", "")]))
    if found is None:
        raise ValueError(
            "promtool, which comes with Prometheus, is not in $PATH: install it, or name it with --promtool"
        )
    return Path(found)


def _tail(run: LoggedRun) -> float:
    """Seconds to go on after the end: as long as rules may take to be sure. Before the first step that is 4 hours."""
    if run.ending.how != "hung":
        return TAIL_SECONDS
    durations = run.step_durations
    return max(4200.0, 11 * statistics.median(durations)) if durations else 15000.0


def interval(duration: float) -> int:
    """Seconds between scrapes, and between evaluations: as shipped, or longer for runs of more than 16 hours."""
    steps = math.ceil(duration / EVALUATIONS / SCRAPE_SECONDS)
    return min(max(steps, 1) * SCRAPE_SECONDS, LONGEST_INTERVAL)


def _rows(name: str, alerts: Sequence[Alert], several: bool) -> Iterator[dict[str, Any]]:
    for alert in alerts:
        yield {**alert._asdict(), **({"run": name} if several else {})}


def _table(run: LoggedRun, alerts: Sequence[Alert]) -> str:
    title = f"{run.experiment}: {run.ending.how} at step {run.step_at(math.inf)}"
    if not alerts:
        return f"{title}\nno alert"
    lines = [f"{'alert':<34}{'severity':<10}{'first step':>10}{'last step':>11}"]
    for one in alerts:
        first, last = ("-" if step is None else str(step) for step in (one.first_step, one.last_step))
        lines.append(f"{one.alert:<34}{one.severity:<10}{first:>10}{last:>11}")
    return "\n".join([title, *lines])


def _ending(text: str) -> Ending:
    how, _, phase = text.partition(":")
    if how not in ENDS or (phase and how != "hung"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(ENDS)}, hung:PHASE")
    return Ending(how, phase)

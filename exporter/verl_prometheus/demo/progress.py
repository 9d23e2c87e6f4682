"""What a run's exporter says of the training, read over HTTP as Prometheus would."""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_SECONDS = 2.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy knows this machine's own ports


@dataclass(frozen=True)
class Progress:
    """One scrape. `phases`: the active ones, the outermost first, and for how long, in seconds. None: not exported."""

    step: int | None = None
    target: int | None = None
    reward: float | None = None
    kl: float | None = None
    entropy: float | None = None
    step_seconds: float | None = None
    phases: dict[str, float] = field(default_factory=dict)


def announced(targets: Path, experiment: str) -> Iterator[tuple[Path, str]]:
    """The discovery files in `targets` that belong to `experiment`, each with the URL of its exporter."""
    for path in targets.glob("*.json"):
        try:
            group, *_ = json.loads(path.read_text())  # the run's own; its GPU agents follow
        except FileNotFoundError:  # another run has just ended
            continue
        if group["labels"]["__meta_verl_experiment"] == experiment:
            yield path, f"http://{group['targets'][0]}"


def read(url: str) -> Progress:
    """Scrape the exporter at `url`. Raises OSError if it does not answer."""
    try:
        with DIRECT.open(f"{url}/metrics", timeout=TIMEOUT_SECONDS) as response:
            text = response.read().decode()
    except http.client.HTTPException as error:  # it ended in mid-sentence
        raise ConnectionError(f"{url}: {error!r}") from error
    return parse(text, time.time())


def parse(text: str, now: float) -> Progress:
    """Progress from an exposition, scraped at `now` (Unix seconds)."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(name: str, **labels: str) -> float | None:
        found = (s.value for s in samples if s.name == name and labels.items() <= s.labels.items())
        return next(found, None)

    step, target = value("verl_step"), value("verl_step_target")
    starts = {s.labels["phase"]: s.value for s in samples if s.name == "verl_phase_start_timestamp_seconds"}
    return Progress(
        step=None if step is None else int(step),
        target=None if target is None else int(target),
        reward=value("verl_critic_rewards", stat="mean"),
        kl=value("verl_actor_kl_loss"),
        entropy=value("verl_actor_entropy"),
        step_seconds=value("verl_timing_seconds", phase="step"),
        phases={phase: max(0.0, now - start) for phase, start in sorted(starts.items(), key=lambda item: item[1])},
    )

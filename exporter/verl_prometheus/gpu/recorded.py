"""GPUs as somebody recorded them: JSON lines, each a look at one node.

`{"time": seconds, "node": "n1", "gpus": [{"index": "0", "utilization_ratio": 0.9, ...}]}`, with the fields of `GpuReading`
but for processes; `node` may be missing.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verl_prometheus.gpu.reading import GpuReading, NodeReading

NODE = "recorded"


class Sample(NamedTuple):
    """`time` in seconds, from any origin."""

    time: float
    reading: NodeReading


class RecordedGpus:
    """A `GpuReader` that reads the last sample that `clock()` has passed. `samples` are in order of time."""

    def __init__(self, samples: Sequence[Sample], clock: Callable[[], float]) -> None:
        self._samples = samples
        self._clock = clock

    def read(self) -> NodeReading:
        number = bisect_right([sample.time for sample in self._samples], self._clock())
        return self._samples[max(number - 1, 0)].reading

    def classify(self, pids: Iterable[int]) -> dict[int, str]:
        """No processes are recorded."""
        return {}

    def close(self) -> None:
        """Nothing to close."""


def read_samples(path: Path) -> dict[str, list[Sample]]:
    """The samples of each node. Raises OSError, or ValueError naming the line that is none."""
    nodes: dict[str, list[Sample]] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            content = json.loads(line)
            gpus = tuple(map(_gpu, content["gpus"]))
            sample = Sample(float(content["time"]), NodeReading(driver="recorded", gpus=gpus))
            nodes.setdefault(str(content.get("node", NODE)), []).append(sample)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: no samples of GPUs: {type(error).__name__}: {error}") from error
    return {node: sorted(samples, key=lambda sample: sample.time) for node, samples in nodes.items()}


def _gpu(fields: Mapping[str, Any]) -> GpuReading:
    reasons = fields.get("throttle_reasons")
    return GpuReading(
        **{
            **fields,
            "index": str(fields["index"]),
            "throttle_reasons": None if reasons is None else frozenset(reasons),
        }
    )

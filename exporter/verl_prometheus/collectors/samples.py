"""Rewards and lengths of single samples, over all steps so far."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from verl_prometheus.collectors.families import histogram
from verl_prometheus.run import StepSnapshot
from verl_prometheus.samples import RESPONSE_LENGTH, REWARD

FAMILIES = {REWARD: "verl_reward_distribution", RESPONSE_LENGTH: "verl_response_length_distribution_tokens"}


class SampleCollector:
    """Distributions over samples, as far as the trainer shows them."""

    def collect(self, snapshot: StepSnapshot) -> Iterable[Metric]:
        for quantity, family in FAMILIES.items():
            if quantity in snapshot.samples:
                yield histogram(family, snapshot.samples[quantity])

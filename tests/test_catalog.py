import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.fixtures import RUNS, calls
from verl_prometheus import catalog
from verl_prometheus.catalog_command import markdown

SHIPPED = catalog.load()
DOCS = Path(__file__).parent.parent / "docs"
VERL_KEYS = (Path(__file__).parent / "verl_keys.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("key", "family", "labels", "scale"),
    [
        ("critic/rewards/mean", "verl_critic_rewards", {"stat": "mean"}, 1),
        ("actor/kl_loss", "verl_actor_kl_loss", {}, 1),
        ("response_length/max", "verl_response_length_tokens", {"stat": "max"}, 1),
        ("perf/mfu/actor", "verl_mfu_ratio", {"role": "actor"}, 1),
        ("perf/throughput", "verl_throughput_tokens_per_second_per_gpu", {}, 1),
        ("perf/max_memory_allocated_gb", "verl_torch_memory_allocated_peak_bytes", {}, 2**30),
        ("critic/perf/max_memory_allocated_gb", "verl_torch_memory_allocated_peak_bytes", {"role": "critic"}, 2**30),
        ("timing_s/gen", "verl_timing_seconds", {"phase": "gen"}, 1),
        ("timing_s/timing_s/param_sync", "verl_timing_seconds", {"phase": "param_sync"}, 1),
        ("timing_per_token_ms/gen", "verl_timing_per_token_seconds", {"phase": "gen"}, 1e-3),
        (
            "val-core/openai/gsm8k/acc/mean@8",
            "verl_validation",
            {"tier": "core", "data_source": "openai/gsm8k", "variable": "acc", "stat": "mean", "n": "8"},
            1,
        ),
        (
            "val-aux/math/acc/best@4/std",
            "verl_validation",
            {"tier": "aux", "data_source": "math", "variable": "acc", "stat": "best_std", "n": "4"},
            1,
        ),
        ("my/own metric", "verl_my_own_metric", {}, 1),
        ("", "verl_unnamed", {}, 1),
        ("step", "verl_step_value", {}, 1),
        ("tokens", "verl_tokens_value", {}, 1),
        ("my_count", "verl_my_count_value", {}, 1),
    ],
)
def test_where_a_key_goes(key: str, family: str, labels: dict[str, str], scale: float) -> None:
    series = SHIPPED.series(key)
    assert (series.family, dict(series.labels), series.scale) == (family, {**labels, "key": key}, scale)


@pytest.mark.parametrize("rule", SHIPPED.rules, ids=lambda rule: rule.source)
def test_a_rule_claims_its_own_examples(rule: catalog.Rule) -> None:
    for key in rule.example or (rule.source,):
        assert SHIPPED.series(key).rule == rule.source


@pytest.mark.parametrize("key", VERL_KEYS)
def test_no_key_that_verl_logs_falls_through(key: str) -> None:
    series = SHIPPED.series(key)
    assert series.rule, f"{key} has no rule"
    assert series.help


@pytest.mark.parametrize("run", RUNS)
def test_no_key_of_a_real_run_falls_through(run: str) -> None:
    keys = {key for _, data in calls(run) for key in data}
    assert [key for key in keys if not SHIPPED.series(key).rule] == []


@given(st.lists(st.text(st.characters()), unique=True, max_size=20))
def test_no_two_keys_become_one_series(keys: list[str]) -> None:
    series = [SHIPPED.series(catalog.printable(key)) for key in keys]
    assert len({(one.family, one.labels) for one in series}) == len(keys)
    for one in series:
        assert re.fullmatch(r"verl_[a-zA-Z0-9_]+", one.family)
        assert one.family not in SHIPPED.families
        assert not one.family.endswith(catalog.RESERVED_SUFFIXES)
        dict(one.labels)["key"].encode()


def test_validation_is_kept_and_training_is_not() -> None:
    kept = {key for key in VERL_KEYS if SHIPPED.series(key).retained}
    assert kept == {key for key in VERL_KEYS if key.startswith(("val-core/", "val-aux/", "val/"))}


def test_the_docs_are_current() -> None:
    assert (DOCS / "metrics.md").read_text() == markdown(SHIPPED), "run `make docs`"

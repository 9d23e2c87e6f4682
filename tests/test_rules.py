"""The shipped configuration and rules: valid on every Prometheus there is, complete, unit-tested, documented."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from verl_prometheus.signals import definitions

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "prometheus"
RULE_FILES = sorted(CONFIG.glob("rules/*.yml"))
TEST_FILES = sorted(CONFIG.glob("tests/*.yml"))
RUNBOOKS = (ROOT / "docs" / "alerts.md").read_text("utf-8")
RULES: list[dict[str, Any]] = [
    rule for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
NAMES = sorted({rule["alert"] for rule in ALERTS})
CONTRACT = {
    "VerlRunStalled", "VerlRunFailed", "VerlRunVanished", "VerlNonFiniteValue", "VerlCheckpointOverdue",
    "VerlSignalMissing", "VerlExporterDegraded", "VerlKLCollapse", "VerlKLExplosion", "VerlUpdateKLHigh",
    "VerlPolicyNotUpdating", "VerlEntropyCollapse", "VerlEntropyExplosion", "VerlRewardCollapse", "VerlRewardHacking",
    "VerlNoLearningSignal", "VerlGradNormSpike", "VerlClipFractionHigh", "VerlResponseLengthSaturated",
    "VerlRolloutMismatch", "VerlImportanceWeightsDegenerate", "VerlStaleRollouts", "VerlValueFunctionUseless",
    "VerlAbortedRollouts", "VerlThroughputRegression", "VerlRolloutLatencyHigh", "VerlGpuUtilizationLow",
    "VerlGpuMemoryNearFull", "VerlGpuXid", "VerlGpuEcc", "VerlGpuThrottled", "VerlGpuStraggler",
    "VerlGpuMetricsMissing",
}  # fmt: skip


def run(program: Path, *arguments: str | Path) -> str:
    """Output of a program that must succeed."""
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


# --- the files --------------------------------------------------------------------------------------------------------


def test_prometheus_accepts_the_configuration(prometheus_bin: Path) -> None:
    configurations = [CONFIG / "prometheus.yml", *CONFIG.glob("examples/*.yml")]
    run(prometheus_bin / "promtool", "check", "config", *configurations)
    run(prometheus_bin / "promtool", "check", "rules", *RULE_FILES)


def test_alertmanager_accepts_the_configuration(prometheus_bin: Path) -> None:
    run(prometheus_bin / "amtool", "check-config", CONFIG / "alertmanager.yml")


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ({"alertname": "VerlRunStalled", "severity": "page"}, "webhook,pager"),
        ({"alertname": "VerlStaleRollouts", "severity": "warn"}, "webhook,chat"),
        ({"alertname": "VerlSignalMissing", "severity": "info"}, "webhook,mail"),
        ({"alertname": "SomebodyElses", "severity": "warn"}, "chat"),
    ],
)
def test_alerts_are_routed_by_severity(prometheus_bin: Path, labels: dict[str, str], receivers: str) -> None:
    matchers = [f"{name}={value}" for name, value in labels.items()]
    config = f"--config.file={CONFIG / 'alertmanager.yml'}"
    assert run(prometheus_bin / "amtool", "config", "routes", "test", config, *matchers).strip() == receivers


def test_no_secret_is_in_the_alertmanager_configuration() -> None:
    text = (CONFIG / "alertmanager.yml").read_text()
    secrets = "slack_api_url|api_url|routing_key|service_key|smtp_auth_password|auth_password|credentials|password"
    assert not re.search(rf"(?m)^\s*-?\s*({secrets}):", text)


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.stem)
def test_unit_tests_pass(prometheus_bin: Path, path: Path) -> None:
    run(prometheus_bin / "promtool", "test", "rules", path)


# --- every alert is complete ------------------------------------------------------------------------------------------


def expected(path: Path) -> Iterator[tuple[dict[str, Any], str, set[str]]]:
    """(test, time, names of the alerts that must fire then) of every check of a unit test file."""
    for test in yaml.safe_load(path.read_text())["tests"]:
        for check in test["promql_expr_test"]:
            labels = "".join(sample["labels"] for sample in check["exp_samples"])
            yield test, check["eval_time"], set(re.findall(r'alertname="(\w+)"', labels))


def test_the_alerts_are_those_of_the_contract() -> None:
    assert set(NAMES) == CONTRACT


def test_recording_rules_are_named_level_metric_operations() -> None:
    records = {rule["record"] for rule in RULES if "record" in rule}
    assert all(re.fullmatch(r"\w+:\w+:\w+", name) for name in records), records


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_is_tested_firing_and_silent(name: str) -> None:
    cases = [(test, names) for path in TEST_FILES for test, _, names in expected(path) if name in test["name"]]
    assert any(name in names for _, names in cases)
    silent = [test for test, names in cases if name not in names]
    sound = [test for test, _ in cases if any('experiment="sound"' in one["series"] for one in test["input_series"])]
    assert silent or sound


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_runbook(name: str) -> None:
    for rule in (rule for rule in ALERTS if rule["alert"] == name):
        assert rule["annotations"]["runbook_url"].endswith(f"docs/alerts.md#{name.lower()}")
    section = re.search(rf"(?ms)^### {name}\n(.+?)(?=^##|\Z)", RUNBOOKS)
    assert section, f"docs/alerts.md has no section {name}"
    for part in ("**Means.**", "**False alarm?**", "**Look at.**", "**Change.**"):
        assert part in section[1], f"{name}: {part}"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "warn", "info")
    assert len(rule["annotations"]["description"]) > 60
    assert "{{" not in rule["annotations"]["description"]


def test_every_signal_in_the_rules_is_defined_and_every_limit_used() -> None:
    text = "\n".join(path.read_text() for path in RULE_FILES)
    used = {name for names in re.findall(r'signal(?:=|=~|!~)"([\w|]+)"', text) for name in names.split("|")}
    used |= set(re.findall(r'"signal", "(\w+)"', text))
    assert used <= set(definitions())
    limits = {rule["labels"]["alert"]: rule["expr"] for rule in RULES if rule.get("record", "").endswith(":limit")}
    others = [rule["expr"] for rule in RULES if rule["expr"] not in limits.values()]
    for name, formula in limits.items():
        assert f'verl_alert_threshold{{alert="{name}"}}' in formula, f"a run can't set its own limit of {name}"
        assert any(f':limit{{alert="{name}"}}' in expression for expression in others), name
        assert f"| `{name}` |" in RUNBOOKS, f"docs/alerts.md lists no limit of {name}"


def summaries(promtool: Path, path: Path, folder: Path) -> dict[str, list[str]]:
    """Texts of the alerts that fire in a unit test file: promtool prints them when it is told to expect none."""
    document = yaml.safe_load(path.read_text())
    document["rule_files"] = [str(rules) for rules in RULE_FILES]
    firing = {id(test): (time, names) for test, time, names in expected(path) if names}
    for test, (time, names) in zip(document["tests"], firing.values(), strict=True):
        del test["promql_expr_test"]
        test["alert_rule_test"] = [
            {"alertname": name, "eval_time": time, "exp_alerts": []} for name in names if name in test["name"]
        ]
    file = folder / path.name
    file.write_text(yaml.safe_dump(document))
    output = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    found = re.findall(r'alertname="(\w+)".*?\n.*?summary="((?:[^"\\]|\\.)*)"', output.stdout + output.stderr)
    return {name: [text for other, text in found if other == name] for name, _ in found}


def test_summaries_name_run_step_phase_value_and_limit(newest_prometheus_bin: Path, tmp_path: Path) -> None:
    texts: dict[str, list[str]] = {}
    for path in TEST_FILES:
        texts.update(summaries(newest_prometheus_bin / "promtool", path, tmp_path))
    assert sorted(texts) == NAMES
    limited = {rule["labels"]["alert"] for rule in RULES if rule.get("record", "").endswith(":limit")}
    for name, all_texts in texts.items():
        for text in all_texts:
            assert "error" not in text.replace("without an error", "").replace("errors", ""), text
            assert re.match(r"math/\w+(, step \d+)?(, (last )?phase \w+)?: ", text) or text.startswith("GPU 0 of n9"), (
                text
            )
            if name in limited:
                assert re.search(r"\d.*\blimit -?\d", text), text

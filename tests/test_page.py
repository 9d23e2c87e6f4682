from verl_prometheus import page
from verl_prometheus.phases import Phases
from verl_prometheus.run import RunIdentity, StepSnapshot

EVIL = "<script>alert('x')</script>&\""


def test_what_the_page_tells() -> None:
    identity = RunIdentity("math", "grpo-7b", "abc123", started=0.0, step_target=200, facts={"trainer": "PPOTrainer"})
    snapshot = StepSnapshot(state="running", step=42, time=90.0, step_seconds=12.3456)
    text = page.render(identity, snapshot, Phases({"step": 80.0, "gen": 85.0}, ("step", "gen")), now=100.0)
    for expected in (
        "math / grpo-7b",
        "running",
        "42 of 200",
        "step (20 s) › gen (15 s)",
        "10 s ago",
        "12.35 s",
        "abc123",
    ):
        assert expected in text
    assert 'value="42" max="200"' in text
    assert 'href="/metrics"' in text


def test_before_the_first_step() -> None:
    text = page.render(RunIdentity("p", "e", "r", started=0.0), StepSnapshot(), Phases({}, ()), now=1.0)
    assert "starting" in text
    assert "none yet" in text
    assert "<progress" not in text


def test_everything_is_escaped() -> None:
    identity = RunIdentity(EVIL, EVIL, EVIL, started=0.0, facts={"trainer": EVIL, "model": EVIL, "node": EVIL})
    text = page.render(identity, StepSnapshot(), Phases({EVIL: 0.0}, (EVIL,)), now=1.0)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 9

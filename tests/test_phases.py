import threading

from verl_prometheus.phases import PhaseTracker


def test_nested_phases_are_active_together() -> None:
    tracker = PhaseTracker(clock=iter([10.0, 20.0, 30.0]).__next__)
    tracker.enter("step")
    tracker.enter("gen")
    assert tracker.read().active == {"step": 10.0, "gen": 20.0}
    tracker.leave("gen")
    tracker.enter("update_actor")
    assert tracker.read().active == {"step": 10.0, "update_actor": 30.0}
    tracker.leave("update_actor")
    tracker.leave("step")
    assert tracker.read() == ({}, ("step", "gen", "update_actor"))


def test_a_phase_inside_itself_is_one_phase() -> None:
    tracker = PhaseTracker(clock=iter([10.0, 20.0]).__next__)
    tracker.enter("gen")
    tracker.enter("gen")
    tracker.leave("gen")
    assert tracker.read().active == {"gen": 10.0}
    tracker.leave("gen")
    assert tracker.read().active == {}


def test_leaving_what_never_began_changes_nothing() -> None:
    tracker = PhaseTracker()
    tracker.leave("gen")
    assert tracker.read() == ({}, ())


def test_phases_of_several_threads() -> None:
    tracker = PhaseTracker()

    def work(name: str) -> None:
        for _ in range(2000):
            tracker.enter(name)
            tracker.enter("shared")
            tracker.leave("shared")
            tracker.leave(name)

    threads = [threading.Thread(target=work, args=(f"phase{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tracker.read().active == {}

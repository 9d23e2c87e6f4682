"""Push: every step arrives, whatever happens to the receiver."""

from __future__ import annotations

import math
import random
import signal
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.fixtures import calls
from helpers.prometheus import Prometheus
from helpers.receiver import OK, Answer, Receiver, Request
from helpers.scrape import Scrape
from helpers.victoria import VictoriaMetrics
from helpers.waiting import wait_for
from verl_prometheus import catalog, delivery, push, remote_write
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.errors import ErrorLog
from verl_prometheus.gpu.agent import AgentConfig, GpuAgent
from verl_prometheus.settings import RemoteWriteSettings, SettingsError

Build = Callable[..., PrometheusBackend]
RECEIVER = ("--web.enable-remote-write-receiver",)
STALE_BITS = 0x7FF0000000000002


def bits(value: float) -> int:
    number: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return number


def values_of(step: int) -> dict[str, float]:
    """What the run below logs at a step: the keys of a real one."""
    source = random.Random(step)
    return {key: source.uniform(-1e3, 1e3) for key in calls("grpo_v1")[1][1]} | {"timing_s/step": 0.01}


def checkpoint(folder: Path) -> dict[str, Any]:
    """A config whose run will be resumed by the next attempt."""
    folder.mkdir(exist_ok=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("1")
    return {"trainer": {"default_local_dir": str(folder), "resume_mode": "auto"}}


TRAINER = """
import os, sys, time
sys.path[:0] = {path!r}
from test_remote_write import checkpoint, values_of
from pathlib import Path
from verl_prometheus.backend import PrometheusBackend
from verl_prometheus.settings import RemoteWriteSettings, Settings
settings = Settings(port=0, address="127.0.0.1", targets_dir="", remote_write=RemoteWriteSettings(url={url!r}))
backend = PrometheusBackend("project", "experiment", settings, checkpoint(Path({folder!r})))
data = [values_of(step) for step in range(1, {steps} + 1)]
began = time.monotonic()
for step, values in enumerate(data, 1):
    backend.log(values, step)
    print(step, flush=True)
    time.sleep(max(began + step / 100 - time.monotonic(), 0))
time.sleep(0.5)  # a call is on disk within milliseconds, on a busy machine within more of them
os.kill(os.getpid(), 9)
"""


def test_every_step_arrives_though_prometheus_was_down_and_the_trainer_killed(
    backend: Build, prometheus_bin: Path, tmp_path: Path
) -> None:
    """2,000 steps at 100 a second; Prometheus is down for the last third; the trainer is killed after its last step."""
    steps = 2000
    server = Prometheus(prometheus_bin, tmp_path / "prometheus", {}, flags=RECEIVER)
    url = f"{server.url}/api/v1/write"
    code = TRAINER.format(path=[str(Path(__file__).parent)], url=url, folder=str(tmp_path / "run"), steps=steps)
    with server, subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        for line in trainer.stdout:
            if line.strip() == str(steps * 2 // 3):
                break
        server.stop()
        trainer.stdout.read()
        assert trainer.wait() == -signal.SIGKILL
    with server:
        assert len(steps_held(server)) < steps
        following = backend(checkpoint(tmp_path / "run"), remote_write=RemoteWriteSettings(url=url), linger_seconds=60)
        wait_for(lambda: len(steps_held(server)) == steps, "the next attempt to deliver the rest")
        assert steps_held(server) == list(range(1, steps + 1))
        shipped = catalog.load()
        expected = [values_of(step) for step in range(1, steps + 1)]
        for key in expected[0]:
            series = shipped.series(key)
            ((labels, samples),) = server.samples(f'{series.family}{{key="{key}"}}')
            assert [value for _, value in samples] == [values[key] * series.scale for values in expected], key
            times = [at for at, _ in samples]
            assert times == sorted(set(times))
            assert (labels["project"], labels["experiment"], labels["job"]) == ("project", "experiment", "verl")
        attempts = {labels["attempt"]: samples for labels, samples in server.samples("verl_run_info")}
        assert attempts.keys() == {"1", "2"}
        assert [labels["attempt"] for labels, _ in server.query("verl_run_info")] == ["2"], "the old one is stale"
        following.finish(0)
        assert server.query('verl_run_state{state="finished"}')[0][1] == 1


def steps_held(server: Prometheus) -> list[float]:
    return [value for _, samples in server.samples("verl_step") for _, value in samples]


def test_victoria_metrics_gets_every_step(backend: Build, tmp_path: Path) -> None:
    with VictoriaMetrics(tmp_path / "victoria") as server:
        settings = RemoteWriteSettings(url=f"{server.url}/api/v1/write")
        one = backend(journal="", remote_write=settings, linger_seconds=30)
        for step in range(1, 301):
            one.log(values_of(step), step)
        one.finish(0)
        ((_, steps),) = server.samples("verl_step")
        assert steps == list(range(1, 301))
        ((_, losses),) = server.samples("verl_actor_pg_loss")
        exact = [values_of(step)["actor/pg_loss"] for step in range(1, 301)]
        assert losses == pytest.approx(exact, rel=1e-11)  # VictoriaMetrics stores 12 digits or so


def pushed(backend: Build, receiver: Receiver, **settings: Any) -> PrometheusBackend:
    """A run of five steps, pushed to the end."""
    one = backend(
        remote_write=RemoteWriteSettings(url=receiver.url, **settings), labels={"Team": "rl"}, linger_seconds=20
    )
    for step in range(1, 6):
        one.log({"actor/pg_loss": float(step), "timing_s/gen": 1.0}, step)
    one.finish(0)
    return one


def test_what_is_pushed_is_what_a_scrape_shows(backend: Build) -> None:
    """The families of the step, of the process, and their labels, `job` besides."""
    with Receiver() as receiver:
        one = backend(remote_write=RemoteWriteSettings(url=receiver.url), linger_seconds=3)
        for step, data in calls("grpo_v1"):
            one.log(data, step)
        last = Scrape(one.url)
        one.finish(0)
        sent: dict[tuple[tuple[str, str], ...], float] = {}
        for request in receiver.accepted:
            sent.update({labels: samples[-1][1] for labels, samples in request.series.items()})
        for sample in last.samples:
            labels = {"__name__": sample.name, "job": "verl", **sample.labels}
            key = tuple(sorted((name, text) for name, text in labels.items() if text))
            assert key in sent, sample
            if not sample.name.startswith(("process_", "verl_exporter_", "verl_run_state")):
                assert sent[key] == sample.value or (math.isnan(sent[key]) and math.isnan(sample.value)), sample
        assert receiver.values("verl_run_state", state="finished")[-1] == 1


def test_labels_are_sorted_and_the_request_is_remote_write_1(backend: Build) -> None:
    with Receiver() as receiver:
        pushed(backend, receiver, headers={"X-Scope-OrgID": "rl"})
        for request in receiver.requests:
            assert request.headers["content-encoding"] == "snappy"
            assert request.headers["content-type"] == "application/x-protobuf"
            assert request.headers["x-prometheus-remote-write-version"] == "0.1.0"
            assert request.headers["x-scope-orgid"] == "rl"
            for labels in request.series:
                assert list(labels) == sorted(labels)
                assert ("Team", "rl") in labels


def test_a_key_that_is_gone_is_marked_stale(backend: Build) -> None:
    with Receiver() as receiver:
        one = backend(remote_write=RemoteWriteSettings(url=receiver.url), linger_seconds=20)
        one.log({"a": 1.0, "b": math.nan}, 1)
        one.log({"b": math.nan}, 2)
        one.finish(0)
        assert [bits(value) for value in receiver.values("verl_a")] == [bits(1.0), STALE_BITS]
        assert all(math.isnan(value) and bits(value) != STALE_BITS for value in receiver.values("verl_b"))


def test_steps_of_one_millisecond_and_of_a_clock_that_goes_back_stay_in_order(
    backend: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        one = backend(remote_write=RemoteWriteSettings(url=receiver.url), linger_seconds=20)
        now = time.time() + 5
        monkeypatch.setattr(one._run, "_clock", lambda: now)
        for step in range(1, 51):
            one.log({"a": float(step)}, step)
        monkeypatch.setattr(one._run, "_clock", lambda: now - 3600)
        one.log({"a": 51.0}, 51)
        one.finish(0)
        samples = receiver.samples("verl_a")
        assert [value for _, value in samples] == list(map(float, range(1, 52)))
        first = round(now * 1000)
        assert [at for at, _ in samples] == list(range(first, first + 51))


def test_a_long_step_stays_visible(backend: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "RESEND_SECONDS", 0.5)
    with Receiver() as receiver:
        one = backend(remote_write=RemoteWriteSettings(url=receiver.url), linger_seconds=20)
        one.log({"a": 1.0, "timing_s/gen": 1.0}, 1)
        wait_for(lambda: len(receiver.values("verl_a")) >= 3, "the step to be sent again")
        for name in ("verl_step", "verl_run_info", "verl_phase_duration_seconds_bucket", "process_open_fds"):
            times = [at for at, _ in receiver.samples(name)]
            assert max(times) - min(times) >= 500, name
        one.finish(0)


def answers(*first: Answer) -> Callable[[int, Request], Answer]:
    return lambda number, request: first[number] if number < len(first) else OK


def test_an_unavailable_receiver_is_tried_again_and_asked_when(
    backend: Build, caplog: pytest.LogCaptureFixture
) -> None:
    arrivals: list[float] = []

    def answer(number: int, request: Request) -> Answer:
        arrivals.append(time.monotonic())
        return (
            [(503, {"Retry-After": "1"}, "later"), (429, {}, "slow down"), (500, {}, "oh")][number]
            if number < 3
            else OK
        )

    with Receiver(answer) as receiver:
        one = pushed(backend, receiver)
        assert receiver.values("verl_actor_pg_loss") == [1.0, 2.0, 3.0, 4.0, 5.0]
        assert arrivals[1] - arrivals[0] >= 1.0
        sent = [sum(map(len, request.series.values())) for request in receiver.requests]
        assert one._keeper._delivery is not None
        assert one._keeper._delivery.samples == {"delivered": sum(sent[3:]), "retried": sum(sent[:3]), "rejected": 0}
        assert "remote_write" not in one._errors.counts(), "nothing is lost"
        assert [record.getMessage().split(":")[1] for record in caplog.records] == [
            " remote write is unavailable, samples are kept and sent later",
            " remote write works again",
        ]
        assert receiver.requests[0].series == receiver.requests[3].series


def test_one_old_sample_does_not_cost_the_rest(backend: Build) -> None:
    """As Prometheus does it: a request with a sample that is too old is refused whole."""

    def answer(number: int, request: Request) -> Answer:
        return (400, {}, "out of order sample") if 3.0 in dict(request.samples("verl_actor_pg_loss")).values() else OK

    with Receiver(answer) as receiver:
        one = pushed(backend, receiver)
        assert receiver.values("verl_actor_pg_loss") == [1.0, 2.0, 4.0, 5.0]
        (samples,) = [family.samples for family in one._keeper.collectors[0].collect()]
        outcomes = {sample.labels["outcome"] for sample in samples if sample.value > 0}
        assert outcomes == {"delivered", "rejected"}


@pytest.mark.parametrize("status", [301, 401, 404])
def test_a_refusal_is_counted_and_said_once(backend: Build, status: int, caplog: pytest.LogCaptureFixture) -> None:
    with Receiver(lambda number, request: (status, {"Location": "http://127.0.0.1:9/"}, "no")) as receiver:
        one = pushed(backend, receiver)
        assert receiver.accepted == []
        assert one._errors.counts()["remote_write"] == len(receiver.requests)
        assert caplog.text.count(f"HTTP {status}") == 1
        assert "verl-prometheus backfill" in caplog.text


def test_an_endpoint_that_is_not_there_holds_the_end_up_no_longer_than_agreed(backend: Build) -> None:
    one = backend(remote_write=RemoteWriteSettings(url="http://127.0.0.1:9/"), linger_seconds=1)
    one.log({"a": 1.0}, 1)
    ended = threading.Thread(target=one.finish)
    ended.start()
    ended.join(timeout=20)
    assert not ended.is_alive()


def test_secrets_are_read_when_they_are_needed(backend: Build, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    with Receiver() as receiver:
        one = backend(
            remote_write=RemoteWriteSettings(url=receiver.url, bearer_token_file=str(secret)), linger_seconds=20
        )
        wait_for(lambda: receiver.requests, "the start of the run")
        secret.write_text("second\n")
        one.log({"a": 1.0}, 1)
        one.finish(0)
        assert receiver.requests[0].headers["authorization"] == "Bearer first"
        assert receiver.requests[-1].headers["authorization"] == "Bearer second"


def test_basic_authentication(backend: Build, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open: sésame\n")
    with Receiver() as receiver:
        pushed(backend, receiver, username="me", password_file=str(tmp_path / "password"))
        assert receiver.requests[0].headers["authorization"] == "Basic bWU6b3Blbjogc8Opc2FtZQ=="


def test_tls(backend: Build, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=receiver", "-days", "1"]
    subprocess.run(
        [*command, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.load_verify_locations(cert)
    context.verify_mode = ssl.CERT_REQUIRED
    with Receiver() as receiver:
        receiver.server.socket = context.wrap_socket(receiver.server.socket, server_side=True)
        receiver.url = receiver.url.replace("http:", "https:")
        files = {"tls_cert_file": str(cert), "tls_key_file": str(key)}
        pushed(backend, receiver, tls_ca_file=str(cert), **files)
        assert receiver.values("verl_actor_pg_loss")[-1] == 5.0
        pushed(backend, receiver, tls_insecure_skip_verify=True, **files)
        assert receiver.values("verl_actor_pg_loss") == [1.0, 2.0, 3.0, 4.0, 5.0] * 2
    with pytest.raises(SettingsError, match="remote_write: the TLS files cannot be used"):
        backend(remote_write=RemoteWriteSettings(url="https://h/", tls_ca_file=__file__))


def test_without_the_libraries_the_error_says_how_to_get_them(backend: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SettingsError, match=r"pip install 'verl-prometheus\[remote-write\]'"):
        backend(remote_write=RemoteWriteSettings(url="http://h/"))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("2", 2.0),
        ("-2", 0.0),
        ("1e9", 300.0),
        ("nan", None),
        ("soon", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert remote_write._retry_after(header) == seconds


def test_the_spool_of_a_run_without_a_journal_goes_with_it(
    backend: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Receiver() as receiver:
        one = backend(journal="", remote_write=RemoteWriteSettings(url=receiver.url), linger_seconds=20)
        one.log({"a": 1.0}, 1)
        assert list(tmp_path.glob("verl-prometheus-*/journal.jsonl"))
        one.finish(0)
        assert receiver.values("verl_a") == [1.0]
        assert not list(tmp_path.glob("verl-prometheus-*"))


def test_backing_off_gets_longer_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Never:
        def send(self, samples: object) -> None:
            raise remote_write.Unavailable("no")

    def wait(self: delivery.Delivery, seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) < 12

    monkeypatch.setattr(delivery.Delivery, "_wait", wait)
    assert not delivery.Delivery(Never(), ErrorLog()).deliver([[]])  # type: ignore[arg-type]
    middle = [min(0.1 * 2**index, 5.0) for index in range(12)]
    assert all(0.5 * one <= pause <= 1.5 * one for one, pause in zip(middle, pauses, strict=True))
    assert len(set(pauses)) == 12, "jitter"


def test_gpu_agents_push_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "RESEND_SECONDS", 0.3)
    with Receiver() as receiver:
        config = AgentConfig(
            backend="simulated",
            address="127.0.0.1",
            interval=0.1,
            simulated=2,
            labels={"project": "p"},
            remote_write=RemoteWriteSettings(url=receiver.url),
        )
        agent = GpuAgent(config)
        try:
            wait_for(lambda: len(receiver.values("verl_gpu_memory_used_bytes", gpu="1")) > 2, "some samples")
            for name in ("verl_gpu_utilization_ratio", "process_open_fds"):
                labels = {"project": "p", "job": "verl", "instance": agent.target}
                assert receiver.values(name, **labels) == receiver.values(name) != []
        finally:
            agent.close()


def test_a_node_that_cannot_push_is_scraped_all_the_same() -> None:
    settings = RemoteWriteSettings(url="https://127.0.0.1:9/", tls_ca_file=__file__)
    agent = GpuAgent(AgentConfig(backend="simulated", address="127.0.0.1", remote_write=settings))
    try:
        scrape = Scrape(f"http://{agent.target}")
        assert scrape.value("verl_exporter_errors_total", component="remote_write") == 1
    finally:
        agent.close()

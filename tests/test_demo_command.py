"""`verl-prometheus demo`, with a trainer that only pretends; and once for real."""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from helpers.waiting import wait_for
from verl_prometheus import cli
from verl_prometheus.demo import command, progress, training
from verl_prometheus.demo.display import CLEAR_LINE, Display
from verl_prometheus.demo.process import TrainingProcess
from verl_prometheus.demo.progress import Progress

METRICS = """\
# TYPE verl_step gauge
verl_step{experiment="e"} 7.0
verl_step_target 20.0
verl_critic_rewards{key="critic/rewards/max",stat="max"} 1.0
verl_critic_rewards{key="critic/rewards/mean",stat="mean"} 0.25
verl_actor_kl_loss{key="actor/kl_loss"} 0.125
verl_actor_entropy{key="actor/entropy"} 1.5
verl_timing_seconds{key="timing_s/gen",phase="gen"} 0.5
verl_timing_seconds{key="timing_s/step",phase="step"} 2.0
verl_nonfinite_values_total{key="actor/entropy"} 3.0
verl_phase_start_timestamp_seconds{phase="gen"} 1002.0
verl_phase_start_timestamp_seconds{phase="step"} 1001.0
"""
STEP_7 = Progress(7, 20, 0.25, 0.125, 1.5, 2.0, {"step": 3.0, "gen": 2.0})

# Announces itself as the exporter does, does a step whenever it is scraped, and has two workers that heed no signal: one in
# a process group of its own, as Ray's are, and one in a session of its own, as torchrun's are (which ends them itself).
TRAINER = """
import http.server, json, os, pathlib, subprocess, sys
folder, experiment, steps, status = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
stubborn = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(600)"
workers = [subprocess.Popen([sys.executable, "-c", stubborn], preexec_fn=new) for new in (os.setpgrp, os.setsid)]
pathlib.Path(folder, "workers").write_text(" ".join(str(worker.pid) for worker in workers))
ray = pathlib.Path(os.environ["RAY_TMPDIR"], "ray")
(ray / f"session_today_{os.getpid()}").mkdir(parents=True)
(ray / "session_latest").symlink_to(f"session_today_{os.getpid()}")
step = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global step
        step += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"verl_step {step}\\nverl_step_target {steps}\\n".encode())
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
targets = pathlib.Path(folder, "targets")
targets.mkdir()
labels = {"__meta_verl_experiment": experiment}
file = targets / "node.json"
file.write_text(json.dumps([{"targets": [f"127.0.0.1:{server.server_port}"], "labels": labels}]))
while step < steps:
    server.handle_request()
workers[1].kill()
print("\\x1b[31mthe last words\\x1b[0m of the trainer", flush=True)
if status == 0:
    file.unlink()
sys.exit(status)
"""
PRETEND = f"""
import sys
from verl_prometheus import cli
from verl_prometheus.demo import command, training
def pretended(kind, folder, *, steps, logger, experiment, overrides):
    return [sys.executable, "-c", {TRAINER!r}, str(folder), experiment, str(steps), STATUS]
training.command, training.prepare, command.check_packages = pretended, lambda folder: folder.mkdir(parents=True), lambda: None
sys.exit(cli.main(["demo", "--steps", STEPS]))
"""


class Demo:
    """The command in a process of its own, with the pretended trainer."""

    def __init__(self, cache: Path, steps: int, status: int = 0) -> None:
        self.folder = cache / "verl-prometheus" / "demo"
        script = PRETEND.replace("STATUS", repr(str(status))).replace("STEPS", repr(str(steps)))
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "XDG_CACHE_HOME": str(cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def output(self) -> str:
        return self.process.communicate(timeout=60)[0]

    def workers(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "workers").read_text().split()]

    def ray_folder(self) -> Path:
        return Path(training.environment(self.folder)["RAY_TMPDIR"])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_run_is_shown_step_by_step_and_ends_well(cache: Path) -> None:
    demo = Demo(cache, steps=3)
    output = demo.output()
    assert demo.process.returncode == 0, output
    for part in (
        str(demo.folder),
        "http://127.0.0.1:",
        f"{demo.folder}/targets/*.json",
        "step 1/3",
        "step 2/3",
        "step 3/3",
    ):
        assert part in output
    assert "Trained 3 steps in" in output
    assert CLEAR_LINE not in output
    assert not any(map(alive, demo.workers()))
    assert not demo.ray_folder().exists()


def test_a_failed_run_shows_its_last_words_and_passes_its_status_on(cache: Path) -> None:
    demo = Demo(cache, steps=1, status=3)
    output = demo.output()
    assert demo.process.returncode == 3
    assert "\nthe last words of the trainer\n" in output
    (log,) = (demo.folder / "logs").iterdir()
    assert output.endswith(f"The training failed with exit status 3. All of its output: {log}\n")
    assert not any(map(alive, demo.workers()))
    assert list((demo.folder / "targets").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_without_a_word_too_many(number: signal.Signals, cache: Path) -> None:
    demo = Demo(cache, steps=1_000_000)
    workers = wait_for(demo.workers, "the trainer's workers")
    assert all(map(alive, workers))
    wait_for(lambda: list((demo.folder / "targets").iterdir()), "the discovery file")
    demo.process.send_signal(number)
    output = demo.output()
    assert demo.process.returncode == 128 + number
    assert output.endswith("Stopping ...\nStopped, nothing is left running.\n")
    assert "Traceback" not in output
    assert not any(map(alive, workers))
    assert list((demo.folder / "targets").iterdir()) == []
    assert not demo.ray_folder().exists()


@pytest.mark.parametrize("steps", ["0", "-1", "1.5", "many", ""])
def test_steps_must_be_a_positive_whole_number(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["demo", "--steps", steps])
    assert error.value.code == 2
    assert "--steps" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_must_be_one(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["demo", "--port", port])
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["verl", "torch", "TransferQueue"])
def test_a_missing_package_is_named_with_the_remedy(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(name: str) -> str:
        if name == missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.9.1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert cli.main(["demo"]) == 2
    error = capsys.readouterr().err
    assert missing in error
    assert "pip install 'verl-prometheus[demo]'" in error


def test_another_verl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.8.0")
    with pytest.raises(ValueError, match=r"verl 0\.9\.1, and 0\.8\.0 is installed"):
        command.run(argparse.Namespace(steps=1, port=0))


def test_importing_the_command_loads_none_of_the_heavy_packages() -> None:
    script = "import sys, verl_prometheus.demo.command; print(*sys.modules)"
    modules = set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not modules & {"torch", "verl", "ray", "transformers", "pandas", "numpy"}


def test_progress_is_read_from_the_metrics() -> None:
    assert progress.parse(METRICS, now=1004.0) == STEP_7
    assert list(progress.parse(METRICS, now=1004.0).phases) == ["step", "gen"]
    assert progress.parse("", now=0.0) == Progress()


def test_only_the_files_of_the_experiment_count(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        group = {"targets": [f"{name}:9400"], "labels": {"__meta_verl_experiment": name}}
        (tmp_path / f"{name}.json").write_text(json.dumps([group]))
    (tmp_path / ".unfinished").write_text("[")
    assert list(progress.announced(tmp_path, "mine")) == [(tmp_path / "mine.json", "http://mine:9400")]
    assert list(progress.announced(tmp_path / "none", "mine")) == []


def test_an_exporter_that_breaks_off_is_a_connection_error() -> None:
    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nverl_step 1\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectionError):
            progress.read(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    display = Display(stream)
    display.progress(STEP_7)
    display.say("The end")
    assert stream.getvalue() == (f"{CLEAR_LINE}step 7/20  reward 0.25  KL 0.125  entro{CLEAR_LINE}The end\n")


def test_elsewhere_a_step_is_a_line() -> None:
    stream = io.StringIO()
    display = Display(stream)
    display.passing("starting")
    for now in (Progress(), Progress(step=0, target=20), STEP_7, STEP_7, Progress(step=8)):
        display.progress(now)
    assert stream.getvalue() == "step 7/20  reward 0.25  KL 0.125  entropy 1.50  2.0 s/step\nstep 8\n"


def test_the_tail_of_a_log_has_no_colours_and_no_progress_bars(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n" * 50 + "\x1b[36mblue\x1b[0m\n  0%|   |\r100%|###|\n")
    lines = command.tail(log).splitlines()
    assert len(lines) == command.LOG_LINES
    assert lines[-2:] == ["blue", "100%|###|"]


def test_settings_reach_verl_whatever_the_folder_is_called() -> None:
    folder = Path('/a folder/with, "quotes" and = signs/ü')
    line = training.command("grpo", folder, steps=3, logger=["console", "file"], experiment="e", overrides=["data.n=1"])
    assert line[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    assert 'folder="/a folder/with, \\"quotes\\" and = signs/ü"' in line
    assert "trainer.total_training_steps=3" in line
    assert 'trainer.logger=["console", "file"]' in line
    assert line[-1] == "data.n=1"


def test_supervised_fine_tuning_runs_under_torchrun() -> None:
    line = training.command("sft", Path("/f"), steps=3, logger=["console"], experiment="e", gpus=2)
    assert "--nproc-per-node=2" in line
    assert line[line.index("verl.trainer.sft_trainer") - 1] == "-m"


def test_the_environment_of_a_run_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "cluster:6379")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "mine")
    environment = training.environment(Path("/short"))
    assert not {"RAY_ADDRESS", "CUDA_VISIBLE_DEVICES"} & set(environment)
    assert environment["VERL_USE_EXTERNAL_MODULES"].split(",") == ["mine", *training.EXTERNAL_MODULES]
    assert environment["RAY_TMPDIR"] == "/short/ray"
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", environment["VERL_USE_EXTERNAL_MODULES"])
    assert training.environment(Path("/short"))["VERL_USE_EXTERNAL_MODULES"] == environment["VERL_USE_EXTERNAL_MODULES"]


def test_rays_sockets_fit_into_a_unix_address_however_deep_the_folder(tmp_path: Path) -> None:
    folders = [training.environment(tmp_path / ("deep" * 20) / name)["RAY_TMPDIR"] for name in ("a", "b")]
    assert folders[0] != folders[1]
    for folder in folders:
        session = "ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
        assert len(os.fsencode(f"{folder}/{session}")) <= 107


def test_assets_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    def write(line: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        made.append(line)
        Path(line[-1]).mkdir()
        return subprocess.CompletedProcess(line, 0, "", "")

    monkeypatch.setattr(subprocess, "run", write)
    training.prepare(tmp_path / "new")
    training.prepare(tmp_path / "new")
    assert len(made) == 1
    (assets,) = (tmp_path / "new").iterdir()
    assert f'assets="{assets}"' in training.command("grpo", tmp_path / "new", steps=1, logger=[], experiment="e")


def test_assets_that_cannot_be_made_are_an_error_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda line, **how: subprocess.CompletedProcess(line, 1, "", "no space\n"))
    with pytest.raises(RuntimeError, match="no space"):
        training.prepare(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_killed_has_a_shells_status(tmp_path: Path) -> None:
    with TrainingProcess(
        ["sh", "-c", "kill -9 $$"], {"RAY_TMPDIR": str(tmp_path / "ray")}, tmp_path / "log"
    ) as process:
        assert process.wait(30) == 137


@pytest.mark.parametrize(
    ("answer", "score", "right"),
    [("7", 1.0, 1.0), (" 5\n", 0.8, 0.0), ("-3", 0.0, 0.0), ("seven", 0.0, 0.0), ("", 0.0, 0.0)],
)
def test_the_reward_grows_towards_the_right_answer(answer: str, score: float, right: float) -> None:
    from verl_prometheus.demo.reward import compute_score

    assert compute_score("arithmetic/add", answer, "7") == {"score": pytest.approx(score), "acc": right}


@pytest.mark.real_run
def test_the_demo_for_real(cache: Path) -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "verl_prometheus.cli", "demo", "--steps", "2", "--port", "0"],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    assert re.search(r"^step 2/2  reward \d\.\d\d  KL \d\.\d{3}  entropy \d\.\d\d  \d+\.\d s/step$", demo.stdout, re.M)
    assert "Trained 2 steps in" in demo.stdout

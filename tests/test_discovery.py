import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from verl_prometheus.discovery import TargetsFile


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_written_whole_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "targets"
    targets = TargetsFile(folder, "node", "run")
    targets.write([{"targets": ["10.0.0.1:9400"], "labels": {"__meta_verl_run_id": "run"}}])
    assert files(folder) == [f"node.{os.getpid()}.run.json"]
    assert json.loads(targets.path.read_text()) == [
        {"targets": ["10.0.0.1:9400"], "labels": {"__meta_verl_run_id": "run"}}
    ]
    assert targets.path.stat().st_mode & 0o777 == 0o644  # Prometheus runs as another user
    targets.remove()
    targets.remove()
    assert files(folder) == []


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    targets = TargetsFile(tmp_path, "node", "run")
    targets.write([])
    torn: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            text = targets.path.read_text()
            try:
                json.loads(text)
            except ValueError:
                torn.append(text)

    reader = threading.Thread(target=read)
    reader.start()
    for size in range(200):
        targets.write([{"targets": [f"10.0.0.{index}:9400"], "labels": {}} for index in range(size)])
    done.set()
    reader.join()
    assert torn == []


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    TargetsFile(tmp_path, "node", "run").write([])
    assert tmp_path.stat().st_mode & 0o7777 == 0o750


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        TargetsFile(tmp_path / "file" / "targets", "node", "run").write([])


def test_remains_of_killed_runs_are_removed_and_nothing_else(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody, somebody = closed.getsockname()[1], alive.getsockname()[1]

        def put(name: str, port: int) -> str:
            (tmp_path / name).write_text(json.dumps([{"targets": [f"127.0.0.1:{port}"], "labels": {}}]))
            return name

        put(f"node.{dead.pid}.gone.json", nobody)
        kept = [
            put(f"node.{dead.pid}.answers.json", somebody),  # of another container: its pid says nothing here
            put(f"node.{os.getpid()}.lives.json", nobody),
            put(f"other.{dead.pid}.elsewhere.json", nobody),
            put("mine.json", nobody),
        ]
        TargetsFile(tmp_path, "node", "run").remove_remains()
        assert files(tmp_path) == sorted(kept)

from pathlib import Path
from typing import Any

import pytest

from helpers.fixtures import FOLDER
from verl_prometheus.cli import main


def output(capsys: Any, *arguments: str) -> list[str]:
    assert main(["metrics", *arguments]) == 0
    return str(capsys.readouterr().out).splitlines()


def test_where_keys_go(capsys: Any) -> None:
    assert output(capsys, "critic/rewards/mean", "my/own", "val/loss") == [
        'critic/rewards/mean  verl_critic_rewards{stat="mean",key="critic/rewards/mean"}',
        'my/own               verl_my_own{key="my/own"}  (no rule)',
        'val/loss             verl_val_loss{key="val/loss"}  (kept until the next validation)',
    ]


def test_where_the_keys_of_a_log_go(capsys: Any) -> None:
    lines = output(capsys, str(FOLDER / "sft.jsonl"))
    assert len(lines) == 10
    assert lines[-1].split() == [
        "val/loss",
        'verl_val_loss{key="val/loss"}',
        "(kept",
        "until",
        "the",
        "next",
        "validation)",
    ]


def test_all_of_the_catalogue(capsys: Any) -> None:
    lines = output(capsys)
    assert len(lines) > 100
    assert not [line for line in lines if "no rule" in line]


@pytest.mark.parametrize("text", ["no json", '{"step": 1}', "[]", '{"step": 1, "data": 3}'])
def test_a_file_that_is_no_log(tmp_path: Path, capsys: Any, text: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    assert main(["metrics", str(path)]) == 2
    assert f"{path}, line 1: not a line of verl's `file` logger" in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys: Any) -> None:
    assert main(["metrics", "/no/such.jsonl"]) == 2
    assert "/no/such.jsonl" in capsys.readouterr().err

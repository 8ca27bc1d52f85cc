"""The examples are short, explain themselves, and run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def name_of(path: Path) -> str:
    return path.name


def run(*command: object) -> str:
    """Run an example with this Python and return what it printed."""
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_is_numbered_and_has_fewer_than_eighty_lines(example: Path) -> None:
    assert example.name[:2].isdigit()
    assert len(example.read_text().splitlines()) < 80


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_help_explains_every_option_of_an_example(example: Path) -> None:
    assert "--to" in run(example, "--help")


def test_the_gpt_example_goes_on_where_it_stopped(tmp_path: Path) -> None:
    gpt = next(example for example in EXAMPLES if example.name == "01_train_gpt.py")
    assert "step 10 " in run(gpt, "--to", tmp_path / "ckpt", "--steps", 10, "--batch", 1, "--every", 5)
    again = run(gpt, "--to", tmp_path / "ckpt", "--steps", 20, "--batch", 1, "--every", 5)
    assert "step 10 " not in again
    assert "step 20 " in again

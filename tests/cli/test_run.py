"""``perdure run``: torchrun's spellings, sentences for what cannot work, and exit codes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.run import add_parser, command_of, job_name, main, n_ranks
from perdure.errors import CallError

SRC = str(Path(__file__).parents[2] / "src")
MAIN = """
import argparse, sys
from perdure.cli.run import add_parser
from perdure.supervisor import NoAgent
parser = argparse.ArgumentParser(prog="perdure")
add_parser(parser.add_subparsers())
args = parser.parse_args()
sys.exit(args.func(args, agent=NoAgent()))
"""


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["run", *words])


def perdure(*words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": SRC}
    return subprocess.run([sys.executable, "-c", MAIN, *words], capture_output=True, text=True, env=env, timeout=30)


def test_torchruns_spellings_mean_the_same() -> None:
    for words in (["--nproc", "4"], ["--nproc-per-node", "4"], ["--nproc_per_node=4", "--standalone", "--nnodes=1"]):
        args = parse(*words, "--max-restarts", "7", "train.py", "--lr", "3")
        assert (args.nproc, args.max_restarts) == ("4", 7)
        assert command_of(args.command, module=args.module) == (sys.executable, "train.py", "--lr", "3")


def test_a_command_after_two_dashes_is_taken_as_it_is() -> None:
    assert command_of(parse("--nproc", "2", "--", "sh", "-c", "exit 3").command, module=False) == ("sh", "-c", "exit 3")
    assert command_of(["pkg.train", "-x"], module=True) == (sys.executable, "-m", "pkg.train", "-x")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nproc", "2"], "there is no command"),
        (["--nproc", "two", "--", "true"], "--nproc two"),
        (["--nproc", "0", "--", "true"], "1 to 256 ranks"),
        (["--nnodes", "2:1", "--", "true"], "give MIN:MAX with 1 <= MIN <= MAX"),
        (["--controller", "localhost:abc", "--", "true"], "'abc' is no port"),
        (["--checks", "nothing", "--", "true"], "there is no check 'nothing'"),
        (["--phase-deadline", "lunch=3", "--", "true"], "there is no phase 'lunch'"),
        (["--nodes", "2", "--controller", "other.example:29400", "--", "true"], "set PERDURE_TOKEN"),
        (["--", "/no/such/command"], "there is no command '/no/such/command'"),
    ],
)
def test_what_cannot_work_is_a_sentence_and_exit_code_64(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(parse(*words)) == 64
    assert sentence in capsys.readouterr().err


def test_ranks_can_be_counted_by_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3,5")
    assert n_ranks("gpu") == n_ranks("auto") == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert n_ranks("auto") == n_ranks("cpu") == len(os.sched_getaffinity(0))
    with pytest.raises(CallError, match="no GPU"):
        n_ranks("gpu")


def test_a_job_has_the_same_name_when_it_is_started_again() -> None:
    assert job_name(["python", "/x/train.py"], cwd="/a") == job_name(["python", "/x/train.py"], cwd="/a")
    assert job_name(["python", "/x/train.py"], cwd="/a") != job_name(["python", "/x/train.py"], cwd="/b")


def test_the_exit_code_and_the_output_are_those_of_the_job() -> None:
    done = perdure("run", "--nproc", "2", "--", "sh", "-c", "echo hello $RANK")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0] hello 0", "[1] hello 1"]
    assert "the job succeeded" in done.stderr
    assert perdure("run", "--max-restarts", "0", "--", "sh", "-c", "exit 7").returncode == 7


def test_help_needs_no_library_but_the_standard_one() -> None:
    code = "import sys; sys.argv[1:] = ['run', '--help']\ntry:\n    exec(MAIN)\nexcept SystemExit: pass\n"
    code += "assert not {'msgspec', 'numpy', 'torch'} & set(sys.modules), 'too much'"
    light = MAIN.replace("from perdure.supervisor import NoAgent\n", "").replace("agent=NoAgent()", "")
    env = os.environ | {"PYTHONPATH": SRC}
    done = subprocess.run([sys.executable, "-c", f"MAIN = {light!r}\n{code}"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node" in done.stdout

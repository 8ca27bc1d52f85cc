"""The examples are short, explain themselves, and run; those that train go on bit for bit after kill -9."""

from __future__ import annotations

import builtins
import importlib
import multiprocessing
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

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


def forked(out: Path, example: Path, *argv: object, kill_at: str | None = None) -> tuple[str, int]:
    """Run an example in a copy of this process, which has torch already; what it printed, and its exit code.

    ``kill_at``: it dies by kill -9 right after it prints a line with that in it.
    """
    process = multiprocessing.get_context("fork").Process(target=_be, args=(out, example, argv, kill_at, {}))
    process.start()
    process.join(100)
    process.kill()
    process.join()
    assert process.exitcode is not None
    return out.read_text(), process.exitcode


def ranks(out: Path, world: int, example: Path, *argv: object) -> str:
    """Run an example as ``world`` ranks, copies of this process; what all of them printed."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1])}
    processes = []
    outs = [out.with_name(f"{out.name}-{rank}") for rank in range(world)]
    for rank, each in enumerate(outs):
        of = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        env = meeting | {name: str(value) for name, value in of.items()} | {"GLOO_SOCKET_IFNAME": "lo"}
        process = multiprocessing.get_context("fork").Process(target=_be, args=(each, example, argv, None, env))
        process.start()
        processes.append(process)
    for process in processes:
        process.join(100)
        process.kill()
        process.join()
    said = "".join(each.read_text() for each in outs)
    assert [process.exitcode for process in processes] == [0] * world, said
    return said


def _be(out: Path, example: Path, argv: tuple[object, ...], kill_at: str | None, env: Mapping[str, str]) -> None:
    os.environ.update(env)
    with out.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
    sys.argv = [str(example), *map(str, argv)]
    os.environ["PERDURE_LEASE_S"] = "2"  # the agent leaves soon
    os.chdir(out.parent)
    torch.set_num_threads(1)  # the threads of the parent did not come along
    show, code = print, 0

    def said(*words: Any, **options: Any) -> None:
        show(*words, **options)
        if kill_at is not None and kill_at in " ".join(map(str, words)):
            os.kill(os.getpid(), signal.SIGKILL)

    builtins.print = said  # type: ignore[assignment]
    try:
        runpy.run_path(str(example), run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    sys.stdout.flush()
    os._exit(code)


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_help_explains_every_option_of_an_example(example: Path, tmp_path: Path) -> None:
    said, code = forked(tmp_path / "out", example, "--help")
    assert "--to" in said
    assert code == 0


def test_the_gpt_example_goes_on_where_it_stopped(tmp_path: Path) -> None:
    gpt = next(example for example in EXAMPLES if example.name == "01_train_gpt.py")
    assert "step 10 " in run(gpt, "--to", tmp_path / "ckpt", "--steps", 10, "--batch", 1, "--every", 5)
    again = run(gpt, "--to", tmp_path / "ckpt", "--steps", 20, "--batch", 1, "--every", 5)
    assert "step 10 " not in again
    assert "step 20 " in again


@pytest.mark.parametrize(
    ("name", "steps", "kill_at", "library"),
    [
        ("02_plain_loop.py", 20, "step 12 ", "torch"),
        ("03_torch_dcp.py", 8, "step 5 ", "torch.distributed.checkpoint"),
        pytest.param(
            *("09_stateful_loader.py", 16, "step 14 ", "torchdata.stateful_dataloader"), marks=pytest.mark.slow
        ),
        ("05_hf_trainer.py", 6, "'epoch': '0.8333'", "transformers.trainer"),
    ],
)
def test_an_example_that_was_killed_ends_as_one_that_was_not(
    tmp_path: Path, name: str, steps: int, kill_at: str, library: str
) -> None:
    importlib.import_module(library)  # once, for all copies of this process
    example = next(each for each in EXAMPLES if each.name == name)
    whole, code = forked(tmp_path / "whole", example, "--to", tmp_path / "a", "--steps", steps)
    assert code == 0, whole
    killed, code = forked(tmp_path / "killed", example, "--to", tmp_path / "b", "--steps", steps, kill_at=kill_at)
    assert code == -signal.SIGKILL, killed
    again, code = forked(tmp_path / "again", example, "--to", tmp_path / "b", "--steps", steps)
    assert code == 0, again
    assert "restored step" in again or "dcp" in name
    assert len(losses(whole)) == steps
    assert losses(whole) == losses(killed) | losses(again)
    if "trainer" not in name:  # its log is part of what comes back
        assert 1 < min(losses(again)) <= max(losses(killed)) + 1


def test_the_pipeline_example_goes_on_with_any_number_of_stages(tmp_path: Path) -> None:
    importlib.import_module("torch._dynamo")  # once, for all copies of this process
    example = next(each for each in EXAMPLES if each.name == "06_pipeline.py")
    whole = ranks(tmp_path / "whole", 2, example, "--to", tmp_path / "a", "--steps", 5)
    first = ranks(tmp_path / "first", 3, example, "--to", tmp_path / "b", "--steps", 3)
    rest = ranks(tmp_path / "rest", 2, example, "--to", tmp_path / "b", "--steps", 5)
    assert losses(whole) == losses(first) | losses(rest)
    assert (losses(first).keys(), losses(rest).keys()) == ({1, 2, 3}, {4, 5})


def test_the_sharding_example_goes_on_with_any_other(tmp_path: Path) -> None:
    importlib.import_module("torch._dynamo")
    example = next(each for each in EXAMPLES if each.name == "08_any_sharding.py")
    whole = ranks(tmp_path / "whole", 2, example, "--to", tmp_path / "a", "--steps", 6)
    parts = [
        losses(ranks(tmp_path / by, world, example, "--to", tmp_path / "b", "--steps", steps, "--by", by))
        for by, world, steps in (("fsdp1", 2, 2), ("zero", 2, 4), ("fsdp2", 4, 6))
    ]
    assert losses(whole) == parts[0] | parts[1] | parts[2]
    assert [sorted(each) for each in parts] == [[1, 2], [3, 4], [5, 6]]


def test_the_example_of_fused_weights_restores_and_loads_both_ways(tmp_path: Path) -> None:
    example = next(each for each in EXAMPLES if each.name == "07_fused_weights.py")
    said, code = forked(tmp_path / "out", example, "--to", tmp_path / "run")
    assert code == 0, said
    assert "restored as one: True" in said
    assert "restored apart: True" in said
    assert "loaded apart: ['model.attn.k.weight', 'model.attn.q.weight', 'model.attn.v.weight']" in said
    assert "loaded as one: ['model.attn.qkv.weight']" in said


def losses(said: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"^step (\d+) loss (\S+)$", said, re.M)}


def test_the_fsspec_example_reads_what_it_saved(tmp_path: Path) -> None:
    said = run(next(each for each in EXAMPLES if each.name == "04_fsspec.py"), "--to", tmp_path / "run")
    assert "step-3/model.safetensors 232 bytes" in said
    assert "written at step 3" in said
    assert "the same weights: True" in said


def test_the_memory_example_corrects_a_fact_and_takes_it_back(tmp_path: Path) -> None:
    said = run(next(each for each in EXAMPLES if each.name == "10_memory.py"), "--to", tmp_path / "memories")
    assert "f3 current: 'I live in Lisbon now.', Anna in chat 7" in said
    assert "I live in Porto" not in said
    assert "['Her cat is called Mochi.']" in said
    assert "['My cat is called Miso.', 'Her cat is called Mochi.']" in said
    assert said.endswith("current\n4 tellings are kept, whatever was edited\n")


@pytest.mark.parametrize("example", EXAMPLES[1:], ids=name_of)
def test_an_example_of_meeting_another_library_has_fewer_than_forty_lines(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 40

"""The pair check with real ranks over gloo: it names what hangs or is wrong, and two rounds find the bad node."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import torch

from perdure.adapters.torch import gpu_check, pair_check
from perdure.process.ports import ReservedPort
from perdure.supervisor.checks import Context
from perdure.supervisor.pairing import Group, first_round, judge, second_round

_FORK = multiprocessing.get_context("fork")
ARGUMENTS = ["--rounds", "3", "--nbytes", str(1 << 20), "--backend", "gloo"]

Spoil = Callable[[], None]


def slow() -> None:
    """Every product of this rank takes 3 s more."""
    real = pair_check.wrong_products

    def later(*args: Any, **options: Any) -> list[str]:
        time.sleep(3)
        return real(*args, **options)

    pair_check.wrong_products = later


def wrong() -> None:
    pair_check.wrong_products = lambda *args, **options: ["float32"]


def garbling() -> None:
    """This rank sends other bytes than it should."""
    real = pair_check.dist.all_gather
    pair_check.dist.all_gather = lambda parts, block: real(parts, block ^ 4)


def stopping() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def dying() -> None:
    pair_check._gather = lambda *args: os.kill(os.getpid(), signal.SIGKILL)


class Rank:
    """A rank that runs the program, forked from this process, which has imported torch already."""

    def __init__(self, rank: int, world: int, port: int, spoil: Spoil | None, *, deadline_s: float) -> None:
        handle, name = tempfile.mkstemp(prefix="perdure-test-pair-")
        os.close(handle)
        self._out = Path(name)
        self._process = _FORK.Process(target=self._be, args=(rank, world, port, spoil, deadline_s))
        self._process.start()

    def _be(self, rank: int, world: int, port: int, spoil: Spoil | None, deadline_s: float) -> None:
        sys.stdout = self._out.open("w")
        torch.set_num_threads(1)  # the threads of the parent did not come along
        os.environ.update(environment(rank, world, port))
        if spoil is not None:
            spoil()
        os._exit(pair_check.main([*ARGUMENTS, "--deadline", str(deadline_s)]))

    def heard(self) -> dict[str, Any]:
        self._process.join(100)
        (line,) = self._out.read_text().splitlines()
        told: dict[str, Any] = json.loads(line)
        assert self._process.exitcode == (told["word"] != "ok")
        return told

    def ended(self) -> int | None:
        return self._process.exitcode

    def close(self) -> None:
        self._process.kill()
        self._process.join(10)
        self._out.unlink()


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def start(group: Group, stack: ExitStack, spoilt: Mapping[str, Spoil], *, deadline_s: float = 90) -> list[Rank]:
    """Start a rank for each node of ``group``; ``spoilt`` is what is wrong with a node."""
    port = stack.enter_context(closing(ReservedPort())).number
    return [
        stack.enter_context(closing(Rank(rank, len(group), port, spoilt.get(node), deadline_s=deadline_s)))
        for rank, node in enumerate(group)
    ]


def round_of(groups: tuple[Group, ...], spoilt: Mapping[str, Spoil]) -> dict[Group, float | None]:
    """Run all groups of a round at once, as nodes would; seconds of each, None if it failed."""
    with ExitStack() as stack:
        running = [start(group, stack, spoilt) for group in groups]
        told = [[rank.heard() for rank in ranks] for ranks in running]
    return {
        group: max(one["facts"]["seconds"] for one in ranks) if all(one["word"] == "ok" for one in ranks) else None
        for group, ranks in zip(groups, told, strict=True)
    }


def test_a_good_group_of_programs_passes_and_says_how_long_its_parts_took() -> None:
    """As a launcher starts it."""
    command = [sys.executable, "-m", "perdure.adapters.torch.pair_check", *ARGUMENTS, "--deadline", "90"]
    with closing(ReservedPort()) as port:
        ranks = [
            subprocess.Popen(
                command, env={**os.environ, **environment(rank, 2, port.number)}, stdout=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        try:
            said = [process.communicate(timeout=100)[0].splitlines() for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.communicate()
    assert [process.returncode for process in ranks] == [0, 0]
    for rank, (line,) in enumerate(said):
        told = json.loads(line)
        facts = told["facts"]
        assert told["word"] == "ok"
        assert (facts["rank"], facts["world"], facts["backend"], facts["rounds"]) == (rank, 2, "gloo", 3)
        assert 0 < facts["compute_s"] < facts["seconds"]
        assert 0 < facts["gather_s"] < facts["seconds"]


def test_a_node_alone_is_a_group_too() -> None:
    with ExitStack() as stack:
        (told,) = (rank.heard() for rank in start(("a",), stack, {}))
    assert told["says"].startswith("3 rounds with 1 ranks")


@pytest.mark.slow
def test_of_four_nodes_the_slow_one_is_named_after_two_rounds() -> None:
    nodes = ["a", "b", "c", "d"]
    one = round_of(first_round(nodes), {"c": slow})
    two = round_of(second_round(nodes, one), {"c": slow})
    judged = judge(one, two)
    assert (judged.stragglers, judged.bad, judged.unsure) == (("c",), (), ()), (one, two)


def test_of_four_nodes_the_one_that_computes_wrong_is_named_after_two_rounds() -> None:
    nodes = ["a", "b", "c", "d"]
    one = round_of(first_round(nodes), {"d": wrong})
    two = round_of(second_round(nodes, one), {"d": wrong})
    judged = judge(one, two)
    assert (judged.bad, judged.unsure) == (("d",), ()), (one, two)


def test_bytes_that_change_on_their_way_are_found_by_whoever_gets_them() -> None:
    with ExitStack() as stack:
        told = [rank.heard() for rank in start(("a", "b"), stack, {"a": garbling})]
    assert [one["word"] for one in told] == ["problem", "problem"]
    assert told[1]["says"] == "wrong without an error: bytes from rank 0"


def test_a_partner_that_stops_is_given_up_at_the_deadline_in_the_phase_that_hung() -> None:
    with ExitStack() as stack:
        good, stopped = start(("a", "b"), stack, {"b": stopping}, deadline_s=5)
        told = good.heard()
        assert stopped.ended() is None
    assert told["word"] == "problem"
    assert "while meeting the others" in told["says"]
    assert told["do"]


def test_a_partner_that_dies_is_told_before_the_deadline() -> None:
    with ExitStack() as stack:
        good, dead = start(("a", "b"), stack, {"b": dying}, deadline_s=1000)
        told = good.heard()
        assert dead.ended() == -signal.SIGKILL
    assert told["says"].startswith("the group failed while gathering in round 0")


def test_the_products_of_torch_have_the_digests_of_numpy() -> None:
    assert gpu_check.wrong_products(torch.device("cpu"), repeats=1) == []


def test_a_device_that_computes_wrong_is_found_in_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.Tensor.__matmul__

    def off_by_one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = real(a, b)
        product[3, 5] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", off_by_one)
    assert gpu_check.wrong_products(torch.device("cpu")) == ["float64", "float32", "bfloat16", "float16"]


def test_copies_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_check.copy_is_exact(torch.device("cpu"), 1 << 16)[0]
    real = torch.Tensor.clone

    def spoilt(tensor: torch.Tensor) -> torch.Tensor:
        copy = real(tensor)
        copy[77] ^= 1
        return copy

    monkeypatch.setattr(torch.Tensor, "clone", spoilt)
    assert not gpu_check.copy_is_exact(torch.device("cpu"), 1 << 16)[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_its_checks_are_ok_unless_there_should_be_one() -> None:
    for check in (gpu_check.matmul, gpu_check.copy):
        assert check(Context()).word == "ok"
        assert check(Context(gpus=8)).word == "problem"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_computes_and_copies_right() -> None:
    for check in (gpu_check.matmul, gpu_check.copy):
        assert check(Context()).word in ("ok", "note")
        assert check(Context()).facts


def test_a_rank_without_a_place_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert pair_check.main([]) == 64
    assert "WORLD_SIZE is not set" in capsys.readouterr().err

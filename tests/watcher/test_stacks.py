"""From the stacks of all ranks: who stands where, and whom the others wait for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.errors import CallError
from perdure.watcher.labels import Label
from perdure.watcher.samples import Stack
from perdure.watcher.stacks import Place, judge_stacks, place_of, read_dump, read_stacks, stack_evidence

STACKS = Path(__file__).resolve().parents[3] / "shared/data/watch/stacks"
REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:2501)", "sync (train.py:40)", "<module> (train.py:90)")
GATHER = ("all_gather (torch/distributed/distributed_c10d.py:900)", "sync (train.py:44)")
LOAD = ("wait (threading.py:320)", "get (queue.py:171)", "_try_get_data (torch/utils/data/dataloader.py:1131)")
SAVE = ("write (torch/serialization.py:700)", "save (torch/serialization.py:800)", "main (train.py:70)")
WORK = ("tokenize (prepare.py:20)", "main (train.py:10)")


def stack(rank: int, frames: tuple[str, ...]) -> Stack:
    return Stack(rank=rank, node=f"n{rank // 2}", at_s=1.0, frames=frames)


def judged(*frames: tuple[str, ...]):  # type: ignore[no-untyped-def]
    return judge_stacks([stack(rank, each) for rank, each in enumerate(frames)])


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (REDUCE, Place.COLLECTIVE),
        (('File "/x/site-packages/torch/distributed/distributed_c10d.py", line 9 in barrier',), Place.COLLECTIVE),
        (("/x/site-packages/torch/distributed/distributed_c10d.py:9 broadcast", "train.py:3 main"), Place.COLLECTIVE),
        (
            ("recv (deepspeed/runtime/pipe/p2p.py:80)", "_exec_recv (deepspeed/runtime/pipe/engine.py:9)"),
            Place.COLLECTIVE,
        ),
        (LOAD, Place.DATA),
        (SAVE, Place.IO),
        (WORK, Place.COMPUTE),
        ((), Place.EMPTY),
    ],
)
def test_a_stack_says_what_its_rank_was_doing(frames: tuple[str, ...], place: Place) -> None:
    assert place_of(frames)[0] is place


@pytest.mark.parametrize(
    ("odd", "label"), [(LOAD, Label.DATALOADER), (SAVE, Label.RANK_SKEW), (WORK, Label.RANK_SKEW), ((), Label.SUSPECT)]
)
def test_the_rank_outside_a_collective_is_what_others_wait_for(odd: tuple[str, ...], label: Label) -> None:
    said = judged(REDUCE, REDUCE, REDUCE, odd, REDUCE)
    assert (said.culprits, said.nodes, said.label) == ((3,), ("n1",), label)


def test_a_rank_in_another_collective_is_odd() -> None:
    said = judged(REDUCE, REDUCE, GATHER, REDUCE)
    assert (said.culprits, said.label) == ((2,), Label.DESYNC)


def test_ranks_that_all_stand_alike_accuse_nobody() -> None:
    said = judged(REDUCE, REDUCE, REDUCE)
    assert (said.culprits, said.label) == ((), Label.LIB_BUG)


def test_halves_in_different_collectives_accuse_nobody() -> None:
    assert judged(REDUCE, REDUCE, GATHER, GATHER).culprits == ()


def test_when_most_are_outside_or_all_are_nobody_is_accused() -> None:
    assert judged(WORK, WORK, WORK, REDUCE).culprits == ()
    assert judged(WORK, WORK).label is None
    assert judge_stacks([]).groups == ()


def test_line_numbers_do_not_part_a_group() -> None:
    other = tuple(frame.replace(":40)", ":41)") for frame in REDUCE)
    assert len(judged(REDUCE, other).groups) == 1


def test_a_dump_of_faulthandler_gives_the_main_thread() -> None:
    text = (
        "rank 2 on gpu-7\n"
        "Thread 0x00007f01 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 324 in wait\n'
        "Current thread 0x00007f02 (most recent call first):\n"
        '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 9 in all_reduce\n'
        '  File "train.py", line 3 in main\n'
    )
    (found,) = read_dump(text)
    assert (found.rank, found.node, len(found.frames)) == (2, "gpu-7", 2)
    assert place_of(found.frames) == (Place.COLLECTIVE, "all_reduce")


def test_dumps_of_py_spy_one_after_another_are_counted() -> None:
    def one(frames: tuple[str, ...]) -> str:
        shown = "\n".join(f"    {frame}" for frame in frames)
        other = 'Thread 9 (idle): "pin"\n    wait (threading.py:3)'
        head = "Process 88: python train.py\nPython v3.11.7 (/usr/bin/python)"
        return f'{head}\nThread 88 (active): "MainThread"\n{shown}\n{other}\n'

    found = read_dump(one(REDUCE) + one(LOAD) + one(REDUCE))
    assert [each.rank for each in found] == [0, 1, 2]
    assert judge_stacks(found).culprits == (1,)


def test_tagged_dumps_belong_to_their_ranks() -> None:
    rows = []
    for rank, frames in ((5, REDUCE), (6, LOAD), (7, REDUCE)):
        rows += [f'[rank{rank}]: Thread 1 (idle): "MainThread"', *[f"[rank{rank}]:     {frame}" for frame in frames]]
    assert judge_stacks(read_dump("\n".join(rows))).culprits == (6,)


def test_json_without_stacks_is_refused() -> None:
    with pytest.raises(CallError, match="no JSON of stacks"):
        read_stacks('{"a": 1}')


def test_what_stacks_say_becomes_evidence() -> None:
    found = stack_evidence([stack(rank, LOAD if rank == 1 else REDUCE) for rank in range(4)])
    assert found is not None
    assert (found.label, found.ranks) == (Label.DATALOADER, (1,))
    assert stack_evidence([stack(0, WORK)]) is None


@pytest.mark.skipif(not STACKS.exists(), reason=f"no stacks in {STACKS}")
def test_stacks_of_a_real_hang_name_who_hung() -> None:
    for path in STACKS.glob("*.json"):
        truth = json.loads(path.read_text())["truth"]
        said = judge_stacks(read_stacks(path.read_text()))
        assert (list(said.culprits), said.label) == (truth["culprit_ranks"], truth["label"])

"""Lines in a running job: a machine's are certain, a rank's are reasons once it has died, a storm is bounded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from looks import gists, nodes_of, sample

from perdure.watcher.analyser import Analyser
from perdure.watcher.evidence import Evidence, Verdict
from perdure.watcher.labels import Label
from perdure.watcher.of_lines import OfLines
from perdure.watcher.samples import LogLine, Looks, RankSample

CAUGHT = (
    "Traceback (most recent call last):",
    '  File "train.py", line 40, in read',
    '    raise RuntimeError("CUDA out of memory")',
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/part-7'",
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:30312"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."


def of_rank(rank: int | None, *texts: str, node: str = "a") -> list[LogLine]:
    return [LogLine(text=text, at_s=0.0, node=node, rank=rank) for text in texts]


def kernel(*texts: str, node: str = "a") -> list[LogLine]:
    return [LogLine(text=text, at_s=0.0, node=node, source="kernel") for text in texts]


def look(second: int, *, dead: dict[int, dict[str, Any]] | None = None, stuck: int | None = None) -> list[RankSample]:
    """Four ranks on two nodes; a step a second until one is dead."""
    at = second if stuck is None else min(second, stuck)
    return [sample(r, float(second), **{"step": 50 + at, **(dead or {}).get(r, {})}) for r in range(4)]


def told(lines: dict[int, Sequence[LogLine]], *, dead: dict[int, dict[str, Any]], at: int, until: int) -> list[Verdict]:
    """Verdicts of a job in which ranks die at a second, with lines by second."""
    analyser, found = Analyser(nodes_of(4), detectors=(OfLines(),)), []
    for second in range(until):
        seen = look(second, dead=dead if second >= at else None, stuck=at)
        found += analyser.feed(seen, lines=lines.get(second, ()), now_s=float(second))
    return found


RAISED = {"exit_code": 1, "state": "Z"}


@pytest.mark.parametrize(
    ("lines", "label"),
    [
        (CAUGHT, Label.USER_CODE),
        ((CAUGHT[0], CAUGHT[1], OOM), Label.GPU_OOM),
        (("RuntimeError: CUDA error: uncorrectable ECC error encountered",), Label.GPU_ECC),
        (("OSError: [Errno 28] No space left on device",), Label.DISK_FULL),
    ],
)
@pytest.mark.parametrize("tagged", [False, True])
def test_a_rank_that_raises_has_the_label_of_its_line(lines: tuple[str, ...], label: Label, tagged: bool) -> None:
    own = of_rank(None, *(f"[rank2]: {line}" for line in lines), node="b") if tagged else of_rank(2, *lines, node="b")
    said = told({4: [*own, *of_rank(0, CLOSED)]}, dead={2: RAISED}, at=5, until=9)
    ((stage, found, _, ranks),) = gists(said)
    assert (stage, found) == ("verdict", label)
    assert ranks == (2,)
    assert lines[-1][:60] in said[0].sentence


def test_a_line_of_nobody_is_the_dead_ranks() -> None:
    said = told({5: of_rank(None, *CAUGHT[:2], OOM, CLOSED, node="b")}, dead={2: RAISED}, at=5, until=9)
    assert [(each.label, each.ranks) for each in said] == [(Label.GPU_OOM, (2,))]


def test_who_raised_in_the_same_look_as_others_is_named_by_its_line() -> None:
    lines = {5: [*of_rank(0, CLOSED), *of_rank(3, OOM, node="b"), *of_rank(1, CLOSED)]}
    said = told(lines, dead=dict.fromkeys((0, 1, 3), RAISED), at=5, until=9)
    assert [(each.label, each.ranks) for each in said] == [(Label.GPU_OOM, (3,))]


def test_a_traceback_that_a_rank_survives_is_nothing_and_no_reason_later() -> None:
    caught = {second: of_rank(1, *CAUGHT) for second in range(60)}
    assert told(caught, dead={}, at=99, until=60) == []
    assert told({second: of_rank(None, *CAUGHT) for second in range(60)}, dead={}, at=99, until=60) == []
    said = told({**caught, 60: of_rank(1, *CAUGHT, OOM)}, dead={1: RAISED}, at=60, until=65)
    assert [(each.label, each.ranks) for each in said] == [(Label.GPU_OOM, (1,))]


def test_who_was_killed_did_not_die_of_its_exception_but_perhaps_of_memory() -> None:
    killed = {2: {"exit_signal": 9, "state": "Z"}}
    said = told({5: of_rank(2, *CAUGHT, node="b")}, dead=killed, at=5, until=9)
    assert [each.label for each in said] == [Label.UNKNOWN]
    line = "Out of memory: Killed process 102 (python) total-vm:9kB, anon-rss:8kB"
    said = told({5: kernel(line, node="b")}, dead=killed, at=5, until=9)
    assert [(each.label, each.ranks) for each in said] == [(Label.HOST_OOM, (2,))]


def test_an_xid_is_told_at_once_by_the_cause_of_its_burst() -> None:
    lines = {
        3: kernel("NVRM: Xid (PCI:0000:3b:00): 45, pid=1, Ch 00000010", node="b"),
        4: kernel(XID, "NVRM: Xid (PCI:0000:3b:00): 154, recovery action changed", node="b"),
    }
    said = told(lines, dead={}, at=99, until=9)
    assert [(each.label, each.action, each.nodes) for each in said] == [(Label.GPU_OFF_BUS, "evict", ("b",))]
    assert XID in said[0].evidence[0].raw[0]


def test_a_fault_of_the_programs_own_kernel_is_a_reason_for_its_rank_and_nothing_else() -> None:
    lines = {4: kernel("NVRM: Xid (PCI:0000:3b:00): 31, pid=101, name=python, Ch 00000010, MMU Fault")}
    assert told(lines, dead={}, at=99, until=9) == []
    said = told(lines, dead={1: RAISED}, at=5, until=9)
    assert [(each.label, each.ranks) for each in said] == [(Label.USER_CODE, (1,))]
    assert "Xid 31" in said[0].sentence


@pytest.mark.parametrize("device", ["loop0", "sda1"])
def test_a_file_system_on_a_file_is_no_part_of_the_machine(device: str) -> None:
    said = told(
        {4: kernel(f"EXT4-fs error (device {device}): I/O error while writing superblock")}, dead={}, at=99, until=9
    )
    assert bool(said) is (device == "sda1")


def test_a_rank_that_speaks_of_hardware_and_works_on_is_noted_only() -> None:
    said = told({4: of_rank(1, "uncorrectable ECC error encountered")}, dead={}, at=99, until=9)
    assert [(each.label, each.action) for each in said] == [(Label.GPU_ECC, "warn")]


def test_decoys_and_advice_are_no_reasons() -> None:
    decoys = of_rank(
        1,
        "FutureWarning: torch.load with weights_only=False is deprecated: CUDA out of memory",
        "errors: 0, timeouts: 0",
        "If you see CUDA out of memory, try setting max_split_size_mb",
    )
    said = told({4: decoys}, dead={1: RAISED}, at=5, until=9)
    assert [(each.label, "ended with exit code 1" in each.sentence) for each in said] == [(Label.USER_CODE, True)]
    assert not any(each.kind == "stop-line" for each in said[0].evidence)


def test_a_restart_forgets_what_ranks_said() -> None:
    detector = OfLines()
    seen = look(1)
    detector.feed(Looks(samples=seen, lines=of_rank(1, OOM)), now_s=1.0)
    detector.restarted(1)
    found: list[Evidence] = list(detector.feed(Looks(samples=look(2, dead={1: RAISED})), now_s=2.0))
    assert found == []


def test_a_storm_of_lines_is_bounded_in_time_and_memory_and_counted() -> None:
    detector = OfLines()
    words = [f"error {number:x} {'xyz'[number % 3] * (number % 97)} in part" for number in range(100_000)]
    lines = [*of_rank(1, *words), *of_rank(1, OOM)]
    began = time.process_time()
    detector.feed(Looks(samples=look(1), lines=lines), now_s=1.0)
    took = time.process_time() - began
    found = list(detector.feed(Looks(samples=look(2, dead={1: RAISED})), now_s=2.0))
    assert detector.dropped > 90_000
    assert [each.label for each in found] == [Label.GPU_OOM]
    assert took < 5.0

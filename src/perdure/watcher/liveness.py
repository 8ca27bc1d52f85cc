"""Who is dead, frozen or dumb: what the processes themselves show. Pure: columns in, evidence out.

| kind | what is seen |
|---|---|
| ``crashed`` | ended by a signal of its own making: SEGV, BUS, FPE, ILL, ABRT, TRAP, SYS |
| ``killed`` | ended by a signal from outside: KILL, ... |
| ``told-to-end`` | ended by TERM: by a person, a scheduler, or its launcher for another's sake |
| ``ended-together`` | a quarter of the ranks were ended by one signal from outside in one look; or any by INT or HUP |
| ``raised`` | ended with an exit code that is not 0 |
| ``zombie`` | its process is gone and nobody has said how |
| ``stopped`` | state T: it was stopped, or a person looks at it |
| ``traced`` | state t: a debugger holds it |
| ``silent`` | its probe thread does not beat, though its process is not stopped: something holds the GIL |
| ``in-kernel`` | state D through all of a hang |
| ``paused-together`` | all ranks of a node or of the job, at least two, stand still at once: a machine was paused |
| ``node-silent`` | nothing is heard of a node, while of others there is |
| ``oom-kill`` | the kernel of a node has killed for memory |

A rank frozen inside a collective has the same number as its peers: only these tell. Of ranks that died in the same
look, those that crashed or were killed come before those that raised: peers of a dead rank raise within seconds.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from perdure.watcher.columns import Columns, Mask
from perdure.watcher.evidence import Evidence
from perdure.watcher.samples import NodeSample

__all__ = ["SILENT_S", "STOPPED_S", "deaths", "frozen", "in_kernel", "out_of_memory", "silent_nodes"]

STOPPED_S = 0.9
"""In state T over two looks that were on time."""
SILENT_S = 3.0
STARVED_SILENT_S = 12.0
"""The same on a node on which ranks wait for processors: a thread that beats each second may miss some then."""
PAUSED_S = 6.0
"""Machines are paused for seconds when they are moved, and all is well after that."""
NODE_SILENT_S = 12.0

_OWN_MAKING = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP})
_ASKED = frozenset({"SIGINT", "SIGHUP"})
"""Whoever sends these means the job: a person at a terminal, or one that was closed."""
_SHOWN = 6


def _signal_of(columns: Columns, row: int) -> int | None:
    number = int(columns.exit_signal[row])
    if number > 0:
        return number
    code = int(columns.exit_code[row])
    if -65 < code < 0:
        return -code
    return code - 128 if 128 < code < 193 else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def deaths(columns: Columns, known: Mask, now_s: float) -> list[Evidence]:
    """Say of each rank that has ended badly, and is not among ``known``, how; the likeliest cause first."""
    rows = np.flatnonzero((columns.ended_badly | _undead(columns)) & ~known)
    found = [_death(columns, int(row), now_s) for row in rows]
    asked = [each for each in found if each.raw[0] in _ASKED]
    if asked:
        names = _listed([str(each.ranks[0]) for each in asked])
        text = f"rank {names} was ended by {asked[0].raw[0]}, as somebody interrupts a job"
        found = [each for each in found if each not in asked]
        found.append(Evidence(kind="ended-together", at_s=now_s, sentence=text, raw=asked[0].raw))
    outside = [each for each in found if each.kind in ("killed", "told-to-end")]
    if len(outside) > max(1.0, len(columns) / 4) and len({each.raw for each in outside}) == 1:
        return [
            Evidence(
                kind="ended-together",
                at_s=now_s,
                ranks=tuple(each.ranks[0] for each in outside),
                sentence=f"{len(outside)} ranks were ended together by {outside[0].raw[0]}, from outside",
                raw=outside[0].raw,
            )
        ]
    raised = [each for each in found if each.kind == "raised"]
    if len(raised) > 1:
        found = [each for each in found if each.kind != "raised"] + [_merged(raised, now_s)]
    order = {"killed": 0, "crashed": 0, "raised": 1, "told-to-end": 2, "ended-together": 2, "zombie": 3}
    return sorted(found, key=lambda each: (order[each.kind], each.ranks))


def _merged(raised: list[Evidence], now_s: float) -> Evidence:
    """Ranks that raised within one look: which was first cannot be told, so nobody is accused."""
    names = _listed([str(each.ranks[0]) for each in raised])
    return Evidence(
        kind="raised",
        at_s=now_s,
        sentence=f"ranks {names} ended with an error in the same look",
        step=min((each.step for each in raised if each.step is not None), default=None),
        raw=tuple(each.sentence for each in raised[:_SHOWN]),
    )


def _undead(columns: Columns) -> Mask:
    gone: Mask = columns.zombie & ~columns.left
    return gone


def _death(columns: Columns, row: int, now_s: float) -> Evidence:
    rank, node = columns.ranks[row], columns.node(row)
    number = _signal_of(columns, row)
    if number is not None:
        kind = "crashed" if number in _OWN_MAKING else "told-to-end" if number == signal.SIGTERM else "killed"
        how = f"was ended by {_signal_name(number)}"
        raw = _signal_name(number)
    elif columns.ended_badly[row]:
        kind, raw = "raised", f"exit code {int(columns.exit_code[row])}"
        how = f"ended with {raw}"
    else:
        kind, raw, how = "zombie", "state Z", "is gone, and nobody has said how it ended"
    step = int(columns.step[row])
    return Evidence(
        kind=kind,
        at_s=now_s,
        ranks=(rank,),
        nodes=(node,),
        sentence=f"rank {rank} on {node} {how}" + (f" at step {step}" if step >= 0 else ""),
        step=step if step >= 0 else None,
        raw=(raw,),
    )


def frozen(columns: Columns, now_s: float, *, starved: Collection[str] = ()) -> list[Evidence]:
    """Say who is stopped, traced or silent now. Where a whole node or job is at once, nobody is: it was paused.

    ``starved`` are nodes on which ranks wait for processors.
    """
    alive = columns.alive(now_s)
    stopped = alive & columns.stopped & (columns.stopped_s >= STOPPED_S)
    slow = np.isin(columns.node_of, [columns.nodes.index(node) for node in starved if node in columns.nodes])
    dumb = alive & ~columns.stopped & (_silent_s(columns) >= np.where(slow, STARVED_SILENT_S, SILENT_S))
    found: list[Evidence] = []
    still = stopped | dumb
    if not still.any():
        return []
    # A node is looked at a moment before another one, so who has just been seen stopped stands with the rest.
    together = still & _whole_nodes(columns, alive & (columns.stopped | dumb), alive)
    if together.any() and (np.maximum(columns.stopped_s, _silent_s(columns))[together] >= PAUSED_S).any():
        nodes = columns.nodes_at(np.flatnonzero(together))
        found.append(
            Evidence(
                kind="paused-together",
                at_s=now_s,
                ranks=columns.ranks_at(np.flatnonzero(together)),
                nodes=nodes,
                sentence=f"all ranks at work on {_listed(nodes)} stand still together, as in a pause of the machine",
            )
        )
    return found + [_frozen(columns, row, now_s) for row in np.flatnonzero(still & ~together).tolist()]


def _silent_s(columns: Columns) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How long no beat was seen; for a rank whose beats are not counted, what its record says of the last one."""
    told = np.nan_to_num(columns.beat_age_s, nan=0.0)
    silent: np.ndarray[tuple[int], np.dtype[np.float64]] = np.where(
        columns.beat > 0, columns.beat_still_s, np.where(columns.seen, told, 0.0)
    )
    return silent


def _whole_nodes(columns: Columns, still: Mask, alive: Mask) -> Mask:
    n = len(columns.nodes)
    stand = np.bincount(columns.node_of[still], minlength=n)
    at_work = np.bincount(columns.node_of[alive], minlength=n)
    whole = (stand >= 2) & (stand == at_work)
    if stand.sum() >= 2 and (still == alive).all():
        whole = stand > 0
    together: Mask = still & whole[columns.node_of]
    return together


def _frozen(columns: Columns, row: int, now_s: float) -> Evidence:
    rank, node, state = columns.ranks[row], columns.node(row), int(columns.state[row])
    last = columns.last[row]
    where = last.wchan if last is not None else ""
    if state == ord("t"):
        kind, what = "traced", "is held by a debugger (state t)"
    elif state == ord("T"):
        kind, what = "stopped", "is stopped as a process (state T)"
    else:
        kind, what = "silent", f"gives no sign of life for {_silent_s(columns)[row]:.0f} s (state {chr(state or 63)})"
    return Evidence(
        kind=kind,
        at_s=now_s,
        ranks=(rank,),
        nodes=(node,),
        sentence=f"rank {rank} on {node} {what}",
        step=int(columns.step[row]) if columns.step[row] >= 0 else None,
        raw=(f"state {chr(state or 63)}", f"wchan {where}") if where else (f"state {chr(state or 63)}",),
    )


def in_kernel(columns: Columns, stuck: Mask, now_s: float) -> list[Evidence]:
    """Say which ranks, of those that are stuck, sleep in the kernel and cannot be woken (state D)."""
    rows = np.flatnonzero(stuck & columns.alive(now_s) & (columns.state == ord("D")))
    found = []
    for row in rows[:_SHOWN].tolist():
        last = columns.last[row]
        where = last.wchan if last is not None else ""
        text = f"the kernel does not let rank {columns.ranks[row]} go (state D{', ' + where if where else ''})"
        found.append(
            Evidence(
                kind="in-kernel",
                at_s=now_s,
                ranks=(columns.ranks[row],),
                nodes=(columns.node(row),),
                sentence=text,
                raw=("state D", f"wchan {where}") if where else ("state D",),
            )
        )
    return found


def silent_nodes(columns: Columns, heard_s: Mapping[str, float], now_s: float) -> list[Evidence]:
    """Say which nodes are not heard of, while others are; ``heard_s`` is when each was, on the analyser's clock."""
    silent = sorted(node for node, at_s in heard_s.items() if now_s - at_s > NODE_SILENT_S)
    if not silent or len(silent) == len(heard_s):
        return []  # whoever hears nobody is alone himself
    seconds = min(now_s - heard_s[node] for node in silent)
    left = columns.left
    numbers = [columns.nodes.index(node) for node in silent]
    rows = np.flatnonzero(np.isin(columns.node_of, numbers) & ~left)
    if not len(rows):
        return []
    return [
        Evidence(
            kind="node-silent",
            at_s=now_s,
            ranks=columns.ranks_at(rows),
            nodes=columns.nodes_at(rows),
            sentence=f"nothing is heard of {_listed(silent)} for {seconds:.0f} s, while other nodes are heard",
        )
    ]


def out_of_memory(before: Mapping[str, int], nodes: Iterable[NodeSample], now_s: float) -> list[Evidence]:
    """Say on which nodes the kernel has killed for memory since ``before`` (a count a node)."""
    return [
        Evidence(
            kind="oom-kill",
            at_s=now_s,
            nodes=(each.node,),
            sentence=f"the kernel of {each.node} has killed a process because memory ran out",
            raw=(f"oom_kill {before[each.node]} -> {each.oom_kills}",),
        )
        for each in nodes
        if each.oom_kills is not None and each.oom_kills > before.get(each.node, each.oom_kills)
    ]


def _listed(names: Iterable[str]) -> str:
    some = list(names)
    more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    return ", ".join(some[:_SHOWN]) + more

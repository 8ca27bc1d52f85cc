"""Who hangs, read from the stacks of all ranks at one moment.

Ranks that should do the same stand in the same place. Each rank's main thread is reduced to the functions from the
innermost up to the first one of the training script (without line numbers), ranks with equal ones are a group, and
each group is in a collective, loading data, in input or output, or computing. While some wait in a collective,
those that are not in one are what the others wait for. If all are in collectives, the rank in another collective than
most is the odd one, if few are; if all stand alike, no rank is named: it is below them, or in a library. What a frame
is says the table in `frames`.
"""

from __future__ import annotations

import enum
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence
from perdure.watcher.frames import Kind, kind_of, parts_of
from perdure.watcher.labels import Label
from perdure.watcher.samples import Stack

__all__ = ["Group", "Place", "Standing", "judge_stacks", "place_of", "read_dump", "read_stacks", "stack_evidence"]


class Place(enum.StrEnum):
    """What a rank was doing."""

    COLLECTIVE = "in a collective"
    DATA = "loading data"
    IO = "in input or output"
    COMPUTE = "computing"
    EMPTY = "without a stack"


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that stand alike. ``functions`` innermost first, without lines and files."""

    place: Place
    functions: tuple[str, ...]
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    collective: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How all ranks stand, the largest group first, and which of them the others wait for, if that can be told."""

    groups: tuple[Group, ...]
    culprits: tuple[int, ...]
    nodes: tuple[str, ...]
    label: Label | None
    why: str


_THREAD = re.compile(r"^(?:Current thread|Thread) (?:0x)?[\da-fA-F]+(?P<rest>.*)$")
_NAME = re.compile(r"\"(?P<a>[^\"]+)\"|\[(?P<b>[^\]]+)\]")
_WHOSE = re.compile(
    r"^\W*(?:\w+ )?rank[ :=#]*(?P<rank>\d+)\b(?:.*?\b(?:on|node|host)[ :=]+(?P<node>[\w.-]+))?", re.IGNORECASE
)
_TAG = re.compile(r"^\[(?:rank|default)(\d+)\]:? ?")
_PLUMBING = re.compile(
    r"^(?:wrapper|_?call_impl|_wrapped_call_impl|wait|get|inner|decorate_context|_fn|acquire|join"
    r"|__enter__|__exit__|<frozen)"
)
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python|<frozen|threading\.py|queue\.py|selectors\.py|socket\.py"
    r"|connection\.py|^(?:torch|deepspeed|megatron|transformers|accelerate|lightning|jax|numpy"
    r"|multiprocessing|concurrent)/|\.(?:so|c|cpp|cc)\b"
)
_DEPTH = 12
_PLACES = {Kind.COLLECTIVE: Place.COLLECTIVE, Kind.DATA: Place.DATA, Kind.IO: Place.IO}


def _top(frames: Sequence[str]) -> list[tuple[str, str]]:
    """Frames from the innermost to the first of the training's own code, which is in."""
    found = []
    for frame in frames[: 4 * _DEPTH]:
        function, file = parts_of(frame)
        found.append((function, file))
        if file and not _LIBRARY.search(file):
            break
    return found[:_DEPTH]


def place_of(frames: Sequence[str]) -> tuple[Place, str]:
    """What a stack is in, and the name of the collective if it is one; frames innermost first.

    >>> place_of(("broadcast (torch/distributed/distributed_c10d.py:1191)", "train (pretrain.py:3)"))
    (<Place.COLLECTIVE: 'in a collective'>, 'broadcast')
    >>> place_of(("wait (threading.py:306)", "_try_get_data (torch/utils/data/dataloader.py:10)"))[0]
    <Place.DATA: 'loading data'>
    """
    if not frames:
        return Place.EMPTY, ""
    for function, file in _top(frames):
        kind, collective = kind_of(function, file)
        if kind in _PLACES:
            return _PLACES[kind], collective
    return Place.COMPUTE, ""


def judge_stacks(stacks: Iterable[Stack]) -> Standing:
    """Group ranks by where they stand and name those that the others wait for. Pure.

    A rank's stack that could not be had stands in a group of its own and counts as outside collectives.
    """
    of: dict[tuple[Place, str, tuple[str, ...]], list[Stack]] = {}
    for stack in stacks:
        place, collective = place_of(stack.frames)
        functions = tuple(function for function, _ in _top(stack.frames) if not _PLUMBING.match(function))
        of.setdefault((place, collective, functions), []).append(stack)
    groups = tuple(
        Group(
            place,
            functions,
            tuple(sorted(stack.rank for stack in members)),
            tuple(sorted({stack.node for stack in members if stack.node})),
            collective,
        )
        for (place, collective, functions), members in sorted(of.items(), key=lambda item: -len(item[1]))
    )
    inside = [group for group in groups if group.place is Place.COLLECTIVE]
    outside = [group for group in groups if group.place is not Place.COLLECTIVE]
    if not groups:
        return Standing((), (), (), None, "no rank has a stack")
    if inside and outside:
        return _waited_for(groups, outside)
    if not inside:
        places = ", ".join(sorted({str(group.place) for group in outside}))
        return Standing(groups, (), (), None, f"no rank is in a collective: they are {places}")
    return _all_inside(groups)


def _waited_for(groups: tuple[Group, ...], outside: Sequence[Group]) -> Standing:
    ranks = tuple(sorted(rank for group in outside for rank in group.ranks))
    total = sum(len(group.ranks) for group in groups)
    place = outside[0].place
    label = {
        Place.DATA: Label.DATALOADER,
        Place.IO: Label.RANK_SKEW,
        Place.COMPUTE: Label.RANK_SKEW,
        Place.EMPTY: Label.SUSPECT,
    }[place]
    nodes = tuple(sorted({node for group in outside for node in group.nodes}))
    said = f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))} are"
    why = f"{said} {place} while {total - len(ranks)} others wait in collectives"
    if 2 * len(ranks) > total:
        return Standing(groups, (), (), label, f"most ranks are not in a collective: {why}")
    return Standing(groups, ranks, nodes, label, why)


def _all_inside(groups: tuple[Group, ...]) -> Standing:
    ways = Counter[str]()
    for group in groups:
        ways[group.collective] += len(group.ranks)
    if len(ways) == 1:
        why = f"all ranks stand in {groups[0].collective}: the fault is below them, or in a library"
        return Standing(groups, (), (), Label.LIB_BUG if len(groups) == 1 else None, why)
    usual, most = ways.most_common(1)[0]
    odd = [group for group in groups if group.collective != usual]
    ranks = tuple(sorted(rank for group in odd for rank in group.ranks))
    if 3 * len(ranks) > most:
        return Standing(groups, (), (), None, f"all ranks are in collectives, of {len(ways)} kinds; none is odd")
    nodes = tuple(sorted({node for group in odd for node in group.nodes}))
    why = f"rank {ranks[0]} is in {odd[0].collective} while {most} others are in {usual}"
    return Standing(groups, ranks, nodes, Label.DESYNC, why)


def read_stacks(text: str, *, at_s: float = 0.0) -> list[Stack]:
    """Stacks of many ranks: JSON with ``ranks`` (each with ``rank``, ``node``, ``frames``), or dumps of tools.

    Raises:
        CallError: the JSON holds no stacks.
    """
    if text.lstrip().startswith("{"):
        try:
            rows = json.loads(text)["ranks"]
            return [
                Stack(rank=int(row["rank"]), node=str(row.get("node", "")), at_s=at_s, frames=tuple(row["frames"]))
                for row in rows
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise CallError(
                f'this is no JSON of stacks ({error!r}); it has "ranks", each with "rank" and "frames"'
            ) from error
    return read_dump(text, at_s=at_s)


def read_dump(text: str, *, at_s: float = 0.0) -> list[Stack]:
    """The main threads in dumps of faulthandler or py-spy, one after another in one text.

    Whose a dump is says a ``[rank3]:`` tag on its lines or a line such as ``rank 3 on node-2`` before it; else dumps
    are counted from 0. Of a process with several threads the one called MainThread counts, else the last that
    faulthandler printed, for it prints the main thread last; a single one counts in any case.
    """
    threads: list[tuple[int | None, str, str, list[str]]] = []  # rank, node, thread, frames
    rank: int | None = None
    node = ""
    for raw in text.splitlines():
        line = raw
        if tag := _TAG.match(line):
            line, rank = line[tag.end() :], int(tag[1])
        bare = line.strip()
        if match := _THREAD.match(bare):
            name = _NAME.search(match["rest"])
            threads.append((rank, node, (name["a"] or name["b"]) if name else "", []))
        elif whose := _WHOSE.match(bare):
            rank, node = int(whose["rank"]), whose["node"] or ""
        elif bare.startswith("Process ") or re.match(r"Python v\d", bare):
            rank = rank if bare.startswith("Python") else None
            threads.append((rank, node, "?", []))  # ends the process before
        elif threads and parts_of(bare)[1]:
            threads[-1][3].append(bare)
    return _mains(threads, at_s)


def _mains(threads: Sequence[tuple[int | None, str, str, list[str]]], at_s: float) -> list[Stack]:
    found: list[Stack] = []
    process: list[tuple[str, list[str]]] = []
    owner: tuple[int | None, str] = (None, "")

    def close() -> None:
        kept = [(name, frames) for name, frames in process if frames]
        if kept:
            main = next((frames for name, frames in kept if name == "MainThread"), kept[-1][1])
            rank = owner[0] if owner[0] is not None else len(found)
            found.append(Stack(rank=rank, node=owner[1], at_s=at_s, frames=tuple(main)))
        process.clear()

    for rank, node, name, frames in threads:
        if name == "?" or (rank, node) != owner:
            close()
            owner = (rank, node)
        if name != "?":
            process.append((name, frames))
    close()
    return found


def stack_evidence(stacks: Sequence[Stack]) -> Evidence | None:
    """What stacks say, for the analyser; None if they accuse nobody and tell no label."""
    standing = judge_stacks(stacks)
    if standing.label is None:
        return None
    kept = [stack for stack in stacks if stack.rank in standing.culprits]
    return Evidence(
        kind="stacks",
        at_s=max(stack.at_s for stack in stacks),
        sentence=standing.why,
        ranks=standing.culprits,
        nodes=standing.nodes,
        strength=0.9 if standing.culprits else 0.5,
        label=standing.label,
        raw=tuple(frame for stack in kept[:2] for frame in stack.frames[:6]),
    )

"""Slurm's short way of writing many host names: ``gpu[01-03,7],login`` is five names.

Pure; the same names in the same order as ``scontrol show hostnames`` prints.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from perdure.errors import CallError

__all__ = ["hostnames"]

_MOST = 1 << 20
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def hostnames(text: str) -> tuple[str, ...]:
    """Return the names that ``text`` stands for; raise `CallError` where it is no host list.

    Several brackets in one name count like digits, the last one fastest. Slurm never writes anything after the last
    bracket of a name; we take it.

    >>> hostnames("node[1-2,11],gpu[08-09]")
    ('node1', 'node2', 'node11', 'gpu08', 'gpu09')
    """
    names: list[str] = []
    for word in _words(text):
        parts = [[literal] if literal else list(_numbers(inside, text)) for inside, literal in _PART.findall(word)]
        n_names = 1
        for part in parts:
            n_names *= len(part)
        if len(names) + n_names > _MOST:
            raise CallError(f"{text!r} names more than {_MOST} hosts; give a list of hosts as Slurm writes it")
        names += ["".join(choice) for choice in itertools.product(*parts)]
    return tuple(names)


def _words(text: str) -> Iterator[str]:
    """The names between the commas outside of brackets, each checked to be literals and closed brackets."""
    if not text:
        return
    start = depth = 0
    for place, sign in enumerate([*text, ","]):
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if depth not in (0, 1) or (depth and place == len(text)):
            break
        if sign == "," and not depth:
            if start == place:
                break
            yield text[start:place]
            start = place + 1
    else:
        return
    raise CallError(f"{text!r} is no list of hosts; give one as Slurm writes it, such as node[1-4,7]")


def _numbers(inside: str, text: str) -> Iterator[str]:
    """The numbers of one bracket, as wide as they are written (``08-11`` has a zero in front, ``8-11`` has not)."""
    for item in inside.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise CallError(f"{text!r} is no list of hosts: {item!r} is no range of numbers such as 1-4")
        low, high = match[1], match[2] or match[1]
        n_numbers = int(high) - int(low) + 1
        if not 0 < n_numbers <= _MOST:
            raise CallError(f"{text!r} is no list of hosts: {item!r} is no range of numbers such as 1-4")
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))

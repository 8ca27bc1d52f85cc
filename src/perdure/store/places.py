"""What the files of a run are called (docs/spec/format-0.md, "Names")."""

from __future__ import annotations

import re

__all__ = [
    "EPOCHS",
    "MARKER",
    "SLOTS",
    "WRITER_PATTERN",
    "epoch_name",
    "number_of",
    "pack_name",
    "part_name",
    "slot_name",
]

MARKER = "perdure.json"
EPOCHS = "epochs/"
SLOTS = "slots/"
WRITER_PATTERN = r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}\Z"
_NUMBERED = re.compile(r"\A(?:epochs|slots)/([0-9]{10})\.json\Z")


def epoch_name(epoch: int) -> str:
    """The file of a claimed epoch.

    >>> epoch_name(3)
    'epochs/0000000003.json'
    """
    return f"{EPOCHS}{epoch:010d}.json"


def slot_name(slot: int) -> str:
    """The file of a commit."""
    return f"{SLOTS}{slot:010d}.json"


def number_of(name: str) -> int | None:
    """The epoch or slot that ``name`` is the file of; None for any other file.

    >>> number_of("slots/0000000012.json"), number_of("slots/notes.txt")
    (12, None)
    """
    match = _NUMBERED.match(name)
    return int(match[1]) if match else None


def pack_name(*, epoch: int, step: int, seq: int, writer: str, number: int) -> str:
    """The file of the ``number``-th pack of a save; ``seq`` counts the writer's attempts in this epoch.

    >>> pack_name(epoch=3, step=100, seq=7, writer="node2", number=0)
    'packs/0000000003/000000000100-000007-node2-0.safetensors'
    """
    return f"packs/{epoch:010d}/{step:012d}-{seq:06d}-{writer}-{number}.safetensors"


def part_name(*, epoch: int, step: int, seq: int, writer: str) -> str:
    """The file of a part."""
    return f"parts/{epoch:010d}/{step:012d}-{seq:06d}-{writer}.json"

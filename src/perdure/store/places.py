"""What the files of a run are called (docs/spec/format-v1.md, "Names")."""

from __future__ import annotations

import re

__all__ = [
    "EPOCHS",
    "MARKER",
    "PACKS",
    "PARTS",
    "PRUNED",
    "SLOTS",
    "WRITER_PATTERN",
    "epoch_name",
    "number_of",
    "pack_name",
    "part_name",
    "pruned_name",
    "slot_name",
    "written_by",
]

MARKER = "perdure.json"
EPOCHS = "epochs/"
SLOTS = "slots/"
PRUNED = "pruned/"
PACKS = "packs/"
PARTS = "parts/"
WRITER_PATTERN = r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}\Z"
_NUMBERED = re.compile(r"\A(?:epochs|slots|pruned)/([0-9]{10})\.json\Z")
_WRITTEN = re.compile(
    r"\A(?:packs/([0-9]{10})/[0-9]{12}-[0-9]{6,}-[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}-[0-9]+\.safetensors"
    r"|parts/([0-9]{10})/[0-9]{12}-[0-9]{6,}-[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}\.jsonl)\Z"
)


def epoch_name(epoch: int) -> str:
    """The file of a claimed epoch.

    >>> epoch_name(3)
    'epochs/0000000003.json'
    """
    return f"{EPOCHS}{epoch:010d}.json"


def slot_name(slot: int) -> str:
    """The file of a commit."""
    return f"{SLOTS}{slot:010d}.json"


def pruned_name(slot: int) -> str:
    """The file that says that a commit was given up."""
    return f"{PRUNED}{slot:010d}.json"


def written_by(name: str) -> int | None:
    """The epoch whose writer made the pack or part ``name``; None for any other file.

    >>> written_by(part_name(epoch=3, step=100, seq=1_000_000, writer="node2"))
    3
    >>> written_by("parts/0000000003/000000000100-000007-node2.jsonl"), written_by("packs/notes.txt")
    (3, None)
    """
    match = _WRITTEN.match(name)
    return int(match[1] or match[2]) if match else None


def number_of(name: str) -> int | None:
    """The epoch or slot that ``name`` is a file of; None for any other file.

    >>> number_of("slots/0000000012.json"), number_of("slots/notes.txt")
    (12, None)
    """
    match = _NUMBERED.match(name)
    return int(match[1]) if match else None


def pack_name(*, epoch: int, step: int, seq: int, writer: str, number: int) -> str:
    """The file of the ``number``-th pack of a save; ``seq`` counts the writer's attempts in this epoch.

    From the millionth attempt on ``seq`` has more digits.

    >>> pack_name(epoch=3, step=100, seq=7, writer="node2", number=0)
    'packs/0000000003/000000000100-000007-node2-0.safetensors'
    """
    return f"{PACKS}{epoch:010d}/{step:012d}-{seq:06d}-{writer}-{number}.safetensors"


def part_name(*, epoch: int, step: int, seq: int, writer: str) -> str:
    """The file of a part."""
    return f"{PARTS}{epoch:010d}/{step:012d}-{seq:06d}-{writer}.jsonl"

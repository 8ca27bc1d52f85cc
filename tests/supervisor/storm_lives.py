"""What the ranks of a storm wrote down, and what must hold of it: nothing but time was lost."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Life", "all_steps", "overlaps", "read_lives", "repeated_steps", "step_s", "wrong_steps"]


@dataclass(frozen=True, slots=True)
class Line:
    """A step that a rank has completed, when (monotonic seconds), and its loss as written."""

    at_s: float
    step: int
    loss: str


@dataclass(frozen=True, slots=True)
class Life:
    """One process of a rank, from its first line to its end."""

    rank: int
    pid: int
    node: str
    attempt: int
    lines: tuple[Line, ...]


def read_lives(folder: Path) -> list[Life]:
    """All processes of ranks so far; a line that is just being written is left out."""
    lives = []
    for path in (folder / "lives").glob("*.*"):
        rank, pid = path.name.split(".")
        head, *rest = path.read_text().split("\n")[:-1] or [""]
        if not head:
            continue
        node, attempt = head.split()
        lines = []
        for text in rest:
            at, step, loss = text.split()
            lines.append(Line(float(at), int(step), loss))
        lives.append(Life(int(rank), int(pid), node, int(attempt), tuple(lines)))
    return lives


def all_steps(lives: Sequence[Life]) -> int:
    """The furthest step that any rank has completed."""
    return max((line.step for life in lives for line in life.lines), default=0)


def wrong_steps(lives: Sequence[Life], reference: Sequence[Life]) -> list[str]:
    """The steps whose loss is not, bit for bit, that of the same rank in an uninterrupted run."""
    right = {(life.rank, line.step): line.loss for life in reference for line in life.lines}
    return [
        f"attempt {life.attempt}, rank {life.rank}, step {line.step}: {line.loss} for {right[life.rank, line.step]}"
        for life in lives
        for line in life.lines
        if line.loss != right[life.rank, line.step]
    ]


def overlaps(lives: Sequence[Life]) -> list[str]:
    """Where an attempt completed a step after a later attempt had begun to: two attempts at once.

    A step is done by all ranks together, so it counts from the first rank that wrote it down: one that was stopped in
    between may do so later.
    """
    done: dict[tuple[int, int], float] = {}
    for life in lives:
        for line in life.lines:
            key = (life.attempt, line.step)
            done[key] = min(line.at_s, done.get(key, line.at_s))
    began: dict[int, float] = {}
    for (attempt, _), at_s in done.items():
        began[attempt] = min(at_s, began.get(attempt, at_s))
    return [
        f"attempt {attempt} did step {step} after attempt {later} had begun"
        for (attempt, step), at_s in sorted(done.items())
        for later, since_s in began.items()
        if later > attempt and at_s > since_s
    ]


def repeated_steps(lives: Sequence[Life]) -> int:
    """How many steps were done more than once, because the state after them was lost."""
    done = {(life.attempt, line.step) for life in lives for line in life.lines}
    return len(done) - len({step for _, step in done})


def step_s(lives: Sequence[Life]) -> float:
    """Seconds of a step while nothing is wrong: the median over all lives of rank 0."""
    pairs = [pair for life in lives if life.rank == 0 for pair in itertools.pairwise(life.lines)]
    return statistics.median(after.at_s - before.at_s for before, after in pairs)

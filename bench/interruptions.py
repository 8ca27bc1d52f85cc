"""A training run that is interrupted, simulated: where its time goes. Pure, seeded; `goodput.py` prints it.

Theory. Interruptions of each cause come as a Poisson process over all of the run's wall time, at the rate of the counts
that they were published with. Training alternates between ``interval_s`` of steps and a stall of ``stall_s`` for a
checkpoint, which can be restored ``lag_s`` after its stall has ended (it travels in the background). An interruption
costs what was trained since the newest checkpoint that can be restored, the time until it is noticed, and a restart;
one that comes meanwhile costs another detection and restart, and what was being done is done again. One that takes a
node needs another in its place: a spare, else the first node that comes back from repair, and the job waits for it.

The approximation is that checkpoints that were on their way when the job fell are lost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

__all__ = ["Cause", "Ledger", "Plant", "daly_s", "simulate"]

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Cause:
    """Interruptions of one kind: ``count`` in ``days`` on ``nodes``."""

    name: str
    count: float
    days: float
    nodes: int
    takes_node: bool
    "Whether a node must be replaced."
    hangs: bool = False
    "Whether ranks stop without dying."
    planned: bool = False
    "Whether it can be saved before it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A job on its machines, all times in seconds."""

    nodes: int
    spares: int
    repair_s: float
    "Until a node that was taken is there again."
    interval_s: float
    "Training between two checkpoints."
    stall_s: float
    "For which a checkpoint keeps training waiting."
    lag_s: float
    "After which it can be restored."
    death_noticed_s: float
    node_noticed_s: float
    hang_noticed_s: float
    restart_s: float
    "From the decision to the first step, on nodes that are there."

    def noticed_s(self, cause: Cause) -> float:
        """How long an interruption goes unnoticed."""
        if cause.planned:
            return 0.0
        if cause.hangs:
            return self.hang_noticed_s
        return self.node_noticed_s if cause.takes_node else self.death_noticed_s


@dataclass(slots=True)
class Ledger:
    """Where the wall time went, in seconds; the terms add up to it."""

    useful: float = 0.0
    lost: float = 0.0
    "Trained, and done again."
    stalls: float = 0.0
    detection: float = 0.0
    restart: float = 0.0
    waiting: float = 0.0
    interruptions: int = 0

    @property
    def total(self) -> float:
        return sum(getattr(self, each.name) for each in fields(self) if each.name != "interruptions")

    @property
    def effective(self) -> float:
        """The share of the wall time in which steps were trained that count."""
        return self.useful / self.total


def daly_s(*, stall_s: float, between_s: float) -> float:
    """The interval that wastes least, to first order (Young 1974, Daly 2006): ``sqrt(2 * stall * MTBF)``.

    >>> round(daly_s(stall_s=2.0, between_s=10_000.0))
    200
    """
    return math.sqrt(2 * stall_s * between_s)


def simulate(plant: Plant, causes: Sequence[Cause], *, days: float, rng: np.random.Generator) -> Ledger:
    """Run the job for ``days``; all of them are accounted for."""
    end_s = days * DAY_S
    arrivals = [
        (float(at_s), cause)
        for cause in causes
        for at_s in rng.uniform(0.0, end_s, rng.poisson(cause.count / cause.days / cause.nodes * plant.nodes * days))
    ]
    arrivals.sort(key=lambda each: each[0], reverse=True)
    return _Run(plant, arrivals, end_s).whole()


class _Run:
    """One run under way. ``arrivals`` are the interruptions to come, the next one last."""

    def __init__(self, plant: Plant, arrivals: list[tuple[float, Cause]], end_s: float) -> None:
        self._plant, self._arrivals, self._end_s = plant, arrivals, end_s
        self._now = 0.0
        self._spares, self._missing, self._repairs = plant.spares, 0, list[float]()
        self._ledger = Ledger()

    def whole(self) -> Ledger:
        while self._now < self._end_s:
            cause = self._train()
            while cause is not None:
                cause = self._stand(cause)
        return self._ledger

    def _next(self) -> tuple[float, Cause | None]:
        return self._arrivals[-1] if self._arrivals else (self._end_s, None)

    def _train(self) -> Cause | None:
        """Train until something interrupts it, which is returned; None at the end."""
        plant, ledger = self._plant, self._ledger
        until_s, cause = self._next()
        whole = until_s - self._now
        cycle = plant.interval_s + plant.stall_s
        cycles, rest = divmod(whole, cycle)
        trained = cycles * plant.interval_s + min(rest, plant.interval_s)
        kept = trained
        if cause is not None and not cause.planned:
            kept = min(trained, plant.interval_s * max(0.0, (whole - plant.lag_s) // cycle))
        ledger.useful += kept
        ledger.lost += trained - kept
        ledger.stalls += cycles * plant.stall_s + max(0.0, rest - plant.interval_s)
        self._now = until_s
        return self._interrupted() if cause is not None else None

    def _interrupted(self) -> Cause:
        _, cause = self._arrivals.pop()
        self._ledger.interruptions += 1
        if cause.takes_node:
            self._missing += 1
            heapq.heappush(self._repairs, self._now + self._plant.repair_s)
        return cause

    def _stand(self, cause: Cause) -> Cause | None:
        """From an interruption to the first step, or to the next interruption, which is returned."""
        if (other := self._spend("detection", self._plant.noticed_s(cause))) is not None:
            return other
        while not self._complete():
            if (other := self._spend("waiting", self._repairs[0] - self._now)) is not None or self._over:
                return other
        return self._spend("restart", self._plant.restart_s)

    @property
    def _over(self) -> bool:
        return self._now >= self._end_s

    def _complete(self) -> bool:
        """Put spares, and nodes that are repaired, into the places of those that were taken."""
        while self._repairs and self._repairs[0] <= self._now:
            heapq.heappop(self._repairs)
            self._spares += 1
        filled = min(self._spares, self._missing)
        self._spares -= filled
        self._missing -= filled
        return self._missing == 0

    def _spend(self, what: str, seconds: float) -> Cause | None:
        """Let ``seconds`` go by under the name ``what``; return what comes in between, if anything does."""
        at_s, cause = self._next()
        until_s = min(self._now + seconds, at_s, self._end_s)
        setattr(self._ledger, what, getattr(self._ledger, what) + until_s - self._now)
        short = until_s < self._now + seconds
        self._now = until_s
        return self._interrupted() if short and cause is not None and at_s <= until_s else None

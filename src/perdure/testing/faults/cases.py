"""A case: one kind with one seed, from which everything about it is drawn; and what became of it.

Both are plain values. `Outcome` holds all that the watcher has said, so that it can be judged again by other rules.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from perdure.testing.faults.kinds import FAULTS, HEALTHY, Family, Kind, Whom
from perdure.testing.faults.trouble import Plan

__all__ = ["Case", "Outcome", "Told", "campaign", "draw", "node_of"]


def node_of(nodes: Sequence[int], rank: int) -> str:
    """The name of the node of ``rank``, where ``nodes`` are the ranks of each; ? if there is no such rank.

    >>> node_of((2, 1), 2)
    'n1'
    """
    for number, count in enumerate(nodes):
        if rank < count:
            return f"n{number}"
        rank -= count
    return "?"


@dataclass(frozen=True, slots=True)
class Case:
    """What is played. ``victim`` is the rank that it strikes, or one of those."""

    kind: Kind
    seed: int
    nodes: tuple[int, ...]
    victim: int
    plan: Plan
    calm_s: float

    @property
    def name(self) -> str:
        """``kind/seed``."""
        return f"{self.kind.name}/{self.seed}"

    def node_of(self, rank: int) -> str:
        """The name of the node of ``rank``."""
        return node_of(self.nodes, rank)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the watcher said at one moment, ``after_s`` the fault (below 0: before it)."""

    after_s: float
    incident: str
    stage: str
    label: str
    action: str
    sentence: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a case. ``nodes`` are the ranks of each node, ``rank`` and ``node`` who was struck."""

    kind: str
    seed: int
    nodes: tuple[int, ...]
    rank: int
    node: str
    step: int
    "At which it was struck; -1 if it never was."
    step_s: float
    told: tuple[Told, ...] = ()
    took_s: float = 0.0
    load: float = 0.0
    "The load average of the machine when the case was over."
    troubles: tuple[str, ...] = ()
    "Why the case says nothing: it could not be played here, or the training failed by itself."


def draw(kind: Kind, seed: int) -> Case:
    """Everything about the case of ``kind`` with ``seed``.

    >>> draw(FAULTS[0], 3) == draw(FAULTS[0], 3)
    True
    """
    dice = random.Random(f"{kind.name}/{seed}")
    nodes = dice.choice(kind.shapes)
    world = sum(nodes)
    victim = dice.randrange(world)
    step_s = round(dice.uniform(0.02, 0.1), 3)
    calm_s = dice.uniform(*kind.calm_s)
    if kind.family is Family.SLOW:
        step_s = round(dice.uniform(0.03, 0.08), 3)
    words = dict(kind.plan)
    if kind.family is Family.SLOW:
        words.setdefault("size", round(dice.uniform(0.25, 0.6), 2))
    case = Case(kind, seed, nodes, victim, Plan(folder=""), calm_s)
    at_step = max(10, int(calm_s / (step_s + 0.01)))
    if kind.name == "spike":
        words["lasts_steps"] = max(10, int(1.5 / step_s))
    plan = Plan(
        folder="",
        seed=seed,
        step_s=step_s,
        fault=kind.name,
        victims=_struck(case),
        at_step=0 if kind.name in ("slow-import", "slow-start", "bad-resume", "resume") else at_step,
        variant=dice.randrange(1000),
        **words,
    )
    return Case(kind, seed, nodes, victim, plan, calm_s)


def _struck(case: Case) -> tuple[int, ...]:
    """The ranks whose own program does it."""
    everybody = tuple(range(sum(case.nodes)))
    if case.kind.family is Family.HEALTHY:
        return (case.victim,)
    if case.kind.whom is Whom.NODE:
        return tuple(rank for rank in everybody if case.node_of(rank) == case.node_of(case.victim))
    return (case.victim,) if case.kind.whom is Whom.RANK else everybody


def campaign(*, faulty: int = 120, healthy: int = 60, first_seed: int = 0) -> list[Case]:
    """Cases of all kinds in turn: ``faulty`` with a fault, ``healthy`` without; mixed, so that any part says much."""
    ill = [draw(FAULTS[number % len(FAULTS)], first_seed + number // len(FAULTS)) for number in range(faulty)]
    well = [draw(HEALTHY[number % len(HEALTHY)], first_seed + number // len(HEALTHY)) for number in range(healthy)]
    both = [(number / max(1, len(some)), case) for some in (ill, well) for number, case in enumerate(some)]
    return [case for _, case in sorted(both, key=lambda each: (each[0], each[1].name))]

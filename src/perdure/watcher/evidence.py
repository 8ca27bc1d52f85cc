"""What detectors find, and what is made of it."""

from __future__ import annotations

import enum

import msgspec

from perdure.watcher.labels import Action, Label, Owner

__all__ = ["Evidence", "Stage", "Verdict"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a detector has found. ``ranks`` and ``nodes`` are accused; empty if nobody is.

    ``at_s`` is CLOCK_MONOTONIC of whoever analyses, ``strength`` 0 to 1 says how far it stands out from what is usual.
    """

    kind: str
    "What was found; `perdure.watcher.verdicts` says what follows from it."
    at_s: float
    sentence: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    strength: float = 1.0
    label: Label | None = None
    "What it is, where that is certain: a rule about a line has one."
    step: int | None = None
    raw: tuple[str, ...] = ()
    "The lines or numbers that it was read from."


class Stage(enum.StrEnum):
    """How far an incident is: suspected early, acted on after the deadline of its phase, over."""

    SUSPICION = "suspicion"
    VERDICT = "verdict"
    CLEARED = "cleared"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, with whom, how sure, and what to do.

    An incident keeps its id while it goes from suspicion to verdict and until it is cleared, so that whoever is told
    twice acts once.
    """

    incident: str
    stage: Stage
    label: Label
    owner: Owner
    action: Action
    confidence: float
    "Calibrated: of verdicts with 0.9, nine in ten are right about label and node."
    sentence: str
    at_s: float
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    step: int | None = None
    evidence: tuple[Evidence, ...] = ()
    wall_s: float | None = None
    "``at_s`` in seconds since 1970, for people; whoever tells or keeps it for them fills it in."

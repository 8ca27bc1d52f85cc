"""The state of a job as plain values: what the journal holds, what a memo carries, what people are shown."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from perdure.supervisor.budget import Budget
from perdure.supervisor.cordon import Cordon
from perdure.supervisor.verdict import Named, Past

__all__ = ["Ending", "Job", "NodeFacts", "State"]

Why = Literal["done", "failed", "asked", "drained"]


class State(enum.Enum):
    """Where a job stands; the table of `perdure.supervisor.machine` says how it moves."""

    START = "start"
    WARM_UP = "warm-up"
    EXECUTE = "execute"
    VERIFY = "verify"
    RECOVER = "recover"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        """Whether the job is over."""
        return self in (State.SUCCEEDED, State.FAILED, State.STOPPED)


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a launcher says of its node."""

    name: str
    host: str
    "Address at which the other nodes reach it."
    nproc: int
    "Ranks that it starts."
    index: int = -1
    "Where the user wants it; -1 if nothing was said."
    gpus: int = 0
    "GPUs that it has."
    domain: str = ""
    "What fails together with it."
    port: int = 0
    "A free port, kept for rank 0 of the next attempt."
    command: str = ""
    "Digest of the command that it starts."
    door: tuple[str, int] = ("", 0)
    "Where this launcher answers other launchers."
    pid: int = 0
    "Process of the launcher."
    machine: str = ""
    "The boot of the machine that it runs on."


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt is being ended."""

    why: Why
    signal: int = 0
    "What the job was asked to stop by, if it was."
    sentence: str = ""
    "For people."


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """All that a controller must know to go on where another one stopped."""

    name: str
    run: str
    "Name of this run of the job; the attempts of two runs are never mistaken for each other."
    term: int = 0
    "How many controllers came before this one."
    state: State = State.START
    roster: tuple[NodeFacts, ...] = ()
    "All nodes that have joined in this run, in the order in which they did."
    attempt: int = -1
    "The current attempt, or the last."
    places: tuple[NodeFacts, ...] = ()
    "The nodes of the current attempt by their place, as they were when it started."
    ending: Ending | None = None
    lost: tuple[str, ...] = ()
    "Nodes of the current attempt that are gone."
    asked: int = 0
    "Signal by which the job was asked to stop; 0 if it was not."
    draining: tuple[str, ...] = ()
    "Nodes that are to be left."
    checked: tuple[str, ...] = ()
    "Nodes that have passed their checks in this run."
    best_step: int = 0
    budget: Budget = Budget()
    past: Past = Past()
    cordon: Cordon = Cordon()
    restore_before: int | None = None
    "What the next attempt must restore below, after a roll-back."
    skip: tuple[tuple[int, int], ...] = ()
    "Steps whose batches the next attempts leave out."
    acted: tuple[Named, ...] = ()
    "Verdicts of the watcher that were acted on, each once; of the current attempt, and the last ones before it."
    reason: str = ""
    "Why the job failed, or the last attempt."
    exit_code: int | None = None
    "What launchers exit with, once the job is over."

"""What a job is told, and how long its controller and launchers wait for what."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.errors import CallError
from perdure.progress import MAX_LOCAL_RANKS

__all__ = ["ActsOn", "Spec", "Waits"]

ActsOn = Literal["all", "none"]


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. The lease keeps two attempts apart: docs/decisions/0013."""

    beat_s: float = 0.5
    "Between two signs of life."
    lease_s: float = 3.0
    "Silence after which a launcher ends its ranks, and a controller counts a launcher as lost."
    fence_s: float = 0.5
    "More than the lease, before the place of a lost node is taken."
    relink_s: float = 1.0
    "For a launcher whose link was closed to come back."
    orphan_s: float = 30.0
    "For which a launcher keeps its ranks while there is no controller."
    join_s: float = 30.0
    "After the last node that joined, for more than the fewest."
    shrink_s: float = 5.0
    "Before a job goes on with fewer nodes than it had."
    wait_s: float = 600.0
    "For enough nodes to start, or to go on."
    late_s: float = 1.0
    "For the other nodes to say which of their ranks are late too."
    settle_s: float = 0.3
    "In which ranks that fall with the first one may end by themselves."
    broken_drain_s: float = 10.0
    "That the others may still save once a rank has failed in a drain."
    name_s: float = 1.5
    "For the watcher to name what happened, before a job ends of it; a restart never waits for that."


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One job."""

    name: str
    "Name of the job, the same when it is started again."
    command: tuple[str, ...]
    "What each rank runs."
    min_nodes: int = 1
    max_nodes: int = 1
    spares: int = 0
    "Nodes beyond ``max_nodes`` that wait for the place of one that fails."
    max_restarts: int = 3
    "Restarts in a row that may end without a new step."
    grace_s: float = 120.0
    "How long ranks may save after the job was asked to stop."
    stop_grace_s: float = 0.5
    "How long the other ranks may take to stop after one has failed."
    checks: tuple[str, ...] = ()
    "What is checked on a node before its ranks start, and on suspects after a fault."
    pair_checks: bool = False
    "Whether nodes are also compared with each other."
    phase_deadlines: str = ""
    "How long phases of ranks may take, as ``step=60,save=900``; else it is learned."
    check_s: float = 60.0
    "How long the checks of a node may take."
    resume: bool = False
    "Whether the job must find a step to go on from."
    skip_bad_batch: bool = False
    "Whether a batch that ends the job twice may be left out."
    watch: bool = False
    "Whether its ranks are watched."
    act_on_verdicts: ActsOn = "all"
    "Which verdicts of the watcher something is done about."
    log_dir: str = ""
    "Where what ranks print is kept on each node; empty if it is not."
    takeover: bool = False
    "Whether launchers may start another controller on another machine: then no half of them acts alone."
    start: str = ""
    "Which start of the job this is; a controller that comes when that is over does not begin it again."
    waits: Waits = Waits()

    def __post_init__(self) -> None:
        if not self.command:
            raise CallError("there is no command to run; give it after --")
        if self.max_restarts < 0:
            raise CallError(f"max_restarts is {self.max_restarts}; it must be 0 or more")
        if min(self.grace_s, self.stop_grace_s) < 0:
            raise CallError("grace_s and stop_grace_s must be 0 or more")
        if not 1 <= self.min_nodes <= self.max_nodes or self.spares < 0:
            raise CallError(
                f"--nodes {self.min_nodes}:{self.max_nodes} --spares {self.spares}: give MIN:MAX with 1 <= MIN <= MAX, "
                "and spares of 0 or more"
            )


def checked_nproc(nproc: int) -> int:
    """Return ``nproc``; raise `CallError` if a node cannot run so many ranks."""
    if not 1 <= nproc <= MAX_LOCAL_RANKS:
        raise CallError(f"a node runs 1 to {MAX_LOCAL_RANKS} ranks, not {nproc}")
    return nproc

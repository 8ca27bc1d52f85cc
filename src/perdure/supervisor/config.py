"""What a run of the launcher is told."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import CallError
from perdure.progress import MAX_LOCAL_RANKS

__all__ = ["RunConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One job on this node."""

    nproc: int
    "Ranks to start."
    command: tuple[str, ...]
    "What each rank runs."
    job: str = "default"
    "Name of the job, the same when it is started again."
    max_restarts: int = 3
    "Restarts in a row that may end without a new step."
    grace_s: float = 120.0
    "How long ranks may save after the job was asked to stop."
    stop_grace_s: float = 0.5
    "How long the other ranks may take to stop after one has failed."
    monitor_s: float = 0.05
    "How often progress is read; a death is noticed at once."
    log_dir: str | None = None
    "Folder for one log a rank and attempt; None for none."

    def __post_init__(self) -> None:
        if not 1 <= self.nproc <= MAX_LOCAL_RANKS:
            raise CallError(f"a node runs 1 to {MAX_LOCAL_RANKS} ranks, not {self.nproc}")
        if not self.command:
            raise CallError("there is no command to run; give it after --")
        if self.max_restarts < 0:
            raise CallError(f"max_restarts is {self.max_restarts}; it must be 0 or more")
        if min(self.grace_s, self.stop_grace_s) < 0 or self.monitor_s <= 0:
            raise CallError("grace_s and stop_grace_s must be 0 or more, and monitor_s more than 0")

"""How a job in an allocation ends, also when the node of its batch script has died.

With ``--no-kill`` an allocation outlives any of its nodes, the first one too: then the batch script and its ``srun``
are gone, the launchers of the other nodes go on (what they print is lost), and Slurm would keep the job as running for
ever after they have ended. So

- a launcher that ends with the job's outcome writes it to a file beside the logs. Code 75 (try again) is none: a
  launcher that was cut off says so while the others go on; nor are 130 and 143, the answers to a signal;
- a launcher that ends and does not reach the process that started the step asks Slurm to requeue the job. The script
  that then starts finds the file, and ends with what it says.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from perdure.adapters.slurm.step import STARTER, ask, shown_job
from perdure.clock import SYSTEM, Clock
from perdure.errors import StorageError, TryAgain

__all__ = ["OUTCOME", "STARTER", "leave", "note_outcome", "outcome"]

OUTCOME = "PERDURE_SLURM_OUTCOME"  # the file; set by the batch script of `perdure submit`
_UNDECIDED = (75, 130, 143)
_TRIES, _TRY_S, _PAUSE_S = 3, 3.0, 1.0


def note_outcome(code: int, *, file: Path) -> None:
    """Write the exit code of a launcher to ``file`` if it is the outcome of the job; the first one counts."""
    if code in _UNDECIDED:
        return
    fresh = file.with_name(f".{file.name}.{os.getpid()}.{socket.gethostname()}")
    try:
        fresh.write_text(f"{code}\n")
        try:
            os.link(fresh, file)
        except FileExistsError:
            pass  # another launcher was first, with the same word of the controller
        finally:
            fresh.unlink()
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}; make room there", file=str(file)) from error


def outcome(file: Path) -> int | None:
    """Return the outcome of the job, None as long as no launcher knows it."""
    try:
        return int(file.read_text())
    except FileNotFoundError:
        return None


def leave(job: int, *, env: Mapping[str, str], say: Callable[[str], None], clock: Clock = SYSTEM) -> None:
    """To be called by each launcher at its end: if the batch script is gone, hand the job back to Slurm.

    A job that must not be requeued is cancelled, for nobody is left who could end it otherwise.
    """
    starter = env.get(STARTER)
    if not env.get(OUTCOME) or not starter or _reached(starter, clock):
        return
    try:
        fields = shown_job(ask("scontrol", "--oneliner", "show", "job", str(job), env=env))
        if fields["JobState"] != "RUNNING":
            return  # another launcher was first
        say(f"the node of the batch script is gone: handing job {job} back to Slurm")
        if fields.get("Requeue") == "0":
            ask("scancel", str(job), env=env)
        else:
            ask("scontrol", "requeue", str(job), env=env)
    except TryAgain as error:
        say(f"{error}; if no other launcher ends job {job}, scancel does")


def _reached(address: str, clock: Clock) -> bool:
    host, _, port = address.rpartition(":")
    for _ in range(_TRIES):
        try:
            with socket.create_connection((host, int(port)), timeout=_TRY_S):
                return True
        except OSError:
            clock.sleep(_PAUSE_S)
    return False

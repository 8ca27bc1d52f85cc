"""Stay with a submitted job until it has ended, and lift the hold that Slurm puts on a requeued one.

Slurm lets a job that was requeued wait for two minutes (until the credential of its first start has run out), whatever
is free. Its owner may start it at once, but only after its last process has ended: nothing inside of the job can do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perdure.adapters.slurm.step import ask, shown_job
from perdure.clock import SYSTEM, Clock
from perdure.errors import TryAgain

__all__ = ["ended", "follow", "held"]

_WAITING = ("CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_BUSY = ("COMPLETING", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")
_POLL_S = 2.0
_PATIENCE_S = 600.0  # a slurmctld that is restarted


def held(shown: str) -> bool:
    """Return whether ``scontrol --oneliner show job`` shows a job that waits only because it was requeued.

    >>> held("JobId=7 Restarts=1 JobState=PENDING Reason=BeginTime")
    True
    """
    fields = shown_job(shown)
    return (fields["JobState"], fields.get("Reason")) == ("PENDING", "BeginTime") and fields.get("Restarts") != "0"


def ended(shown: str) -> int | None:
    """Return the exit code of a job that has ended (128 + signal; 1 if Slurm ended it), None before.

    >>> ended("JobId=7 JobState=FAILED ExitCode=64:0"), ended("JobId=7 JobState=RUNNING ExitCode=0:0")
    (64, None)
    """
    fields = shown_job(shown)
    if fields["JobState"] in (*_WAITING, *_BUSY):
        return None
    code, _, signal = fields.get("ExitCode", "0:0").partition(":")
    if int(signal or 0):
        return 128 + int(signal)
    return int(code) or (0 if fields["JobState"] == "COMPLETED" else 1)


def follow(job: int, *, env: Mapping[str, str], say: Callable[[str], None], clock: Clock = SYSTEM) -> int:
    """Wait until the job has ended and return its exit code; lift each hold on the way.

    A slurmctld that does not answer is asked again for ten minutes; then its error is raised.
    """
    before, silent_since = "", None
    while True:
        try:
            shown = ask("scontrol", "--oneliner", "show", "job", str(job), env=env)
        except TryAgain:
            silent_since = clock.monotonic() if silent_since is None else silent_since
            if clock.monotonic() - silent_since > _PATIENCE_S:
                raise
            clock.sleep(_POLL_S)
            continue
        silent_since = None
        state = shown_job(shown)["JobState"]
        if state != before:
            say(f"job {job} is {state}")
            before = state
        code = ended(shown)
        if code is not None:
            return code
        if held(shown):
            _lift(job, env, say)
        clock.sleep(_POLL_S)


def _lift(job: int, env: Mapping[str, str], say: Callable[[str], None]) -> None:
    try:
        ask("scontrol", "update", f"JobId={job}", "StartTime=now", env=env)
        say(f"job {job} was requeued and may start again at once")
    except TryAgain as error:
        say(f"job {job} was requeued and waits about two minutes: {error}")

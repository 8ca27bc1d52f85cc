"""The batch script of a job: what `perdure submit` hands to ``sbatch``. Pure; `script` is a function of its `Job`.

What the script does with the exit code of `perdure run`:

| code | meaning | the script |
|---|---|---|
| 0 | every rank finished | ends with 0 |
| 75 | try again (too few nodes left, a service away) | requeues the job, at most ``max_requeues`` times |
| 143, 130 near the end of the job's time | stopped by the notice, and saved | requeues the job |
| anything else (64: the call is wrong; 73: a person is needed) | would fail again | ends with it: the job has failed |
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from perdure.adapters.slurm.ending import OUTCOME
from perdure.errors import CallError

__all__ = ["Job", "script"]

_NEAR_S = 90  # Slurm sends the notice up to a minute early
_SAYS_SHARE = (
    *("--exclusive", "--cpus-per-task", "-c", "--cpus-per-gpu", "--gpus", "-G", "--gpus-per-node", "--gres"),
    *("--mincpus", "--ntasks", "-n", "--oversubscribe", "-s", "--tres-per-task"),
)
_OURS = ("--nodes", "-N", "--array", "-a", "--kill-on-invalid-dep", "--no-kill", "-k", "--wrap", "--parsable", "--wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is submitted. ``run`` is the command line of `perdure run` with its options, before the user's ``command``.

    ``folder`` is for the logs and the script itself, on a file system of all nodes. ``notice_s`` before its end the job
    is asked to save. ``sbatch`` are further options, as the user wrote them.
    """

    name: str
    folder: str
    n_nodes: int
    n_spares: int
    run: tuple[str, ...]
    command: tuple[str, ...]
    sbatch: tuple[str, ...] = ()
    notice_s: int = 120
    max_requeues: int = 5


def script(job: Job) -> str:
    """Return the batch script of ``job``; raise `CallError` where the user's options take away what it stands on."""
    options = _options(job)
    run = shlex.join([*job.run, "--", *job.command])
    state = f"{shlex.quote(job.folder)}/$SLURM_JOB_ID"
    return f"""#!/bin/bash
# Written by `perdure submit`; sbatch takes it again as it is.
{options}
set -u
outcome={state}.outcome tries={state}.requeues
say() {{ echo "perdure: $*" >&2; }}

requeue() {{ # reason
    say "$1: requeueing job $SLURM_JOB_ID"
    scontrol requeue "$SLURM_JOB_ID" && exit 75
    say "Slurm does not requeue it; submit it again to go on"
    exit 75
}}

if [ -e "$outcome" ]; then # the node of this script died, and the others have ended the job without it
    code=$(cat "$outcome")
    rm -f "$outcome" "$tries"
    say "the job has ended with code $code after the node of its batch script had died"
    exit "$code"
fi

export {OUTCOME}=$outcome
{run} &
run=$!
noticed=
trap 'noticed=1; kill -TERM "$run" 2>/dev/null' TERM
while :; do
    wait "$run"
    code=$?
    kill -0 "$run" 2>/dev/null || break # a trap ends the wait early
done
[ -e "$outcome" ] && code=$(cat "$outcome")
rm -f "$outcome"

case $code in
    75)
        echo "$(date)" >>"$tries"
        [ "$(wc -l <"$tries")" -gt {job.max_requeues} ] || requeue "not possible now"
        say "not possible now, for the {job.max_requeues + 1}th time in a row"
        ;;
    130 | 143)
        rm -f "$tries"
        end=$(date -d "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e)" +%s 2>/dev/null) || end=
        if [ -n "$noticed" ] && [ -n "$end" ] && [ $((end - $(date +%s))) -le {job.notice_s + _NEAR_S} ]; then
            requeue "the time of the job is over"
        fi
        ;;
    *) rm -f "$tries" ;;
esac
exit "$code"
"""


def _options(job: Job) -> str:
    """The ``#SBATCH`` lines; what is further down overrides what is above."""
    for word in job.sbatch:
        if word.split("=")[0] in _OURS or word.startswith(("-N", "-a")):
            raise CallError(f"{word} is not for sbatch here: perdure submit sets it itself, or cannot work with it")
    lines = [f"--job-name={job.name}", f"--output={job.folder}/slurm-%j.log", "--open-mode=append"]
    lines += [f"--nodes={job.n_nodes + job.n_spares}", "--no-kill", "--requeue", f"--signal=B:TERM@{job.notice_s}"]
    if not any(word.split("=")[0] in _SAYS_SHARE for word in job.sbatch):
        lines.append("--exclusive")
    lines = [shlex.join([line]) for line in lines]
    return "\n".join(f"#SBATCH {line}" for line in [*lines, *([shlex.join(job.sbatch)] if job.sbatch else [])])

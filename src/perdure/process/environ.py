"""Where this process stands in its job: the one place that reads (and writes) what a launcher puts in the environment.

| variable | meaning | also read |
|---|---|---|
| RANK, WORLD_SIZE | global rank, ranks in the job | |
| LOCAL_RANK, LOCAL_WORLD_SIZE | rank on this node, ranks on this node | |
| GROUP_RANK | node | |
| MASTER_ADDR, MASTER_PORT | where rank 0 of the process group listens | |
| PERDURE_NODE | the node's name, where it is not the machine: nodes that are simulated on one, or are containers on it
| |
| PERDURE_DOMAIN | what fails together with this node (a rack, a switch); copies go to a node of another domain | |
| PERDURE_JOB | the job's name, the same over all its attempts | TORCHELASTIC_RUN_ID |
| PERDURE_ATTEMPT | how many attempts came before this one | TORCHELASTIC_RESTART_COUNT |
| PERDURE_MARK | marks every process of the attempt; ``outer:inner`` where launchers nest | |
| PERDURE_RESUME | ``must``: to find nothing to restore is fatal, and training never begins from scratch | |
| PERDURE_RESTORE_BEFORE | restore the newest step below this one: a roll-back, of this attempt alone | |
| PERDURE_SKIP | steps whose batches are left out, as ``first:last`` or several with commas between | |
| PERDURE_MAY_SKIP | ``1``: batches may come to be left out, so ranks say at their start if they could not do it | |
| PERDURE_EVENTS | file that events are appended to | |
| PERDURE_PROBE | folder (mode 0700) for the records of watched ranks; ``off``: this process is not to be watched | |
| PERDURE_PROBE_SIGNAL | number of the signal that asks a watched rank for its stacks | |
| PERDURE_PROBE_CHECKSUM | steps between checksums of replicated parameters; 0: none | |
| PERDURE_PROBE_OWNER | process that keeps the record of this rank; its children keep none | |
| PERDURE_IO | how large blobs are written: ``engine:direct or buffered:block:depth`` | |

torchrun's names are accepted as they are, and `child_env` sets them, so that a script runs under either launcher.
Of what the launcher itself was given, ranks inherit PERDURE_RESUME, PERDURE_SKIP and PERDURE_MAY_SKIP; a roll-back is
for one attempt, so PERDURE_RESTORE_BEFORE is not passed on to all of them.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from perdure.errors import CallError

__all__ = [
    "MARK",
    "PROBE",
    "Placement",
    "ProbeTold",
    "aws_variables",
    "cache_home",
    "child_env",
    "claim_probe",
    "flight_recorder_entries",
    "io_override",
    "runtime_home",
    "without_mark",
]

MARK = "PERDURE_MARK"
PROBE = "PERDURE_PROBE"
_PROBE_SIGNAL, _PROBE_OWNER, _PROBE_SUM = "PERDURE_PROBE_SIGNAL", "PERDURE_PROBE_OWNER", "PERDURE_PROBE_CHECKSUM"
_RESUME, _BEFORE, _SKIP = "PERDURE_RESUME", "PERDURE_RESTORE_BEFORE", "PERDURE_SKIP"
_MAY_SKIP = "PERDURE_MAY_SKIP"
_DEFAULT_JOB = "default"
_NEEDS_ALL = ("RANK", "WORLD_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a rank stands. A process that no launcher started is rank 0 of 1.

    >>> Placement.read({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}).node
    1
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    node: int = 0
    job: str = _DEFAULT_JOB
    attempt: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    mark: str | None = None
    events: str | None = None
    node_name: str | None = None
    domain: str | None = None
    resume_must: bool = False
    restore_before: int | None = None
    skip: tuple[tuple[int, int], ...] = ()
    may_skip: bool = False

    @classmethod
    def read(cls, env: Mapping[str, str] = os.environ) -> Placement:
        """Read and check what the launcher said; raise `CallError` with a sentence where it does not fit together."""
        if any(name in env for name in _NEEDS_ALL):
            for name in _NEEDS_ALL:
                if name not in env:
                    raise CallError(f"{name} is not set, but {' or '.join(_NEEDS_ALL)} is: a launcher must set both")
        world = _number(env, "WORLD_SIZE", 1, low=1)
        rank = _number(env, "RANK", 0, high=world)
        local_world = _number(
            env, "LOCAL_WORLD_SIZE", world if "LOCAL_RANK" not in env else None, low=1, high=world + 1
        )
        local_rank = _number(env, "LOCAL_RANK", rank if local_world == world else None, high=local_world)
        return cls(
            rank=rank,
            world=world,
            local_rank=local_rank,
            local_world=local_world,
            node=_number(env, "GROUP_RANK", rank // local_world, high=world),
            job=env.get("PERDURE_JOB") or env.get("TORCHELASTIC_RUN_ID") or _DEFAULT_JOB,
            attempt=_number(env, "PERDURE_ATTEMPT", _number(env, "TORCHELASTIC_RESTART_COUNT", 0)),
            master_addr=env.get("MASTER_ADDR") or None,
            master_port=_number(env, "MASTER_PORT", 0, high=1 << 16) or None,
            mark=env.get(MARK) or None,
            events=env.get("PERDURE_EVENTS") or None,
            node_name=env.get("PERDURE_NODE") or None,
            domain=env.get("PERDURE_DOMAIN") or None,
            resume_must=_resume_must(env),
            restore_before=_number(env, _BEFORE, 0, low=1) if env.get(_BEFORE) else None,
            skip=_ranges(env),
            may_skip=env.get(_MAY_SKIP) == "1",
        )

    @property
    def node_id(self) -> str:
        """What tells this node from all others: the boot of its machine and its name, if it has one."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                machine = file.read().strip()
        except OSError:
            machine = ""
        return f"{platform.node()} {machine} {self.node_name or ''}".strip()

    @property
    def failure_domain(self) -> str:
        """What fails together: the named domain, else the node."""
        return self.node_id if self.domain is None else self.domain

    @property
    def agent_job(self) -> str:
        """What the agent of this node calls its job."""
        return self.job if self.node_name is None else f"{self.job}@{self.node_name}"

    @property
    def attempt_id(self) -> str:
        """A name of this attempt that no other attempt of this job has: its own mark, else job and count."""
        return self.mark.rsplit(":", 1)[-1] if self.mark else f"{self.job}.{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTold:
    """What this process was told of being watched. ``folder`` is None if it is not to be."""

    folder: str | None = None
    signal: int | None = None
    owner: int | None = None
    checksum_steps: int | None = None
    rank: int | None = None
    world: int | None = None
    "Where the launcher says both; the rest of a `Placement` need not be there."
    may_skip: bool = False
    events: str | None = None

    @classmethod
    def read(cls, env: Mapping[str, str] = os.environ) -> ProbeTold:
        """Read it. Words that make no sense are as if they were not there: a job goes on without being watched."""
        folder = env.get(PROBE, "")
        number, owner = env.get(_PROBE_SIGNAL, ""), env.get(_PROBE_OWNER, "")
        every = env.get(_PROBE_SUM, "")
        place = [int(env[name]) for name in _NEEDS_ALL if env.get(name, "").isdecimal()]
        rank, world = place if len(place) == 2 else (None, None)
        return cls(
            folder=folder if os.path.isabs(folder) else None,
            signal=int(number) if number.isdecimal() and 0 < int(number) < 65 else None,
            owner=int(owner) if owner.isdecimal() else None,
            checksum_steps=int(every) if every.isdecimal() else None,
            rank=rank,
            world=world,
            may_skip=env.get(_MAY_SKIP) == "1",
            events=env.get("PERDURE_EVENTS") or None,
        )

    @property
    def wanted(self) -> bool:
        """Whether this process is a rank that is to be watched, and no child of one."""
        return self.folder is not None and self.rank is not None and not _is_another(self.owner)


def _is_another(pid: int | None) -> bool:
    """Whether ``pid`` is a process that lives, and not this one."""
    try:
        os.kill(os.getpid() if pid is None else pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return pid not in (None, os.getpid())


def claim_probe() -> None:
    """Have the processes that this one starts know that the record of the rank is this process's."""
    os.environ[_PROBE_OWNER] = str(os.getpid())


def child_env(placement: Placement, *, base: Mapping[str, str], max_restarts: int = 0) -> dict[str, str]:
    """Return the environment of the rank at ``placement``: ``base`` (the launcher's own) with what torchrun would set.

    Ranks share the cores, so OMP_NUM_THREADS is 1 unless ``base`` sets it; their output goes through a pipe, so
    Python's is unbuffered unless ``base`` says otherwise. A mark in ``base`` (nested launchers) is kept in front of the
    new one.
    """
    env = {name: value for name, value in base.items() if not name.startswith("TORCHELASTIC_")}
    env.pop(_BEFORE, None)
    env.pop(_PROBE_OWNER, None)
    nodes = max(1, placement.world // placement.local_world)
    env.update(
        RANK=str(placement.rank),
        WORLD_SIZE=str(placement.world),
        LOCAL_RANK=str(placement.local_rank),
        LOCAL_WORLD_SIZE=str(placement.local_world),
        GROUP_RANK=str(placement.node),
        GROUP_WORLD_SIZE=str(nodes),
        ROLE_NAME="default",
        ROLE_RANK=str(placement.rank),
        ROLE_WORLD_SIZE=str(placement.world),
        TORCHELASTIC_RUN_ID=placement.job,
        TORCHELASTIC_RESTART_COUNT=str(placement.attempt),
        TORCHELASTIC_MAX_RESTARTS=str(max_restarts),
        # Rank 0 listens at MASTER_PORT itself: no store of the launcher's that would outlive the attempt.
        TORCHELASTIC_USE_AGENT_STORE="False",
        PERDURE_JOB=placement.job,
        PERDURE_ATTEMPT=str(placement.attempt),
    )
    env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("PYTHONUNBUFFERED", "1")
    if placement.master_addr is not None:
        env["MASTER_ADDR"] = placement.master_addr
    if placement.master_port is not None:
        env["MASTER_PORT"] = str(placement.master_port)
    if placement.events is not None:
        env["PERDURE_EVENTS"] = placement.events
    if placement.node_name is not None:
        env["PERDURE_NODE"] = placement.node_name
    if placement.domain is not None:
        env["PERDURE_DOMAIN"] = placement.domain
    if placement.resume_must:
        env[_RESUME] = "must"
    if placement.restore_before is not None:
        env[_BEFORE] = str(placement.restore_before)
    if placement.skip:
        env[_SKIP] = ",".join(f"{first}:{last}" for first, last in placement.skip)
    if placement.may_skip:
        env[_MAY_SKIP] = "1"
    if placement.mark is not None:
        outer = base.get(MARK)
        env[MARK] = f"{outer}:{placement.mark}" if outer else placement.mark
    return env


def runtime_home(env: Mapping[str, str] = os.environ) -> str | None:
    """Return the folder that the login session keeps for this user's sockets, if it says so (XDG_RUNTIME_DIR)."""
    return env.get("XDG_RUNTIME_DIR") or None


def aws_variables(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what the environment says about AWS, and HOME, under which its profiles lie. Never shown: keys."""
    return {name: value for name, value in env.items() if (name.startswith("AWS_") or name == "HOME") and value}


def cache_home(env: Mapping[str, str] = os.environ) -> str:
    """Return the folder of this user for what can be found out again (XDG_CACHE_HOME, else ~/.cache)."""
    named = env.get("XDG_CACHE_HOME", "")
    return named if os.path.isabs(named) else os.path.join(os.path.expanduser("~"), ".cache")


def io_override(env: Mapping[str, str] = os.environ) -> str | None:
    """Return how the user wants large blobs to be written (PERDURE_IO, as ``uring:direct:8MiB:16``), if at all."""
    return env.get("PERDURE_IO") or None


def flight_recorder_entries(env: Mapping[str, str] = os.environ) -> int | None:
    """Return how many collectives torch was told to record (0: none), if it was told."""
    text = env.get("TORCH_FR_BUFFER_SIZE") or env.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or ""
    return int(text) if text.isdecimal() else None


def without_mark(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return ``base`` for a process that is to outlive the attempt (the agent): no mark, no place in the job.

    Places in PYTHONPATH become absolute: the process may run in another folder.
    """
    gone = {MARK, "RANK", "LOCAL_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PERDURE_ATTEMPT", "MASTER_PORT"}
    gone |= {_RESUME, _BEFORE, _SKIP, _MAY_SKIP}
    env = {name: value for name, value in base.items() if name not in gone and not name.startswith("TORCHELASTIC_")}
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in env["PYTHONPATH"].split(os.pathsep))
    return env


def _resume_must(env: Mapping[str, str]) -> bool:
    text = env.get(_RESUME, "")
    if text not in ("", "must"):
        raise CallError(f"{_RESUME} is {text!r}; it is 'must', or not set")
    return text == "must"


def _ranges(env: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of steps in PERDURE_SKIP, by their first step."""
    found = []
    for item in env.get(_SKIP, "").split(","):
        if not item.strip():
            continue
        first, colon, last = item.partition(":")
        try:
            steps = int(first), int(last)
        except ValueError:
            steps = 0, 0
        if not colon or not 1 <= steps[0] <= steps[1]:
            raise CallError(f"{_SKIP} has {item.strip()!r}; steps to leave out are first:last, as 317:318, from 1 on")
        found.append(steps)
    return tuple(sorted(found))


def _number(env: Mapping[str, str], name: str, default: int | None, *, low: int = 0, high: int | None = None) -> int:
    """Return the number in ``env[name]``, which must be in ``low <= number < high``."""
    text = env.get(name)
    if text is None:
        if default is None:
            raise CallError(f"{name} is not set; a launcher of several nodes must set it")
        return default
    try:
        number = int(text)
    except ValueError:
        raise CallError(f"{name} must be a whole number, not {text!r}") from None
    if number < low or (high is not None and number >= high):
        bound = f"{low} or more" if high is None else f"from {low} to {high - 1}"
        raise CallError(f"{name} is {number}; it must be {bound}")
    return number

"""What Slurm tells a process of the allocation it runs in: read from the environment that is handed in, nothing else.

| variable | meaning |
|---|---|
| SLURM_JOB_ID, SLURM_JOB_NODELIST | the allocation and its nodes; in each process of it |
| SLURM_RESTART_COUNT | how often the job was requeued; not set before the first time |
| SLURM_STEP_ID | the step (``srun``); the batch script has none, though it has SLURM_NODEID and SLURM_PROCID |
| SLURM_NODEID, SLURM_STEP_NUM_NODES, SLURM_STEP_NUM_TASKS | this task's node in the step, its nodes, its tasks |
| SLURM_STEP_NODELIST | the nodes of the step, in the order of SLURM_NODEID |
| SLURMD_NODENAME | what Slurm calls this node; not always what the machine calls itself |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perdure.adapters.slurm.hostlist import hostnames
from perdure.errors import CallError

__all__ = ["Allocation", "Step", "seconds_left"]

_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # the batch script, an interactive shell and the like are "steps" from here on
_FOR_EVER = ("UNLIMITED", "NOT_SET", "INVALID", "N/A")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The step (``srun``) of this process. ``node_index`` counts its ``nodes``."""

    node_index: int
    nodes: tuple[str, ...]
    n_tasks: int

    @property
    def one_task_a_node(self) -> bool:
        """Whether each task is alone on its node, as a launcher has to be."""
        return self.n_tasks == len(self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes that Slurm has given to job ``job``, and the step that this process is in, if it is in one.

    >>> env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-4]", "SLURMD_NODENAME": "node1"}
    >>> Allocation.read(env).nodes
    ('node1', 'node2', 'node3', 'node4')
    """

    job: int
    nodes: tuple[str, ...]
    node_name: str | None = None
    restarts: int = 0
    step: Step | None = None

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Allocation | None:
        """Return the allocation that ``env`` tells of, None outside of one; raise `CallError` where it is half told."""
        if not env.get("SLURM_JOB_ID"):
            return None
        nodes = hostnames(env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or "")
        if not nodes:
            raise CallError("SLURM_JOB_ID is set, but SLURM_JOB_NODELIST is not; unset it to run outside of Slurm")
        return cls(
            job=_needed(env, "SLURM_JOB_ID"),
            nodes=nodes,
            node_name=env.get("SLURMD_NODENAME") or None,
            restarts=_number(env, "SLURM_RESTART_COUNT") or 0,
            step=_step(env),
        )


def seconds_left(text: str) -> float | None:
    """Return the seconds that ``squeue --format=%L`` (``[days-][[hours:]minutes:]seconds``) speaks of; None: no end.

    How long is better than until when: the clocks of two machines do not agree.

    >>> seconds_left("1-02:03:04"), seconds_left("9:30"), seconds_left("UNLIMITED")
    (93784.0, 570.0, None)
    """
    words = text.strip()
    if words in _FOR_EVER:
        return None
    days, _, rest = words.rpartition("-")
    try:
        numbers = [int(word) for word in rest.split(":")]
        seconds = int(days or 0) * 86400
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or min(numbers) < 0:
        raise CallError(f"squeue says that {text!r} is left of the job, which is no time")
    for power, number in enumerate(reversed(numbers)):
        seconds += number * 60**power
    return float(seconds)


def _step(env: Mapping[str, str]) -> Step | None:
    number = _number(env, "SLURM_STEP_ID")
    if number is None or number >= _FIRST_SPECIAL_STEP:
        return None
    step = Step(
        node_index=_needed(env, "SLURM_NODEID"),
        nodes=hostnames(env.get("SLURM_STEP_NODELIST", "")),
        n_tasks=_needed(env, "SLURM_STEP_NUM_TASKS"),
    )
    if not 0 <= step.node_index < len(step.nodes):
        raise CallError(
            f"SLURM_NODEID is {step.node_index}, but SLURM_STEP_NODELIST has {len(step.nodes)} nodes; start with srun"
        )
    return step


def _needed(env: Mapping[str, str], name: str) -> int:
    value = _number(env, name)
    if value is None:
        raise CallError(f"{name} is not set, though other variables of Slurm are; start with srun or sbatch")
    return value


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise CallError(f"{name} is {text!r}; Slurm sets it to a number, so something else has changed it")
    return int(text)

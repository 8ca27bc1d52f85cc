"""How `perdure run` starts inside an allocation: one step with one launcher a node, which find each other.

Pure: an allocation in, command lines out; `perdure.adapters.slurm.step` carries them out.

The process that is outside of a step (in the batch script, or in the shell of ``salloc``) starts ``srun`` with the
same command once more and ``--engine slurm-node``. Each launcher then learns its place from its own environment: the
one on the first node of the step listens at the address that all of them were given. What the step is started with:

| option of ``srun`` | why |
|---|---|
| ``--no-kill``, ``--kill-on-bad-exit=0``, ``--wait=0`` | a node or launcher that is gone takes no other along |
| ``--overlap`` | the step that we may be in (an interactive shell) holds the CPUs already |
| ``--cpu-bind=none``, ``--mpi=none`` | the launcher's ranks use the whole node; nothing here speaks PMI |
| ``--input=none`` | ranks read nothing from whoever submitted |
"""

from __future__ import annotations

import hashlib
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perdure.adapters.slurm.allocation import Allocation
from perdure.errors import CallError, NeedsPerson

__all__ = ["ENGINE", "Counts", "Start", "counts", "free_port", "needs_step", "node_address", "ports", "start"]

ENGINE = "slurm-node"
TOKEN = "PERDURE_TOKEN"
_LOWEST_PORT, _N_PORTS = 20_000, 12_000  # below what Linux picks for outgoing connections
# What was asked for the tasks of the batch script, or of an outer step, would cut the launcher's share of its node.
_NOT_FOR_LAUNCHERS = frozenset(
    f"{prefix}_{name}"
    for prefix in ("SLURM", "SRUN")
    for name in (
        *("CPUS_PER_TASK", "GPUS_PER_TASK", "TRES_PER_TASK", "NTASKS", "NPROCS", "NTASKS_PER_NODE", "NTASKS_PER_GPU"),
        *("NTASKS_PER_CORE", "NTASKS_PER_SOCKET", "GPU_BIND", "CPU_BIND", "CPU_BIND_TYPE", "CPU_BIND_LIST", "HINT"),
        *("DISTRIBUTION", "EXACT", "EXCLUSIVE", "OVERCOMMIT", "KILL_BAD_EXIT", "WAIT", "STDOUTMODE", "STDINMODE"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How the nodes of an allocation are used: ``n_nodes`` train, ``n_spares`` wait for one of them to die."""

    n_nodes: int
    n_spares: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A command to run and its whole environment. ``step_name`` is how the step is found again."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    step_name: str


def needs_step(allocation: Allocation) -> bool:
    """Return whether launchers have yet to be started on the nodes; raise `CallError` in a step that is no good for it.

    A task that is alone in its step in an allocation of several nodes is taken for an interactive shell.
    """
    step = allocation.step
    if step is not None and not step.one_task_a_node:
        raise CallError(
            f"this step has {step.n_tasks} tasks on {len(step.nodes)} nodes, but perdure run starts the ranks of a "
            "node itself; start it without srun, or with srun --ntasks-per-node=1"
        )
    return len(allocation.nodes) > 1 and (step is None or len(step.nodes) == 1)


def counts(n_allocated: int, *, n_nodes: int | None, n_spares: int) -> Counts:
    """Return how ``n_allocated`` nodes are used; without ``n_nodes`` all that are no spares train.

    >>> counts(4, n_nodes=None, n_spares=1)
    Counts(n_nodes=3, n_spares=1)
    """
    training = n_allocated - n_spares if n_nodes is None else n_nodes
    if n_spares < 0 or training < 1 or training + n_spares > n_allocated:
        raise CallError(
            f"{training} nodes and {n_spares} spares do not fit into an allocation of {n_allocated}; "
            "allocate nodes for both (perdure submit does), or ask for fewer"
        )
    return Counts(n_nodes=training, n_spares=n_spares)


def ports(seed: str) -> Iterator[int]:
    """The ports at which a controller may listen, in the order in which they are to be tried; ``seed`` chooses them.

    >>> next(ports("job 7")) == next(ports("job 7"))
    True
    """
    digest = hashlib.sha256(seed.encode()).digest()
    return (_LOWEST_PORT + int.from_bytes(digest[n : n + 4]) % _N_PORTS for n in range(len(digest) - 3))


def free_port(candidates: Iterator[int]) -> int:
    """Return the first port that nobody on this machine listens at; raise `NeedsPerson` if all are taken."""
    tried = []
    for port in candidates:
        tried.append(port)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise NeedsPerson(f"none of the ports {tried} is free here; name one with --controller HOST:PORT", tried=tried)


def node_address(shown: str) -> str:
    """Return the address of a node from what ``scontrol --oneliner show node NAME`` printed.

    >>> node_address("NodeName=node1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=n1 Port=6818")
    '10.0.0.1'
    """
    for word in shown.split():
        if word.startswith("NodeAddr="):
            return word.removeprefix("NodeAddr=")
    raise CallError(f"scontrol shows a node without an address: {shown[:200]!r}; name it with --controller HOST:PORT")


def start(
    allocation: Allocation,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    controller: str,
    token: str,
    use: Counts,
    python: str = sys.executable,
) -> Start:
    """Return how the launchers of all nodes are started; ``argv`` is what followed ``perdure run``, as it was given.

    ``controller`` is ``HOST:PORT`` on the first node. The secret travels in the environment, which only this user can
    read, not on a command line, which all can.
    """
    name = f"perdure-{token[:8]}"
    n_nodes = len(allocation.nodes)
    srun = ["srun", f"--nodes={n_nodes}", f"--ntasks={n_nodes}", "--ntasks-per-node=1", f"--job-name={name}"]
    srun += ["--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--overlap"]
    srun += ["--cpu-bind=none", "--mpi=none", "--input=none", "--export=ALL"]
    run = [python, "-m", "perdure", "run", "--engine", ENGINE, "--controller", controller]
    run += ["--nodes", str(use.n_nodes), "--spares", str(use.n_spares)]
    kept = {key: value for key, value in env.items() if key not in _NOT_FOR_LAUNCHERS}
    return Start(command=(*srun, *run, *argv), env={**kept, TOKEN: token}, step_name=name)

"""``perdure run`` in an allocation of Slurm: start a launcher on each node, or be the launcher of this one."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

from perdure.adapters.slurm import Allocation
from perdure.adapters.slurm.ending import OUTCOME, STARTER, leave, note_outcome, outcome
from perdure.adapters.slurm.engine import ENGINE, Counts, counts, free_port, needs_step, node_address, ports, start
from perdure.adapters.slurm.step import ask, run_step
from perdure.checkpoint.link import socket_prefix
from perdure.cli.run_nodes import nodes_of
from perdure.clock import Deadline
from perdure.errors import CallError, PerdureError
from perdure.process.lock import FileLock
from perdure.process.runtime_dir import runtime_dir

__all__ = ["run_in_allocation"]

_LOOK_S = 0.1


def run_in_allocation(args: argparse.Namespace, *, job: str, run_here: Callable[[], int]) -> int:
    """Run ``job`` on the nodes that Slurm has given; ``run_here`` is a launcher of this node, as without Slurm."""
    allocation = Allocation.read(os.environ)
    if allocation is None:
        raise CallError(f"--engine {ENGINE} is for launchers that perdure run has started in a step of Slurm")
    if args.engine == ENGINE:
        return _launcher(args, allocation, job, run_here)
    if args.controller or args.master_addr or args.folder:
        return run_here()  # they meet where they were told to
    asked = None if args.nodes is None else nodes_of(args.nodes)[1]
    if needs_step(allocation):
        if asked is not None and asked + args.spares == 1:
            return run_here()
        return _step(args, allocation, counts(len(allocation.nodes), n_nodes=asked, n_spares=args.spares))
    step = allocation.step
    if step is None or len(step.nodes) == 1:
        return run_here()
    use = counts(len(step.nodes), n_nodes=asked, n_spares=args.spares)  # somebody's own srun
    port = next(ports(f"{allocation.job} {allocation.restarts}"))  # each launcher finds it for itself
    args.controller = f"{_address(step.nodes[0])}:{port}"
    args.nodes = args.nodes or str(use.n_nodes)
    return _launcher(args, allocation, job, run_here)


def _step(args: argparse.Namespace, allocation: Allocation, use: Counts) -> int:
    """Start the launchers of all nodes and wait for them."""
    address = _address(allocation.nodes[0])
    token = os.environ.get("PERDURE_TOKEN") or secrets.token_hex(32)
    candidates = ports(token)
    port = free_port(candidates) if allocation.node_name == allocation.nodes[0] else next(candidates)
    begun = start(
        allocation,
        args.words_given[1:],
        env=os.environ,
        controller=f"{address}:{port}",
        token=token,
        use=use,
    )
    _say(
        f"job {allocation.job} of Slurm: {use.n_nodes} nodes and {use.n_spares} spares of {','.join(allocation.nodes)}"
    )
    file = os.environ.get(OUTCOME)
    notice_s = None if file else args.grace  # the script of perdure submit has Slurm send one
    code = run_step(begun, job=allocation.job, address=address, notice_s=notice_s, say=_say)
    known = outcome(Path(file)) if file else None
    return code if known is None else known


def _launcher(args: argparse.Namespace, allocation: Allocation, job: str, run_here: Callable[[], int]) -> int:
    """Be the launcher of one node of the step."""
    step = allocation.step
    if step is None or not step.one_task_a_node:
        raise CallError(f"--engine {ENGINE} is for launchers that perdure run has started in a step of Slurm")
    args.engine, args.node_index = ENGINE, step.node_index
    args.node_name = args.node_name or allocation.node_name or step.nodes[step.node_index]
    try:
        code = run_here()
        if file := os.environ.get(OUTCOME):
            note_outcome(code, file=Path(file))
    except PerdureError as error:
        _say(f"node {args.node_name}: {error}")
        code = error.exit_code
    _await_agents(f"{job}@{args.node_name}", within_s=args.grace)
    if os.environ.get(STARTER):
        leave(allocation.job, env=os.environ, say=_say)
    return code


def _await_agents(job: str, *, within_s: float) -> None:
    """Wait until the agents of this node have written what they hold: Slurm kills them with the step."""
    deadline = Deadline.after(within_s, "the agents of this node to write what they hold")
    for path in runtime_dir().glob(f"{socket_prefix(job)}*.lock"):
        while (lock := FileLock.try_acquire(path)) is None:
            if deadline.passed():
                _say(f"process {FileLock.holder(path)} still writes what it holds; Slurm ends it now")
                return
            time.sleep(_LOOK_S)
        lock.remove()


def _address(node: str) -> str:
    return node_address(ask("scontrol", "--oneliner", "show", "node", node, env=os.environ))


def _say(line: str) -> None:
    print(f"perdure: {line}", file=sys.stderr, flush=True)

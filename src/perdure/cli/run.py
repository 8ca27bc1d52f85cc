"""``perdure run``: start a job on this node or on several, and keep it going.

Takes torchrun's spellings too, so that ``torchrun --nproc-per-node 4 train.py`` becomes ``perdure run --nproc-per-node
4 train.py``. What needs time to import is imported when the job starts: ``--help`` is instant.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.cli.run_flags import EPILOG, add_flags
from perdure.errors import CallError, PerdureError

if TYPE_CHECKING:
    from perdure.supervisor import AgentLink

__all__ = ["add_parser", "main"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``run`` to the command line; `main` is its ``func``."""
    parser = subparsers.add_parser(
        "run",
        help="start a job on this node or on several, and keep it going",
        description="Run a command as the ranks of a job, restart all of them when one fails, replace nodes that fail, "
        "leave no process behind.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser)
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace, *, agent: AgentLink | None = None) -> int:
    """Run the job that ``args`` describe; return the exit code. ``agent`` replaces the link to the node's agents."""
    try:
        return _run(args, agent)
    except PerdureError as error:
        print(f"perdure: {error}", file=sys.stderr)
        return error.exit_code


def _run(args: argparse.Namespace, agent: AgentLink | None) -> int:
    from perdure.cli.run_nodes import run_nodes  # lazy: --help must not pay for msgspec

    command = command_of(args.command, module=args.module, as_it_is=args.no_python)
    job = args.job or job_name(command, cwd=os.getcwd())

    def run_here() -> int:
        args.nodes = args.nodes or "1"
        return run_nodes(args, job=job, command=command, nproc=n_ranks(args.nproc), agent=agent)

    if args.engine == "local" or (args.engine == "auto" and not os.environ.get("SLURM_JOB_ID")):
        return run_here()
    from perdure.cli.run_slurm import run_in_allocation  # lazy: outside of an allocation nobody needs it

    return run_in_allocation(args, job=job, run_here=run_here)


def command_of(words: Sequence[str], *, module: bool, as_it_is: bool = False) -> tuple[str, ...]:
    """Return what to run: without a leading ``--``; a bare ``python``, a ``.py`` file or a module by this Python.

    >>> command_of(["--", "echo", "hi"], module=False)
    ('echo', 'hi')
    """
    rest = list(words[1:] if words[:1] == ["--"] else words)
    if not rest:
        raise CallError("there is no command to run; give it after --")
    if as_it_is:
        return tuple(rest)
    if module:
        return (sys.executable, "-m", *rest)
    if rest[0].endswith(".py"):
        return (sys.executable, *rest)
    if rest[0] in ("python", "python3"):  # the one that has perdure, whether or not its environment is active
        return (sys.executable, *rest[1:])
    if shutil.which(rest[0]) is None:
        raise CallError(f"there is no command {rest[0]!r}")
    return tuple(rest)


def n_ranks(text: str) -> int:
    """Return the number of ranks that ``text`` asks for: a number, ``cpu`` (cores), ``gpu`` (devices), ``auto``
    (either).
    """
    if text in ("gpu", "auto"):
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        if devices is not None:
            n_gpus = len([name for name in devices.split(",") if name.strip()])
        else:
            n_gpus = len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])
        if n_gpus:
            return n_gpus
        if text == "gpu":
            raise CallError("--nproc gpu: this node has no GPU")
    if text in ("cpu", "auto"):
        return len(os.sched_getaffinity(0))
    try:
        return int(text)
    except ValueError:
        raise CallError(f"--nproc {text}: give a number, cpu, gpu or auto") from None


def job_name(command: Sequence[str], *, cwd: str) -> str:
    """Return a name that is the same whenever this command is run in this folder.

    >>> job_name(["python", "/x/train.py"], cwd="/x")
    'train-ad479ee7'
    """
    script = next((word for word in command if word.endswith(".py")), command[0])
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", os.path.splitext(os.path.basename(script))[0])[:32] or "job"
    digest = hashlib.sha256("\0".join([cwd, *command]).encode()).hexdigest()
    return f"{stem}-{digest[:8]}"

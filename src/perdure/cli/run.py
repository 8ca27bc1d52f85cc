"""``perdure run``: start a job's ranks on this node and keep it going.

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

from perdure.errors import CallError, PerdureError

if TYPE_CHECKING:
    from perdure.supervisor import AgentLink

__all__ = ["add_parser", "main"]

_EPILOG = """\
examples:
  perdure run --nproc 4 -- python train.py --lr 3e-4
  perdure run --nproc-per-node 8 train.py            (as with torchrun)

exit code: 0 if every rank finished; that of the rank that failed first (128 + signal if it was killed);
143 or 130 if the job was stopped by SIGTERM or SIGINT, after its ranks had --grace seconds to save.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``run`` to the command line; `main` is its ``func``."""
    parser = subparsers.add_parser(
        "run",
        help="start a job's ranks on this node and keep it going",
        description="Run a command as the ranks of a job, restart all of them when one fails, leave no process behind.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--nproc",
        "--nproc-per-node",
        "--nproc_per_node",
        dest="nproc",
        default="1",
        metavar="N",
        help="ranks; a number, cpu or gpu (1)",
    )
    add("--nnodes", default="1", metavar="1", help="nodes; only 1 so far")
    add("--standalone", action="store_true", help="taken for torchrun's sake: one node always stands alone")
    add(
        "--max-restarts",
        "--max_restarts",
        type=int,
        default=3,
        metavar="N",
        help="restarts in a row that bring no new step (3)",
    )
    add(
        "--grace",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds that ranks may save when the job is stopped (120)",
    )
    add("--log-dir", "--log_dir", metavar="DIR", help="write what each rank prints to DIR/attempt-<n>/rank-<n>.log too")
    add(
        "--job",
        metavar="NAME",
        help="the job's name; the same when it is started again (from the folder and the command)",
    )
    add("-m", "--module", action="store_true", help="the command is a Python module")
    add(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- command ...",
        help="what each rank runs; a .py file is run by this Python",
    )
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
    from perdure.events import Log  # lazy: --help must not pay for msgspec
    from perdure.supervisor import Launcher, RunConfig

    if args.nnodes not in ("1", "1:1"):
        raise CallError(f"--nnodes {args.nnodes}: only one node so far")
    command = command_of(args.command, module=args.module)
    job = args.job or job_name(command, cwd=os.getcwd())
    config = RunConfig(
        nproc=n_ranks(args.nproc),
        command=command,
        job=job,
        max_restarts=args.max_restarts,
        grace_s=args.grace,
        log_dir=args.log_dir,
    )
    log = Log(os.environ.get("PERDURE_EVENTS") or None)
    try:
        link = agent if agent is not None else _connect(job)
        return Launcher(config, env=os.environ, log=log, agent=link).run()
    finally:
        log.close()


def _connect(job: str) -> AgentLink:
    from perdure.cli.agentlink import connect_job

    return connect_job(job)


def command_of(words: Sequence[str], *, module: bool) -> tuple[str, ...]:
    """Return what to run: without a leading ``--``; a bare ``python``, a ``.py`` file or a module by this Python.

    >>> command_of(["--", "echo", "hi"], module=False)
    ('echo', 'hi')
    """
    rest = list(words[1:] if words[:1] == ["--"] else words)
    if not rest:
        raise CallError("there is no command to run; give it after --")
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

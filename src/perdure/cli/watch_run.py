"""``perdure watch -- COMMAND``: run the launcher of a job, and say what is wrong with its ranks on this node."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli.watch_outlets import SECRETS, Outlets, add_outlet_flags
from perdure.cli.watch_signals import block_interrupts, pass_signals_on
from perdure.errors import CallError

if TYPE_CHECKING:
    from perdure.cli.watch_tee import Tee

__all__ = ["add_parser", "main"]

_SETTLE_S = 3.0  # after a failure, until it is clear who fell first


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="run a job's launcher and watch its ranks (the word may be left out: perdure watch -- torchrun ...)",
        description="Run COMMAND, such as torchrun, watch the ranks that it starts on this "
        "node, and tell on stderr what is wrong, with whom, and what to do. Nothing is done about it. Exits with the "
        "command's exit code.",
    )
    parser.add_argument("--every", type=float, default=0.5, metavar="S", help="seconds between two looks (0.5)")
    parser.add_argument(
        "--phase-deadline", default="", metavar="NAME=S,...", help="how long phases may take, as in perdure run"
    )
    add_outlet_flags(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what starts the ranks")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Run, watch, and pass the exit code on."""
    block_interrupts()  # before anything is imported that starts threads
    from perdure.progress import phase_deadlines
    from perdure.progress.probing import probe_env, records_folder
    from perdure.watcher.analyser import Settings
    from perdure.watcher.job_watch import JobWatch
    from perdure.watcher.node_watch import NodeWatch

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise CallError("what is to be run is missing: perdure watch -- torchrun --nproc-per-node 4 train.py")
    if not 0.05 <= args.every <= 5.0:
        raise CallError(f"--every {args.every:g} is no time between two looks; give 0.05 to 5 seconds")
    settings = Settings(phase_deadlines=phase_deadlines(args.phase_deadline))
    with ExitStack() as stack:
        folder, lock = records_folder()
        stack.callback(os.close, lock)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        added = probe_env(folder, base=os.environ)
        if not added:
            raise CallError("PERDURE_PROBE is off here, so ranks would write no records; unset it to watch them")
        outlets = stack.enter_context(Outlets.of(args, job=_name_of(command)))
        theirs = {key: value for key, value in os.environ.items() if key not in SECRETS}
        process, tee = _start(command, {**theirs, **added}, outlets)
        pass_signals_on(process)
        node = NodeWatch(folder, node=socket.gethostname(), disks=[Path.cwd()])
        stack.callback(node.close)
        job = JobWatch(settings)
        ended = os.pidfd_open(process.pid)
        stack.callback(os.close, ended)
        running, until_s = True, math.inf
        while time.monotonic() < until_s:
            node.wait(args.every, *([ended] if running else []))
            if running and process.poll() is not None:
                running = False
                if tee is not None:
                    tee.finish()
                until_s = time.monotonic() + (_SETTLE_S if process.returncode else 0.0)
            look = node.look(stacks_of=job.wants_stacks(), lines=() if tee is None else tee.lines())
            now_s = time.monotonic()
            told = job.feed([look], now_s=now_s)
            outlets.give(told, looks=[look], still_open=job.open, now_s=now_s)
        if not node.ranks:
            outlets.say(
                "no rank was seen: COMMAND started no process with RANK in its environment and torch in it (a script "
                "without a launcher is watched as torchrun --nproc-per-node 1 SCRIPT)"
            )
    code = process.returncode
    return 128 - code if code < 0 else code


def _start(command: list[str], env: dict[str, str], outlets: Outlets) -> tuple[subprocess.Popen[bytes], Tee | None]:
    """Start it; below what it prints on a terminal there may be a view."""
    from perdure.cli.watch_tee import start

    view, node = outlets.view, socket.gethostname()
    above = [] if view is None else [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]
    pipes = {fd: os.pipe() for fd in above}
    if above:
        env = {"PYTHONUNBUFFERED": "1", **env}
    try:
        process, tee = start(command, env=env, node=node, instead={fd: end for fd, (_, end) in pipes.items()})
    except OSError as error:
        for read, end in pipes.values():
            os.close(read)
            os.close(end)
        raise CallError(f"cannot start {command[0]}: {error.strerror}", command=command) from error
    if view is not None:
        for read, _ in pipes.values():
            view.pass_on(read)
    return process, tee


def _name_of(command: list[str]) -> str:
    """What a job is called that was given no name: its script, else its program."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return Path(script).stem or command[0]

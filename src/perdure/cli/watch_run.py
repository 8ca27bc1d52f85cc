"""``perdure watch -- COMMAND``: run the launcher of a job, and say what is wrong with its ranks on this node."""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from perdure.errors import CallError

__all__ = ["add_parser", "main"]

_SETTLE_S = 3.0  # after a failure, until it is clear who fell first


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="run a job's launcher and watch its ranks (the word may be left out: perdure watch -- torchrun ...)",
        description="Run COMMAND, such as torchrun or a single training script, watch the ranks that it starts on this "
        "node, and tell on stderr what is wrong, with whom, and what to do. Nothing is done about it. Exits with the "
        "command's exit code.",
    )
    parser.add_argument("--json", metavar="FILE", help="write each verdict to FILE, too, as a line of JSON")
    parser.add_argument("--every", type=float, default=0.5, metavar="S", help="seconds between two looks (0.5)")
    parser.add_argument(
        "--phase-deadline", default="", metavar="NAME=S,...", help="how long phases may take, as in perdure run"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what starts the ranks")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Run, watch, and pass the exit code on."""
    import msgspec

    from perdure.cli.watch_tee import start
    from perdure.progress import phase_deadlines
    from perdure.progress.probing import probe_env
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
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-watch-", dir=memory)))
        added = probe_env(folder, base=os.environ)
        if not added:
            raise CallError("PERDURE_PROBE is off here, so ranks would write no records; unset it to watch them")
        try:
            verdicts = None if args.json is None else stack.enter_context(open(args.json, "ab", buffering=0))
        except OSError as error:
            raise CallError(f"cannot write {args.json}: {error.strerror}") from error
        try:
            process, tee = start(command, env={**os.environ, **added}, node=socket.gethostname())
        except OSError as error:
            raise CallError(f"cannot start {command[0]}: {error.strerror}", command=command) from error
        _pass_on(process)
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
            for told in job.feed([look], now_s=time.monotonic()):
                print(f"perdure watch: {told.stage.value}: {told.sentence} [{told.incident}]", file=sys.stderr)
                if verdicts is not None:
                    verdicts.write(msgspec.json.encode(told) + b"\n")
        if not node.ranks:
            print("perdure watch: no rank was seen: COMMAND started no process with RANK and torch", file=sys.stderr)
    code = process.returncode
    return 128 - code if code < 0 else code


def _pass_on(process: subprocess.Popen[bytes]) -> None:
    """A terminal's Ctrl-C reaches the command by itself; what is sent to this process alone is passed on."""

    def send(number: int, _: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, send)

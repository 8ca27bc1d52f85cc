"""``perdure``: parse the command line, run the command, map errors to exit codes (see `perdure.errors`)."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from perdure import __version__
from perdure.cli import agent, checkpoint, console, controller, demo, doctor_parser, job, memory, run, submit, watch
from perdure.errors import PerdureError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (default: this process's); return its exit code."""
    parser = argparse.ArgumentParser(
        prog="perdure", description="Keeps the state of large models alive: saves it, verifies it, brings it back."
    )
    parser.add_argument("--version", action="version", version=f"perdure {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (demo, run, submit, job, watch, checkpoint, memory, console, agent, controller, doctor_parser):
        command.add_parser(commands)
    try:
        words = watch.spelled_out(sys.argv[1:] if argv is None else argv)
        args = parser.parse_args(words)
        args.words_given = words
        code: int = args.func(args)
        sys.stdout.flush()
    except PerdureError as error:
        print(f"perdure: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("perdure: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code

"""The process of one probe: ``python -m perdure.supervisor.check_child NAME MODULE:FUNCTION CONTEXT``.

Prints the result as one line of JSON. An error of the tree is a problem with its own sentence; any other exception
leaves as a traceback and a code, which `perdure.supervisor.checks` tells of.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys

import msgspec

from perdure.errors import PerdureError
from perdure.supervisor.checks import Context, Result

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(name: str, where: str, context: str) -> int:
    """Run the probe, in a process that dies with whoever asked for it and computes on one thread at a time."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # For C libraries that are loaded from here on: the threads of a BLAS would not stay on the core that is tested.
    for library in ("OMP", "OPENBLAS", "MKL", "BLIS"):
        os.putenv(f"{library}_NUM_THREADS", "1")
    module, _, function = where.partition(":")
    told = msgspec.json.decode(context, type=Context)
    try:
        result = getattr(importlib.import_module(module), function)(told)
    except PerdureError as error:
        says, _, do = error.message.partition("; ")
        result = Result(
            check=name, word="problem", says=says, do=do or "see to it, then check again", facts=error.facts
        )
    line = msgspec.json.encode(msgspec.structs.replace(result, check=name))
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

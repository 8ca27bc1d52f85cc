"""Run a training script and write down when each of its optimizer steps was done: one file a process.

`python step_times.py FOLDER [--dcp] SCRIPT [ARGS]` writes FOLDER/rank-R.PID with one line a step: monotonic seconds
(one clock for all processes of a machine) and `run.step`. With --dcp the script gets DCP's attach for perdure's.
"""

from __future__ import annotations

import os
import pathlib
import runpy
import sys
import time
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

import perdure


def main() -> None:
    folder, *rest = sys.argv[1:]
    if rest[0] == "--dcp":
        from dcp_attach import attach  # here: the other side must not pay for its import

        rest = rest[1:]
    else:
        from perdure import attach
    log = (pathlib.Path(folder) / f"rank-{os.environ.get('RANK', '0')}.{os.getpid()}").open("w")

    def watched(*args: Any, **options: Any) -> Any:
        run = attach(*args, **options)
        register_optimizer_step_post_hook(lambda *_: print(time.monotonic(), run.step, file=log, flush=True))
        return run

    perdure.attach = watched
    sys.argv = rest
    runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main()

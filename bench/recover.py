"""A rank is killed (-9): how long until the job trains again?

`perdure run` with examples/01_train_gpt.py against `torchrun --max-restarts` with the same script on DCP's async_save
and load (dcp_attach.py), the same number of ranks and steps between saves. A rank that the round decides is killed
while it trains. "next step" ends when every rank of the new attempt has done a step, "caught up" when every rank has
done the step after the one at which the job was killed. torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1,
without which gloo does not come up again after a restart (torch 2.13), and looks at its ranks every 0.1 s.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from measure import Turn, arguments, report, take_turns

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE.parent / "examples" / "01_train_gpt.py"
OURS, PEER = "perdure run", "torchrun, DCP async_save"
PERDURE_RUN = (sys.executable, "-m", "perdure", "run")
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run"),
    *("--standalone", "--max-restarts", "3", "--monitor-interval", "0.1"),
)
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """A step that one process of a rank did: when (monotonic seconds) and the run's count after it."""

    at: float
    step: int


def read(folder: pathlib.Path) -> dict[tuple[int, int], list[Done]]:
    """The steps of every process so far, by rank and process id."""
    found = {}
    for path in folder.glob("rank-*"):
        rank, pid = path.name.removeprefix("rank-").split(".")
        lines = path.read_text().splitlines(keepends=True)
        words = [line.split() for line in lines if line.endswith("\n")]
        found[int(rank), int(pid)] = [Done(float(at), int(step)) for at, step in words]
    return found


@contextlib.contextmanager
def job(command: list[str], log: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a launcher in a session of its own; stop it and what it left behind at the end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)


def wait_for(what: str, ready: Any, process: subprocess.Popen[bytes], log: pathlib.Path) -> Any:
    """Poll ``ready`` until it returns something; stop with the launcher's output if it ends or takes too long."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        if (value := ready()) is not None:
            return value
        time.sleep(0.02)
    sys.exit(f"no {what} (launcher: {process.poll()}); its output:\n{log.read_text()[-4000:]}")


def kill_once(command: list[str], folder: pathlib.Path, *, ranks: int, at_step: int, victim: int) -> dict[str, float]:
    """Start a job, kill rank ``victim`` after ``at_step`` steps, return the seconds until it trains again."""
    log = folder / "log"
    with job(command, log) as process:

        def far_enough() -> dict[tuple[int, int], list[Done]] | None:
            steps = read(folder)
            ready = len(steps) == ranks and all(done and done[-1].step >= at_step for done in steps.values())
            return steps if ready else None

        before = wait_for(f"step {at_step}", far_enough, process, log)
        time.sleep(random.uniform(0.0, 0.3))  # anywhere in a step
        pid = next(pid for rank, pid in before if rank == victim)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        reached = max(done[-1].step for done in read(folder).values())

        def trains_again() -> tuple[float, float] | None:
            after = [done for key, done in read(folder).items() if key not in before]
            if len(after) < ranks or any(not done or done[-1].step <= reached for done in after):
                return None
            caught_up = max(next(each.at for each in done if each.step > reached) for done in after)
            return max(done[0].at for done in after), caught_up

        first, caught_up = wait_for("step after the kill", trains_again, process, log)
        return {"next step": first - killed, "caught up": caught_up - killed}


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=4)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--every", type=int, default=5, help="steps between saves")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    parser.add_argument("--peers-only", action="store_true", help="leave perdure out")
    args = parser.parse_args()
    launchers = {
        OURS: [*PERDURE_RUN, "--nproc-per-node", str(args.ranks)],
        PEER: [*TORCHRUN, "--nproc-per-node", str(args.ranks)],
    }
    if args.peers_only:
        del launchers[OURS]

    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as name:

        def side(label: str) -> Turn:
            rounds = iter(range(args.rounds))

            def turn() -> Mapping[str, float]:
                round_ = next(rounds)
                folder = pathlib.Path(name) / f"{list(launchers).index(label)}-{round_}"
                folder.mkdir()
                twin = ["--dcp"] if label == PEER else []
                options = ["--to", str(folder / "ckpt"), "--every", str(args.every), "--steps", "100000"]
                command = [*launchers[label], str(HERE / "step_times.py"), str(folder), *twin, str(SCRIPT), *options]
                at_step = 3 * args.every + 1 + round_ % args.every
                return kill_once(command, folder, ranks=args.ranks, at_step=at_step, victim=(round_ + 1) % args.ranks)

            return turn

        measured = take_turns({label: side(label) for label in launchers}, rounds=args.rounds)
    facts = {"ranks": args.ranks, "steps_between_saves": args.every, "script": SCRIPT.name}
    question = __doc__.splitlines()[0]
    report(question, measured, ours=dict.fromkeys(measured, OURS), facts=facts, as_json=args.json)


if __name__ == "__main__":
    main()

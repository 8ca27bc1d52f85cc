"""Something fails: how long until the job completes its next step?

examples/01_train_gpt.py (FSDP2, gloo) on as many ranks everywhere, interleaved. A rank is killed (-9): `perdure run`
with standby interpreters and without against `torchrun --max-restarts` with the same script on DCP (dcp_attach.py),
with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and a monitor interval of 0.1 s. A node is gone, all of its processes at once:
`perdure run --nodes 2 --spares 1`. A rank hangs (SIGSTOP): `perdure run --phase-deadline step=S`; "acted on" is when
the launcher or the watcher said so of the rank. torchrun has no deadline of its own for that, and no spare: the ratio
that is printed beside these two is theirs to a rank that is killed.

"next step" ends when every rank of the new attempt has completed a step. "one step" is the median step before.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

from measure import Measured, Turn, arguments, report, take_turns
from perdure.events import Fact, RankLate, VerdictTold, read_log
from recover import HERE, PERDURE_RUN, SCRIPT, TORCHRUN, Done, job, read, wait_for

STANDBY, COLD, PEER = "perdure run", "perdure run --standby off", "torchrun, DCP async_save"
NODE, HUNG = "node gone, a spare takes its place", "rank stopped"
Steps = dict[tuple[int, int], list[Done]]


def tree(pid: int) -> list[int]:
    """``pid`` and its descendants, the controller of the job and what is below it left out."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            stat = pathlib.Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue  # gone
        if b"controller" not in words[:4]:
            parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def launcher_of(node: str, folder: pathlib.Path) -> int:
    """The launcher of a node of the job that writes to ``folder``."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path(f"/proc/{name}/cmdline").read_text().split("\0")
        except OSError:
            continue  # gone
        if "--node-name" in words and words[words.index("--node-name") + 1] == node and str(folder) in words:
            return int(name)
    sys.exit(f"node {node} has no launcher")


def kill_rank(before: Steps, victim: int, _: pathlib.Path) -> None:
    os.kill(next(pid for rank, pid in before if rank == victim), signal.SIGKILL)


def stop_rank(before: Steps, victim: int, _: pathlib.Path) -> None:
    os.kill(next(pid for rank, pid in before if rank == victim), signal.SIGSTOP)


def kill_node(_: Steps, victim: int, folder: pathlib.Path) -> None:
    """All of a node that has ranks: n1, which never has the controller of this machine below it for long."""
    pids = tree(launcher_of("n1", folder))
    for pid in pids:  # nobody gets to say good-bye
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def strike(
    command: list[str],
    folder: pathlib.Path,
    hurt: Callable[[Steps, int, pathlib.Path], None],
    *,
    ranks: int,
    settle_s: float,
    victim: int,
) -> dict[str, float]:
    """Start a job, hurt it ``settle_s`` after its first steps, return the seconds until it has done another step."""
    log = folder / "log"
    with job(["env", f"PERDURE_EVENTS={folder / 'events'}", f"PERDURE_STATE={folder / 'state'}", *command], log) as it:

        def trains() -> Steps | None:
            steps = read(folder)
            return steps if len(steps) == ranks and all(len(done) > 2 for done in steps.values()) else None

        before = wait_for("third step", trains, it, log)
        time.sleep(settle_s)  # what is warmed up beside training is warm
        struck = time.monotonic()
        hurt(before, victim, folder)
        at = [each.at for each in next(iter(read(folder).values()))]
        one_step = statistics.median(b - a for a, b in itertools.pairwise(at))

        def trains_again() -> float | None:
            after = [done for key, done in read(folder).items() if key not in before]
            return max(done[0].at for done in after) if len(after) == ranks and all(after) else None

        times = {"next step": wait_for("step after it", trains_again, it, log) - struck, "one step": one_step}
        if hurt is stop_rank:
            late = next(entry for entry in read_log(folder / "events") if acted_on(entry.fact))
            times["acted on"] = late.monotonic - struck
        return times


def acted_on(fact: Fact) -> bool:
    """Whether somebody, a launcher or the watcher, was sure that a rank hangs."""
    return isinstance(fact, RankLate) or (
        isinstance(fact, VerdictTold) and fact.stage == "verdict" and fact.action == "restart"
    )


def sides(args: object, place: pathlib.Path) -> dict[str, Turn]:
    """A turn for each side. Ranks are the same number everywhere."""
    ranks, every, rounds = args.ranks, args.every, args.rounds  # type: ignore[attr-defined]
    each, two = ["--nproc-per-node", str(ranks)], ["--nodes", "2", "--spares", "1", "--nproc", str(ranks // 2)]
    deadline = ["--phase-deadline", f"step={args.deadline:g}"]  # type: ignore[attr-defined]
    commands: dict[str, tuple[list[str], Callable[[Steps, int, pathlib.Path], None]]] = {
        STANDBY: ([*PERDURE_RUN, *each], kill_rank),
        COLD: ([*PERDURE_RUN, "--standby", "off", *each], kill_rank),
        PEER: ([*TORCHRUN, *each], kill_rank),
        NODE: ([*PERDURE_RUN, *two], kill_node),
        HUNG: ([*PERDURE_RUN, *deadline, *each], stop_rank),
    }

    def side(label: str) -> Turn:
        count = iter(range(rounds))
        launcher, hurt = commands[label]

        def turn() -> Mapping[str, float]:
            round_ = next(count)
            folder = place / f"{list(commands).index(label)}-{round_}"
            folder.mkdir()
            script = [str(HERE / "step_times.py"), str(folder), *(["--dcp"] if label == PEER else []), str(SCRIPT)]
            options = ["--to", str(folder / "ckpt"), "--every", str(every), "--steps", "100000"]
            return strike(
                [*launcher, *script, *options],
                folder,
                hurt,
                ranks=ranks,
                settle_s=args.settle,  # type: ignore[attr-defined]
                victim=(round_ + 1) % ranks,
            )

        return turn

    return {label: side(label) for label in commands}


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=5)
    parser.add_argument("--ranks", type=int, default=4, help="an even number (4)")
    parser.add_argument("--every", type=int, default=5, help="steps between saves (5)")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds of training before the fault (10)")
    parser.add_argument("--deadline", type=float, default=5.0, help="seconds that a step may take (5)")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as name:
        measured: Measured = take_turns(sides(args, pathlib.Path(name)), rounds=args.rounds)
    facts = {
        "ranks": args.ranks,
        "steps_between_saves": args.every,
        "deadline_of_a_step_s": args.deadline,
        "script": SCRIPT.name,
    }
    ours = {metric: STANDBY if STANDBY in by_side else HUNG for metric, by_side in measured.items()}
    report(__doc__.splitlines()[0], measured, ours=ours, facts=facts, as_json=args.json)


if __name__ == "__main__":
    main()

"""``perdure demo``: a training run that survives ``kill -9``, and the proof that it lost nothing.

The story, on real text and real processes:

1. four ranks train (FSDP2, gloo); one is killed; the launcher starts them again and they go on from the agent's memory;
2. everything is killed, the agent too; two ranks go on from disk, on another mesh, and finish;
3. the same training without any kill, on four ranks, then from the same checkpoint on two, is compared bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.errors import CallError, IntegrityError

if TYPE_CHECKING:
    from perdure.cli.jobwatch import JobWatch

__all__ = ["add_parser", "main"]

EVERY = 5
KILL_RANK_AT, KILL_ALL_AT, LAST_OF_FOUR, LAST = 17, 32, 30, 45
STEPS = 2 * LAST  # steps that are trained and kept, in the run and in its reference
PHASE_S = 600.0
SCRIPT = "01_train_gpt.py"


@dataclass(slots=True)
class Report:
    """What the demo found. Seconds are of this machine and its load; ratios are within this run."""

    bit_exact: bool = False
    tiers: list[str] = field(default_factory=list)
    kill_to_step_s: list[float] = field(default_factory=list)
    blocking_ratio: float = 0.0
    blocking_ms: float = 0.0
    memcpy_ms: float = 0.0
    saves: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    verified_pieces: int = 0
    steps: int = LAST
    load_average: float = 0.0
    seconds: float = 0.0
    digests: dict[str, dict[str, list[str]]] = field(default_factory=dict)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "demo",
        help="train, kill -9, come back, and prove that nothing was lost",
        description="Trains a small GPT on four ranks, kills one, kills everything, goes on on two, and compares the "
        "result bit for bit with training that nobody killed. About two minutes on two cores; needs torch.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument(
        "--keep", metavar="DIR", help="work in DIR, which must be new or empty, and leave everything there"
    )
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Run the demo; 0 if every bit is the same."""
    if importlib.util.find_spec("torch") is None:
        raise CallError("the demo trains with torch, which is not installed: pip install 'perdure[torch]'")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the way out ends the jobs, whoever asks
    began = time.monotonic()
    with _folder(args.keep) as folder:
        report = _play(folder)
    report.seconds = round(time.monotonic() - began, 1)
    if args.json:
        print(json.dumps(asdict(report)))
    else:
        _show(report)
    if not report.bit_exact:
        raise IntegrityError("the state after the kills is not the state without them; please report this")
    return 0


def _play(folder: Path) -> Report:
    from perdure.cli.bars import Bar
    from perdure.cli.digests import category_digests

    report = Report()
    script = _script()
    copies = _Memcpy()
    with Bar("perdure demo", STEPS) as bar, contextlib.ExitStack() as jobs:

        def start(name: str, nproc: int, run: str, steps: int) -> JobWatch:
            return _start(jobs, folder, name, nproc, script, run, steps)

        def progress(done: int, what: str, offset: int = 0) -> None:
            copies.sample()
            bar.at(offset + done, what)

        # 1. Four ranks; one is killed; they come back from memory. Then everything is killed.
        what = "training on 4 ranks"
        job = start("four", 4, "run", LAST)
        job.wait_for_step(KILL_RANK_AT, _soon("the first steps"), lambda n: progress(n, what))
        killed = job.kill_rank(2)
        what = "rank 2 was killed with kill -9; starting again"
        again = job.wait_for_step(1, _soon("a step after the kill"), lambda n: progress(KILL_RANK_AT, what))
        restored = _restored_step(job)
        again = job.wait_for_step(restored + 1, _soon("a step after the kill"), lambda n: progress(n, what))
        report.kill_to_step_s.append(round(again - killed, 2))
        what = f"going on from step {restored}, out of the agent's memory"
        job.wait_for_step(KILL_ALL_AT, _soon(f"step {KILL_ALL_AT}"), lambda n: progress(n, what))
        job.wait_for_commit(LAST_OF_FOUR, _soon("the commit"))
        killed = job.kill_everything()
        shutil.copytree(folder / "run", folder / "same-checkpoint")
        # 2. Two ranks, from disk, to the end.
        what = "launcher, agent and ranks were killed; 2 ranks go on from disk"
        tail = start("two", 2, "run", LAST)
        again = tail.wait_for_step(LAST_OF_FOUR + 1, _soon("a step from disk"), lambda n: progress(KILL_ALL_AT, what))
        report.kill_to_step_s.append(round(again - killed, 2))
        tail.wait(_soon("the end"), lambda n: progress(max(n, LAST_OF_FOUR), what))
        # 3. The same without kills.
        what = "reference: 4 ranks, nobody is killed"
        calm = start("calm-four", 4, "calm-run", LAST_OF_FOUR)
        calm.wait(_soon("the reference"), lambda n: progress(n, what, LAST))
        what = "reference: 2 ranks from the same checkpoint"
        calm_tail = start("calm-two", 2, "same-checkpoint", LAST)
        calm_tail.wait(_soon("the reference"), lambda n: progress(max(n, LAST_OF_FOUR), what, LAST))
        bar.at(STEPS, "comparing every bit")
        report.digests = {
            f"step {LAST_OF_FOUR}, 4 ranks": _pair(category_digests, folder, "run", "calm-run", LAST_OF_FOUR),
            f"step {LAST}, 2 ranks": _pair(category_digests, folder, "run", "same-checkpoint", LAST),
        }
    report.bit_exact = all(a == b for pairs in report.digests.values() for a, b in pairs.values())
    _measure(report, [job, tail], copies)
    return report


def _measure(report: Report, jobs: list[JobWatch], copies: _Memcpy) -> None:
    """Fill in what the events say."""
    from statistics import median

    from perdure.events import Committed, Restored, StepSaved, read_log

    entries = [entry for job in jobs for entry in read_log(job.events)]
    tiers: dict[str, int] = {}
    blocked, blocked_ms, memcpy_ms = [], [], []
    seen: set[int | None] = set()
    for entry in entries:
        fact = entry.fact
        if isinstance(fact, Restored):
            report.verified_pieces += fact.verified_tiles
            for tier, nbytes in fact.tiers.items():
                tiers[tier] = tiers.get(tier, 0) + nbytes
        elif isinstance(fact, Committed) and entry.rank in (0, None):
            report.raw_bytes += fact.raw_bytes
            report.stored_bytes += fact.stored_bytes
        elif isinstance(fact, StepSaved):
            report.saves += 1
            if entry.pid in seen:  # the first save of a process maps its memory and meets the others
                blocked.append(fact.blocked_s / copies.seconds(fact.nbytes))
                blocked_ms.append(1e3 * fact.blocked_s)
                memcpy_ms.append(1e3 * copies.seconds(fact.nbytes))
            seen.add(entry.pid)
    report.tiers = sorted(tiers, key=lambda tier: ("memory", "disk").index(tier))
    report.blocking_ratio = round(median(blocked), 2)
    report.blocking_ms, report.memcpy_ms = round(median(blocked_ms), 2), round(median(memcpy_ms), 2)
    report.load_average = round(os.getloadavg()[0], 1)


class _Memcpy:
    """One warm memcpy, measured again and again beside the training, under the same load."""

    def __init__(self) -> None:
        import numpy as np

        self._from, self._to = np.ones(8 << 20, np.uint8), np.zeros(8 << 20, np.uint8)
        self._seconds: list[float] = []
        self._next = 0.0

    def sample(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.5
        self._to[:] = self._from
        began = time.perf_counter()
        self._to[:] = self._from
        self._seconds.append(time.perf_counter() - began)

    def seconds(self, nbytes: int) -> float:
        """The median, for ``nbytes``."""
        from statistics import median

        return median(self._seconds) * nbytes / self._from.nbytes


def _show(report: Report) -> None:
    """Print the table that people read."""
    from rich.console import Console
    from rich.table import Table

    from perdure.events.facts import size

    facts = Table(title="A training run that survived kill -9", show_header=False)
    memory_s, disk_s = report.kill_to_step_s
    rows = {
        "steps": f"{report.steps}, the last {LAST - LAST_OF_FOUR} of them on 2 ranks",
        "rank killed -> next step": f"{memory_s:.2f} s",
        "everything killed -> next step": f"{disk_s:.2f} s, on 2 ranks",
        "restored from": " and ".join(report.tiers),
        "blocked per save": f"{report.blocking_ms} ms, one memcpy {report.memcpy_ms} ms: {report.blocking_ratio}x "
        f"(median of {report.saves}, first ones apart)",
        "raw, stored": f"{size(report.raw_bytes)}, {size(report.stored_bytes)}",
        "pieces verified": str(report.verified_pieces),
        "took": f"{report.seconds} s, load average {report.load_average}",
    }
    for name, value in rows.items():
        facts.add_row(name, value)
    proof = Table(title="The proof: XXH3-128 of every bit, after the kills and without them")
    for column in ("", "state", "killed", "not killed", "same"):
        proof.add_column(column)
    for where, pairs in report.digests.items():
        for name, (killed, calm) in pairs.items():
            proof.add_row(where, name, killed[:16], calm[:16], "yes" if killed == calm else "NO")
            where = ""
    console = Console()
    console.print(facts)
    console.print(proof)
    verdict = "Every bit is the same." if report.bit_exact else "NOT the same."
    console.print(verdict)


def _start(
    jobs: contextlib.ExitStack, folder: Path, name: str, nproc: int, script: Path, run: str, steps: int
) -> JobWatch:
    from perdure.cli.jobwatch import JobWatch

    options = ["--to", str(folder / run), "--steps", str(steps), "--every", str(EVERY), "--schedule", str(LAST)]
    job = JobWatch(
        f"demo-{os.getpid()}-{name}", nproc=nproc, command=[sys.executable, str(script), *options], folder=folder
    )
    jobs.callback(job.close)
    return job


def _restored_step(job: JobWatch) -> int:
    from perdure.events import Restored

    return max(fact.step for fact in job.facts() if isinstance(fact, Restored))


def _pair(category_digests: Any, folder: Path, one: str, other: str, step: int) -> dict[str, list[str]]:
    a = category_digests(str(folder / one), step=step)
    b = category_digests(str(folder / other), step=step)
    return {name: [a.get(name, ""), b.get(name, "")] for name in sorted(a.keys() | b.keys())}


def _soon(what: str) -> Any:
    from perdure.clock import Deadline

    return Deadline.after(PHASE_S, what)


def _script() -> Path:
    """The example that is trained: beside the package when installed, in ``examples/`` in a checkout."""
    import perdure

    package = Path(perdure.__file__).parent
    for place in (package / "examples" / SCRIPT, package.parents[1] / "examples" / SCRIPT):
        if place.exists():
            return place
    raise CallError(f"the demo's training script {SCRIPT} is not installed; run it from a checkout: ./dev demo")


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="perdure-demo-") as name:
            yield Path(name)
        return
    place = Path(keep).absolute()
    if place.exists() and any(place.iterdir()):
        raise CallError(f"{place} is not empty; name a new folder")
    place.mkdir(parents=True, exist_ok=True)
    yield place

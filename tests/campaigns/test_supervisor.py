"""A long campaign of faults on jobs: `./dev campaign supervisor`. Goes on where it was stopped; the report counts.

Jobs of 4 to 8 ranks on 2 to 4 nodes of this machine and a spare, one after another, each struck at random moments by
faults of all kinds (`tests/supervisor/storm.py`), one a minute on average, and compared bit for bit with the same
training without faults. It ends after ``DURATION`` seconds of training under faults, of all calls together (3600);
``MEAN`` is the mean time between faults (60), ``SEED`` plays the job of that number alone. ``FIRST`` is the number of
the first job (0): two copies of the project play at once, and what they kept is put together. What was found is kept in
``build/campaigns/supervisor``, a file a job; a change of what is tested, or of how, begins the count anew. Wrong jobs
are listed and do not stop it; it fails at its end if there are any.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "reports" / "supervisor.md"
KEPT = ROOT / "build" / "campaigns" / "supervisor"
TESTED = ("adapters/torch", "checkpoint", "cli", "fabric", "plan", "process", "progress", "shm", "state", "store")
TESTED += ("supervisor", "wire")
MACHINERY = ("storm", "storm_job", "storm_lives", "storm_part", "storm_train")
SHAPES = ((2, 2), (2, 3), (3, 2), (2, 4), (4, 2))  # nodes, ranks of each
CALM_S = 120.0  # of a job without faults
PACE_S = 0.4

pytestmark = pytest.mark.campaign


def fingerprint() -> str:
    """What the counts are about."""
    found = hashlib.sha256()
    paths = [path for folder in TESTED for path in (ROOT / "src" / "perdure" / folder).glob("*.py")]
    paths += [ROOT / "tests" / "supervisor" / f"{name}.py" for name in MACHINERY]
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


FINGERPRINT = fingerprint()  # of what is about to run, whatever is edited meanwhile


def play(seed: int, folder: Path) -> Any:
    """Job number ``seed``: all that is drawn comes from it."""
    from storm import Storm, at_random
    from storm_job import Job
    from storm_part import play

    dice = random.Random(seed)
    n_nodes, nproc = dice.choice(SHAPES)
    shape = "front" if seed % 2 else "joined"
    job = Job(
        folder / f"job{seed}",
        n_nodes=n_nodes,
        nproc=nproc,
        spares=1,
        steps=int(CALM_S / PACE_S),
        shape=shape,
        pace_s=PACE_S,
    )

    def storm(job: Job) -> Storm:
        mean_s = float(os.environ.get("MEAN", "60"))
        return Storm(job, dice=dice, draw=at_random(dice, mean_s=mean_s, front=shape == "front"))

    part = play(job, seed=seed, storm=storm, within_s=12 * CALM_S, references=KEPT / FINGERPRINT / "references")
    if part.well:
        shutil.rmtree(folder, ignore_errors=True)
    return part


def kept() -> list[Any]:
    """The jobs that were played already, of this very code."""
    from storm_part import Part

    paths = sorted((KEPT / FINGERPRINT).glob("*.json"), key=lambda path: int(path.stem))
    return [msgspec.json.decode(path.read_bytes(), type=Part) for path in paths]


def keep(part: Any) -> None:
    """Write what was found, whole or not at all."""
    path = KEPT / FINGERPRINT / f"{part.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_bytes(msgspec.json.encode(part))
    path.with_suffix(".new").replace(path)


def summary(parts: Sequence[Any]) -> str:
    seconds = sum(part.trained_s for part in parts)
    steps = sum((part.steps - 1) * part.step_s for part in parts)
    faults = sum(len(part.faults) for part in parts)
    found = [sum(len(getattr(part, what)) for part in parts) for what in ("lost", "orphans", "wrong")]
    return (
        f"{len(parts)} jobs, {seconds / 60:.0f} minutes, {faults} faults, goodput {steps / seconds:.3f}; "
        f"{found[0]} lost, {found[1]} orphans, {found[2]} wrong"
    )


def write(parts: Sequence[Any], kinds: Sequence[str]) -> None:
    """The report, whole or as it was."""
    seconds = sum(part.trained_s for part in parts)
    faults = Counter(fault for part in parts for _, fault, _ in part.faults)
    by_shape: Callable[[str], list[Any]] = lambda shape: [part for part in parts if part.shape == shape]  # noqa: E731
    bad = [f"job {part.seed}: {each}" for part in parts for each in (*part.lost, *part.orphans, *part.wrong)]
    lines = [
        "# Faults of jobs",
        "",
        "Written by `./dev campaign supervisor`: training under FSDP2 on 4 to 8 ranks of 2 to 4 nodes of one machine",
        "and a spare, struck at random moments; each job is compared with the same training without faults: the loss",
        "of every rank at every step of every attempt, and the final state, bit for bit. *Front*: one",
        "`perdure run --nodes`, which is started again when it is killed. *Joined*: a launcher a node, started again",
        "some seconds after it was killed.",
        "",
        f"Of the code `{FINGERPRINT}`, two cores, while the machine's load average was"
        f" {min(part.load for part in parts):.1f} to {max(part.load for part in parts):.1f}.",
        "",
        f"{summary(parts)}. Between two faults: {seconds / max(1, sum(faults.values())):.0f} s.",
        "",
        "*Goodput*: steps that count, at the pace while nothing is wrong (the median step), by the time from the first",
        "step to the last.",
        "*Again*: steps that were done more than once because the state after them was lost.",
        "",
        "| fault | how many |",
        "|---|---|",
        *(f"| {kind} | {faults[kind]} |" for kind in kinds),
        "",
        "| jobs | how many | faults | attempts | steps | again | goodput |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape in ("front", "joined"):
        if of := by_shape(shape):
            total = sum(part.trained_s for part in of)
            useful = sum((part.steps - 1) * part.step_s for part in of)
            numbers = [len(of), sum(len(part.faults) for part in of), sum(part.attempts for part in of)]
            numbers += [sum(part.steps for part in of), sum(part.repeated for part in of)]
            lines.append(f"| {shape} | {' | '.join(map(str, numbers))} | {useful / total:.3f} |")
    lines += ["", "Lost jobs, orphans, wrong states: " + ("none." if not bad else ""), ""]
    lines += [f"- {each}" for each in bad]
    new = REPORT.with_suffix(".new")
    new.write_text("\n".join(lines).rstrip() + "\n")
    os.replace(new, REPORT)


def test_faults_cost_a_job_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "supervisor"))
    from storm import FAULTS

    if "SEED" in os.environ:
        part = play(int(os.environ["SEED"]), tmp_path)
        assert part.well, part
        return
    parts = kept()
    seed = max((part.seed for part in parts), default=int(os.environ.get("FIRST", "0")) - 1) + 1
    while sum(part.trained_s for part in parts) < float(os.environ.get("DURATION", "3600")):
        parts.append(play(seed, tmp_path))
        keep(parts[-1])
        write(parts, FAULTS)
        with capsys.disabled():
            told = parts[-1]
            print(f"job {seed}: {told.shape} {told.n_nodes}x{told.nproc}, {len(told.faults)} faults, ", end="")
            print(f"{told.attempts} attempts, goodput {told.goodput:.3f}; {summary(parts)}", flush=True)
        seed += 1
    bad = [part for part in parts if not part.well]
    assert not bad, "\n".join(f"job {part.seed}: {[*part.lost, *part.orphans, *part.wrong]}" for part in bad)

"""The journal of a campaign, so that it goes on where it was stopped; and its report. One JSON line a case."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perdure.testing.faults.cases import Case, Outcome, Told
from perdure.testing.faults.kinds import DEADLINE_S, KINDS, Family, Whom
from perdure.testing.faults.playing import play
from perdure.testing.faults.scoring import Score, p95, score, wilson
from perdure.testing.faults.watching import Watcher

__all__ = ["Promise", "broken", "journal", "line", "promises", "run", "write"]

_SHOWN = 6


def journal(path: Path) -> dict[tuple[str, int], Outcome]:
    """The cases that were played, by kind and seed; a line that was cut off while it was written does not count."""
    found = {}
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                outcome = msgspec.json.decode(line, type=Outcome)
                found[outcome.kind, outcome.seed] = outcome
    return found


def run(
    cases: Sequence[Case],
    make: Callable[[], Watcher],
    folder: Path,
    *,
    base: Mapping[str, str],
    kept: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """Play ``cases`` below ``folder``, each with a watcher of its own, and keep each in the file ``kept``.

    What is in there already is not played again, unless it could not be played. Returns an outcome a case.
    """
    known = {} if kept is None else journal(kept)
    outcomes = []
    for case in cases:
        outcome = known.get((case.kind.name, case.seed))
        if outcome is None or outcome.troubles:
            outcome = play(case, make(), folder, base=base)
            if kept is not None:
                _add(kept, outcome)
            tell(line(outcome))
        outcomes.append(outcome)
    return outcomes


def _add(path: Path, outcome: Outcome) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
    with open(path, "ab") as file:
        file.write((b"" if whole else b"\n") + msgspec.json.encode(outcome) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def line(outcome: Outcome) -> str:
    """One case, for people who watch."""
    if outcome.troubles:
        return f"{outcome.kind}/{outcome.seed}: not played: {outcome.troubles[0]}"
    judged = score(outcome)
    times = [
        f"{each:.1f}" if each is not None else "-" for each in (judged.suspected_s, judged.verdict_s, judged.action_s)
    ]
    word = "right" if judged.right else "WRONG"
    said = "" if judged.right else "; ".join(f"[{_told(each)}]" for each in outcome.told) or "nothing was said"
    return f"{outcome.kind}/{outcome.seed}: {word} {'/'.join(times)} s in {outcome.took_s:.0f} s {said}"


def _told(each: Told) -> str:
    who = ",".join((*map(str, each.ranks), *each.nodes)) or "nobody"
    return f"{each.after_s:+.1f} {each.incident} {each.stage} {each.label} {each.action} {who}: {each.sentence}"


@dataclass(frozen=True, slots=True)
class Promise:
    """A number that is promised, and what was measured; ``kept`` is None where nothing was promised or measured."""

    what: str
    asked: str
    measured: str
    interval: str
    kept: bool | None


def _share(what: str, right: int, of: int, *, least: float | None = None, most: float | None = None) -> Promise:
    low, high = wilson(right, of)
    asked = f"{least:g}" if least is not None else f"{most:g} at most" if most is not None else ""
    kept = None
    if of and asked:
        kept = right >= least * of if least is not None else right <= (most or 0.0) * of
    measured = f"{right / of:.3f} ({right} of {of})" if of else "no case"
    return Promise(what, asked, measured, f"{low:.3f} to {high:.3f}" if of else "", kept)


def _time(what: str, most_s: float, times: Sequence[float | None]) -> Promise:
    found, never = p95(times), sum(each is None for each in times)
    measured = f"{found:.1f} s" if math.isfinite(found) else "never" if times else "no case"
    measured += f" ({never} of {len(times)} never)" if never else f" (of {len(times)})"
    return Promise(what, f"{most_s:g} s", measured, "", found <= most_s if times else None)


def _count(what: str, found: int, of: int, *, most: int) -> Promise:
    return Promise(what, str(most), f"{found} in {of}", "", found <= most if of else None)


def promises(scores: Sequence[Score]) -> list[Promise]:
    """What is promised of a watcher, and what these cases have measured."""
    ill = [each for each in scores if each.family is not Family.HEALTHY]
    well = [each for each in scores if each.family is Family.HEALTHY]
    dead = [each for each in ill if each.family in (Family.DEATH, Family.FREEZE)]
    hung = [each for each in ill if each.family in (Family.HANG, Family.DESYNC)]
    one = [each for each in ill if each.whom is not Whom.NOBODY]
    accusing = [each for each in ill if each.accuses]
    incidents = sum(each.incidents for each in ill) + sum(each.actions + each.warnings for each in scores)
    sixties = math.ceil(len(well) / 60)
    return [
        _time("a dead or frozen rank, p95 to its verdict", 3.0, [each.verdict_s for each in dead]),
        _time("a hang, p95 to a suspicion", 10.0, [each.suspected_s for each in hung]),
        _time("a hang, p95 to the right action", DEADLINE_S + 2, [each.action_s for each in hung]),
        _share("who is at fault is named (recall)", sum(each.named for each in one), len(one), least=0.95),
        _share("who is named is at fault (precision)", sum(each.named for each in accusing), len(accusing), least=0.95),
        _share("right label", sum(each.labelled for each in ill), len(ill)),
        _share("right action", sum(each.acted for each in ill), len(ill), least=0.92),
        _share("each incident once", sum(each.incidents == 1 for each in ill), len(ill)),
        _share("incidents that mention anybody innocent", sum(e.false for e in scores), max(1, incidents), most=0.01),
        _count("healthy runs: actions", sum(each.actions for each in well), len(well), most=0),
        _count("healthy runs: warnings", sum(each.warnings for each in well), len(well), most=sixties),
        _count("before a fault: actions", sum(each.actions for each in ill), len(ill), most=0),
        _count("before a fault: warnings", sum(each.warnings for each in ill), len(ill), most=math.ceil(len(ill) / 60)),
    ]


def broken(scores: Sequence[Score]) -> list[str]:
    """The promises that were not kept, in words."""
    return [f"{each.what}: {each.measured}, asked {each.asked}" for each in promises(scores) if each.kept is False]


def write(outcomes: Sequence[Outcome], *, title: str, about: Sequence[str]) -> str:
    """The report, as Markdown: the promises, each kind, and every case in which anything was wrong."""
    played = [each for each in outcomes if not each.troubles]
    scores = [score(each) for each in played]
    loads = [each.load for each in played] or [0.0]
    lines = [f"# {title}", "", *about, ""]
    lines += [
        f"{len(played)} cases, while the load average of the machine was {min(loads):.1f} to {max(loads):.1f}. Times"
        " are from the moment of the fault; intervals are Wilson's, 95 %.",
        "",
        "| what | asked | measured | interval |",
        "|---|---|---|---|",
        *(
            f"| {e.what} | {e.asked} | {e.measured}{' **not kept**' if e.kept is False else ''} | {e.interval} |"
            for e in promises(scores)
        ),
        "",
        "| kind | cases | named | label | action | once | median to verdict | longest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, kind in KINDS.items():
        of = [each for each in scores if each.case.rpartition("/")[0] == name]
        if not of:
            continue
        if kind.family is Family.HEALTHY:
            wrong = sum(not each.right for each in of)
            lines.append(f"| {name} | {len(of)} | | | | {f'{wrong} not left alone' if wrong else 'left alone'} | | |")
            continue
        times = sorted(math.inf if each.verdict_s is None else each.verdict_s for each in of)
        shown = [
            f"{each:.1f} s" if math.isfinite(each) else "never" for each in (times[(len(times) - 1) // 2], times[-1])
        ]
        counts = [sum(each.named for each in of), sum(each.labelled for each in of), sum(each.acted for each in of)]
        counts.append(sum(each.incidents == 1 for each in of))
        lines.append(f"| {name} | {len(of)} | {' | '.join(map(str, counts))} | {' | '.join(shown)} |")
    lines += ["", "## What was wrong", ""]
    wrong_ones = [(each, judged) for each, judged in zip(played, scores, strict=True) if not judged.right]
    for outcome, _ in wrong_ones:
        where = f"rank {outcome.rank} on {outcome.node} of {'+'.join(map(str, outcome.nodes))}"
        lines.append(f"- **{outcome.kind}/{outcome.seed}** ({where}, steps of {outcome.step_s:g} s)")
        lines += [f"  - {_told(each)}" for each in outcome.told[:_SHOWN]] or ["  - nothing was said"]
        lines += [f"    - {text}" for each in outcome.told[:1] for text in each.evidence[:_SHOWN]]
    if not wrong_ones:
        lines.append("Nothing.")
    left_out = [each for each in outcomes if each.troubles]
    if left_out:
        lines += ["", "## What could not be played", ""]
        lines += [f"- {each.kind}/{each.seed}: {each.troubles[0]}" for each in left_out]
    return "\n".join(lines).rstrip() + "\n"

"""Fit the weights of `perdure.memory.weights`, and say how well they carry over to dialogues of another author.

    python bench/memory_updates_fit.py [--print]

Each set of ``bench/data/updates_*.jsonl`` is by another author. For each, the weights are fitted on the other sets and
tried on it: that share is what matters. With ``--print``, weights fitted on all of them are printed. The last 50
dialogues of ``updates_c.jsonl`` are never fitted to, and only counted with ``--frozen``.

The model: two linear rankings. The first (``FILLS``) says which statements speak of what is asked; the second
(``HOLDS``), which also sees how well each does so beside the best other one, which of them holds. Both by the softmax
over the statements of a dialogue, its cross entropy with the ones that are right, a penalty on large weights, and the
sign of each weight given beforehand. Full batches from the same start: the same figures each time.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perdure.memory.prose import NAMES, Line, features
from perdure.memory.questions import read
from perdure.memory.sequels import LATER, later
from perdure.memory.statements import statements
from perdure.memory.wordlists import word_set

Floats = NDArray[np.float64]

DATA: Final = Path(__file__).parent / "data"
FROZEN: Final = 50
AIDE: Final = -2.0
"""What an assistant said counts at most so much."""
PRIOR: Final = {
    "sibling": -1.0,
    "later_sibling": -1.0,
    "kin": -1.0,
    "kin_turn": -0.3,
    "musing": -1.0,
    "third_named": -0.7,
    "idle": -1.0,
    "idle_turn": -0.5,
    "denies": 1.0,
    "shape_later": 1.0,
    "other_later": 0.7,
    "other_lost": -0.7,
    "lacks": -0.5,
    "asked": -0.7,
    "again_known": 0.7,
    "later_event": 0.5,
    "later_cue": 0.7,
}
"""What the penalty pulls a weight to, for features that are rare in the sets and plain in what they mean."""
NEGATIVE: Final = word_set(
    "third yours by_other aide kin kin_turn mine musing musing_turn asked elsewhere clash elsewhere_turn clash_turn"
    " words_before past sibling later_sibling lacks names_lost words_less later_other_words idle"
    " idle_turn third_named other_lost"
)
POSITIVE: Final = word_set(
    "update_about event_about retraction_about class class_turn about_class event event_turn later_event"
    " same_class_later words family kind news by_subject names names_turn length turn_length place yes_retraction about"
    " about_kind about_family fills fills_turn recent recent_about later later_valid later_about update update_turn"
    " correction correction_turn retraction later_cue alike alike_later same_kind same_kind_later same_speaker_later"
    " words_turn family_turn kind_turn to_subject gives words_later denies denies_turn shape_later again_about"
    " again_known answers_later other_later family_alike"
)


@dataclass
class Case:
    """A dialogue: its statements, their features, which are right, and which fill the slot at all."""

    told: dict[str, Any]
    lines: list[Line]
    own: list[dict[str, float]]
    first: Floats
    right: NDArray[np.bool_]
    filling: NDArray[np.bool_]
    second: Floats = field(default_factory=lambda: np.zeros((0, 0)))


def case_of(told: dict[str, Any]) -> Case:
    """Read a dialogue."""
    lines = [
        Line(turn["text"][begin:end], turn["speaker"], at)
        for at, turn in enumerate(told["turns"])
        for begin, end, _ in statements(turn["text"])
    ]
    own = features(read(told["question"]), lines)
    some = any if told["kind"] == "additive" else all
    right = np.array([some(each in line.text for each in told["current"]) for line in lines])
    old = np.array([any(each in line.text for each in told["outdated"]) for line in lines])
    return Case(told, lines, own, np.array([[row[name] for name in NAMES] for row in own]), right, right | old)


def look_back(cases: list[Case], fills: Floats) -> None:
    """Give ``cases`` the features of the second ranking, by the weights of the first."""
    for case in cases:
        rows = [dict(row) for row in case.own]
        later(read(case.told["question"]), case.lines, rows, list(case.first @ fills))
        case.second = np.array([[row[name] for name in LATER] for row in rows])


def fitted(
    sets: list[tuple[Floats, NDArray[np.bool_]]], names: tuple[str, ...], *, soft: bool, penalty: float, steps: int
) -> Floats:
    """Return weights by Adam; ``soft`` lets the ranking choose among the right ones, else all of them are wanted."""
    sets = [(rows, right) for rows, right in sets if right.any()]
    rows = np.vstack([each for each, _ in sets])
    right = np.concatenate([each for _, each in sets])
    starts = np.cumsum([0, *(len(each) for each, _ in sets[:-1])])
    sizes = np.array([len(each) for each, _ in sets])
    mean, spread = rows.mean(0), rows.std(0) + 1e-6
    scaled = (rows - mean) / spread
    negative = np.array([name in NEGATIVE for name in names])
    positive = np.array([name in POSITIVE for name in names])
    aide = np.array([name == "aide" for name in names])
    prior = np.array([PRIOR.get(name, 0.0) for name in names]) * spread
    weights = prior.copy()
    speed, square = np.zeros(len(names)), np.zeros(len(names))
    equal = right / np.repeat(np.add.reduceat(right.astype(float), starts), sizes)
    for step in range(1, steps + 1):
        scores = scaled @ weights
        odds = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), sizes))
        odds /= np.repeat(np.add.reduceat(odds, starts), sizes)
        wanted = equal
        if soft:
            wanted = odds * right
            wanted /= np.repeat(np.add.reduceat(wanted, starts), sizes) + 1e-12
        slope = penalty * (weights - prior) + scaled.T @ (odds - wanted) / len(sets)
        speed = 0.9 * speed + 0.1 * slope
        square = 0.99 * square + 0.01 * slope * slope
        weights = weights - 0.05 * speed / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
        weights[negative & (weights > 0)] = 0
        weights[positive & (weights < 0)] = 0
        weights[aide] = np.minimum(weights[aide], AIDE * spread[aide])
    return weights / spread


def fit(cases: list[Case], *, penalties: tuple[float, float] = (0.1, 0.03), folds: int = 4) -> tuple[Floats, Floats]:
    """Return the weights of both rankings; the second learns from a first that has not seen the dialogue."""

    def first(some: list[Case], steps: int) -> Floats:
        return fitted(
            [(case.first, case.filling) for case in some], NAMES, soft=False, penalty=penalties[0], steps=steps
        )

    for fold in range(folds):
        away = cases[fold::folds]
        look_back(away, first([case for at, case in enumerate(cases) if at % folds != fold], 200))
    holds = fitted([(case.second, case.right) for case in cases], LATER, soft=True, penalty=penalties[1], steps=300)
    return first(cases, 300), holds


def is_right(case: Case, holds: Floats) -> bool:
    """Whether the statement that comes first tells what holds (the first three together, where values add up)."""
    order = np.argsort(-(case.second @ holds), kind="stable")
    if case.told["kind"] == "additive":
        told = " ".join(case.lines[at].text for at in order[:3])
        return all(each in told for each in case.told["current"])
    return bool(case.right[order[0]])


def tried(cases: list[Case], weights: tuple[Floats, Floats]) -> int:
    """How many of ``cases`` are right by these weights."""
    look_back(cases, weights[0])
    return sum(is_right(case, weights[1]) for case in cases)


def main() -> None:
    """Print the score of each set by the others, and with ``--print`` the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", dest="printed")
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--misses", action="store_true")
    options = parser.parse_args()
    sets: dict[str, list[Case]] = {}
    for file in sorted(DATA.glob("updates_*.jsonl")):
        sets[file.stem] = [case_of(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    frozen = sets["updates_c"][-FROZEN:]
    sets["updates_c"] = sets["updates_c"][:-FROZEN]
    good = 0
    for name, cases in sets.items():
        weights = fit([case for other, some in sets.items() if other != name for case in some])
        mine = tried(cases, weights)
        good += mine
        print(f"{name} by the others: {mine}/{len(cases)} = {100 * mine / len(cases):.0f} %", flush=True)
        if options.misses:
            show(cases, weights)
    count = sum(len(cases) for cases in sets.values())
    print(f"leaving one set out: {good}/{count} = {100 * good / count:.1f} %")
    everything = [case for cases in sets.values() for case in cases]
    weights = fit(everything)
    print(f"fitted on all: {tried(everything, weights)}/{count}")
    if options.frozen:
        mine = tried(frozen, weights)
        print(f"frozen: {mine}/{len(frozen)} = {100 * mine / len(frozen):.0f} %")
    if options.printed:
        for title, names, some in (("FILLS", NAMES, weights[0]), ("HOLDS", LATER, weights[1])):
            print(f"{title}: Final = {{")
            for name, weight in zip(names, some, strict=True):
                if abs(weight) >= 0.005:
                    print(f'    "{name}": {weight:.2f},')
            print("}")


def show(cases: list[Case], weights: tuple[Floats, Floats]) -> None:
    """Print the misses: what came first, what is right."""
    for case in cases:
        if not is_right(case, weights[1]):
            scores = case.second @ weights[1]
            filled = case.first @ weights[0]
            order = np.argsort(-scores, kind="stable")
            told = case.told
            print(f"{told['id']} {told['kind']}: {told['question']} {told['current']} not {told['outdated']}")
            for at in dict.fromkeys([*order[:2], *np.flatnonzero(case.right)]):
                mark = ">" if case.right[at] else "~" if case.filling[at] else " "
                line = case.lines[at]
                print(f"   {mark} {scores[at]:.2f} {filled[at]:.2f} t{line.turn} {line.speaker}: {line.text}")


if __name__ == "__main__":
    main()

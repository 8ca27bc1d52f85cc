"""A long campaign of faults of nodes: `./dev campaign checkpoint`. Goes on where it was stopped; the report counts.

Each case is one of `tests/checkpoint/node_faults.py`, with real processes: ranks and agents of two or three nodes on
this machine, a fault, and what is recovered, bit for bit. ``CASES=n`` in the environment ends it after n cases,
``CASE=n`` plays the case of that number alone and ``WORKERS=n`` plays n at a time (2). A change of what is tested, or
of how, begins the count anew. Wrong cases are listed and do not stop it; it fails at its end if there are any.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "reports" / "checkpoint.md"
TESTED = ("adapters/torch", "checkpoint", "codec", "fabric", "layout", "plan", "process", "progress", "shm", "state")
TESTED += ("store", "upkeep", "wire")
MACHINERY = (
    "conftest",
    "fault_cases",
    "faulty_agent",
    "gated_trainer",
    "jumping",
    "node_faults",
    "relay",
    "staged",
    "strikes",
    "trainer",
)
WAYS = 3  # exactly, older and told, older than anybody was told

pytestmark = pytest.mark.campaign


def fingerprint() -> str:
    """What the counts are about."""
    found = hashlib.sha256()
    paths = [path for folder in TESTED for path in (ROOT / "src" / "perdure" / folder).glob("*.py")]
    paths += [ROOT / "tests" / "checkpoint" / f"{name}.py" for name in MACHINERY]
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


FINGERPRINT = fingerprint()  # of what is about to run, whatever is edited meanwhile


class Tally:
    """How many cases of each kind ended how; kept in the report itself."""

    def __init__(self, faults: dict[str, tuple[str, ...]], phases: tuple[str, ...], drawn: Sequence[str]) -> None:
        self.faults, self.phases = faults, phases
        self.counts = {(fault, phase): [0] * WAYS for fault, of in faults.items() for phase in of}
        self.drawn = {each: [0] * WAYS for each in drawn}
        self.wrong: list[str] = []
        self.played = 0
        self.loads: list[float] = []
        text = REPORT.read_text() if REPORT.exists() else ""
        if f"`{FINGERPRINT}`" in text:
            self._read(text)

    def _read(self, text: str) -> None:
        self.played = int(re.search(r"^Cases 0 to (\d+)", text, re.M)[1]) + 1  # type: ignore[index]
        self.loads = [float(each) for each in re.findall(r"load average was (\d+\.\d) to (\d+\.\d)", text)[0]]
        self.wrong = re.findall(r"^- (case .*)$", text, re.M)
        for fault in self.faults:
            cells = re.search(rf"^\| {fault} \|(.*)\|$", text, re.M)[1].split("|")  # type: ignore[index]
            for phase, cell in zip(self.phases, cells, strict=True):
                if cell.strip() != "":
                    self.counts[fault, phase] = [int(each) for each in cell.split("/")]
        for each in self.drawn:
            self.drawn[each] = [int(one) for one in re.search(rf"^\| {each} \| ([\d/]+) \|$", text, re.M)[1].split("/")]  # type: ignore[index]

    def add(self, case: Any, way: int) -> None:
        """Count a case that was recovered in that way."""
        self.counts[case.fault, case.phase][way] += 1
        for each in (case.coding, case.remote, case.model):
            self.drawn[each][way] += 1

    def total(self, way: int) -> int:
        return sum(each[way] for each in self.counts.values())

    def summary(self) -> str:
        exactly, told, untold = (self.total(way) for way in range(WAYS))
        return f"{self.played} cases: {exactly} exactly, {told} + {untold} an older step, {len(self.wrong)} wrong"

    def write(self) -> None:
        """The report, whole or as it was."""
        exactly, told, untold = (self.total(way) for way in range(WAYS))
        lines = [
            "# Faults of nodes",
            "",
            "Written by `./dev campaign checkpoint`: real ranks and agents of two or three nodes on one machine, one",
            "fault each, then an attempt that recovers and one that has a store alone. Every step of every attempt is",
            "compared bit for bit with an uninterrupted run; half of the cases recover on another number of ranks.",
            "Saves are coded or not, carried to a remote tier or not; the model is sharded, or cut in stages.",
            "",
            f"Of the code `{FINGERPRINT}`.",
            "",
            f"Cases 0 to {self.played - 1} (a case's number is its seed), two cores, while the machine's",
            f"load average was {min(self.loads):.1f} to {max(self.loads):.1f}.",
            "",
            "| recovered | cases |",
            "|---|---|",
            f"| exactly: the newest step, or training went on with every step saved | {exactly} |",
            f"| an older step, and every rank was told why | {told} |",
            f"| an older step, the newest that any rank had been told of | {untold} |",
            f"| wrong | {len(self.wrong)} |",
            "",
            "By fault and the phase it fell into, in that order (exactly/older and told/older than nobody was told):",
            "",
            f"| fault | {' | '.join(self.phases)} |",
            f"|---|{'---|' * len(self.phases)}",
        ]
        for fault in self.faults:
            cells = ["/".join(map(str, self.counts.get((fault, phase), ()))) for phase in self.phases]
            lines.append(f"| {fault} | {' | '.join(cells)} |")
        lines += [
            "",
            "By what is drawn besides. *Remote struck*: the moment of the fault is in the carry to the",
            "remote tier, not into the drain. *Home lost*: all that the store that commits held is gone before the",
            "attempt that recovers, half the time with all agents; the newest step is the newest that is left then.",
            "",
            "| drawn | cases |",
            "|---|---|",
            *(f"| {each} | {'/'.join(map(str, ways))} |" for each, ways in self.drawn.items()),
        ]
        if self.wrong:
            lines += ["", "Wrong:", "", *(f"- {each}" for each in self.wrong)]
        new = REPORT.with_suffix(".new")
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text("\n".join(lines).rstrip() + "\n")
        os.replace(new, REPORT)


class Player:
    """Plays cases one after another, with processes of its own."""

    def __init__(self, folder: Path) -> None:
        import fault_cases
        import node_faults
        import strikes

        import conftest

        self._place, self._faults, self._folder = conftest.Place, node_faults, folder
        self._draw, self._wrong = fault_cases.draw, strikes.Wrong
        folder.mkdir()
        self._forker = conftest.Forker()
        self._forker.ask(poll=[])  # once it has imported all: agents that are started before would not wait for ranks
        self._references = node_faults.References(folder / "references", self._forker)

    def play(self, number: int) -> tuple[Any, str, str]:
        """The case, how it was recovered, and what was wrong with it."""
        case = self._draw(number)
        folder = self._folder / f"case{number}"
        folder.mkdir()
        place = self._place(folder, self._forker)
        try:
            return case, self._faults.play(case, place, self._references), ""
        except self._wrong as wrong:
            return case, "", str(wrong)
        finally:
            place.end()
            shutil.rmtree(folder, ignore_errors=True)

    def end(self) -> None:
        self._forker.end()


@pytest.fixture
def players(tmp_path: Path, checkpoint_machinery: None) -> Iterator[list[Player]]:
    found = [Player(tmp_path / f"player{number}") for number in range(int(os.environ.get("WORKERS", "2")))]
    yield found
    for player in found:
        player.end()


def test_no_fault_of_a_node_changes_a_bit(players: list[Player], capsys: pytest.CaptureFixture[str]) -> None:
    import fault_cases

    if "CASE" in os.environ:
        case, how, wrong = players[0].play(int(os.environ["CASE"]))
        assert not wrong, f"{case}: {wrong}"
        return
    drawn = (*fault_cases.CODINGS, *fault_cases.REMOTES, *fault_cases.MODELS)
    tally = Tally(fault_cases.FAULTS, fault_cases.PHASES, drawn)
    last = tally.played + int(os.environ.get("CASES", "1000000"))
    with ThreadPoolExecutor(len(players)) as pool:
        while tally.played < last:
            began = time.monotonic()
            numbers = range(tally.played, min(tally.played + len(players), last))
            for case, how, wrong in pool.map(Player.play, players, numbers):
                if wrong:
                    tally.wrong.append(f"case {tally.played} ({case}): {wrong.splitlines()[0]}")
                else:
                    tally.add(case, fault_cases.OUTCOMES.index(how))
                with capsys.disabled():
                    print(f"case {tally.played} ({case}): {how or 'WRONG: ' + wrong}", flush=True)
                tally.played += 1
            tally.loads = [*tally.loads, os.getloadavg()[0]]
            tally.write()
            with capsys.disabled():
                print(f"{tally.summary()}; the last took {time.monotonic() - began:.0f} s", flush=True)
    assert not tally.wrong, "\n".join(tally.wrong)

"""The fault suite on perdure's watcher: `./dev campaign watcher`. Goes on where it was stopped; the report counts.

``FAULTY`` cases with a fault (120) and ``WELL`` without (60), of all kinds in turn, one after another; ``SEED`` is the
first seed of each kind (0). What was found is kept in ``build/campaigns/watcher``, a line a case; a change of what is
tested, or of how, begins the count anew (so no half of it is left to chance: the watcher, the probe and the suite).
``KIND=name`` plays that kind alone and prints, without a report. Cases that were judged wrong are listed in the report
and do not stop it; it fails at its end where a promise was broken.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from perdure.testing.faults.cases import campaign, draw
from perdure.testing.faults.kinds import KINDS, Family
from perdure.testing.faults.report import broken, run, write
from perdure.testing.faults.scoring import score
from perdure.testing.faults.watching import PerdureWatcher

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "reports" / "watcher.md"
KEPT = ROOT / "build" / "campaigns" / "watcher"
TESTED = ("watcher", "watcher/logs", "progress", "testing/faults")

pytestmark = pytest.mark.campaign


def fingerprint() -> str:
    """What the counts are about."""
    found = hashlib.sha256()
    paths = [path for folder in TESTED for path in (ROOT / "src" / "perdure" / folder).glob("*.py")]
    paths += (ROOT / "src" / "perdure" / "adapters" / "torch").glob("probe*.py")
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


FINGERPRINT = fingerprint()  # of what is about to run, whatever is edited meanwhile
ABOUT = (
    "Written by `./dev campaign watcher`: real training over gloo on 2 to 4 ranks in 2 or 3 nodes, which are process",
    "groups of this machine with a folder of records each, watched as `perdure watch` does. What is done in each kind",
    "of case, and which answers are right, is in [watcher-suite.md](../watcher-suite.md). Of the code",
    f"`{FINGERPRINT}`, two cores.",
)


def test_the_watcher_keeps_its_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = int(os.environ.get("SEED", "0"))
    if "KIND" in os.environ:
        cases = [draw(KINDS[os.environ["KIND"]], seed) for seed in range(first, first + 5)]
    else:
        faulty, healthy = int(os.environ.get("FAULTY", "120")), int(os.environ.get("WELL", "60"))
        cases = campaign(faulty=faulty, healthy=healthy, first_seed=first)
    kept = None if "KIND" in os.environ else KEPT / f"{FINGERPRINT}.jsonl"
    outcomes = []
    for number, case in enumerate(cases):
        with capsys.disabled():
            outcomes += run([case], PerdureWatcher, tmp_path / "case", base=os.environ, kept=kept, tell=print)
        if kept is not None and (number % 10 == 9 or number == len(cases) - 1):
            text = write(outcomes, title="Faults of jobs, as the watcher sees them", about=ABOUT)
            REPORT.with_suffix(".new").write_text(text)
            os.replace(REPORT.with_suffix(".new"), REPORT)
    scores = [score(each) for each in outcomes if not each.troubles]
    assert len(scores) >= 0.95 * len(cases), [each.troubles for each in outcomes if each.troubles]
    assert any(each.family is not Family.HEALTHY for each in scores)
    assert broken(scores) == []

"""Six cases of the fault suite, short: real ranks, watched by perdure. `./dev campaign watcher` plays many more."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.progress import phase_deadlines
from perdure.testing.faults.cases import draw
from perdure.testing.faults.kinds import KINDS
from perdure.testing.faults.playing import play
from perdure.testing.faults.report import line
from perdure.testing.faults.scoring import score
from perdure.testing.faults.watching import PerdureWatcher
from perdure.watcher.analyser import Settings

SHORT = Settings(phase_deadlines=phase_deadlines("step=7"), node_gone_s=15.0)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["killed", "raise", "nan-batch", "odd-collective", "hang-compute", "plain"])
def test_a_fault_is_told_once_with_whose_it_is_and_what_to_do(name: str, tmp_path: Path) -> None:
    kind = replace(KINDS[name], calm_s=(1.0, 1.5), shapes=((2, 1),), within_s=6.0 if name == "plain" else 40.0)
    case = draw(kind, seed=7)
    outcome = play(case, PerdureWatcher(SHORT), tmp_path / "case", base=os.environ)
    assert outcome.troubles == ()
    judged = score(outcome)
    assert judged.right, line(outcome)

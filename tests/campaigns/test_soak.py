"""A soak: `./dev campaign soak`. 2,000 saves in a row by two nodes, and whether anything grows; writes its report.

``SAVES=n`` in the environment makes it n saves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "reports" / "soak.md"
BYTES_PER_SAVE = 4096

pytestmark = pytest.mark.campaign


@pytest.fixture
def place(tmp_path: Path, checkpoint_machinery: None) -> Iterator[Any]:
    import conftest

    forker = conftest.Forker()
    one = conftest.Place(tmp_path, forker)
    yield one
    one.end()
    forker.end()


def test_nothing_grows_with_the_number_of_saves(place: Any) -> None:
    import soaking

    saves = int(os.environ.get("SAVES", "2000"))
    samples = soaking.soak(place, saves)
    soaking.assert_flat(samples, more_bytes=max(8 << 20, saves * BYTES_PER_SAVE))
    names = sorted(samples[-1].held)
    lines = [
        "# Soak",
        "",
        f"Written by `./dev campaign soak`: {saves} saves in a row, one a step, by two ranks on two nodes, each with",
        "an agent and a copy of the other's steps; the last three steps are kept on disk. At the end both agents left",
        "and no process held a segment any more. Of steps that are given up a commit and a mark stay on disk: two",
        "small files each.",
        "",
        "Private memory in MiB / descriptors / threads / segments of checkpoint memory:",
        "",
        f"| saves | {' | '.join(names)} | files of the run |",
        f"|---|{'---|' * (len(names) + 1)}",
    ]
    for sample in samples:
        cells = []
        for name in names:
            held = sample.held[name]
            cells.append(f"{held.private_bytes / 2**20:.1f} / {held.descriptors} / {held.threads} / {held.segments}")
        lines.append(f"| {sample.saves} | {' | '.join(cells)} | {sample.files} |")
    REPORT.write_text("\n".join(lines) + "\n")

"""The race for the fastest way to write, and the trial of a folder."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from perdure.errors import StorageError
from perdure.store import atomic, calibrate
from perdure.store.calibrate import CANDIDATES, Trial, choose
from perdure.store.io_choice import Io, usable
from perdure.store.probe import Probe, probe
from perdure.store.remembered import choose_io, recall


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PERDURE_IO", raising=False)


def trials(*bytes_per_s: tuple[str, float]) -> list[Trial]:
    return [Trial(Io.parse(f"{way}:1MiB:4"), 1000, (1000 / speed,)) for way, speed in bytes_per_s]


def test_the_fastest_is_chosen_and_of_near_ones_the_first() -> None:
    assert str(choose(trials(("uring:direct", 100), ("threads:direct", 130)))) == "threads:direct:1MiB:4"
    assert str(choose(trials(("uring:direct", 100), ("threads:direct", 104)))) == "uring:direct:1MiB:4"


def test_the_page_cache_must_be_clearly_faster() -> None:
    assert choose(trials(("uring:direct", 100), ("plain:buffered", 120))).direct
    assert not choose(trials(("uring:direct", 100), ("plain:buffered", 140))).direct


def test_a_trial_counts_by_its_median() -> None:
    assert Trial(CANDIDATES[0], 100, (1.0, 50.0, 2.0)).bytes_per_s == 50.0


def test_a_race_tries_every_way_leaves_nothing_and_is_remembered_for_the_file_system(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    found = calibrate.calibrate(str(folder), nbytes=4 << 20, budget_s=30)
    assert [trial.io for trial in found.trials] == list(dict.fromkeys(usable(io) for io in CANDIDATES))
    assert all(len(trial.seconds) == 5 and trial.bytes_per_s > 0 for trial in found.trials)
    assert os.listdir(folder) == []
    assert recall(found.file_system.key) == found.best
    assert choose_io(str(folder)) == (found.best, "calibrated")
    assert found.file.startswith(str(tmp_path / "cache"))


def test_a_slow_disk_ends_the_race_in_time(tmp_path: Path) -> None:
    clock = itertools.count(0.0, 0.4)  # every look at it is 0.4 s later
    found = calibrate.calibrate(str(tmp_path), nbytes=1 << 16, budget_s=2.0, now=lambda: next(clock))
    assert sum(len(trial.seconds) for trial in found.trials) == 2
    assert found.trials[0].io == usable(CANDIDATES[0])


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write to /proc"):
        calibrate.calibrate("/proc", nbytes=1 << 16)
    with pytest.raises(StorageError, match="cannot write to /proc"):
        probe("/proc")
    assert not (tmp_path / "cache").exists()


def test_a_good_folder_does_all_that_a_store_needs_and_keeps_nothing_of_the_trial(tmp_path: Path) -> None:
    found = probe(str(tmp_path))
    assert found == Probe(rename=None, link=None, sync=None, direct=found.direct, lock=None)
    assert os.listdir(tmp_path) == []


def test_a_rename_that_replaces_silently_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(folder: int, temporary: str, last: str) -> None:
        os.rename(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)

    monkeypatch.setattr(atomic, "_rename_new", replace)
    assert probe(str(tmp_path)).rename == "it replaced a file that it must not replace"
    assert os.listdir(tmp_path) == []


def test_what_is_missing_is_said_in_the_kernels_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_renameat2", None)
    assert probe(str(tmp_path)).rename == "Function not implemented"
    assert probe(str(tmp_path)).link is None

"""``perdure checkpoint prune``: what it prints, what it deletes, and its exit codes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from perdure.cli.checkpoint_prune import add_parser
from perdure.cli.main import main
from perdure.errors import BlobMissing, CallError, NeedsPerson, PerdureError
from perdure.store import Disk, Ram, Run
from perdure.store.faults import Faults
from perdure.store.leftovers import sweeper_of
from perdure.store.pack import PackItem, plan_pack
from perdure.store.records import Part, PartRef, Pruned, read_record

Prune = Callable[..., int]


@pytest.fixture
def prune(tmp_path: Path) -> Prune:
    """Runs the command on the run in the test's folder; returns its exit code, or raises its error."""

    def call(*words: str) -> int:
        parser = argparse.ArgumentParser()
        add_parser(parser.add_subparsers())
        args = parser.parse_args(["prune", str(tmp_path / "run"), *words])
        code: int = args.func(args)
        return code

    return call


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of five steps, the second one pinned, and a part of a save that a dead session left."""
    run = Run.open(Disk(tmp_path / "run"), create=True)
    epoch = run.claim_epoch("test")
    parent = None
    for step in (10, 20, 30, 40):
        parent = commit(run, epoch, step, parent, pinned=step == 20)
    write(run, epoch, 50)
    commit(run, run.claim_epoch("next"), 50, parent)
    return run


def write(run: Run, epoch: int, step: int) -> PartRef:
    plan = plan_pack([PackItem("w", "uint8", (64,), 64)])
    header = plan.render_header(bytes(16))
    pack = run.write_pack(plan.chunks(header, [bytes(64)]), epoch=epoch, step=step, seq=step, writer="w")
    part = Part(
        run=run.marker.run,
        writer="w",
        epoch=epoch,
        step=step,
        seq=step,
        base=None,
        packs=(pack,),
        index=msgspec.Raw(b"{}"),
        leaves=(),
    )
    return run.write_part(part)


def commit(run: Run, epoch: int, step: int, parent: int | None, *, pinned: bool = False) -> int:
    made = run.commit(
        epoch=epoch, parent=parent, step=step, parts=[write(run, epoch, step)], meta={}, metric=step, pinned=pinned
    )
    return made.slot


def test_a_dry_run_prints_the_plan_and_does_nothing(run: Run, prune: Prune, capsys: pytest.CaptureFixture[str]) -> None:
    before = run.store.names("")
    assert prune("--keep", "last=1,best=1:min", "--dry-run") == 0
    assert run.store.names("") == before
    said = capsys.readouterr().out.splitlines()
    assert said[:5] == [
        "step 10 (slot 1): kept (best 1 (min))",
        "step 20 (slot 2): kept (pinned)",
        "step 30 (slot 3): given up",
        "step 40 (slot 4): given up",
        "step 50 (slot 5): kept (head, last 1)",
    ]
    assert said[5].startswith("kept 3 steps, would give up 2, would free ")
    assert said[5].endswith(" bytes in 6 files")


def test_it_does_what_the_dry_run_said(run: Run, prune: Prune, capsys: pytest.CaptureFixture[str]) -> None:
    assert prune("--keep", "last=1,best=1:min", "--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    before = {name: run.store.size(name) or 0 for name in run.store.names("pa")}
    assert prune("--keep", "last=1,best=1:min", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert done == {**planned, "dry_run": False}
    gone = before.keys() - set(run.store.names("pa"))
    assert gone == {*done["packs"], *done["parts"]}
    assert done["freed_bytes"] == sum(before[name] for name in gone)
    assert [each["step"] for each in done["given_up"]] == [30, 40]
    assert run.pruned() == {3, 4}


def test_without_rules_and_steps_only_what_dead_sessions_left_goes(
    run: Run, prune: Prune, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prune() == 0
    said = capsys.readouterr()
    assert "every step stays" in said.out
    assert "gave up 0, freed" in said.out
    assert "in 2 files" in said.out
    assert said.err == ""  # short work needs no line of progress in a log
    assert run.pruned() == frozenset()
    assert prune() == 0
    assert "freed 0 bytes in 0 files" in capsys.readouterr().out


def test_steps_are_given_up_by_name(run: Run, prune: Prune) -> None:
    assert prune("--step", "10", "--step", "30") == 0
    assert run.pruned() == {1, 3}
    assert prune("--step", "20", "--even-pinned") == 0
    assert run.pruned() == {1, 2, 3}


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        (["--step", "20"], CallError, "--even-pinned"),
        (["--step", "50"], CallError, "newest"),
        (["--step", "60"], BlobMissing, "step 60 is not there"),
        (["--even-pinned"], CallError, "--step"),
        (["--keep", "newest=3"], CallError, "no rule"),
        (["--keep", ""], CallError, "no rule"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_nothing_is_touched(
    run: Run, prune: Prune, words: list[str], kind: type[PerdureError], sentence: str
) -> None:
    before = run.store.names("")
    with pytest.raises(kind, match=sentence):
        prune(*words)
    assert run.store.names("") == before


def test_where_there_is_no_run_it_says_so(prune: Prune) -> None:
    with pytest.raises(BlobMissing, match="there is no run"):
        prune("--keep", "last=1")


def test_what_cannot_be_read_stops_it_until_it_is_given_up(
    run: Run, prune: Prune, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "slots" / "0000000003.json").unlink()
    before = run.store.names("")
    with pytest.raises(NeedsPerson, match="slot 3") as caught:
        prune("--keep", "last=1")
    assert caught.value.exit_code == 73
    assert run.store.names("") == before
    assert prune("--keep", "last=1", "--lost") == 0
    assert run.pruned() == {3, 4}
    said = capsys.readouterr().out
    assert "step unknown (slot 3): given up" in said
    assert "step 10 (slot 1): kept (perhaps of another training: a slot between cannot be read)" in said
    assert read_record(run.store, "pruned/0000000003.json", Pruned).step is None
    assert prune("--other-trainings") == 0
    assert run.pruned() == {1, 3, 4}


def test_a_terminal_gets_a_table(
    run: Run, prune: Prune, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert prune("--keep", "last=2", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "given up" in said
    assert "━" in said


def test_what_dead_writers_left_goes_when_it_is_a_day_old(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.open(Disk(tmp_path), create=True)
    run.store.put("packs/0000000001/x", [b"1"])
    old, new = (tmp_path / "packs" / "0000000001" / f".tmp-{letter * 32}" for letter in "ab")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1.0, 1.0))
    for more, there in ((["--dry-run"], True), ([], False)):
        assert main(["checkpoint", "prune", str(tmp_path), *more]) == 0
        said = capsys.readouterr().out
        assert f"{'would remove' if more else 'removed'} 1 temporaries" in said
        assert old.exists() is there
        assert new.exists()


def test_the_sweeper_is_found_inside_its_wrappers(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert sweeper_of(Faults(Faults(disk))) is disk
    assert sweeper_of(Ram()) is None

"""``perdure checkpoint ls, show, verify, diff, repair``: what they print, as text and as JSON, and their exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.bars import Bar
from perdure.cli.main import main
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.store import Disk, Run
from perdure.testing.ranks import Bytes, random_bytes
from perdure.testing.runs import blobs_of, flip, save_step

SRC = str(Path(__file__).parents[2] / "src")
LAYOUT = Layout(
    {
        "model.w": TensorLayout(
            (8, 4), tuple(Piece.alone(r, Box((4 * r, 0), (4 * r + 4, 4))) for r in (0, 1)), "float32"
        ),
        "model.b": TensorLayout((3,), (Piece.alone(0, Box((0,), (3,))),), "bfloat16"),
    }
)


def wholes(seed: int) -> dict[str, Bytes]:
    return {
        name: random_bytes(each.dtype, each.shape, seed if name == "model.w" else 0) for name, each in LAYOUT.items()
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run of the steps 10, 20 and 30, and a step 20 on a dead branch."""
    run = Run.open(Disk(tmp_path / "run"), create=True, tell=lambda note: None)
    run.claim_epoch("test")
    save_step(run, 10, LAYOUT, wholes(1), world=2, values={"lr": 0.1}, meta={"loss": 1.5})
    save_step(run, 20, LAYOUT, wholes(2), world=2, values={"lr": 0.1})
    run.claim_epoch("after a rollback")
    save_step(run, 20, LAYOUT, wholes(3), world=2, values={"lr": 0.1}, epoch=2, base=1)
    save_step(run, 30, LAYOUT, wholes(3), world=2, values={"lr": 0.2}, epoch=2, meta={"loss": 0.5})
    return tmp_path / "run"


def copied(home: Path) -> Path:
    into = Disk(home.parent / "mirror")
    for name, data in blobs_of(Disk(home)).items():
        into.put(name, [data])
    return home.parent / "mirror"


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = main(["checkpoint", *map(str, words)])
    return code, capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code, out = told(capsys, *words, "--json")
    return code, json.loads(out)


def test_ls_lists_the_branch_and_marks_the_head(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(capsys, "ls", home)
    lines = out.splitlines()
    assert (code, lines[0].split()) == (
        0, ["SLOT", "STEP", "WHEN", "METRIC", "OWN", "SHARED", "PARTS", "EPOCH", "RANKS"],
    )  # fmt: skip
    assert [line.split()[:2] for line in lines[1:]] == [["4", "30"], ["3", "20"], ["1", "10"]]
    assert lines[1].endswith("head")
    _, found = as_json(capsys, "ls", home)
    first = found["commits"][0]
    assert (first["slot"], first["step"], first["epoch"], first["parts"], first["ranks"]) == (4, 30, 2, 2, 2)
    names = [name for name in Disk(home).names("") if "000000000030-" in name]
    assert first["own_bytes"] == sum(Disk(home).size(name) or 0 for name in names)
    assert first["shared_bytes"] == 0


def test_ls_all_shows_dead_branches_pruned_and_unreadable_commits(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.open(Disk(home), create=False)
    run.give_up(run.read_slot(1))
    code, out = told(capsys, "ls", home, "--all")
    rows = out.splitlines()[1:]
    assert (code, [row.split()[0] for row in rows]) == (0, ["4", "3", "2", "1"])
    assert [row.rpartition("  ")[2] for row in rows] == ["head", "2", "dead branch", "pruned"]
    _, out = told(capsys, "ls", home)
    assert [row.split()[0] for row in out.splitlines()[1:]] == ["4", "3"]
    flip(Disk(home), "slots/0000000003.json", 70)
    assert main(["checkpoint", "ls", str(home), "--all"]) == 0
    said = capsys.readouterr()
    assert [row.rpartition("  ")[2] for row in said.out.splitlines()[1:3]] == ["head", "cannot be read"]
    assert "1 records cannot be read; `perdure checkpoint verify" in said.err
    run.give_up_slot(3, step=None)
    _, out = told(capsys, "ls", home, "--all")
    assert out.splitlines()[2].rpartition("  ")[2] == "pruned"
    assert told(capsys, "verify", home, "--all")[0] == 0


def test_a_commit_on_a_dead_branch_is_named_by_its_slot(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(capsys, "show", home, "--slot", 2)
    assert (code, out.splitlines()[0].startswith("step 20, slot 2, epoch 1")) == (0, True)
    assert told(capsys, "verify", home, "--slot", 2)[1].startswith("step 20: everything")
    assert main(["checkpoint", "show", str(home), "--slot", "2", "--step", "30"]) == 65
    assert "slot 2 is step 20, not 30" in capsys.readouterr().err


def test_show_tells_tensors_cuts_values_meta_and_totals(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(capsys, "show", home)
    assert code == 0
    assert "step 30, slot 4, epoch 2" in out
    assert "meta loss = 0.5" in out
    assert "model.w  float32  8x4  128 B  2 x rows on ranks 0-1  packs/" in out
    assert "model.b  bfloat16  3  6 B  whole on rank 0  packs/" in out
    assert "lr = 0.2" in out
    assert "total float32: 1 tensors, 128 B" in out
    _, found = as_json(capsys, "show", home, "--step", 10)
    assert found["step"] == 10
    assert found["meta"] == {"loss": 1.5}
    assert [(each["name"], each["nbytes"], each["cut"]) for each in found["tensors"]] == [
        ("model.b", 6, "whole on rank 0"),
        ("model.w", 128, "2 x rows on ranks 0-1"),
    ]
    assert found["values"] == [{"key": "lr", "value": 0.1}]
    assert found["totals"]["bfloat16"] == {"tensors": 1, "nbytes": 6}


def test_show_takes_names_and_patterns(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["model.w"], ["*.w"], ["--step", "10", "model.w"], ["model.w", "--step", "20", "*.w"]):
        _, found = as_json(capsys, "show", home, *words)
        assert [each["name"] for each in found["tensors"]] == ["model.w"]
        assert found["values"] == []
    assert main(["checkpoint", "show", str(home), "nothing"]) == 64
    said = capsys.readouterr()
    assert "nothing in step 30 is called nothing" in said.err
    assert said.out == ""


def test_verify_ends_with_0_or_65_and_says_what_is_damaged(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(capsys, "verify", home, "--all")
    assert code == 0
    assert "4 steps: everything is as it was written" in out
    (pack,) = (name for name in Disk(home).names("packs/") if "000000000030-" in name and "node1" in name)
    flip(Disk(home), pack, (Disk(home).size(pack) or 0) - 1)
    code, out = told(capsys, "verify", home)
    assert code == 65
    assert f"DAMAGED {pack} is corrupt: tile 0 of tensor 'model.w[4:8,0:4]' does not hash" in out
    assert "costs: step 30 cannot be restored whole" in out
    assert told(capsys, "verify", home, "--no-data")[0] == 0
    code, found = as_json(capsys, "verify", home)
    assert code == 65
    assert [(each["file"], each["tile"], each["steps"]) for each in found["damages"]] == [(pack, 0, [30])]


def test_a_step_or_a_run_that_is_not_there_is_a_sentence(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "verify", str(home), "--step", "11"]) == 65
    assert "step 11 is not there" in capsys.readouterr().err
    assert main(["checkpoint", "ls", str(home.parent / "none")]) == 65
    assert "there is no run" in capsys.readouterr().err


def test_diff_tells_what_changed_and_ends_with_1(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = told(capsys, "diff", home, 10, 30)
    assert code == 1
    assert "~ model.w  2 of 2 tiles" in out
    assert "~ value lr: 0.1 -> 0.2" in out
    assert "~ meta loss: 1.5 -> 0.5" in out
    assert "model.b" not in out
    code, found = as_json(capsys, "diff", home, 20, 30)
    assert (code, found["changed"], found["n_same"], found["values"]) == (1, [], 2, {"lr": [0.1, 0.2]})
    mirror = copied(home)
    code, out = told(capsys, "diff", home, mirror)
    assert code == 0
    assert out.startswith("the same: 0 added")
    assert main(["checkpoint", "diff", str(home), "10", "x"]) == 64
    capsys.readouterr()
    assert main(["checkpoint", "diff", str(home), "10"]) == 64
    assert f"perdure checkpoint diff {home} 10 STEP_B" in capsys.readouterr().err


def test_diff_shows_where_values_differ_and_meta_decides_only_if_asked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.open(Disk(home), create=False)
    long = {"name": "x" * 200, "groups": [{"lr": 0.1}, {"lr": 0.1}]}
    other = {"name": "x" * 200, "groups": [{"lr": 0.1}, {"lr": 0.2}]}
    text = "y" * 150
    for step, value, end, meta in ((40, long, "a", {}), (50, other, "b", {"who": "me"}), (60, other, "b", {})):
        values = {"optimizer": value, "text": text + end}
        save_step(run, step, LAYOUT, wholes(3), world=2, values=values, epoch=2, meta=meta)
    code, out = told(capsys, "diff", home, 40, 50)
    assert code == 1
    assert "~ value optimizer at .groups[1].lr: 0.1 -> 0.2" in out
    (line,) = (line for line in out.splitlines() if "value text" in line)
    assert line.endswith('ya" -> ...' + "y" * 30 + 'b"')
    code, out = told(capsys, "diff", home, 50, 60)
    assert (code, out.splitlines()[-1].startswith("the same: 0 added")) == (0, True)
    assert out.endswith("meta differs: who\n")
    code, out = told(capsys, "diff", home, 50, 60, "--meta")
    assert (code, out.splitlines()[-1].startswith("different: 0 added")) == (1, True)


def test_progress_in_a_log_ends_with_a_line_or_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("verify, MiB", 33) as bar:
        bar.at(0, "")
        bar.at(33, "")
    assert capsys.readouterr().err == ""
    with Bar("verify, MiB", 33) as bar:
        bar.at(0, "first")
        bar.at(33, "first")
    assert capsys.readouterr().err.splitlines() == ["verify, MiB: 0/33 first", "verify, MiB: 33/33 done"]


def test_repair_tells_its_plan_and_mends(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mirror = copied(home)
    before = blobs_of(Disk(home))
    (pack,) = (name for name in Disk(home).names("packs/") if "000000000030-" in name and "node1" in name)
    flip(Disk(home), pack, (Disk(home).size(pack) or 0) - 1)
    Disk(home).delete("slots/0000000001.json")
    code, out = told(capsys, "repair", home, "--from", mirror, "--dry-run")
    assert code == 0
    assert f"mend {pack}" in out
    assert f"64 B from {mirror}" in out
    assert "2 files would be mended" in out
    assert main(["checkpoint", "verify", str(home)]) == 65
    capsys.readouterr()
    code, out = told(capsys, "repair", home, "--from", mirror)
    assert (code, out.splitlines()[-1]) == (0, "2 files were mended")
    assert blobs_of(Disk(home)) == before
    assert told(capsys, "verify", home, "--all")[0] == 0


def test_repair_from_a_copy_that_was_trained_on_apart_changes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = copied(home)
    for place, seed in ((home, 7), (mirror, 8)):
        run = Run.open(Disk(place), create=False)
        save_step(run, 40, LAYOUT, wholes(seed), world=2, epoch=run.claim_epoch("went on"), base=4)
    flip(Disk(home), "slots/0000000005.json", 70)
    before = blobs_of(Disk(home))
    code, out = told(capsys, "repair", home, "--from", mirror)
    assert code == 65
    assert "LOST slots/0000000005.json" in out
    assert "is of another training" in out
    assert "0 files were mended" in out
    assert blobs_of(Disk(home)) == before


def test_repair_ends_with_65_if_something_is_good_nowhere(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mirror = copied(home)
    for place in (home, mirror):
        flip(Disk(place), "epochs/0000000001.json", 60)
    code, out = told(capsys, "repair", home, "--from", mirror)
    assert code == 65
    assert "LOST epochs/0000000001.json" in out
    assert "add another --from" in out


def test_help_needs_no_library_but_the_standard_one() -> None:
    code = (
        "import sys\nfrom perdure.cli.main import main\n"
        "try:\n    main(['checkpoint', '--help'])\nexcept SystemExit: pass\n"
        "found = {'msgspec', 'numpy', 'torch', 'rich'} & set(sys.modules)\nassert not found, found"
    )
    env = os.environ | {"PYTHONPATH": SRC}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=30)
    assert done.returncode == 0, done.stderr
    for name in ("ls", "show", "verify", "diff", "repair", "prune", "export", "import"):
        assert f"\n    {name} " in done.stdout

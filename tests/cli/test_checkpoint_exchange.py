"""``perdure checkpoint export`` and ``import``, as a person calls them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

import perdure  # noqa: E402
from perdure.cli import checkpoint_export, checkpoint_import  # noqa: E402
from perdure.errors import CallError  # noqa: E402


def call(*words: Any) -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    checkpoint_export.add_parser(commands)
    checkpoint_import.add_parser(commands)
    args = parser.parse_args([str(word) for word in words])
    code: int = args.func(args)
    return code


def test_there_and_back_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(3, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "in.safetensors")
    assert call("import", tmp_path / "in.safetensors", tmp_path / "run", "--under", "model", "--step", "3") == 0
    told = capsys.readouterr()
    assert "imported safetensors as step 3" in told.out
    assert "2 tensors, 30 bytes" in told.out
    assert "no checksums" in told.out
    assert perdure.load(tmp_path / "run").keys() == {"model.a.weight", "model.a.bias"}
    assert call("export", tmp_path / "run", tmp_path / "hf") == 0
    told = capsys.readouterr()
    assert "wrote step 3" in told.out
    assert "export of step 3, MB: 1/1" in told.err
    found = load_file(tmp_path / "hf/model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert call("export", tmp_path / "run", tmp_path / "dcp", "--to", "dcp") == 0
    assert call("import", tmp_path / "dcp", tmp_path / "run", "--step", "4", "--names", "*bias") == 0
    assert perdure.load(tmp_path / "run").keys() == {"model.a.bias"}


def test_a_commit_on_a_dead_branch_is_exported_by_its_slot(tmp_path: Path) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0)):
        save_file({"w": torch.full((3,), value)}, tmp_path / "in.safetensors")
        call("import", tmp_path / "in.safetensors", tmp_path / "run", "--under", "model", "--step", step)
    ckpt = perdure.Checkpointer(tmp_path / "run", agent=False)
    ckpt.restore({"model": {"w": torch.zeros(3)}}, step=1)
    ckpt.save(2, {"model": {"w": torch.full((3,), 9.0)}}).committed()
    ckpt.close()
    for words, value in ((["--slot", 2], 2.0), (["--slot", 3], 3.0), (["--step", 2], 9.0)):
        folder = tmp_path / f"hf{value}"
        assert call("export", tmp_path / "run", folder, *words) == 0
        assert load_file(folder / "model.safetensors")["w"].tolist() == [value] * 3


def test_values_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"w": torch.ones(2), "n": 3}, tmp_path / "a.pt")
    assert call("import", tmp_path / "a.pt", tmp_path / "run", "--skip-values") == 0
    assert "1 tensors, 8 bytes, 0 values\n  values left out: n" in capsys.readouterr().out


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "in.safetensors")
    call("import", tmp_path / "in.safetensors", tmp_path / "run")
    for words, why in (
        (("export", tmp_path / "run", tmp_path / "x"), "names begin with w"),
        (("export", tmp_path / "run", tmp_path / "x", "--to", "dcp", "--as-bytes"), "--as-bytes"),
        (("import", tmp_path / "nothing.pt", tmp_path / "run"), "there is no file"),
        (("import", tmp_path, tmp_path / "run"), "no checkpoint folder"),
    ):
        with pytest.raises(CallError, match=why):
            call(*words)
    with pytest.raises(SystemExit):
        call("export", tmp_path / "run", tmp_path / "x", "--to", "onnx")


def test_help_is_instant() -> None:
    """No heavy library is needed to say what the commands are."""
    import subprocess
    import sys

    code = "import sys; from perdure.cli import checkpoint_export, checkpoint_import; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0

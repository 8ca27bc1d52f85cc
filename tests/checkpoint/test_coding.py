"""Saves that are coded: fewer bytes, every bit back, from any mesh; a damaged source of a base is named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import perdure
from conftest import Place
from perdure.cli.main import main
from perdure.codec.stage import Bytes
from perdure.errors import CallError, IntegrityError
from perdure.state.part_reader import PartReader
from perdure.state.relations import Rounding
from perdure.store import Disk, Run

Digests = Mapping[tuple[int, int], str]
STEPS = ("--steps", "12", "--every", "3")


def stored_nbytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*.safetensors"))


def mixed(seed: int = 0) -> dict[str, torch.Tensor]:
    """A master, its copies, its moments, and what is not worth coding."""
    draw = torch.Generator().manual_seed(seed)
    master = torch.randn(300, 1000, generator=draw) * 0.02
    master[0, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40])
    return {
        "master": master,
        "copy": master.to(torch.bfloat16),
        "half": master.to(torch.float16),
        "m": torch.randn(300, 1000, generator=draw) * 1e-4,
        "v": torch.randn(300, 1000, generator=draw).square() * 1e-8,
        "noise": torch.randint(0, 256, (300_000,), dtype=torch.uint8, generator=draw),
        "step": torch.tensor(7),
        "none": torch.zeros(0, 4),
    }


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    def bits(tensor: torch.Tensor) -> Bytes:
        return np.frombuffer(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), np.uint8)

    return one.keys() == other.keys() and all((bits(one[name]) == bits(other[name])).all() for name in one)


def test_a_coded_step_is_smaller_and_comes_back_bit_for_bit(tmp_path: Path) -> None:
    state = mixed()
    sizes = {}
    for coding in ("raw", "lossless"):
        ckpt = perdure.Checkpointer(tmp_path / coding, agent=False, coding=coding)
        ckpt.save(1, dict(state)).committed()
        ckpt.close()
        sizes[coding] = stored_nbytes(tmp_path / coding)
        assert same(perdure.load(tmp_path / coding), state)
        live = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        reader = perdure.Checkpointer(tmp_path / coding, agent=False)
        assert reader.restore(live) == 1
        reader.close()
        assert same(live, state)
        assert main(["checkpoint", "verify", str(tmp_path / coding)]) == 0
    copies = sum(state[name].nbytes for name in ("copy", "half"))
    assert sizes["lossless"] < sizes["raw"] - copies * 0.99


def test_a_copy_is_recorded_as_what_it_is(tmp_path: Path) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False, coding="lossless")
    ckpt.save(1, mixed()).committed()
    ckpt.close()
    run = Run.open(Disk(tmp_path), create=False, tell=lambda note: None)
    (ref,) = run.read_slot(1).parts
    reader = PartReader.of(run, ref, run.read_part(ref))
    for name in ("copy", "half"):
        found = reader.base(name)
        assert found is not None
        assert found.relation == Rounding("master")
        assert [(each.key, each.dtype) for each in found.sources] == [("master", "float32")]
    assert reader.base("master") is None


def test_a_part_of_a_coded_step_is_read_alone(tmp_path: Path) -> None:
    state = mixed()
    ckpt = perdure.Checkpointer(tmp_path, agent=False, coding="lossless")
    ckpt.save(1, dict(state)).committed()
    ckpt.close()
    assert same(perdure.load(tmp_path, names=["copy"]), {"copy": state["copy"]})


def test_pinned_steps_and_steps_by_default_are_raw(tmp_path: Path) -> None:
    state = mixed()
    ckpt = perdure.Checkpointer(tmp_path, agent=False, coding="lossless")
    ckpt.save(1, dict(state), pin=True).committed()
    ckpt.close()
    assert stored_nbytes(tmp_path) > sum(tensor.nbytes for tensor in state.values())
    with pytest.raises(CallError, match="'raw', 'auto', 'lossless'"):
        perdure.Checkpointer(tmp_path, agent=False, coding="tiny")


def test_what_has_not_changed_is_referred_to_coded_or_not(tmp_path: Path) -> None:
    state = mixed()
    ckpt = perdure.Checkpointer(tmp_path, agent=False, coding="lossless")
    ckpt.save(1, dict(state)).committed()
    before = stored_nbytes(tmp_path)
    state["m"] = state["m"] + 1e-6
    ckpt.save(2, dict(state)).committed()
    ckpt.close()
    assert stored_nbytes(tmp_path) - before < state["m"].nbytes
    assert same(perdure.load(tmp_path, step=2), state)
    assert main(["checkpoint", "prune", str(tmp_path), "--keep", "last=1"]) == 0
    assert same(perdure.load(tmp_path), state)
    assert main(["checkpoint", "verify", str(tmp_path)]) == 0


@pytest.mark.parametrize("lost", ["master", "copy"])
def test_a_flipped_bit_in_a_source_or_in_the_frame_is_named(tmp_path: Path, lost: str) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False, coding="lossless")
    ckpt.save(1, mixed()).committed()
    ckpt.close()
    run = Run.open(Disk(tmp_path), create=False, tell=lambda note: None)
    (ref,) = run.read_slot(1).parts
    (pack,) = run.read_part(ref).packs
    entry = run.open_pack(pack).entry(lost)
    path = tmp_path / pack.name
    data = bytearray(path.read_bytes())
    data[entry.start + entry.nbytes - 5] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=lost):
        perdure.load(tmp_path, names=["copy"])


def test_a_killed_run_that_codes_goes_on_bit_for_bit_on_another_world(place: Place, undisturbed: Digests) -> None:
    ranks = place.train(*STEPS, "--coding", "lossless")
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    place.kill_agent()  # so that the store has to bring it back
    again = place.train("--steps", "15", "--every", "3", "--coding", "lossless")
    assert again.began_at() == [12, 12]
    assert again.digests().items() <= undisturbed.items(), again.text()
    alone = place.train("--steps", "18", "--every", "3", world=1)
    assert alone.began_at() == [15]


def test_memory_that_holds_a_coded_step_brings_it_back_raw(place: Place, undisturbed: Digests) -> None:
    place.train(*STEPS, "--coding", "lossless")
    again = place.train("--steps", "15", "--every", "3", "--coding", "lossless")
    assert "from memory" in again.text()
    assert again.digests().items() <= undisturbed.items(), again.text()


def test_diff_compares_coded_and_raw_steps_bit_by_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = mixed()
    for step, coding in ((1, "raw"), (2, "lossless"), (3, "lossless")):
        ckpt = perdure.Checkpointer(tmp_path, agent=False, coding=coding)
        ckpt.restore({name: torch.zeros_like(tensor) for name, tensor in state.items()})
        if step == 3:
            state["master"] = state["master"] + 1.0
            state["copy"], state["half"] = state["master"].to(torch.bfloat16), state["master"].to(torch.float16)
        ckpt.save(step, dict(state)).committed()
        ckpt.close()
    assert main(["checkpoint", "diff", str(tmp_path), "1", "2"]) == 0
    capsys.readouterr()
    assert main(["checkpoint", "diff", str(tmp_path), "2", "3"]) == 1
    told = capsys.readouterr().out
    assert all(name in told for name in ("master", "copy", "half"))
    assert "noise" not in told


def test_show_says_how_each_tensor_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ckpt = perdure.Checkpointer(tmp_path, agent=False, coding="lossless")
    ckpt.save(1, mixed()).committed()
    ckpt.close()
    assert main(["checkpoint", "show", str(tmp_path)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "packs/" in line}
    assert re.search(r"ulp, 0\.00\d of raw on the rounding of master \(alone about 0\.\d\d\)$", lines["copy"])
    assert re.search(r"planes, 0\.\d+ of raw$", lines["master"])
    assert lines["noise"].endswith("raw: no codec makes it smaller by a fiftieth")
    assert lines["step"].endswith(".safetensors")

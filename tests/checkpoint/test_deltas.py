"""Saves that are deltas on an earlier step in the agent's memory: every bit back, from any step, and full when due."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import perdure
from conftest import Place, await_that, flip, flip_memory
from perdure.checkpoint.policy import MOST_ON_ONE_BASE
from perdure.cli.main import main
from perdure.errors import CallError, StorageFull
from perdure.state.part_reader import PartReader
from perdure.state.relations import Rounding
from perdure.store import Part

Digests = Mapping[tuple[int, int], str]
State = dict[str, torch.Tensor]


class Training:
    """A state that drifts, as training near its end does; each step as it was saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._draw = torch.Generator().manual_seed(0)
        self.state = {
            "w": torch.randn(200, 500, generator=self._draw),
            "v": torch.randn(200, 500, generator=self._draw).square(),
            "copy": torch.zeros(200, 500, dtype=torch.bfloat16),
            "x_frozen": torch.randn(300, 500, generator=self._draw),
            "count": torch.zeros(20_000, dtype=torch.int64),
        }
        self.saved: dict[int, State] = {}

    def move(self, by: float = 1e-5) -> None:
        for name in ("w", "v"):
            self.state[name] *= 1 + by * torch.randn(200, 500, generator=self._draw)
        self.state["copy"].copy_(self.state["w"])
        self.state["count"] += 1

    def save(self, ckpt: perdure.Checkpointer, step: int, *, by: float = 1e-5, pin: bool = False) -> int:
        """Move, save, wait; how many bytes were stored."""
        self.move(by)
        self.saved[step] = {name: tensor.clone() for name, tensor in self.state.items()}
        return ckpt.save(step, {"state": self.state}, pin=pin).committed().stored_nbytes

    def check(self, *steps: int) -> None:
        """All of ``steps`` load as they were saved."""
        for step in steps:
            loaded = perdure.load(self.folder, step=step)
            for name, tensor in self.saved[step].items():
                assert loaded[f"state.{name}"].dtype == tensor.dtype
                assert np.array_equal(bits(loaded[f"state.{name}"]), bits(tensor)), (step, name)


def bits(tensor: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


@pytest.fixture
def node(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """This process is the one rank of the test's job."""
    for name, value in place.env(PERDURE_JOB=place.job).items():
        monkeypatch.setenv(name, value)
    return place


def part_of(place: Place, step: int) -> tuple[Part, PartReader]:
    run = place.open()
    (commit,) = [each for each in run.chain() if each.step == step]
    (ref,) = commit.parts
    part = run.read_part(ref)
    return part, PartReader.of(run, ref, part)


def is_delta(place: Place, step: int) -> bool:
    _, reader = part_of(place, step)
    bases = [reader.base(f"state.{name}") for name in ("w", "v", "count")]
    own = f"{step:012d}"
    return any(own not in source.pack for base in bases if base is not None for source in base.sources)


def test_saves_after_the_first_are_deltas_and_every_step_comes_back(node: Place) -> None:
    training = Training(node.run_dir)
    with_agent = perdure.Checkpointer(node.run_dir, coding="lossless")
    sizes = [training.save(with_agent, step) for step in range(1, 7)]
    with_agent.close()
    assert [is_delta(node, step) for step in range(1, 7)] == [False] + [True] * 5
    assert max(sizes[1:]) < sizes[0] / 2
    training.check(*range(1, 7))
    live = {name: torch.zeros_like(tensor) for name, tensor in training.state.items()}
    node.kill_agent()  # so that files alone bring it back
    reader = perdure.Checkpointer(node.run_dir, agent=False)
    assert reader.restore({"state": live}) == 6
    reader.close()
    assert all(np.array_equal(bits(live[name]), bits(tensor)) for name, tensor in training.state.items())


def test_a_delta_is_verified_compared_and_exported_like_any_step(
    node: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, coding="lossless")
    for step in (1, 2):
        training.save(ckpt, step)
    ckpt.close()
    assert main(["checkpoint", "verify", "--all", str(node.run_dir)]) == 0
    assert main(["checkpoint", "diff", str(node.run_dir), "1", "2"]) == 1
    told = capsys.readouterr().out
    assert "state.w" in told
    assert "state.x_frozen" not in told
    assert (
        main(["checkpoint", "export", str(node.run_dir), str(tmp_path / "out"), "--to", "hf", "--names", "state.*"])
        == 0
    )
    from safetensors.torch import load_file

    (file,) = (tmp_path / "out").glob("*.safetensors")
    exported = load_file(file)
    assert all(torch.equal(exported[f"state.{name}"], tensor) for name, tensor in training.state.items())


def test_show_says_on_which_step_and_why(node: Place, capsys: pytest.CaptureFixture[str]) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, coding="lossless")
    for step in (1, 2):
        training.save(ckpt, step)
    ckpt.close()
    assert main(["checkpoint", "show", str(node.run_dir), "--step", "1"]) == 0
    assert "a full save, because no full save is in memory" in capsys.readouterr().out
    assert main(["checkpoint", "show", str(node.run_dir)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "lossless: a delta on step 1; 0." in lines["stored"]
    assert "at step 1" in lines["state.w"]
    assert "of raw on the rounding of state.w" in lines["state.copy"]


def test_a_pruned_base_stays_for_the_deltas_on_it(node: Place) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, coding="lossless", keep="last=2")
    for step in range(1, 8):
        training.save(ckpt, step)
    ckpt.close()
    run = node.open()
    await_that(lambda: run.is_pruned(5), "the agent to prune")
    assert perdure.Checkpointer(node.run_dir, agent=False).steps() == [6, 7]
    assert is_delta(node, 7)
    training.check(6, 7)
    assert main(["checkpoint", "verify", "--all", str(node.run_dir)]) == 0


def test_a_jump_is_not_stored_as_a_delta(node: Place) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, coding="lossless")
    for step, by in ((1, 1e-5), (2, 1e-5), (3, 10.0), (4, 1e-5)):
        training.state["count"] += torch.randint(0, 1 << 62, (20_000,)) * (step == 3)
        training.save(ckpt, step, by=by)
    ckpt.close()
    assert [is_delta(node, step) for step in (1, 2, 3, 4)] == [False, True, False, True]
    training.check(1, 2, 3, 4)


def test_no_more_than_so_many_saves_depend_on_one_base(node: Place) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, coding="lossless")
    last = MOST_ON_ONE_BASE + 3
    for step in range(1, last + 1):
        training.save(ckpt, step)
    ckpt.close()
    assert [step for step in range(1, last + 1) if not is_delta(node, step)] == [1, MOST_ON_ONE_BASE + 2]
    training.check(MOST_ON_ONE_BASE + 1, MOST_ON_ONE_BASE + 2, last)


def test_a_pinned_step_is_raw_and_the_next_may_be_a_delta_on_it(node: Place) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, coding="lossless")
    training.save(ckpt, 1)
    training.save(ckpt, 2, pin=True)
    training.save(ckpt, 3)
    ckpt.close()
    assert [is_delta(node, step) for step in (1, 2, 3)] == [False, False, True]
    _, reader = part_of(node, 3)
    base = reader.base("state.w")
    assert base is not None
    assert all("000000000002-" in source.pack for source in base.sources)
    training.check(1, 2, 3)


def test_a_base_that_has_rotted_in_memory_is_not_used(node: Place, capsys: pytest.CaptureFixture[str]) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, coding="lossless")
    training.save(ckpt, 1)
    flip_memory(node, local_rank=0, at=0.1)
    training.save(ckpt, 2)
    training.save(ckpt, 3)
    ckpt.close()
    assert [is_delta(node, step) for step in (1, 2, 3)] == [False, False, True]
    assert main(["checkpoint", "show", str(node.run_dir), "--step", "2"]) == 0
    assert "its base in memory is damaged" in capsys.readouterr().out
    training.check(1, 2, 3)


def test_where_memory_is_short_saves_are_full_and_a_person_is_told(
    node: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(node.run_dir)
    one = sum(tensor.nbytes for tensor in training.state.values())
    ckpt = perdure.Checkpointer(node.run_dir, coding="lossless", memory_bytes=int(2.5 * one))
    for step in range(1, 6):
        training.save(ckpt, step)
    ckpt.close()
    assert capsys.readouterr().err.count("saves are no deltas from here on") == 1
    assert not is_delta(node, 5)
    training.check(*range(1, 6))


def test_a_save_that_has_no_memory_at_all_is_refused_in_a_sentence(node: Place) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, memory_bytes=1 << 20)
    saved = ckpt.save(1, {"state": training.state})
    with pytest.raises(StorageFull, match=r"may hold 1\.0 MiB; give more memory_bytes"):
        saved.committed()
    ckpt.close()
    again = perdure.Checkpointer(node.run_dir, memory_bytes=1 << 30)  # the same agent, which may take more now
    training.save(again, 1)
    again.close()


def test_a_damaged_base_file_costs_its_deltas_and_the_step_before_it_comes_back(node: Place) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, coding="lossless")
    training.save(ckpt, 1, pin=True)
    training.save(ckpt, 2, pin=True)
    training.save(ckpt, 3)
    ckpt.close()
    node.kill_agent()
    _, reader = part_of(node, 3)
    base = reader.base("state.w")
    assert base is not None
    assert is_delta(node, 3)
    path = node.run_dir / base.sources[0].pack
    path.chmod(0o600)
    flip(path, at=0.2)
    assert main(["checkpoint", "verify", str(node.run_dir)]) != 0
    live = {name: torch.zeros_like(tensor) for name, tensor in training.state.items()}
    ckpt = perdure.Checkpointer(node.run_dir, agent=False)
    assert ckpt.restore({"state": live}) == 1
    ckpt.close()
    assert all(np.array_equal(bits(live[name]), bits(tensor)) for name, tensor in training.saved[1].items())


def test_auto_writes_raw_to_a_fast_store_and_says_why(node: Place, capsys: pytest.CaptureFixture[str]) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, coding="auto")
    training.save(ckpt, 1)
    ckpt.close()
    training.check(1)
    assert main(["checkpoint", "show", str(node.run_dir)]) == 0
    assert "raw: how fast the store writes is not known yet" in capsys.readouterr().out


def test_a_copy_is_the_rounding_of_its_master_in_a_delta_too(node: Place) -> None:
    training = Training(node.run_dir)
    ckpt = perdure.Checkpointer(node.run_dir, coding="lossless")
    for step in (1, 2):
        training.save(ckpt, step)
    ckpt.close()
    _, reader = part_of(node, 2)
    base = reader.base("state.copy")
    assert base is not None
    assert base.relation == Rounding("state.w")


@pytest.mark.parametrize("nodes", [(), ("a", "b")], ids=["one node", "two nodes"])
def test_a_killed_training_that_makes_deltas_goes_on_bit_for_bit(
    place: Place, undisturbed: Digests, nodes: tuple[str, ...]
) -> None:
    steps = ("--every", "1", "--coding", "lossless")
    ranks = place.train("--steps", "8", *steps, nodes=nodes)
    assert ranks.digests().items() <= undisturbed.items(), ranks.text()
    assert any(
        reader.note("") is not None and "a delta on step" in (reader.note("") or "")
        for commit in place.commits()
        for ref in commit.parts
        for reader in [PartReader.of(place.open(), ref, place.open().read_part(ref))]
    )
    for node in nodes or (None,):
        place.kill_agent(node)
    again = place.train("--steps", "12", *steps, nodes=nodes)
    assert again.began_at() == [8, 8]
    assert again.digests().items() <= undisturbed.items(), again.text()
    alone = place.train("--steps", "14", *steps, world=1)
    assert alone.began_at() == [12]


def test_an_agent_that_may_write_little_a_second_takes_its_time_and_keeps_nobody(node: Place) -> None:
    training = Training(node.run_dir)
    one = sum(tensor.nbytes for tensor in training.state.values())
    ckpt = perdure.Checkpointer(node.run_dir, drain_bytes_per_s=one / 1.5)
    saved = ckpt.save(1, {"state": training.state})
    began = time.monotonic()
    saved.reached("memory")
    assert not saved.settled
    saved.committed()
    assert time.monotonic() - began > 1.0
    ckpt.close()
    with pytest.raises(CallError, match="drain_bytes_per_s"):
        perdure.Checkpointer(node.run_dir, agent=False, drain_bytes_per_s=1e6)

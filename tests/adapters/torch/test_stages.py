"""Stages of a pipeline in real processes: each rank holds its own layers, and any other split goes on from them."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

import perdure
from perdure.errors import CallError, PerdureError, ReplicaMismatch, StateMismatch
from perdure.events import Log
from perdure.layout import shift_layer

from . import gloo
from .conftest import SHORT
from .pipeline import LAYERS, Piped, Plain, optimizer_of, plan
from .trips import bits


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What a first optimizer step imports is imported once, and not by every rank."""
    uninterrupted(1)


def opened(place: Path) -> perdure.Checkpointer:
    return perdure.Checkpointer(place, agent=False, deadlines=SHORT, log=Log(stream=io.StringIO()))


def going_on(place: Path, stages: list[tuple[int, int]], dp: int, steps: range) -> Callable[[], dict[str, str]]:
    """Restore if there is something, train the steps, save the last one; what this rank holds then."""

    def work() -> dict[str, str]:
        piped = Piped(stages, dp=dp, seed=1 if steps.start == 0 else 2)
        ckpt = opened(place)
        assert ckpt.restore(piped.tree()) == (steps.start or None)
        for step in steps:
            piped.train(step)
        ckpt.save(steps.stop, piped.tree()).committed()
        ckpt.close()
        return piped.contents()

    return work


def joined(told: list[dict[str, str]]) -> dict[str, str]:
    """What all ranks hold together; what several hold is the same."""
    whole: dict[str, str] = {}
    for each in told:
        for name, value in each.items():
            assert whole.setdefault(name, value) == value, name
    return dict(sorted(whole.items()))


def uninterrupted(steps: int) -> list[dict[str, str]]:
    """What one process that holds everything has after each of the steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks: how a sum is split decides its last bits
    piped = Piped(plan(LAYERS))
    found = []
    for step in range(steps):
        piped.train(step)
        found.append(dict(sorted(piped.contents().items())))
    torch.set_num_threads(threads)
    return found


def test_a_training_goes_through_any_splits_as_if_it_had_never_been_split(tmp_path: Path) -> None:
    lives = [(plan(1, 2, 4, 6), 1), (plan(4, 6), 1), (plan(2, 6), 2), (plan(6), 3), (plan(2, 3, 6), 1), (plan(6), 1)]
    expected = uninterrupted(len(lives))
    for turn, (stages, dp) in enumerate(lives):
        told = gloo.run(len(stages) * dp, going_on(tmp_path, stages, dp, range(turn, turn + 1)))
        assert joined(told) == expected[turn], stages
    whole = perdure.load(tmp_path)
    assert {f"model.layers.{i}.weight" for i in range(LAYERS)} <= whole.keys()
    assert whole["model.head.weight"].data_ptr() == whole["model.embed.weight"].data_ptr()


def test_stages_may_be_sharded(tmp_path: Path) -> None:
    """PP 2 x FSDP 2, then FSDP 3 of all, then PP 3, then PP 2 x FSDP 2 cut elsewhere."""

    def work(step: int, stages: list[tuple[int, int]], dp: int) -> None:
        mesh = init_device_mesh("cpu", (dp, len(stages)), mesh_dim_names=("dp", "pp"))
        rank = mesh.get_local_rank("pp")
        first, last = stages[rank]
        model = Plain(first, last, seed=step)
        for part in [*model.layers, model] if dp > 1 else []:
            fully_shard(part, mesh=mesh["dp"])
        optimizer = optimizer_of(model)
        for each in model.parameters():
            each.grad = each.detach().clone()
        optimizer.step()
        named = {"names": partial(shift_layer, by=first), "tied": {"head.weight": "embed.weight"}}
        stage = perdure.Stage(model, rank, len(stages), **named) if len(stages) > 1 else model
        tree = {"model": stage, "optimizer": optimizer}
        ckpt = opened(tmp_path)
        assert ckpt.restore(tree) == (step - 1 or None)
        ckpt.save(step, tree).committed()
        ckpt.close()

    lives = [(plan(3, 6), 2), (plan(6), 3), (plan(1, 4, 6), 1), (plan(2, 6), 2)]
    first: dict[str, bytes] = {}
    for step, (stages, dp) in enumerate(lives, 1):
        gloo.run(len(stages) * dp, partial(work, step, stages, dp))
        saved = {name: bits(each) for name, each in perdure.load(tmp_path).items()}
        first = first or saved
        assert saved == first, stages
    assert len(first) == 15 * 4 + 1  # 12 of layers, 2 of the norm, 1 that is tied and has two names


@pytest.mark.parametrize("draws", [False, True], ids=["cut by hand", "cut by draws"])
def test_attach_watches_over_stages_and_other_splits_go_on_from_the_agents_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draws: bool
) -> None:
    monkeypatch.setenv("PERDURE_LEASE_S", "3")

    def work(stages: list[tuple[int, int]], steps: range) -> dict[str, str]:
        piped = Piped(stages, seed=1 if steps.start == 0 else 2)
        tree = piped.tree()
        numbers = list(range(9))
        share = DistributedSampler(numbers, num_replicas=1, rank=0, shuffle=False)  # one pipeline takes all
        loader = DataLoader(numbers, batch_size=1, sampler=share) if draws else None
        run = perdure.attach(
            tree["model"],
            piped.optimizer,
            scheduler=piped.schedule,
            loader=loader,
            to=tmp_path,
            every=2,
            deadlines=SHORT,
        )
        assert run.step == steps.start
        for step in loader or steps:
            piped.train(int(step))
            if loader is None:
                run.cut()
            if run.step == steps.stop:
                break
        run.close()
        return piped.contents()

    expected = uninterrupted(5)
    assert joined(gloo.run(2, partial(work, plan(3, 6), range(3)))) == expected[2]
    assert joined(gloo.run(3, partial(work, plan(1, 5, 6), range(3, 5)))) == expected[4]


def test_attach_asks_a_stage_that_draws_from_no_loader_where_its_iterations_end(tmp_path: Path, unhooked: None) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    run = perdure.attach(perdure.Stage(model, 0, 1), optimizer, to=tmp_path, every=5, agent=False)

    def train() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    train()
    with pytest.raises(CallError, match=r"call run.cut\(\) at the end of each iteration"):
        train()
    run.cut()
    train()
    run.close()


def saving(**more: Any) -> Callable[[Path], str]:
    """What all ranks of a pipeline of two hear when they save a first step."""

    def work(place: Path) -> str:
        piped = Piped(plan(3, 6))
        piped.train(0)
        ckpt = opened(place)
        options = {name: each for name, each in more.items() if name != "without"}
        tree = piped.tree(**options)
        if "without" in more and dist.get_rank() == 1:
            del tree["model"].module.norm
        try:
            ckpt.save(1, tree).committed()
        except PerdureError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            ckpt.close()
        return "saved"

    return work


def test_layers_that_every_stage_counts_from_0_are_refused_by_name(tmp_path: Path) -> None:
    told = gloo.run(2, partial(saving(names=None), tmp_path))
    assert told[0] == told[1]
    assert "the tensor model.layers.0.weight is in stage 0 of model (rank 0) and in stage 1 (rank 1)" in told[0]
    assert "names=" in told[0]


def test_what_two_stages_hold_is_refused_unless_it_is_declared(tmp_path: Path) -> None:
    def renamed(name: str) -> str:
        first = 3 * dist.get_rank()
        return shift_layer(name, by=first).replace("head", "embed")

    told = gloo.run(2, partial(saving(tied={}, names=renamed), tmp_path))
    assert "the tensor model.embed.weight is in stage 0 of model (rank 0) and in stage 1 (rank 1)" in told[0]
    assert "tied= or shared=" in told[0]
    assert gloo.run(2, partial(saving(tied={}, names=renamed, shared=["embed.*"]), tmp_path)) == ["saved", "saved"]


def test_tied_weights_that_differ_between_stages_are_refused(tmp_path: Path) -> None:
    def work() -> None:
        piped = Piped(plan(3, 6))
        piped.train(0)
        if dist.get_rank() == 1:
            with torch.no_grad():
                piped.model.head.weight[3, 2] += 1
        ckpt = opened(tmp_path)
        with pytest.raises(ReplicaMismatch, match=r"model.embed.weight is not the same on ranks 0 and 1"):
            ckpt.save(1, piped.tree()).committed()
        ckpt.close()

    gloo.run(2, work)


def test_ranks_of_one_stage_hold_the_same_names(tmp_path: Path) -> None:
    def work() -> str:
        piped = Piped(plan(3, 6), dp=2)
        ckpt = opened(tmp_path)
        if dist.get_rank() == 3:
            del piped.model.layers[1]
        with pytest.raises(StateMismatch) as caught:
            ckpt.save(1, {"model": piped.tree()["model"]})
        ckpt.close()
        return str(caught.value)

    for said in gloo.run(4, work):
        assert "model.layers.5.bias is in the state of rank 1 but not of rank 3, and both are stage 1 of model" in said


def test_a_stage_that_is_on_no_rank_is_named(tmp_path: Path) -> None:
    def work() -> str:
        ckpt = opened(tmp_path)
        rank = dist.get_rank()
        layer = nn.Linear(2, 2)
        stage = perdure.Stage(layer, rank, 3, names=lambda name: f"layers.{rank}.{name}")
        with pytest.raises(StateMismatch) as caught:
            ckpt.save(1, {"model": stage})
        ckpt.close()
        return str(caught.value)

    assert all("no rank holds a tensor of stage 2 of the 3 stages of model" in said for said in gloo.run(2, work))


def test_what_is_no_stages_is_to_be_on_every_rank_of_a_restore(tmp_path: Path) -> None:
    def work(step: int, who: int) -> str:
        piped = Piped(plan(3, 6))
        tree = piped.tree() | {"note": {"text": "kept", "number": torch.ones(2)}}
        ckpt = opened(tmp_path)
        if step == 1:
            ckpt.save(1, tree).committed()
        elif dist.get_rank() == who:
            del tree["note"]
        try:
            ckpt.restore(tree)
        except StateMismatch as error:
            return str(error)
        finally:
            ckpt.close()
        return "restored"

    assert gloo.run(2, partial(work, 1, -1)) == ["restored", "restored"]
    for who in (0, 1):
        for said in gloo.run(2, partial(work, 2, who)):
            assert f"note.number is in the state of rank {1 - who} but not of rank {who}, and no stage's" in said


@pytest.mark.parametrize("wrong", ["a layer is nowhere", "a layer more", "no declaration"])
def test_a_split_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, wrong: str) -> None:
    gloo.run(2, going_on(tmp_path, plan(3, 6), 1, range(1)))

    def change(model: Plain) -> None:
        if model.starts and wrong == "a layer is nowhere":
            del model.layers[2]  # the last one becomes number 2, and number 3 is gone
        elif model.ends and wrong == "a layer more":
            model.layers.append(nn.Linear(4, 4))

    def work() -> list[Any]:
        piped = Piped(plan(4, 6), seed=3, change=change)
        tree = piped.tree()
        if wrong == "no declaration":
            tree = {"model": piped.model}
        before = piped.contents()
        ckpt = opened(tmp_path)
        with pytest.raises(StateMismatch) as caught:
            ckpt.restore(tree)
        ckpt.close()
        assert piped.contents() == before
        return [str(caught.value), caught.value.facts]

    for said, facts in gloo.run(2, work):
        if wrong == "a layer is nowhere":
            assert "in the checkpoint but on no rank here" in said
            assert "model.layers.3.weight" in facts["unexpected"]
            assert all("layers.3" in name for name in facts["unexpected"])  # all that belongs to it, and nothing else
        elif wrong == "a layer more":
            assert "not in the checkpoint: model.layers.6.weight" in said
        else:
            assert "model.layers.4.weight" in facts["unexpected"]

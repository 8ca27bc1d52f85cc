"""The probe in programs of many kinds: each trains as it would without, and what is told of it is right."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # this and the next here, once for all ranks that are forked
import torch.distributed as dist
import torch.distributed.fsdp
from torch.utils.checkpoint import checkpoint

from perdure.adapters.torch import probe
from perdure.process.environ import ProbeTold
from perdure.progress.vitals import Vitals, vitals_files

from . import gloo

Work = Callable[[], Any]


@pytest.fixture
def folder() -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="perdure-probe-", dir="/dev/shm")
    yield made
    shutil.rmtree(made)


def probed(folder: str, work: Work, *, often: bool = True) -> tuple[list[Vitals], list[Any]]:
    """What two ranks do, and what their probes have said; ``often``: they look at all gradients in each step."""

    def be() -> tuple[Vitals, Any]:
        mine = probe.start(ProbeTold(folder=folder, rank=dist.get_rank(), world=dist.get_world_size()))
        assert mine is not None
        assert mine.steps is not None
        if often:
            mine.steps.gradients._local._share = mine.steps.gradients._whole._share = 10.0
        result = work()
        mine.tick()
        troubles = [path.read_text() for path in Path(folder).glob("trouble-*")]
        assert not troubles, troubles
        return Vitals.read(mine.file.path), result

    ranks = gloo.run(2, be, timeout_s=150)
    return [read for read, _ in ranks], [result for _, result in ranks]


def same_without(folder: str, work: Work) -> list[Vitals]:
    """Do it with and without a probe; the results must be the same."""
    reads, with_probe = probed(folder, work)
    assert gloo.run(2, work, timeout_s=150) == with_probe
    return reads


def numbers(*models: torch.nn.Module) -> list[float]:
    return [float(each.detach().double().sum()) for model in models for each in model.parameters()]


def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    made = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)), torch.nn.Linear(16, 1))
    torch.manual_seed(dist.get_rank())
    return made


def ddp(**how: Any) -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(layers(), **how)


def gradient_norm(model: torch.nn.Module) -> float:
    return float(torch.cat([each.grad.reshape(-1) for each in model.parameters() if each.grad is not None]).norm())


def test_a_batch_in_parts_is_one_step_and_its_norm_is_that_of_the_whole(folder: str) -> None:
    def work() -> tuple[list[float], float]:
        model = ddp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        own = 0.0
        for _ in range(4):
            optimizer.zero_grad()
            with model.no_sync():
                for _ in range(2):
                    model(torch.randn(4, 16)).square().mean().backward()
            before = [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in model.parameters()]
            data = torch.randn(4, 16)
            last = torch.autograd.grad(model.module(data).square().mean(), list(model.parameters()))
            own = float(torch.cat([(a + b).reshape(-1) for a, b in zip(before, last, strict=True)]).norm())
            model(data).square().mean().backward()
            optimizer.step()
        return numbers(model), own

    reads, results = probed(folder, work)
    assert [each.step for each in reads] == [4, 4]
    for read, (_, own) in zip(reads, results, strict=True):
        assert read.local_norm == pytest.approx(own, rel=1e-4)


def test_a_step_that_a_scaler_skips_leaves_no_mark_on_the_next(folder: str) -> None:
    def work() -> list[float]:
        model = ddp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

        def overflow(gradient: torch.Tensor) -> torch.Tensor:
            return gradient * (float("inf") if scaler.get_scale() > 2.0**13 else 1.0)

        for each in model.parameters():
            each.register_hook(overflow)
        taken = 0
        for _ in range(30):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(4, 16)).square().mean()).backward()
            before = numbers(model)
            scaler.step(optimizer)
            scaler.update()
            taken += numbers(model) != before
            if taken == 3:
                break
        return [*numbers(model), taken]

    for read in same_without(folder, work):
        assert read.step == 3
        assert (read.local_bad_step, read.global_bad_step, read.loss_bad_step) == (None, None, None)


def test_two_models_of_a_game_keep_one_count_and_hooks_do_not_grow(folder: str) -> None:
    def work() -> tuple[list[float], int]:
        maker, judge = ddp(), ddp()
        makes, judges = (torch.optim.Adam(each.parameters(), lr=1e-3) for each in (maker, judge))
        for _ in range(12):
            for _ in range(3):
                judges.zero_grad()
                judge(maker.module[:3](torch.randn(4, 16)).detach()).mean().backward()
                judges.step()
            judge.requires_grad_(False)
            makes.zero_grad()
            judge.module(maker(torch.randn(4, 16)).expand(4, 16)).mean().neg().backward()
            makes.step()
            judge.requires_grad_(True)
        mine = probe.running()
        hooks = -1 if mine is None or mine.steps is None else len(mine.steps.gradients._lasts)
        return numbers(maker, judge), hooks

    reads, results = probed(folder, work)
    assert [each.step for each in reads] == [36, 36]
    assert [hooks for _, hooks in results] == [2, 2]
    assert [each for each, _ in results] == [each for each, _ in gloo.run(2, work, timeout_s=150)]


def test_steps_go_on_when_one_optimizer_takes_over_from_another(folder: str) -> None:
    def work() -> list[float]:
        model = ddp()
        for _ in range(3):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(10):
                model(torch.randn(4, 16)).mean().backward()
                optimizer.step()
        return numbers(model)

    for read in same_without(folder, work):
        assert read.step is not None
        assert read.step >= 28


def test_optimizers_inside_the_backward_count_as_one(folder: str) -> None:
    def work() -> list[float]:
        from torch.distributed.optim import _apply_optimizer_in_backward

        model = layers()
        _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.01})
        for _ in range(5):
            model(torch.randn(4, 16)).square().mean().backward()
        return numbers(model)

    for read in same_without(folder, work):
        assert read.step == 5
        assert read.loss_step == 5


@pytest.mark.parametrize("reentrant", [True, False])
def test_forwards_that_are_done_again_in_the_backward(folder: str, reentrant: bool) -> None:
    def work() -> list[float]:
        model = layers()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        for _ in range(5):
            optimizer.zero_grad()
            hidden = torch.randn(4, 16, requires_grad=True)
            for layer in model[:3]:
                hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
            model[3](hidden).square().mean().backward()
            optimizer.step()
        return numbers(model)

    for read in same_without(folder, work):
        assert read.step == read.loss_step == 5


def test_functional_gradients_and_evaluation_are_no_steps(folder: str) -> None:
    def work() -> list[float]:
        model = layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        weights = dict(model.named_parameters())

        def loss(values: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, values, (x,)).square().mean()

        for _ in range(4):
            each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.randn(4, 16))
            for name, parameter in model.named_parameters():
                parameter.grad = each[name].mean(0).detach()
            optimizer.step()
            model.eval()
            with torch.inference_mode():
                model(torch.randn(4, 16))
            model.train()
        return numbers(model)

    for read in same_without(folder, work):
        assert read.step == 4
        assert read.loss is None


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
def test_sharded_models_tell_the_gradient_before_it_is_reduced(folder: str, kind: str) -> None:
    def work() -> list[float]:
        model: Any = layers()
        if kind == "fsdp1":
            model = torch.distributed.fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        else:
            mesh = dist.init_device_mesh("cpu", (2,))
            for layer in model:
                torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
            torch.distributed.fsdp.fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(1, 7):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 16)).square().mean()
            if step == 4 and dist.get_rank() == 1:
                loss = loss * float("nan")
            loss.backward()
            optimizer.step()
        return [float(torch.isnan(getattr(each, "_local_tensor", each)).sum()) for each in model.parameters()]

    healthy, sick = same_without(folder, work)
    assert sick.local_bad_step == 4
    assert healthy.local_bad_step == 5
    assert healthy.global_bad_step == sick.global_bad_step == 4


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_model_is_compiled_once_and_stays_whole(folder: str, backend: str) -> None:
    def work() -> list[tuple[list[float], int, int]]:
        return [compiled(kind) for kind in ("plain", "ddp")]

    alive: list[torch.optim.Optimizer] = []  # the first is not collected, or the second would count from its first step

    def compiled(kind: str) -> tuple[list[float], int, int]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = ddp() if kind == "ddp" else layers()
        forward = torch.compile(model, backend=backend, fullgraph=kind == "plain")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        alive.append(optimizer)
        step = torch.compile(optimizer.step, backend=backend)
        for _ in range(6):
            optimizer.zero_grad()
            forward(torch.randn(4, 16)).square().mean().backward()
            step()
        found = torch._dynamo.utils.counters
        return numbers(model), found["stats"]["unique_graphs"], sum(found["graph_break"].values())

    reads, results = probed(folder, work, often=False)
    without = gloo.run(2, work, timeout_s=150)
    assert [each.step for each in reads] == [6 + 5, 6 + 5]  # another optimizer counts from its second step on
    for ours, theirs in zip(results, without, strict=True):
        assert [each[:2] for each in ours] == [each[:2] for each in theirs]
        assert all(mine[2] <= own[2] for mine, own in zip(ours, theirs, strict=True)), (ours, theirs)


def test_loaders_and_children_write_no_record(folder: str) -> None:
    def work() -> list[int]:
        from torch.multiprocessing import get_context

        os.environ.update(PERDURE_PROBE=folder, RANK=str(dist.get_rank()), WORLD_SIZE="2")
        codes = []
        for how in ("fork", "spawn"):
            child = get_context(how).Process(target=in_a_child)
            child.start()
            child.join()
            codes.append(child.exitcode)
        return codes

    _, codes = probed(folder, work)
    assert codes == [[0, 0], [0, 0]]
    assert len(vitals_files(folder)) == 2


def in_a_child() -> None:
    assert not probe.start_from_environment()
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    assert probe.running() is None


@pytest.mark.parametrize("frozen", [False, True])
def test_pauses_of_an_evaluation_are_of_it_unless_the_loop_trains_in_that_mode(folder: str, frozen: bool) -> None:
    def work() -> list[str]:
        mine = probe.running()
        model = ddp()
        model.train(not frozen)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        phases: list[str] = []

        def note() -> None:
            phases.append("" if mine is None else mine._guess(frozenset()))

        def step() -> None:
            model(torch.randn(4, 16)).square().mean().backward()
            optimizer.step()

        step()
        note()
        model.module.eval()
        note()  # no forward is under way
        note()
        model.train(not frozen)
        step()
        note()
        return phases

    _, results = probed(folder, work)
    expected = ["forward"] * 4 if frozen else ["forward", "evaluating", "evaluating", "forward"]
    assert results == [expected, expected]

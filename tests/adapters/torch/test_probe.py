"""The probe in real gloo ranks: what each says of steps, waits, losses and gradients, and that it changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp  # here, once for all ranks that are forked

from perdure.adapters.torch import probe
from perdure.process.environ import ProbeTold
from perdure.progress.stacks import request_stack
from perdure.progress.vitals import Vitals, vitals_files
from perdure.watcher.reading import Reading

from . import gloo


@pytest.fixture
def folder() -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="perdure-probe-", dir="/dev/shm")
    yield made
    shutil.rmtree(made)


def watched(folder: str, work: Callable[[probe.Probe], Any], **told: Any) -> Callable[[], Any]:
    """What a rank does: it starts its probe, works, and gives what is read of it."""

    def be() -> Any:
        mine = probe.start(ProbeTold(folder=folder, rank=dist.get_rank(), world=dist.get_world_size(), **told))
        assert mine is not None
        result = work(mine)
        time.sleep(0.3)  # the recorder counts on threads of its own, a moment after a collective has returned
        mine.tick()
        read = Vitals.read(mine.file.path)
        troubles = [path.read_text() for path in Path(folder).glob("trouble-*")]
        assert not troubles, troubles
        return read if result is None else (read, result)

    return be


def a_model(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)), torch.nn.Linear(32, 1))
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "ddp views":
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=0.005)
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    return model


def train(
    kind: str, steps: int, *, slow_s: float = 0.0, poison: Callable[[int, torch.nn.Module], None] | None = None
) -> torch.nn.Module:
    model = a_model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for step in range(1, steps + 1):
        if dist.get_rank() == 1 and slow_s:
            time.sleep(slow_s)
        loss = model(torch.randn(8, 32)).square().mean()
        if poison is not None:
            poison(step, model)
        loss.backward()
        if kind == "plain":
            for each in model.parameters():
                dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("kind", ["plain", "ddp", "fsdp2"])
def test_a_rank_that_sleeps_shows_more_own_work_and_the_least_wait(folder: str, kind: str) -> None:
    ranks = gloo.run(2, watched(folder, lambda _: (train(kind, 25, slow_s=0.03), None)[1]))
    fast, slow = (each.timed for each in ranks)
    n = fast[0]
    assert n == slow[0] == 24
    assert all(each.step == 25 and each.loss_step == 25 for each in ranks)
    assert (slow[2] - fast[2]) / n > 0.02, (fast, slow)
    assert (fast[3] - slow[3]) / n > 0.015, (fast, slow)
    assert {each.group: each.size for each in ranks[0].groups}["0"] == 2
    assert ranks[0].groups == ranks[1].groups
    assert ranks[0].groups[0].enqueued >= 25


@pytest.mark.parametrize("kind", ["plain", "ddp", "ddp views", "fsdp2"])
def test_a_number_that_is_not_finite_is_found_at_the_rank_where_it_began(folder: str, kind: str) -> None:
    def poison(step: int, model: torch.nn.Module) -> None:
        if step == 9 and dist.get_rank() == 1:
            first = next(model.parameters())
            if kind == "fsdp2":
                first = model[0]._get_fsdp_state()._fsdp_param_group.fsdp_params[0].unsharded_param  # type: ignore
            first.register_hook(lambda gradient: gradient * float("nan"))

    def work(mine: probe.Probe) -> None:
        assert mine.steps is not None
        mine.steps.gradients._local._share = mine.steps.gradients._whole._share = 10.0  # each step, however busy it is
        train(kind, 12, poison=poison)

    healthy, sick = gloo.run(2, watched(folder, work))
    assert (sick.local_bad_step, sick.local_finite) == (9, False), sick
    assert healthy.local_bad_step is None or healthy.local_bad_step > 9
    assert healthy.global_bad_step is not None
    assert healthy.global_bad_step <= 10
    assert healthy.loss_bad_step == sick.loss_bad_step == 10


def test_norms_are_those_of_the_gradients(folder: str) -> None:
    def work(mine: probe.Probe) -> tuple[float, float]:
        assert mine.steps is not None
        mine.steps.gradients._local._share = mine.steps.gradients._whole._share = 10.0
        model = a_model("ddp")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(4):
            torch.manual_seed(dist.get_rank())
            data = torch.randn(8, 32)
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
        whole = torch.cat([each.grad.reshape(-1) for each in model.parameters()]).norm().item()  # type: ignore
        gradients = torch.autograd.grad(model.module(data).square().mean(), list(model.parameters()))
        return torch.cat([each.reshape(-1) for each in gradients]).norm().item(), whole

    for read, (local, whole) in gloo.run(2, watched(folder, work)):
        assert read.local_norm == pytest.approx(local, rel=1e-4)
        assert read.global_norm == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("kind", ["plain", "ddp", "ddp views", "fsdp2"])
def test_training_is_the_same_to_the_bit_with_and_without(folder: str, kind: str) -> None:
    def numbers(model: torch.nn.Module) -> list[list[float]]:
        return [getattr(each, "_local_tensor", each).detach().reshape(-1).tolist() for each in model.parameters()]

    plain = gloo.run(2, lambda: numbers(train(kind, 8)))
    probed = gloo.run(2, watched(folder, lambda _: numbers(train(kind, 8))))
    assert [numbers for _, numbers in probed] == plain


def test_replicas_agree_until_one_differs(folder: str) -> None:
    def work(_: probe.Probe) -> None:
        model = train("ddp", 4)
        with torch.no_grad():
            if dist.get_rank() == 1:
                next(model.parameters()).view(-1)[5] += 1e-3
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(5):
            model(torch.zeros(8, 32)).square().mean().backward()
            optimizer.step()

    def alike(_: probe.Probe) -> None:
        train("ddp", 4)

    same = gloo.run(2, watched(folder, alike, checksum_steps=4))
    assert same[0].checksum == same[1].checksum != ""
    assert same[0].checksum_step == 4
    assert same[0].replicas == same[1].replicas == "ddp 0 of 2"
    for path in vitals_files(folder):
        path.unlink()
    apart = gloo.run(2, watched(folder, work, checksum_steps=5))
    assert apart[0].checksum_step == apart[1].checksum_step == 5
    assert apart[0].checksum != apart[1].checksum


def test_groups_have_the_names_that_all_members_know(folder: str) -> None:
    """In a process of its own: the recorder numbers on from groups of tests before this one, in forked ranks too."""
    if "OWN_PROCESS" not in os.environ:
        itself = f"{__file__}::{test_groups_have_the_names_that_all_members_know.__name__}"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", itself]
        env = os.environ | {"OWN_PROCESS": "1"}
        alone = subprocess.run(words, env=env, capture_output=True, text=True, timeout=100)
        assert alone.returncode == 0, alone.stdout
        assert "1 passed" in alone.stdout
        return

    def work(mine: probe.Probe) -> None:
        groups = [dist.new_group([1, 2]), dist.new_group([0, 2]), dist.new_group([0, 1, 2])]
        for times, group in enumerate(groups, start=1):
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                for _ in range(times):
                    dist.all_reduce(torch.ones(4, 3), group=group)
        mine.tick()

    ranks = gloo.run(3, watched(folder, work))
    found = [{each.group: (each.size, each.enqueued) for each in read.groups} for read in ranks]
    assert found[0].items() >= {"2": (2, 2), "3": (3, 3)}.items()
    assert found[1].items() >= {"1": (2, 1), "3": (3, 3)}.items()
    assert found[2].items() >= {"1": (2, 1), "2": (2, 2), "3": (3, 3)}.items()


def test_a_rank_that_never_arrives_is_one_behind_and_its_peer_says_what_it_waits_in(folder: str) -> None:
    def work(mine: probe.Probe) -> tuple[Any, ...]:
        assert mine.groups is not None
        if dist.get_rank() == 0:
            end = time.monotonic() + 20
            mate = None
            while time.monotonic() < end:
                time.sleep(0.1)
                mate = next((each for each in Reading(folder, node="n").look() if each.rank == 1), None)
                if mate is not None and mate.groups and mate.groups[0].op:
                    break
            stack = request_stack(next(Path(folder).glob("rank-1.*")), within_s=5)
            dist.all_reduce(torch.ones(4, 3))
            assert mate is not None
            return mate.in_collective, mate.groups[0].op, mate.groups[0].shape, mate.groups[0].completed, stack
        dist.all_reduce(torch.ones(4, 3))
        return ()

    def both(mine: probe.Probe) -> tuple[Any, ...]:
        dist.all_reduce(torch.ones(4, 3))
        return work(mine)

    (read, (waits, op, shape, completed, stack)), _ = gloo.run(2, watched(folder, both))
    assert (waits, op, shape) == (True, "all_reduce", "[4, 3] float32")
    assert read.groups[0].enqueued == completed + 1
    assert any("all_reduce" in frame for frame in stack[:6]), stack


def test_without_a_recorder_patches_count(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")

    def work(_: probe.Probe) -> None:
        train("plain", 5)

    for read in gloo.run(2, watched(folder, work)):
        group = read.groups[0]
        assert group.enqueued == group.completed >= 50
        assert (group.op, group.shape) == ("all_reduce", "[1] float32")


def test_a_loader_of_workers_and_forked_children_write_no_record(folder: str) -> None:
    def work(mine: probe.Probe) -> tuple[int, bool]:
        from torch.utils.data import DataLoader, TensorDataset

        loader = DataLoader(TensorDataset(torch.randn(32, 32)), batch_size=8, num_workers=2)
        model, n = a_model("plain"), 0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for (batch,) in loader:
            model(batch).square().mean().backward()
            optimizer.step()
            n += 1
        child = os.fork()
        if child == 0:
            model(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
            os._exit(0 if probe.running() is None else 1)
        return n, os.waitpid(child, 0)[1] == 0

    ((read, (n, clean)),) = gloo.run(1, watched(folder, work))
    assert read.step == n == 4
    assert clean
    assert len(vitals_files(folder)) == 1


def test_an_optimizer_inside_another_counts_once_and_two_side_by_side_count_as_one(folder: str) -> None:
    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            inner.step()
            return super().step(closure)

    parameter, other = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    inner = torch.optim.SGD([other], lr=0.1)

    def work(_: probe.Probe) -> None:
        outer, beside = Outer([parameter], lr=0.1), torch.optim.Adam([other])
        for _ in range(3):
            (parameter.sum() + other.sum()).backward()
            outer.step()
            beside.step()

    (read,) = gloo.run(1, watched(folder, work))
    assert read.step == 3
    assert read.loss_step == 3


def test_what_goes_wrong_in_a_hook_is_said_and_training_goes_on(folder: str) -> None:
    def work() -> tuple[bool, str]:
        mine = probe.start(ProbeTold(folder=folder))
        assert mine is not None
        assert mine.steps is not None
        mine.steps.gradients.before_step = None  # type: ignore[assignment]
        train("plain", 3)
        return mine.steps.off, next(Path(folder).glob("trouble-*")).read_text()

    ((off, said),) = gloo.run(1, work)
    assert off
    assert "not callable" in said

"""Copies from a device: in order with what computes there, waited for by the device, the host not held up.

All of it on a stand-in that does everything late (`fake_device`), and where there is a GPU, on that.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from perdure.adapters.torch import device_copy, framework
from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.device_copy import Cuda, TorchCopier, held_for_saving
from perdure.adapters.torch.load import load
from perdure.adapters.torch.tensors import blocks_of
from perdure.checkpoint.copying import Block
from perdure.errors import CallError, DeadlineExceeded
from perdure.shm import Segment
from perdure.state.items import Memory

from .fake_device import FakeDevice, Stream, on_fake_device
from .gloo import run as run_ranks
from .trips import DTYPE_NAMES, bits

Make = Callable[..., Checkpointer]
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class Bench:
    """A copier on a device, a segment, and blocks one behind the other in it."""

    def __init__(self, **options: Any) -> None:
        self.device = FakeDevice(**options)
        self.told: list[str] = []
        self.copier = TorchCopier(self.told.append, device=self.device)
        self.segment = Segment.create(1 << 20, label="test")
        self.at = 0

    @property
    def computes(self) -> Stream:
        return self.device.stream("fake:0", side=False)

    def block(self, tensor: Tensor, *, device: str = "fake:0") -> Block:
        nbytes = tensor.numel() * tensor.element_size()
        memory = Memory(tensor.data_ptr() if nbytes else 0, nbytes, tensor, device)
        start, self.at = self.at, self.at + nbytes + 64
        return Block("w", memory, self.segment, start)

    def copied(self, block: Block) -> list[float]:
        data = bytearray(self.segment.view[block.start : block.start + block.memory.nbytes])
        return torch.frombuffer(data, dtype=torch.float32).tolist()


def test_the_step_behind_the_fence_cannot_reach_the_copy_and_the_host_waits_for_nothing() -> None:
    bench, w = Bench(), torch.ones(4)
    block = bench.block(w)
    copying = bench.copier.begin([], [block])
    threading.Thread(target=copying._host_done.set).start()  # nothing to copy on the host
    assert copying.fence(5)
    bench.computes.call(lambda: w.fill_(7))
    assert bench.copied(block) == [0] * 4  # nobody has waited: nothing has happened yet
    bench.computes.run()
    assert w.tolist() == [1] * 4
    copying.finish()
    assert bench.copied(block) == [1] * 4
    assert w.tolist() == [7] * 4


def test_without_the_fence_the_step_would_reach_the_copy() -> None:
    """So the stand-in is one on which the test above can fail."""
    bench, w = Bench(), torch.ones(4)
    block = bench.block(w)
    copying = bench.copier.begin([], [block])
    bench.computes.call(lambda: w.fill_(7))
    bench.computes.run()
    with pytest.raises(CallError, match="w was changed while it was being copied"):
        copying.finish()
    assert bench.copied(block) == [7] * 4


def test_what_was_called_for_before_the_save_is_in_the_copy() -> None:
    bench, w, b = Bench(), torch.zeros(4), torch.zeros(2)
    bench.computes.call(lambda: w.fill_(3))
    bench.computes.call(lambda: b.fill_(5))
    blocks = bench.block(w), bench.block(b)
    w_version = w._version
    copying = bench.copier.begin([blocks[1]], [blocks[0]])
    side = bench.device.stream("fake:0", side=True)
    side.run()
    assert bench.copied(blocks[0]) == [0] * 4  # it waits for what computes
    bench.computes.run()
    side.run()
    assert w._version > w_version
    copying._versions.clear()  # on a device the change was counted when it was called for
    copying.finish()
    assert bench.copied(blocks[0]) == [3] * 4
    assert bench.copied(blocks[1]) == [5] * 2


def test_what_may_change_at_once_is_copied_before_what_is_called_for_next() -> None:
    bench, running_mean = Bench(), torch.ones(4)
    block = bench.block(running_mean)
    copying = bench.copier.begin([block], [])
    bench.computes.call(lambda: running_mean.fill_(9))
    copying.finish()
    assert bench.copied(block) == [1] * 4
    assert running_mean.tolist() == [9] * 4


def test_what_lies_on_the_host_is_copied_before_the_fence_lets_go() -> None:
    """An optimizer counts its steps on the host, and its tensors lie on the device."""
    bench, w, count = Bench(), torch.ones(4), torch.ones(1)
    blocks = bench.block(w), bench.block(count, device="")
    copying = bench.copier.begin([], blocks)
    with pytest.raises(DeadlineExceeded):
        copying.fence(0.01)
    thread = threading.Thread(target=copying.finish)
    thread.start()
    assert copying.fence(10)
    count.fill_(2)
    thread.join(10)
    assert bench.copied(blocks[1]) == [1]
    assert bench.copied(blocks[0]) == [1] * 4


def test_every_optimizer_is_held_back_on_the_stream_where_it_steps() -> None:
    bench, w, b = Bench(), torch.ones(4), torch.ones(4)
    blocks = bench.block(w), bench.block(b)
    copying = bench.copier.begin([], blocks)
    copying._host_done.set()
    for tensor in (w, b):
        assert copying.fence(5)
        bench.computes.call(lambda tensor=tensor: tensor.fill_(7))  # type: ignore[misc]
        bench.device.change_stream("fake:0")
    bench.device.run()
    copying.finish()
    assert [bench.copied(block) for block in blocks] == [[1] * 4, [1] * 4]


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_every_dtype_and_form_is_copied_bit_for_bit(name: str) -> None:
    dtype = getattr(torch, name)
    raw = torch.arange(160, dtype=torch.uint8)
    forms = [raw.view(dtype), raw.view(dtype)[:1].reshape(()), raw.view(dtype)[:0], raw.view(dtype).reshape(2, -1)]
    for refuses in ("", "no"):
        bench = Bench(refuses=refuses)
        blocks = [bench.block(form) for form in forms]
        bench.copier.begin(blocks[::2], blocks[1::2]).finish()
        for block, form in zip(blocks, forms, strict=True):
            assert bytes(bench.segment.view[block.start : block.start + block.memory.nbytes]) == bits(form)


# --- pinned memory ---------------------------------------------------------------------------------------------------


def test_a_segment_is_pinned_once_and_unpinned_before_its_memory_goes() -> None:
    bench, w = Bench(), torch.ones(4)
    bench.copier.adopt(bench.segment)
    assert bench.device.pinned == []  # nothing was saved from a device yet
    for _ in range(3):
        bench.copier.begin([], [bench.block(w)]).finish()
        bench.copier.adopt(bench.segment)
    assert bench.device.pinned == [(bench.segment.address, bench.segment.nbytes)]
    spare = Segment.create(4096, label="spare")
    bench.copier.adopt(spare)
    assert bench.device.pinned[1:] == [(spare.address, 4096)]
    address = bench.segment.address
    assert bench.device.unpinned == []
    del bench.segment
    gc.collect()
    assert bench.device.unpinned == [address]


@pytest.mark.parametrize("chunk", [64, 96, 4096])
def test_where_nothing_can_be_pinned_it_goes_through_a_buffer_and_that_is_told_once(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(device_copy, "BOUNCE_BYTES", chunk)
    bench, w, b = Bench(refuses="out of memory"), torch.arange(100.0), torch.arange(7.0)
    for turn in range(2):
        blocks = bench.block(w), bench.block(b)
        copying = bench.copier.begin([blocks[1]], [blocks[0]])
        assert bench.copied(blocks[1]) == b.tolist()  # it may change now, also on the host
        assert not copying.fence(0.01)  # whoever steps waits until all is copied
        copying.finish()
        assert bench.copied(blocks[0]) == w.tolist(), turn
    assert len(bench.told) == 1
    assert "out of memory" in bench.told[0]


def test_a_device_that_fails_in_the_middle_leaves_nobody_writing() -> None:
    bench, tensors = Bench(), [torch.ones(4) for _ in range(3)]
    bench.device.fails_at_copy = 2
    with pytest.raises(RuntimeError, match="illegal memory access"):
        bench.copier.begin([], [bench.block(tensor) for tensor in tensors])
    assert not any(stream.work for stream in bench.device._streams.values())


# --- through the whole of a save -------------------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """Tensors with dims lie on it, and optimizers of `Late` step on it."""
    made = FakeDevice()
    monkeypatch.setattr(framework, "held_for_saving", on_fake_device)
    monkeypatch.setattr(device_copy, "Cuda", lambda: made)
    return made


class Late(torch.optim.AdamW):
    """An optimizer whose tensors lie on the device: a step is called for, and done when the device comes to it."""

    device: FakeDevice

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.device.stream("fake:0", side=False).call(lambda: super(Late, self).step())


def trained(device: FakeDevice) -> tuple[nn.Module, Late]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = Late(model.parameters(), foreach=False)
    optimizer.device = device
    for _ in range(2):
        model(torch.randn(6, 4)).sum().backward()
        optimizer.step()
        device.run()
    return model, optimizer


def contents(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    states = [{name: bits(value) for name, value in state.items()} for state in optimizer.state.values()]
    return [{name: bits(tensor) for name, tensor in model.state_dict().items()}, states]


def test_a_save_from_a_device_holds_the_moment_of_the_save(
    checkpointer: Make, ram_url: str, device: FakeDevice
) -> None:
    model, optimizer = trained(device)
    before = contents(model, optimizer)
    ckpt = checkpointer(ram_url)
    handle = ckpt.save(1, {"model": model, "optimizer": optimizer})
    optimizer.step()
    device.stream("fake:0", side=False).call(lambda: model[1].running_mean.fill_(5))
    device.run()
    assert contents(model, optimizer) != before
    handle.committed()
    ckpt.save(2, {"model": model, "optimizer": optimizer}).committed()
    live, other = trained(device)
    assert checkpointer(ram_url).restore({"model": live, "optimizer": other}, step=1) == 1
    assert contents(live, other) == before
    assert len(device.pinned) == len(set(device.pinned)) > 0


def test_ranks_compare_what_they_hold_in_common_on_their_devices(tmp_path: Path, device: FakeDevice) -> None:
    """Each save another tile of another tensor, on the device or not; a rank that differs is found out."""

    def work() -> str:
        ckpt = Checkpointer(tmp_path, agent=False)
        model, optimizer = trained(device)
        tree = {"model": model, "optimizer": optimizer}
        for step in range(12):
            ckpt.save(step, tree).committed()
            optimizer.step()
            device.run()
        if dist.get_rank() == 1:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1)
        problem = ""
        for step in range(12, 40):
            try:
                ckpt.save(step, tree).committed()
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                break
        ckpt.close()
        return problem

    for problem in run_ranks(2, work):
        assert "ReplicaMismatch" in problem


# --- on a GPU --------------------------------------------------------------------------------------------------------


@gpu
def test_on_a_gpu_tensors_stay_where_they_are_until_they_are_copied() -> None:
    whole = torch.arange(12.0, device="cuda").reshape(3, 4)
    held, live = held_for_saving(blocks_of(whole, name="w")[0])
    assert (held.memory.address, held.memory.device, live) == (whole.data_ptr(), "cuda:0", True)
    held, live = held_for_saving(blocks_of(whole.t(), name="w")[0])
    assert not live
    assert held.memory.owner.tolist() == whole.t().tolist()


@gpu
@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"capturable": True}], ids=str)
def test_on_a_gpu_a_save_holds_the_moment_of_the_save(
    checkpointer: Make, ram_url: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], refused: bool
) -> None:
    if refused:
        monkeypatch.setattr(Cuda, "pin", lambda *_: "refused by the test")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 2048), nn.BatchNorm1d(2048), nn.Linear(2048, 2048)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    x = torch.randn(64, 2048, device="cuda")

    def train() -> None:
        model(x).square().sum().backward()
        optimizer.step()

    ckpt = checkpointer(ram_url)
    for step in range(1, 4):
        train()
        torch.cuda.synchronize()
        before = contents(model, optimizer)
        handle = ckpt.save(step, {"model": model, "optimizer": optimizer})
        for _ in range(3):
            train()
        handle.committed()
        torch.cuda.synchronize()
        after = contents(model, optimizer)
        assert after != before
        found = load(ram_url, step=step)
        assert {name: bits(found[f"model.{name}"]) for name in model.state_dict()} == before[0]
    assert ("through a buffer" in ckpt.said()) is refused  # type: ignore[attr-defined]


@gpu
def test_on_a_gpu_a_segment_is_pinned_in_place() -> None:
    told: list[str] = []
    copier, segment = TorchCopier(told.append), Segment.create(64 << 20, label="test")
    w = torch.ones(1 << 20, device="cuda")
    memory = Memory(w.data_ptr(), w.numel() * 4, w, str(w.device))
    copier.begin([], [Block("w", memory, segment, 4096)]).finish()
    assert not told
    view = torch.frombuffer(segment.view, dtype=torch.uint8)
    assert view.is_pinned()
    assert view[4096 : 4096 + w.numel() * 4].view(torch.float32).eq(1).all()

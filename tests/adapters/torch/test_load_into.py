"""A committed step goes into live tensors or a model without memory, once; what does not fit is told, or raised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import perdure
from perdure.errors import BlobCorrupt, BlobMissing, CallError, StateMismatch

MIB = 1 << 20


class Net(nn.Module):
    """A tie, a buffer that is saved, one that is not, an extra state."""

    def __init__(self, *, dtype: torch.dtype = torch.float32, more: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 8, dtype=dtype)
        self.head = nn.Linear(8, 40, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(8)
        self.more = nn.Linear(8, 8) if more else None
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.table: Tensor
        self.extra = "none"

    def get_extra_state(self) -> str:
        return self.extra

    def set_extra_state(self, state: str) -> None:
        self.extra = state


def on_meta(**options: bool) -> Net:
    with torch.device("meta"):
        return Net(**options)  # type: ignore[arg-type]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[str, Net]:
    """A run with a model, its optimizer and a value."""
    torch.manual_seed(3)
    net = Net()
    net.extra = "seen"
    net.norm.running_mean.normal_()  # type: ignore[union-attr, operator]
    optimizer = torch.optim.Adam(net.parameters())
    with perdure_run(tmp_path) as ckpt:
        ckpt.save(5, {"model": net, "optimizer": optimizer, "lr": 0.1}).committed()
    return str(tmp_path), net


class perdure_run:
    def __init__(self, folder: Path) -> None:
        self.ckpt = perdure.Checkpointer(folder, agent=False)

    def __enter__(self) -> perdure.Checkpointer:
        return self.ckpt

    def __exit__(self, *_: object) -> None:
        self.ckpt.close()


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[key], theirs[key]) for key in mine if isinstance(mine[key], Tensor)
    )


def test_a_model_on_meta_gets_its_tensors_and_keeps_its_ties(saved: tuple[str, Net]) -> None:
    url, net = saved
    model = on_meta()
    done = perdure.load_into(url, {"model": model})
    assert (done.step, done.missing, done.unexpected, done.cast) == (5, (), (), {})
    assert done.on_meta == ("model.table",)
    assert same(model, net)
    assert model.head.weight is model.embed.weight
    assert isinstance(model.embed.weight, nn.Parameter)
    assert model.extra == "seen"


def test_a_live_model_is_filled_in_place(saved: tuple[str, Net]) -> None:
    url, net = saved
    model = Net()
    before = model.embed.weight.data_ptr()
    assert perdure.load_into(url, {"model": model}).on_meta == ()
    assert same(model, net)
    assert model.embed.weight.data_ptr() == before


def test_names_that_do_not_fit_are_refused_and_the_model_is_as_before(saved: tuple[str, Net]) -> None:
    model = on_meta(more=True)
    with pytest.raises(StateMismatch, match=r"not in the checkpoint: model\.more\.weight") as told:
        perdure.load_into(saved[0], {"model": model})
    assert told.value.facts["missing"] == ["model.more.weight", "model.more.bias"]
    assert all(parameter.is_meta for parameter in model.parameters())
    with pytest.raises(StateMismatch, match=r"in the checkpoint but not here: model\.norm"):
        perdure.load_into(saved[0], {"model": nn.ModuleDict({"embed": nn.Embedding(40, 8)})})


def test_what_is_missing_or_unexpected_is_told_where_that_is_wanted(saved: tuple[str, Net]) -> None:
    url, net = saved
    model = on_meta(more=True)
    done = perdure.load_into(url, {"model": model}, strict=False)
    assert done.missing == ("model.more.weight", "model.more.bias")
    assert sorted(done.on_meta) == ["model.more.bias", "model.more.weight", "model.table"]
    assert torch.equal(model.embed.weight, net.embed.weight)
    part = nn.ModuleDict({"embed": nn.Embedding(40, 8)})
    done = perdure.load_into(url, {"model": part}, strict=False)
    assert "model.norm.weight" in done.unexpected
    assert not any(name.startswith("optimizer") for name in done.unexpected)
    assert torch.equal(part["embed"].weight, net.embed.weight)


@pytest.mark.parametrize("meta", [False, True])
def test_another_dtype_is_refused_unless_a_cast_is_wanted_and_then_told(saved: tuple[str, Net], meta: bool) -> None:
    url, net = saved
    with torch.device("meta" if meta else "cpu"):
        model = Net(dtype=torch.bfloat16)
    with pytest.raises(StateMismatch, match=r"model\.embed\.weight is bfloat16 here, float32 in the checkpoint"):
        perdure.load_into(url, {"model": model})
    done = perdure.load_into(url, {"model": model}, cast=True)
    assert done.cast == {"model.embed.weight": ("float32", "bfloat16")}
    assert torch.equal(model.embed.weight, net.embed.weight.to(torch.bfloat16))
    assert torch.equal(model.norm.running_mean, net.norm.running_mean)  # type: ignore[arg-type]


def test_a_shape_that_differs_is_refused_whatever_is_wanted(saved: tuple[str, Net]) -> None:
    with pytest.raises(StateMismatch, match="has shape"):
        perdure.load_into(saved[0], {"model": {"embed": nn.Embedding(40, 9)}}, strict=False, cast=True)


def test_a_step_that_is_not_there_or_is_damaged_is_an_error(saved: tuple[str, Net]) -> None:
    url, _ = saved
    with pytest.raises(BlobMissing):
        perdure.load_into(url, {"model": on_meta()}, step=6)
    (pack,) = Path(url).glob("packs/**/*.safetensors")
    data = bytearray(pack.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    pack.write_bytes(data)
    model = on_meta()
    with pytest.raises(BlobCorrupt):
        perdure.load_into(url, {"model": model})
    assert all(parameter.is_meta for parameter in model.parameters())


PEAK = """
import sys, torch, perdure
from pathlib import Path
def high():
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM")).split()[1])
with torch.device("meta"):
    model = torch.nn.ModuleList(torch.nn.Linear(2048, 2048) for _ in range(12))
perdure.load_into  # what it needs is imported before the measurement
perdure.load_into(sys.argv[1] + "/small", {"model": torch.nn.Linear(2, 2)})
Path("/proc/self/clear_refs").write_text("5")
before = high()
perdure.load_into(sys.argv[1] + "/large", {"model": model}, budget_bytes=16 << 20)
print((high() - before) * 1024)
"""


def test_the_most_memory_is_the_state_and_the_budget(tmp_path: Path) -> None:
    for name, model in {
        "small": nn.Linear(2, 2),
        "large": nn.ModuleList(nn.Linear(2048, 2048) for _ in range(12)),
    }.items():
        with perdure_run(tmp_path / name) as ckpt:
            ckpt.save(1, {"model": model}).committed()
    out = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    state = 12 * (2048 * 2048 + 2048) * 4
    assert int(out.stdout) <= state + 16 * MIB + 12 * MIB, out.stderr  # headers, objects, stacks of threads


def test_what_names_nothing_to_fill_is_refused(saved: tuple[str, Net]) -> None:
    url, net = saved
    with pytest.raises(CallError, match=r'such as {"model": model}; this is a Net'):
        perdure.load_into(url, net)  # type: ignore[arg-type]
    with pytest.raises(CallError, match="nothing would be filled"):
        perdure.load_into(url, {})
    with pytest.raises(CallError, match="budget_bytes is '1G'"):
        perdure.load_into(url, {"model": net}, budget_bytes="1G")  # type: ignore[arg-type]


def fused(*, meta: bool) -> perdure.View:
    """Net's embedding under another name, and its rows as two tensors of the checkpoint."""
    with torch.device("meta" if meta else "cpu"):
        module = nn.ModuleDict({"tokens": nn.Embedding(40, 8), "other": nn.Linear(8, 8)})
    module["other"].register_buffer("mask", torch.ones(2, device="meta" if meta else "cpu"), persistent=False)
    halves = {"tokens": {"low": 30, "high": 10}}
    return perdure.View(module, split=halves, names=lambda name: name.replace("other", "mixed"))


def test_a_view_of_a_model_on_meta_gets_its_tensors(tmp_path: Path) -> None:
    torch.manual_seed(4)
    view = fused(meta=False)
    with perdure_run(tmp_path) as ckpt:
        ckpt.save(1, {"model": view}).committed()
    assert "model.low.weight" in perdure.load(tmp_path)
    other = fused(meta=True)
    done = perdure.load_into(tmp_path, {"model": other})
    assert same(view.module, other.module)
    assert done.on_meta == ("model.other.mask",)


def test_what_a_view_on_meta_misses_stays_there(tmp_path: Path) -> None:
    with perdure_run(tmp_path) as ckpt:
        ckpt.save(1, {"model.low.weight": torch.ones(30, 8), "model.mixed.weight": torch.ones(8, 8)}).committed()
    view = fused(meta=True)
    with pytest.raises(StateMismatch, match="high"):
        perdure.load_into(tmp_path, {"model": view})
    assert all(each.is_meta for each in view.module.parameters())
    done = perdure.load_into(tmp_path, {"model": view}, strict=False)
    assert done.missing == ("model.high.weight", "model.mixed.bias")
    assert done.on_meta == ("model.tokens.weight", "model.other.bias", "model.other.mask")
    assert bool((view.module["other"].weight == 1).all())

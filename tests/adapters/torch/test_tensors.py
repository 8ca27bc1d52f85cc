"""Where a live tensor's bytes lie and which block they are, for every dtype, stride and placement that torch has."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from perdure.adapters.torch.tensors import blocks_of, held_now, torch_dtype, write_into
from perdure.codec.dtypes import DTYPES
from perdure.errors import CallError, StateMismatch
from perdure.layout import Box, Layout, Piece, TensorLayout

from .fake import rank_of
from .trips import DTYPE_NAMES, filled


def bytes_of(tensor: torch.Tensor) -> bytes:
    (block,) = blocks_of(tensor, name="t")
    held, _ = held_now(block)
    return bytes(held.memory.view())


def element_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of the elements in row-major order, without the code under test."""
    size = tensor.element_size()
    flat = tensor.as_strided((tensor.untyped_storage().nbytes() // size,), (1,), 0).view(torch.uint8).tolist()
    strides, shape = tensor.stride(), tensor.shape
    found = bytearray()
    for index in torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape)).tolist():
        at = (tensor.storage_offset() + sum(i * s for i, s in zip(index, strides, strict=True))) * size
        found += bytes(flat[at : at + size])
    return bytes(found)


def test_every_dtype_of_torch_is_known_to_the_codec_but_the_quantized_ones() -> None:
    assert set(DTYPE_NAMES) == set(DTYPES)
    for name in DTYPE_NAMES:
        assert torch_dtype(name).itemsize == DTYPES[name].itemsize


@pytest.mark.parametrize("name", ["float31", "onnx", "nn", "__class__", "Tensor", "float", ""])
def test_what_is_no_dtype_is_refused_by_name_and_imports_nothing(name: str) -> None:
    with pytest.raises(CallError, match="no dtype"):
        torch_dtype(name)


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_contiguous_bytes_are_the_live_ones(dtype: str) -> None:
    for shape in ((), (0,), (3, 0, 2), (1,), (5, 3)):
        tensor = filled(dtype, shape)
        (block,) = blocks_of(tensor, name="t")
        held, live = held_now(block)
        assert live
        assert held.box == Box((0,) * len(shape), shape)
        assert held.memory.nbytes == tensor.numel() * tensor.element_size()
        assert held.memory.address == (tensor.data_ptr() if tensor.numel() else 0)
        if tensor.numel():
            held.memory.view()[0] ^= 0xFF
            assert tensor.view(-1).view(torch.uint8)[0] == held.memory.view()[0]


STRIDED = {
    "transposed": lambda t: t.t(),
    "every other row": lambda t: t[::2],
    "some columns": lambda t: t[:, 1:3],
    "flat every third": lambda t: t.reshape(-1)[1::3],
    "channels last": lambda t: t.reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "expanded": lambda t: t[:1].expand(5, 4),
    "expanded twice": lambda t: t[2, 3].expand(3, 2),
}


@pytest.mark.parametrize("form", STRIDED)
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "complex128", "bool", "float4_e2m1fn_x2", "uint4", "float8_e5m2"]
)
def test_other_strides_are_packed_and_written_back_bit_for_bit(dtype: str, form: str) -> None:
    if form == "channels last" and dtype == "uint4":
        return  # torch itself cannot make one
    tensor = STRIDED[form](filled(dtype, (6, 4)))
    (block,) = blocks_of(tensor, name="t")
    held, live = held_now(block)
    assert not live
    saved = bytes(held.memory.view())
    assert saved == element_bytes(tensor)
    other = STRIDED[form](filled(dtype, (6, 4), seed=1))
    assert bytes_of(other) != saved
    write_into(other, held.memory.owner, name="t")
    assert element_bytes(other) == saved


def test_what_lies_between_the_elements_of_a_strided_tensor_is_left_alone() -> None:
    base = torch.arange(12.0)
    write_into(base[::3], torch.full((4,), -1.0), name="t")
    assert base.tolist() == [-1, 1, 2, -1, 4, 5, -1, 7, 8, -1, 10, 11]


def test_an_expanded_tensor_takes_only_values_that_are_equal_along_its_dim() -> None:
    expanded = torch.zeros(1, 3).expand(4, 3)
    write_into(expanded, torch.arange(3.0).expand(4, 3).contiguous(), name="t")
    assert expanded[3].tolist() == [0, 1, 2]
    with pytest.raises(StateMismatch, match="my name") as caught:
        write_into(expanded, torch.arange(12.0).reshape(4, 3), name="my name")
    assert caught.value.shape == ["my name"]
    nan = torch.tensor([float("nan")]).expand(3)
    write_into(nan, nan.contiguous(), name="t")


SPECIAL = torch.tensor([0x7FC00001, -0x400001, 0x7F800001, -0x80000000, 0, 0x3F800000], dtype=torch.int32)


def test_conjugate_and_negative_views_are_saved_as_what_they_show() -> None:
    complex_ = torch.view_as_complex(SPECIAL.view(torch.float32).clone().reshape(3, 2))
    conj = complex_.conj()
    assert conj.is_conj()
    neg = torch.imag(conj)
    assert neg.is_neg()
    for tensor in (conj, neg):
        shown = tensor.resolve_conj().resolve_neg().clone()
        assert bytes_of(tensor) == bytes_of(shown)
        (block,) = blocks_of(tensor, name="t")
        held, live = held_now(block)
        assert not live
        saved = bytes(held.memory.view())
        with torch.no_grad():
            tensor.fill_(1.0)
        write_into(tensor, held.memory.owner, name="t")
        assert bytes_of(tensor) == saved


def test_a_tensor_of_zeros_without_memory_is_saved_as_zeros_and_takes_nothing_else() -> None:
    for shape in ((3,), (0,), (0, 2), ()):
        zeros = torch._efficientzerotensor(shape)
        assert zeros.data_ptr() == 0
        (block,) = blocks_of(zeros, name="t")
        held, live = held_now(block)
        assert not live
        assert bytes(held.memory.view()) == bytes(4 * zeros.numel())
        write_into(block.view, torch.zeros(shape), name="t")
    with pytest.raises(StateMismatch, match="t has no memory here"):
        write_into(torch._efficientzerotensor((3,)), torch.ones(3), name="t")


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, *_: Any) -> Any:
        return cls(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(args[0].inner)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse_coo"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse_csr"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.empty(3, device="meta"), "meta"),
        (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "nested"),
        (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged), "nested"),
        (lambda: Wrapper(torch.zeros(3)), "Wrapper"),
    ],
    ids=["sparse", "sparse csr", "quantized", "meta", "nested", "jagged", "wrapper"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_without_plain_bytes_is_refused_by_name(make: Any, word: str) -> None:
    with pytest.raises(CallError, match=f"layers.3.weight.*{word}") as caught:
        blocks_of(make(), name="layers.3.weight")
    assert caught.value.tensor == "layers.3.weight"


# --- DTensors --------------------------------------------------------------------------------------------------------


def check_geometry(shape: Sequence[int], mesh_shape: Sequence[int], placements: Sequence[Placement]) -> Layout:
    """Every rank's blocks show what the whole tensor has there, and all of them together tile it."""
    full = torch.arange(prod(shape)).reshape(tuple(shape))
    pieces = []
    for rank in range(prod(mesh_shape)):
        with rank_of(mesh_shape, rank) as mesh:
            tensor = distribute_tensor(full, mesh, placements, src_data_rank=None)
            blocks = blocks_of(tensor, name="t")
            local = tensor.to_local()
            assert sum(block.view.numel() for block in blocks) == local.numel()
            at = 0
            for block in blocks:
                lo, hi = block.box.lo, block.box.hi
                expected = full[tuple(slice(low, high) for low, high in zip(lo, hi, strict=True))]
                assert torch.equal(block.view, expected)
                assert (
                    block.view.numel() == 0
                    or block.view.untyped_storage().data_ptr() == local.untyped_storage().data_ptr()
                )
                pieces.append(Piece(rank, block.box, Box((at,), (at + block.box.size,))))
                at += block.box.size
    layout = Layout({"t": TensorLayout(tuple(shape), tuple(pieces), "int64")})
    layout.check()
    return layout


@pytest.mark.parametrize(
    ("shape", "mesh_shape", "placements"),
    [
        ((8,), (4,), [Shard(0)]),
        ((7,), (4,), [Shard(0)]),
        ((5,), (4,), [Shard(0)]),
        ((2,), (4,), [Shard(0)]),
        ((0,), (4,), [Shard(0)]),
        ((0, 3), (2,), [Shard(1)]),
        ((), (4,), [Replicate()]),
        ((3, 5), (4,), [Replicate()]),
        ((3, 5), (4,), [Shard(1)]),
        ((3, 5), (4,), [Shard(-1)]),
        ((7, 5), (2, 2), [Shard(0), Shard(1)]),
        ((7, 5), (2, 2), [Shard(1), Shard(0)]),
        ((7, 5), (2, 2), [Shard(0), Shard(0)]),
        ((7, 5), (2, 2), [Shard(0), Replicate()]),
        ((7, 5), (2, 2), [Replicate(), Shard(0)]),
        ((7, 5), (2, 2), [Replicate(), Replicate()]),
        ((1, 5), (2, 3), [Shard(0), Shard(1)]),
        ((7, 2), (2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
        ((8, 2), (2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
        ((5, 2), (2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
        ((3, 2), (2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
        ((2, 7), (2, 2), [_StridedShard(1, split_factor=2), Shard(1)]),
        ((12, 3), (3, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
        ((12, 3), (3, 2), [_StridedShard(0, split_factor=2), Replicate()]),
        ((13, 3), (2, 3), [_StridedShard(0, split_factor=3), Shard(0)]),
        ((12, 6), (2, 2), [_StridedShard(0, split_factor=3), Shard(1)]),
        ((9, 4, 5), (2, 2), [Shard(2), Shard(0)]),
    ],
    ids=str,
)
def test_the_blocks_of_all_ranks_tile_the_tensor_and_hold_what_it_holds(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], placements: list[Placement]
) -> None:
    check_geometry(shape, mesh_shape, placements)


PLACEMENTS = st.sampled_from([Replicate(), Shard(0), Shard(1), "strided 0", "strided 1"])


@given(
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2), (3, 2)]),
    PLACEMENTS,
    st.sampled_from([Replicate(), Shard(0), Shard(1)]),
)
@settings(max_examples=40, deadline=None)
def test_any_placement_on_two_axes_is_cut_as_torch_cuts_it(
    shape: tuple[int, int], mesh_shape: tuple[int, int], first: Any, second: Placement
) -> None:
    if isinstance(first, str):  # FSDP over TP: the second axis cuts first
        first = _StridedShard(int(first[-1]), split_factor=mesh_shape[1])
    check_geometry(shape, mesh_shape, [first, second])


def test_a_rank_with_an_empty_shard_holds_no_block() -> None:
    layout = check_geometry((2, 3), (4,), [Shard(0)])
    assert layout.ranks == (0, 1)


def test_replicas_are_the_same_box_on_every_rank() -> None:
    layout = check_geometry((4, 3), (2, 2), [Replicate(), Shard(0)])
    assert [piece.box.lo for piece in layout["t"].pieces] == [(0, 0), (2, 0), (0, 0), (2, 0)]


def test_a_partial_sum_is_refused_by_name() -> None:
    with rank_of((2,), 0) as mesh:
        tensor = DTensor.from_local(torch.ones(3), mesh, [Partial()], run_check=False)
        with pytest.raises(CallError, match=r"my name.*Partial") as caught:
            blocks_of(tensor, name="my name")
        assert caught.value.tensor == "my name"


def test_a_rank_outside_the_mesh_holds_nothing() -> None:
    for shape in ((), (4, 2)):
        with rank_of((3,), 2):
            mesh = DeviceMesh("cpu", [0, 1])
            tensor = distribute_tensor(torch.zeros(shape), mesh, [Replicate()], src_data_rank=None)
            assert blocks_of(tensor, name="t") == []

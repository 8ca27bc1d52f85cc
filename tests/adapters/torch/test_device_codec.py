"""What is coded on the device is, byte for byte, what the host codes; whoever does it, and wherever the tensors lie.

`test_device_kernels.py` runs this file again with Triton's kernels interpreted on the CPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.adapters.torch.device_backend import flat_on
from perdure.adapters.torch.device_codec import (
    Backend,
    backend_of,
    distances,
    from_distances,
    mask_on_device,
    unmask_on_device,
)
from perdure.adapters.torch.device_digest import device_tile_digests
from perdure.adapters.torch.tensors import dtype_name, torch_dtype
from perdure.codec import CODECS, DTYPES, TILE_BYTES, decode, encode, frame, frame_info, tile_digests
from perdure.codec.ulp import KINDS
from perdure.errors import BlobCorrupt, CallError, FormatRefused

from .trips import DTYPE_NAMES

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = False
if HAS_TRITON:
    from perdure.adapters.torch.device_kernels import INTERPRETED

Side = tuple[Backend, str]
SIDES: list[Side] = [("torch", "cpu")]
if torch.cuda.is_available():
    SIDES += [("torch", "cuda"), *([("triton", "cuda")] if HAS_TRITON else [])]
if INTERPRETED:
    SIDES += [("triton", "cpu")]
on_every_side = pytest.mark.parametrize("side", SIDES, ids="-".join)

SIZES = [0, 1, 7, 8, 9, 63, 2047, 2048, 2049, 5000]
FLOATS_8 = [name for name in KINDS if name.startswith("float8")]


def pair_of(dtype: str, n: int, changed: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of ``n`` elements of random bits, and a base from which about that share of elements differs."""
    rng, width = np.random.default_rng(seed), DTYPES[dtype].itemsize
    now = rng.integers(0, 256, (n, width), dtype=np.uint8)
    base = now.copy()
    base[rng.random(n) < changed, rng.integers(0, width)] ^= 0x41
    flat = (torch.from_numpy(each.reshape(-1)).view(torch_dtype(dtype)) for each in (now, base))
    first, second = flat
    return first, second


def host(tensor: torch.Tensor) -> np.ndarray:
    return tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)


def host_frame(now: torch.Tensor, base: torch.Tensor, tile_bytes: int = TILE_BYTES, codec: str = "mask") -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "TILE_BYTES", tile_bytes)
        return encode(host(now), codec=codec, base=host(base), dtype=dtype_name(now.dtype), shape=now.shape)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and bool((host(one) == host(other)).all())


@on_every_side
@settings(max_examples=15 if INTERPRETED else 50, deadline=None, derandomize=True)
@given(
    dtype=st.sampled_from(DTYPE_NAMES),
    n=st.sampled_from(SIZES),
    changed=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    tile_bytes=st.sampled_from([4096, TILE_BYTES]),
    seed=st.integers(0, 99),
)
def test_the_frame_is_the_one_of_the_host_and_comes_back(
    side: Side, dtype: str, n: int, changed: float, tile_bytes: int, seed: int
) -> None:
    backend, device = side
    now, base = pair_of(dtype, n, changed, seed)
    wanted = host_frame(now, base, tile_bytes)
    on = base.to(device)
    masked = mask_on_device(now.to(device), base=on, tile_bytes=tile_bytes, backend=backend)
    assert masked.frame() == wanted
    assert masked.backend == backend
    assert masked.nbytes <= -(-n // 8) * (2 if dtype == "complex128" else 1) + now.nbytes
    out = unmask_on_device(wanted, base=on, backend=backend)
    assert out.device == on.device
    assert same_bits(out, now)
    assert decode(masked.frame(), base=host(base)).tobytes() == host(now).tobytes()


@on_every_side
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_every_dtype_is_masked_and_comes_back(side: Side, dtype: str) -> None:
    backend, device = side
    now, base = (each.to(device).view(3, 103) for each in pair_of(dtype, 309, 0.2, 1))
    coded = mask_on_device(now, base=base, backend=backend).frame()
    assert coded == host_frame(now, base)
    assert frame_info(coded).codec == "mask"
    assert same_bits(unmask_on_device(coded, base=base, backend=backend), now)


@on_every_side
def test_raw_tiles_and_masked_ones_stand_in_one_frame(side: Side) -> None:
    backend, device = side
    now, base = pair_of("bfloat16", 5 * 2048 + 77, 0.0, 2)
    for tile in (0, 3, 5):
        base[tile * 2048 : (tile + 1) * 2048] = torch.nan
    wanted = host_frame(now, base, 4096)
    sizes = frame_info(wanted).coded_nbytes
    assert [size == 4096 for size in sizes] == [True, False, False, True, False, False]
    assert sizes[5] == 154  # the last one is raw too
    masked = mask_on_device(now.to(device), base=base.to(device), tile_bytes=4096, backend=backend)
    assert masked.frame() == wanted
    assert same_bits(unmask_on_device(wanted, base=base.to(device), backend=backend), now)


@on_every_side
def test_a_tile_that_coding_leaves_as_long_as_it_was_is_raw(side: Side) -> None:
    backend, device = side
    base = torch.zeros(2048 + 64, dtype=torch.bfloat16)
    for differ in (1919, 1920, 1921):  # of 2048 elements; their bits take as much room as 128 elements
        now = base.clone()
        now[:differ] = 1
        coded = mask_on_device(now.to(device), base=base.to(device), tile_bytes=4096, backend=backend).frame()
        assert coded == host_frame(now, base, 4096)
        assert frame_info(coded).coded_nbytes == (min(256 + 2 * differ, 4096), 8)
        assert same_bits(unmask_on_device(coded, base=base.to(device), backend=backend), now)


@on_every_side
def test_tiles_of_the_size_that_frames_have(side: Side) -> None:
    """4 MiB, with more than one tile: the accumulators go through 4095 blocks."""
    backend, device = side
    tile_bytes = TILE_BYTES >> 7 if INTERPRETED else TILE_BYTES  # the interpreter would take half a minute
    now, base = pair_of("bfloat16", tile_bytes + 501, 0.1, 3)
    base[: tile_bytes // 2] += 1
    masked = mask_on_device(now.to(device), base=base.to(device), tile_bytes=tile_bytes, backend=backend)
    assert masked.frame() == host_frame(now, base, tile_bytes)
    assert same_bits(unmask_on_device(masked.frame(), base=base.to(device), backend=backend), now)


@on_every_side
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_zeros_of_both_signs_and_every_kind_of_nan_are_told_apart(side: Side, dtype: str) -> None:
    backend, device = side
    special = np.array([0, 0x8000, 1, 0x7C00, 0x7C01, 0x7E00, 0x7F80, 0x7F81, 0x7FC0, 0x7FC1, 0x7FFF, 0xFF80, 0xFFFF])
    now, base = (
        torch.from_numpy(bits.ravel().astype(np.uint16).view(np.int16)).view(torch_dtype(dtype))
        for bits in np.meshgrid(special, special)
    )
    masked = mask_on_device(now.to(device), base=base.to(device), backend=backend)
    assert masked.frame() == host_frame(now, base)
    assert masked.values.numel() in (special.size * (special.size - 1), special.size**2)  # raw, or all but the equal
    assert same_bits(unmask_on_device(masked.frame(), base=base.to(device), backend=backend), now)


def strided() -> Iterator[tuple[str, torch.Tensor]]:
    yield "transposed", torch.randn(31, 17, dtype=torch.bfloat16).T
    yield "every other", torch.randn(41, 6)[:, ::2]
    yield "expanded", torch.randn(5, 1).expand(5, 9)
    yield "at an odd address", torch.arange(200, dtype=torch.uint8)[3:]
    yield "conjugated", torch.randn(9, dtype=torch.complex64).conj()
    yield "a number", torch.tensor(3.5)
    yield "a gradient's", torch.randn(9, requires_grad=True)


@on_every_side
@pytest.mark.parametrize(("how", "tensor"), list(strided()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_tensor_that_is_not_in_one_piece_counts_as_its_elements(side: Side, how: str, tensor: torch.Tensor) -> None:
    backend, device = side
    base = tensor.detach().clone().contiguous()
    base.view(-1)[:1] = 7
    plain = tensor.detach().resolve_conj().contiguous()
    coded = mask_on_device(tensor.to(device), base=base.to(device), backend=backend).frame()
    assert coded == host_frame(plain, base)
    assert same_bits(unmask_on_device(coded, base=base.to(device), backend=backend), plain)
    back = mask_on_device(base.to(device), base=tensor.to(device), backend=backend).frame()
    assert same_bits(unmask_on_device(back, base=tensor.to(device), backend=backend), base)


@on_every_side
def test_another_base_is_found_by_its_digest(side: Side) -> None:
    backend, device = side
    now, base = (each.to(device) for each in pair_of("bfloat16", 3000, 0.1, 4))
    coded = mask_on_device(now, base=base, backend=backend).frame()
    other = base.clone()
    other[2999] = 1.0 if other[2999] != 1.0 else 2.0
    with pytest.raises(CallError, match="made on base"):
        unmask_on_device(coded, base=other, backend=backend)
    for unlike in (base[1:], base.view(torch.float16), base.view(2, 1500)):
        with pytest.raises(CallError, match="the base is"):
            unmask_on_device(coded, base=unlike, backend=backend)
        with pytest.raises(CallError, match="the base is"):
            mask_on_device(now, base=unlike, backend=backend)


@on_every_side
def test_a_damaged_frame_is_refused(side: Side) -> None:
    backend, device = side
    now, base = pair_of("bfloat16", 3001, 0.1, 5)
    coded = host_frame(now, base, 4096)
    info, on = frame_info(coded), base.to(device)
    second = info.header_nbytes + info.coded_nbytes[0]
    last_bits = second + -(-(3001 - 2048) // 8) - 1

    def flipped(at: int, bit: int, of: bytes = coded) -> bytes:
        return of[:at] + bytes([of[at] ^ 1 << bit]) + of[at + 1 :]

    changed = next(at for at in range(second, last_bits) if coded[at])
    as_many = flipped(
        last_bits, 7, flipped(changed, coded[changed].bit_length() - 1)
    )  # a bit that stands for no element

    assert same_bits(unmask_on_device(coded, base=on, backend=backend), now)
    for hurt in (flipped(info.header_nbytes + 5, 3), flipped(second, 0), flipped(last_bits, 7), as_many):
        with pytest.raises(FormatRefused, match="no mask"):
            unmask_on_device(hurt, base=on, backend=backend)
    for hurt, tile in ((flipped(second - 1, 2), 0), (flipped(len(coded) - 1, 2), 1)):
        with pytest.raises(BlobCorrupt, match=f"tile {tile} "):
            unmask_on_device(hurt, base=on, backend=backend)
    for hurt in (coded[:-1], coded + b"\0", flipped(40, 1)):
        with pytest.raises(BlobCorrupt):
            unmask_on_device(hurt, base=on, backend=backend)
    with pytest.raises(FormatRefused):
        unmask_on_device(b"PRDF", base=on, backend=backend)


@on_every_side
def test_frames_of_other_codecs_are_for_the_host_and_raw_ones_are_not(side: Side) -> None:
    backend, device = side
    now, base = pair_of("bfloat16", 4000, 0.01, 6)
    on = base.to(device)
    assert set(CODECS) >= {"raw", "mask", "ulp", "planes"}
    for codec in ("ulp", "planes"):
        other = host_frame(
            torch.zeros_like(now), torch.zeros_like(now).view(torch.int16).add(1).view(now.dtype), codec=codec
        )
        assert frame_info(other).codec == codec
        with pytest.raises(CallError, match="on the host"):
            unmask_on_device(other, base=on, backend=backend)
    raw = host_frame(now, base, codec="raw")
    assert same_bits(unmask_on_device(raw, base=on, backend=backend), now)
    with pytest.raises(BlobCorrupt, match="digest"):
        unmask_on_device(raw[:-1] + bytes([raw[-1] ^ 1]), base=on, backend=backend)


@on_every_side
def test_what_cannot_be_coded_is_refused_by_name(side: Side) -> None:
    backend, device = side
    one = torch.ones(8, device=device)
    for sparse in (one.to_sparse(), torch.ones(8, device="meta")):
        with pytest.raises(CallError, match=r"only dense|has no bytes"):
            mask_on_device(sparse, base=sparse, backend=backend)
    for tile_bytes in (0, 1, 5000, 1 << 27):
        with pytest.raises(CallError, match="tile_bytes"):
            mask_on_device(one, base=one, tile_bytes=tile_bytes, backend=backend)
    with pytest.raises(CallError, match="unknown backend"):
        mask_on_device(one, base=one, backend="cuda")  # type: ignore[arg-type]
    with pytest.raises(CallError, match="has no distances"):
        distances(one, base=one, backend=backend)
    with pytest.raises(CallError, match="has no distances"):
        from_distances(one.to(torch.int16), base=one, backend=backend)
    half = one.half()
    for unlike in (one, one[1:].to(torch.int16)):
        with pytest.raises(CallError, match="int16"):
            from_distances(unlike, base=half, backend=backend)


@on_every_side
def test_digests_are_those_of_the_host(side: Side) -> None:
    backend, device = side
    data = torch.from_numpy(np.random.default_rng(7).integers(0, 256, 20000, dtype=np.uint8))
    edges = [0, 1, 16, 17, 128, 129, 240, 241, 255, 256, 1023, 1024, 1025, 1087, 1088, 1089, 2047, 2048, 2049, 4095]
    for size in [*edges, *(4096 + size for size in edges), *(8192 + size for size in edges[:4]), 19999]:
        flat, kernels, _ = flat_on(data[:size].to(device), backend)
        for tile_bytes in (4096, 8192):
            found = device_tile_digests(flat, tile_bytes, kernels)
            assert found == tile_digests(data[:size].numpy(), tile_bytes), (size, tile_bytes)


def ordered(bits: np.ndarray) -> np.ndarray:
    """Bits as integers in the order of values, by the words of the specification."""
    sign = 1 << (8 * bits.itemsize - 1)
    wide = bits.astype(np.int64)
    return np.where(wide & sign, -1 - (wide & sign - 1), wide)


@on_every_side
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex32"])
def test_distances_of_16_bits_are_those_of_the_specification(side: Side, dtype: str) -> None:
    backend, device = side
    every = np.arange(65536, dtype=np.uint16)
    for other in (np.random.default_rng(8).permutation(every), every ^ np.uint16(0x8000)):
        now, base = (
            torch.from_numpy(bits.copy().view(np.int16)).view(torch_dtype(dtype)).to(device) for bits in (every, other)
        )
        found = distances(now, base=base, backend=backend)
        wanted = (ordered(every) - ordered(other) + 32768) % 65536 - 32768
        assert (found.dtype, found.shape) == (torch.int16, (*now.shape, *((2,) if dtype == "complex32" else ())))
        assert (found.cpu().numpy().reshape(-1) == wanted).all()
        assert same_bits(from_distances(found, base=base, backend=backend), now)


@on_every_side
@pytest.mark.parametrize("dtype", FLOATS_8)
def test_distances_of_8_bits_are_unreduced(side: Side, dtype: str) -> None:
    backend, device = side
    now, base = (each.ravel().astype(np.uint8) for each in np.meshgrid(np.arange(256), np.arange(256)))
    new, old = (torch.from_numpy(each).view(torch_dtype(dtype)).to(device) for each in (now, base))
    found = distances(new, base=old, backend=backend)
    assert (found.cpu().numpy() == ordered(now) - ordered(base)).all()
    assert (int(found.min()), int(found.max())) == (-255, 255)
    assert same_bits(from_distances(found, base=old, backend=backend), new)


@on_every_side
def test_a_distance_counts_the_floats_between(side: Side) -> None:
    backend, device = side
    tensor = torch.tensor([1.0, -1.0, 0.0, 65000.0], dtype=torch.float16)
    after = torch.from_numpy(np.nextafter(tensor.numpy(), np.float16(np.inf)))
    found = distances(after.to(device), base=tensor.to(device), backend=backend)
    assert found.tolist() == [1, 1, 1, 1]
    zeros = torch.tensor([-0.0, 0.0], dtype=torch.float16, device=device)
    assert distances(zeros, base=zeros.flip(0), backend=backend).tolist() == [-1, 1]


@on_every_side
@pytest.mark.parametrize("n", SIZES)
def test_the_host_rebuilds_the_tensor_from_distances_and_codes_it(side: Side, n: int) -> None:
    backend, device = side
    now, base = pair_of("bfloat16", n, 0.3, n)
    sent = distances(now.to(device), base=base.to(device), backend=backend).cpu()
    assert same_bits(from_distances(sent, base=base), now)
    assert host_frame(from_distances(sent, base=base), base, codec="ulp") == host_frame(now, base, codec="ulp")


@on_every_side
def test_who_works_is_seen_and_never_changes_sides(side: Side) -> None:
    backend, device = side
    one = torch.ones(8, device=device)
    assert backend_of(one) == ("triton" if device == "cuda" and HAS_TRITON else "torch")
    assert mask_on_device(one, base=one).backend == backend_of(one)
    assert mask_on_device(one, base=one, backend=backend).backend == backend
    if HAS_TRITON and not INTERPRETED:
        with pytest.raises(CallError, match="pass backend='torch'"):
            mask_on_device(one.cpu(), base=one.cpu(), backend="triton")


def test_all_of_this_ran_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("NOT TESTED on a GPU: there is none here")
    assert ("torch", "cuda") in SIDES
    if not HAS_TRITON:
        pytest.skip("NOT TESTED: Triton's kernels on the GPU: Triton is not installed")
    assert ("triton", "cuda") in SIDES

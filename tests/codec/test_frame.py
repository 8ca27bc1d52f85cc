"""Frames give back the bits that went in, or say that they cannot; nothing in between."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from perdure.codec import DTYPES, TILE_BYTES, decode, decode_tile, digest, encode, frame_info, nbytes, tile_digests
from perdure.codec.header import render
from perdure.errors import BlobCorrupt, CallError, FormatRefused

NUMPY_NAMES = [name for name, dtype in DTYPES.items() if dtype.in_numpy]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, tuple[int, ...], np.ndarray]:
    """A dtype, a shape, and the bytes: every bit pattern, NaN payloads and odd booleans included."""
    name = draw(st.sampled_from(list(DTYPES)))
    shape = draw(nps.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    size = nbytes(name, shape)
    return name, shape, np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)


@settings(deadline=None)
@given(tensors())
def test_every_bit_of_every_dtype_comes_back(tensor: tuple[str, tuple[int, ...], np.ndarray]) -> None:
    name, shape, data = tensor
    frame = encode(data, dtype=name, shape=shape)
    out, info = decode(frame), frame_info(frame)
    assert out.tobytes() == data.tobytes()
    assert (info.dtype, info.shape, info.nbytes) == (name, shape, data.size)
    assert out.dtype == DTYPES[name].numpy
    assert out.shape == shape
    assert out.flags.writeable
    assert info.digest == digest(data)
    assert info.frame_nbytes == len(frame)
    assert len(frame) <= data.size + 64


@settings(deadline=None)
@given(st.sampled_from(NUMPY_NAMES).flatmap(lambda name: nps.arrays(name, nps.array_shapes(min_dims=0, min_side=0))))
def test_an_array_is_encoded_as_what_it_is(array: np.ndarray) -> None:
    out = decode(encode(array))
    assert out.dtype == array.dtype
    assert out.shape == array.shape
    assert out.tobytes() == array.tobytes()


def test_torch_tensors_of_every_dtype_come_back_as_their_bytes() -> None:
    torch = pytest.importorskip("torch")
    for name in DTYPES:
        data = torch.arange(48, dtype=torch.uint8)
        tensor = data.view(getattr(torch, name)) if name not in ("bool",) else (data % 2).view(torch.bool)
        frame = encode(tensor.view(torch.uint8).numpy(), dtype=name, shape=tuple(tensor.shape))
        assert decode(frame).tobytes() == tensor.view(torch.uint8).numpy().tobytes(), name


def test_arrays_in_any_memory_order_are_encoded_in_c_order() -> None:
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for view in (array.T, array[:, ::2], array[..., ::-1], np.asfortranarray(array)):
        assert np.array_equal(decode(encode(view)), view)


def test_a_tensor_of_several_tiles_has_a_digest_for_each() -> None:
    array = np.random.default_rng(3).integers(0, 256, 2 * TILE_BYTES + 17, dtype=np.uint8)
    frame = encode(array)
    info = frame_info(frame)
    assert info.coded_nbytes == (TILE_BYTES, TILE_BYTES, 17)
    assert info.tile_digests == tile_digests(array)
    assert info.digest == digest(info.tile_digests)
    assert len(frame) <= array.nbytes + 64 + array.nbytes // 1000
    assert np.array_equal(decode(frame), array)

    damaged = bytearray(frame)
    damaged[-20] ^= 1
    with pytest.raises(BlobCorrupt) as caught:
        decode(damaged)
    assert caught.value.tile == 1


def test_the_header_can_be_read_without_the_tensor() -> None:
    frame = encode(np.zeros((3, 5), np.uint16), dtype="bfloat16")
    info = frame_info(frame[: frame_info(frame).header_nbytes])
    assert (info.codec, info.dtype, info.shape, info.base) == ("raw", "bfloat16", (3, 5), None)


@pytest.mark.parametrize(
    ("array", "options"),
    [
        (np.zeros(3, np.float32), {"dtype": "bfloat16"}),
        (np.zeros(3, np.uint8), {"dtype": "bfloat16"}),
        (np.zeros(4, np.uint8), {"dtype": "bfloat16", "shape": (3,)}),
        (np.zeros(4, np.uint8), {"dtype": "bfloat16", "shape": (-1, -2)}),
        (np.zeros(4, np.uint32), {"dtype": "bfloat16", "shape": (8,)}),
        (np.zeros(3, np.float32), {"dtype": "float33"}),
        (np.zeros(3, np.float32), {"codec": "alchemy"}),
        (np.zeros(3, np.float32), {"base": np.zeros(4, np.float32)}),
        (np.zeros(3, ">f4"), {}),
        (np.zeros(1, np.uint8), {"shape": (1,) * 65}),
    ],
)
def test_calls_that_do_not_fit_are_refused(array: np.ndarray, options: dict[str, object]) -> None:
    with pytest.raises(CallError):
        encode(array, **options)  # type: ignore[arg-type]


FRAME = encode(np.arange(30, dtype=np.float32).reshape(5, 6))


def test_every_truncation_and_every_flipped_bit_is_noticed() -> None:
    for cut in range(len(FRAME)):
        with pytest.raises((BlobCorrupt, FormatRefused)):
            decode(FRAME[:cut])
    for bit in range(8 * len(FRAME)):
        damaged = bytearray(FRAME)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((BlobCorrupt, FormatRefused)):
            decode(damaged)
    with pytest.raises(BlobCorrupt):
        decode(FRAME + b"\0")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_damage_is_ever_decoded(data: st.DataObject) -> None:
    damaged = bytearray(FRAME)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                damaged[at] = data.draw(st.integers(0, 255))
            case "cut" if len(damaged) > 1:
                del damaged[at]
            case _:
                damaged.insert(at, data.draw(st.integers(0, 255)))
    if damaged != FRAME:
        with pytest.raises((BlobCorrupt, FormatRefused)):
            decode(damaged)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    for blob in (data, b"PRDF" + data, b"PRDF\0" + data):
        with pytest.raises((BlobCorrupt, FormatRefused)):
            decode(blob)


def sealed(frame: bytes) -> bytes:
    """``frame`` with the check that a hostile writer would compute for its header."""
    header = bytearray(frame[: int.from_bytes(frame[12:16], "little")])
    header[16:24] = bytes(8)
    header[16:24] = bytes.fromhex(digest(header))[:8]
    return bytes(header) + frame[len(header) :]


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_a_hostile_header_with_a_right_check_never_does_more_than_raise(data: st.DataObject) -> None:
    """The check passes, so every field is reached with values of an attacker's choice."""
    size = frame_info(FRAME).header_nbytes
    header = bytearray(FRAME[:size])
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(4, size - 1))] = data.draw(st.integers(0, 255))
    try:
        out = decode(sealed(bytes(header) + FRAME[size:]))
    except (BlobCorrupt, FormatRefused):
        pass  # noticed
    else:
        assert (
            out.tobytes() == FRAME[size:]
        )  # another dtype or shape of the same bytes: what the attacker meant to write


def hostile(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "codec": "raw", "dtype": "uint8", "shape": (4,), "base": None, "tile_bytes": TILE_BYTES,
        "coded_nbytes": (4,), "tile_digests": tile_digests(b"data"),
    }  # fmt: skip
    return render(**(fields | changes)) + b"data"  # type: ignore[arg-type]


TWO_TILES = hostile(shape=(8192,), tile_bytes=4096, coded_nbytes=(0, 4), tile_digests=bytes(32))
OTHER_ROOT = sealed(TWO_TILES.replace(bytes(32), bytes(31) + b"\1"))


@pytest.mark.parametrize(
    ("what", "frame"),
    [
        ("magic", b"SAFE" + FRAME[4:]),
        ("version", sealed(FRAME[:4] + b"\1" + FRAME[5:])),
        ("unknown", sealed(FRAME[:5] + b"\xff" + FRAME[6:])),
        ("unknown", sealed(FRAME[:6] + b"\xff" + FRAME[7:])),
        ("out of bounds", hostile(tile_bytes=1 << 30)),
        ("shorter than its fields", hostile(shape=(1 << 62, 1 << 62), dtype="float64")),
        ("shorter than its fields", hostile(shape=(TILE_BYTES * 1000,))),
        ("longer than its fields", hostile(shape=(0,))),
        ("raw if all", hostile(coded_nbytes=(3,))),
        ("raw if all", hostile(base="00" * 16)),
        ("larger than its decoded", hostile(coded_nbytes=(5,))),
        ("dimension", hostile(shape=(1 << 63, 0), coded_nbytes=(), tile_digests=b"")),
        ("no array can have", hostile(shape=(1 << 62, 1 << 62, 0), coded_nbytes=(), tile_digests=b"")[:-4]),
        ("tiles' digests", OTHER_ROOT),
    ],
)  # fmt: skip
def test_hostile_frames_are_refused_by_name(what: str, frame: bytes) -> None:
    with pytest.raises(FormatRefused, match="does not start with PRDF" if what == "magic" else what):
        decode(frame)


def of_tiles(data: np.ndarray, tile_bytes: int) -> bytes:
    """A raw frame with tiles of another size than this release writes."""
    sizes = tuple(min(tile_bytes, data.size - at) for at in range(0, data.size, tile_bytes))
    head = render(codec="raw", dtype="uint8", shape=data.shape, base=None, tile_bytes=tile_bytes,
                  coded_nbytes=sizes, tile_digests=tile_digests(data, tile_bytes))  # fmt: skip
    return head + data.tobytes()


@pytest.mark.parametrize("tile_bytes", [4096, 8 << 20])
def test_frames_of_any_tiles_are_decoded_whole_and_tile_by_tile(tile_bytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 3 * tile_bytes // 2, np.uint8)
    frame = of_tiles(data, tile_bytes)
    info = frame_info(frame)
    assert (decode(frame) == data).all()
    at = info.header_nbytes
    for tile, size in enumerate(info.coded_nbytes):
        out = np.zeros(min(tile_bytes, data.size - tile * tile_bytes), np.uint8)
        decode_tile(info, tile, frame[at : at + size], out)
        assert (out == data[tile * tile_bytes : tile * tile_bytes + out.size]).all()
        at += size


def test_a_tile_that_is_damaged_or_of_another_size_is_not_decoded() -> None:
    data = np.arange(6000, dtype=np.uint16).view(np.uint8)
    frame = of_tiles(data, 4096)
    info, out = frame_info(frame), np.zeros(4096, np.uint8)
    good = frame[info.header_nbytes : info.header_nbytes + 4096]
    with pytest.raises(BlobCorrupt, match="tile 0 of the frame") as caught:
        decode_tile(info, 0, good[:-1] + b"?", out)
    assert caught.value.tile == 0
    for tile, coded, target in (
        (0, good[:-1], out),
        (0, good, out[:-1]),
        (2, good, out),
        (3, good, out),
        (-1, good, out),
    ):
        with pytest.raises(CallError, match="are not tile"):
            decode_tile(info, tile, coded, target)


def test_the_header_of_format_0_never_changes() -> None:
    frame = encode(np.array([[1, 2, 300]], np.int16))
    fixed = struct.unpack("<4sBBBBBBHI", frame[:16])
    assert fixed == (b"PRDF", 0, 0, 4, 2, 0, 22, 0, 46)
    assert frame.hex() == GOLDEN


GOLDEN = "5052444600000402001600002e00000050dd69bf398cfb4f8924d5464b959538ef5f0667882f4fa2010306000000010002002c01"

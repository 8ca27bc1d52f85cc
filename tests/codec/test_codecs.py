"""Codecs bring back every bit of every dtype, on a base or without one, and never take more room than the bytes do."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import (
    CODECS,
    DTYPES,
    TILE_BYTES,
    decode,
    decode_tile,
    digest,
    encode,
    encode_parts,
    frame_info,
    nbytes,
)
from perdure.codec.header import render
from perdure.codec.stage import LEVELS
from perdure.codec.stages import is_lossy
from perdure.errors import BlobCorrupt, CallError, FormatRefused, PerdureError

LOSSLESS = [name for name in CODECS if not is_lossy(name)]
CODED = [name for name in LOSSLESS if name != "raw"]
RNG = np.random.default_rng(5)


def bfloat16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) + np.uint32(0x8000) >> np.uint32(16)).astype(np.uint16)


def weights(n: int, step: float = 1e-4) -> tuple[np.ndarray, np.ndarray]:
    """bfloat16 weights before and after a step, as uint16."""
    old = RNG.standard_normal(n) * 0.02
    return bfloat16(old), bfloat16(old + step * RNG.standard_normal(n))


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, np.ndarray, np.ndarray | None]:
    """A dtype, the bytes of a tensor, and those of a base that has much in common with it, or none."""
    name = draw(st.sampled_from(list(DTYPES)))
    n = draw(st.one_of(st.integers(0, 40), st.integers(0, 3000)))
    size = nbytes(name, (n,))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    data = rng.integers(0, draw(st.sampled_from([2, 16, 256])), size).astype(np.uint8)
    changed = rng.random(size) < draw(st.sampled_from([0.0, 0.01, 0.5, 1.0]))
    base = np.where(changed, rng.integers(0, 256, size), data).astype(np.uint8)
    return name, data, draw(st.sampled_from([None, base]))


@pytest.mark.parametrize("codec", LOSSLESS)
@settings(max_examples=80, deadline=None)
@given(tensor=tensors(), level=st.sampled_from(LEVELS))
def test_every_bit_of_every_dtype_comes_back(
    codec: str, tensor: tuple[str, np.ndarray, np.ndarray | None], level
) -> None:  # type: ignore[no-untyped-def]
    name, data, base = tensor
    shape = (data.size // DTYPES[name].itemsize,)
    frame = encode(data, codec=codec, base=base, dtype=name, shape=shape, level=level)
    out = decode(frame, base=base)
    assert out.tobytes() == data.tobytes()
    assert (out.dtype, out.shape) == (DTYPES[name].numpy, shape)
    assert len(frame) <= data.size + 64 + data.size // 1000
    assert frame_info(frame).digest == digest(data)


@pytest.mark.parametrize("codec", CODED)
@pytest.mark.parametrize("name", DTYPES)
def test_every_codec_takes_every_dtype_of_torch(codec: str, name: str) -> None:
    width = DTYPES[name].itemsize
    base = np.repeat(RNG.integers(0, 4, 4000).astype(np.uint8), width)
    data = base.copy()
    data[:: 50 * width] ^= 1
    for below in (None, base):
        frame = encode(data, codec=codec, base=below, dtype=name, shape=(4000,))
        assert decode(frame, base=below).tobytes() == data.tobytes()
        assert len(frame) <= data.size + 64


@pytest.mark.parametrize("codec", CODED)
def test_all_patterns_of_16_bits_come_back_from_any_base(codec: str) -> None:
    every = np.arange(65536, dtype=np.uint16)
    for base in (every, every[::-1].copy(), RNG.permutation(every), every ^ np.uint16(0x8000), np.zeros_like(every)):
        for name in ("bfloat16", "float16", "int16"):
            frame = encode(every, codec=codec, base=base, dtype=name)
            assert decode(frame, base=base).tobytes() == every.tobytes()


@pytest.mark.parametrize("codec", CODED)
def test_noise_is_stored_raw(codec: str) -> None:
    noise, base = RNG.integers(0, 65536, (2, 1 << 18), dtype=np.uint16)
    assert encode(noise, codec=codec, base=base, dtype="bfloat16") == encode(noise, dtype="bfloat16")


def test_what_the_codecs_are_for_gets_smaller() -> None:
    old, new = weights(1 << 20, 3e-5)
    size = {codec: old.nbytes / len(encode(new, codec=codec, base=old, dtype="bfloat16")) for codec in CODED}
    assert size["ulp"] > 7
    assert size["ulp"] > 2 * size["mask"] > 4
    assert old.nbytes / len(encode(new, codec="planes", dtype="bfloat16")) > 1.5
    normal, small = (len(encode(new, codec="ulp", base=old, dtype="bfloat16", level=level)) for level in LEVELS)
    assert small < normal


@pytest.mark.parametrize("codec", CODED)
def test_any_number_of_threads_writes_the_same_frame_and_reads_it(codec: str) -> None:
    old, new = weights(3 * TILE_BYTES // 2 + 7)
    frames = {encode(new, codec=codec, base=old, dtype="bfloat16", threads=threads) for threads in (1, 2, 5)}
    assert len(frames) == 1
    for threads in (1, 2, 5):
        assert (decode(frames.copy().pop(), base=old, threads=threads) == new).all()
    for threads in (0, -1, 5000):
        with pytest.raises(CallError, match="threads"):
            encode(new[:9], codec=codec, threads=threads)


@pytest.mark.parametrize("codec", LOSSLESS)
def test_a_frame_comes_in_parts_and_goes_into_memory_that_is_there(codec: str) -> None:
    old, new = weights(3 * TILE_BYTES // 4)
    parts = encode_parts(new, codec=codec, base=old, dtype="bfloat16")
    frame = encode(new, codec=codec, base=old, dtype="bfloat16")
    assert len(parts) == 1 + len(frame_info(frame).coded_nbytes) == 3
    assert b"".join(parts) == frame
    room = bytearray(new.nbytes)
    out = decode(frame, base=old, out=room)
    assert out.tobytes() == new.tobytes() == room
    for bad in (bytearray(new.nbytes - 1), bytes(new.nbytes)):
        with pytest.raises(CallError, match="writable"):
            decode(frame, base=old, out=bad)


@pytest.mark.parametrize("codec", CODED)
def test_a_tile_is_decoded_with_the_same_tile_of_the_base(codec: str) -> None:
    old, new = weights(3 * TILE_BYTES // 2 + 7)
    frame = encode(new, codec=codec, base=old, dtype="bfloat16")
    info, at = frame_info(frame), 0
    for tile, size in enumerate(info.coded_nbytes):
        start = info.header_nbytes + at
        part = slice(tile * TILE_BYTES, (tile + 1) * TILE_BYTES)
        out = np.zeros_like(new.view(np.uint8)[part])
        decode_tile(info, tile, frame[start : start + size], out, base=old.view(np.uint8)[part])
        assert (out == new.view(np.uint8)[part]).all()
        at += size
        if size < out.size and info.base is not None:
            with pytest.raises(CallError, match="needs its base"):
                decode_tile(info, tile, frame[start : start + size], out)
            with pytest.raises(CallError, match="base"):
                decode_tile(info, tile, frame[start : start + size], out, base=old.view(np.uint8)[:9])
            other = old.view(np.uint8)[part] ^ np.uint8(1)
            with pytest.raises((BlobCorrupt, FormatRefused)):
                decode_tile(info, tile, frame[start : start + size], out, base=other)


@pytest.mark.parametrize("codec", CODED)
def test_a_base_that_is_missing_or_another_one_is_refused(codec: str) -> None:
    old = RNG.integers(0, 256, 4096, dtype=np.uint8).view(np.uint16)
    new = old.copy()
    new[7] += 1
    frame = encode(new, codec=codec, base=old, dtype="bfloat16")
    assert frame_info(frame).base == digest(old)
    with pytest.raises(CallError, match="needs its base"):
        decode(frame)
    with pytest.raises(CallError, match="made on base"):
        decode(frame, base=new)
    with pytest.raises(CallError, match="bytes"):
        decode(frame, base=old[1:])
    with pytest.raises(CallError, match="bytes"):
        encode(new, codec=codec, base=old[1:], dtype="bfloat16")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(CallError, match="level"):
        encode(np.zeros(4), codec="ulp", level="tiny")  # type: ignore[arg-type]


def hurt(frame: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(frame)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, len(data)))
        match int(rng.integers(0, 4)):
            case 0:
                data[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                data[at] = int(rng.integers(0, 256))
            case 2:
                del data[at:]
            case _:
                data[at:at] = bytes(rng.integers(0, 256, 3, dtype=np.uint8))
        if not data:
            break
    return bytes(data)


@pytest.mark.parametrize("codec", CODED)
def test_a_damaged_frame_is_one_error(codec: str) -> None:
    old, new = weights(3000)
    frame, rng = encode(new, codec=codec, base=old, dtype="bfloat16"), np.random.default_rng(8)
    for _ in range(1000):
        damaged = hurt(frame, rng)
        if damaged != frame:
            with pytest.raises(PerdureError):
                decode(damaged, base=old)


@pytest.mark.parametrize("codec", CODED)
def test_hostile_tiles_under_a_right_header_never_do_more_than_raise(codec: str) -> None:
    """The header's check passes, so the decoders see bytes of an attacker's choice."""
    old, new = weights(3000)
    frame, rng = encode(new, codec=codec, base=old, dtype="bfloat16"), np.random.default_rng(9)
    info = frame_info(frame)
    payload = frame[info.header_nbytes :]
    for _ in range(2000):
        tile = hurt(payload, rng)[: new.nbytes - 1]
        head = render(
            codec=codec, dtype="bfloat16", shape=new.shape, base=info.base, tile_bytes=TILE_BYTES,
            coded_nbytes=(len(tile),), tile_digests=info.tile_digests,
        )  # fmt: skip
        try:
            assert (decode(head + tile, base=old) == new).all()  # a harmless change: another spelling of the same
        except (BlobCorrupt, FormatRefused):
            pass  # noticed


@pytest.mark.parametrize("codec", CODED)
def test_frames_of_another_dtype_or_shape_are_refused(codec: str) -> None:
    old, new = weights(3000)
    info = frame_info(frame := encode(new, codec=codec, base=old, dtype="bfloat16"))
    payload = frame[info.header_nbytes :]
    for dtype, shape, base in (
        ("float32", (1500,), info.base),
        ("uint8", (6000,), info.base),
        ("float16", (2999,), None),
    ):
        head = render(
            codec=codec, dtype=dtype, shape=shape, base=base, tile_bytes=TILE_BYTES,
            coded_nbytes=info.coded_nbytes, tile_digests=info.tile_digests,
        )  # fmt: skip
        with pytest.raises((BlobCorrupt, FormatRefused)):
            decode(head + payload, base=old)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
def test_a_frame_that_promises_much_gets_no_memory_before_it_has_shown_its_tiles() -> None:
    head = render(
        codec="ulp", dtype="bfloat16", shape=(1 << 40,), base="00" * 16, tile_bytes=1 << 26,
        coded_nbytes=(9,), tile_digests=bytes(16),
    )  # fmt: skip
    with pytest.raises((BlobCorrupt, FormatRefused)):
        decode(head + bytes(9), base=np.zeros(4, np.uint16))


def test_other_threads_run_while_a_tile_is_coded() -> None:
    old, new = weights(1 << 21)
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.wait(0):
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        during = 0
        for _ in range(10):
            before = counted[0]
            encode(new, codec="ulp", base=old, dtype="bfloat16")
            during += counted[0] - before
    finally:
        stop.set()
        thread.join(10)
    assert during > 0


WITHOUT = """
import sys
sys.modules["perdure._native"] = None
import numpy as np
from perdure.codec import CODECS, NATIVE, decode, digest, encode
assert not NATIVE
i = np.arange(5000)
old = (0x3C00 + 37 * i % 512).astype(np.uint16)
new = (old + i % 7 % 2).astype(np.uint16)
for codec in CODECS:
    if codec != "cluster":
        frame = encode(new, codec=codec, base=old, dtype="bfloat16")
        assert (decode(frame, base=old) == new).all()
        print(codec, digest(frame))
x = (i * 7919 % 1000 - 500).astype(np.float32) ** 3
frame = encode(x, codec="cluster")
assert (abs(decode(frame) - x) <= abs(x) * 2.0**-9).all()
print("cluster", digest(frame))
"""


def test_without_the_kernels_the_frames_are_the_same() -> None:
    i = np.arange(5000)
    old = (0x3C00 + 37 * i % 512).astype(np.uint16)
    new = (old + i % 7 % 2).astype(np.uint16)
    ours = [f"{codec} {digest(encode(new, codec=codec, base=old, dtype='bfloat16'))}" for codec in LOSSLESS]
    ours.append(f"cluster {digest(encode((i * 7919 % 1000 - 500).astype(np.float32) ** 3, codec='cluster'))}")
    ran = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[:-1] == ours

"""Random damage to files of other formats: an error of perdure's own or an object, never another exception, never code.

Where the format has checksums (the zip format of torch.save, DCP), what is read after damage is what was saved.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import foreign as hostile  # noqa: E402
from test_foreign import understand  # noqa: E402

from perdure.errors import PerdureError  # noqa: E402

KINDS = ("zip", "zip without checksums", "legacy", "safetensors", "dcp metadata", "dcp data", "pickle")


def seed_of(kind: str, folder: Path) -> tuple[bytes, Path, Path]:
    """The bytes to damage, the file that has them, and what to read."""
    if kind.startswith("dcp"):
        source = hostile.dcp_folder(folder)
        path = source / (".metadata" if kind == "dcp metadata" else "__0_0.distcp")
        return path.read_bytes(), path, source
    path = folder / "fuzz"
    if kind == "safetensors":
        header = {"a": hostile.f32([2], 0, 8), "b": hostile.f32([], 8, 12), "__metadata__": {"format": "pt"}}
        return hostile.safetensors_of(header, bytes(range(12))), path, path
    if kind == "legacy":
        return hostile.legacy(hostile.small()), path, path
    if kind == "pickle":
        return hostile.program(hostile.dict_of(a=hostile.tensor(), b=hostile.laughs(b"]", 3))), path, path
    try:
        torch.serialization.set_crc32_options(kind == "zip")
        torch.save(hostile.small(), path)
    finally:
        torch.serialization.set_crc32_options(True)
    return path.read_bytes(), path, path


def damaged(good: bytes, chance: random.Random) -> bytes:
    """``good`` with a few bytes changed, a stretch taken out, or a stretch repeated."""
    bad = bytearray(good)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(bad))
        what = chance.randrange(8)
        if what < 4:
            bad[at] ^= 1 << chance.randrange(8)
        elif what < 6:
            bad[at] = chance.choice((0, 1, 0x2E, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif what == 6:
            del bad[at : at + chance.randrange(1, 9)]
        else:
            bad[at:at] = bad[at : at + chance.randrange(1, 33)]
    return bytes(bad)


def told(found: Any) -> Any:
    """All of a source, comparable."""
    tensors = {
        tensor.name: (tensor.dtype, tensor.shape, tensor.aliases, [b.view.reshape(-1).tolist() for b in tensor.blocks])
        for tensor in found.tensors
    }
    return tensors, found.values


def fuzz(kind: str, folder: Path, cases: int, seed: int) -> tuple[int, int]:
    """How many damaged files were refused, and how many were read."""
    good, path, source = seed_of(kind, folder)
    wrap: Callable[[bytes], bytes] = lambda bad: bad  # noqa: E731
    if kind == "pickle":
        wrap = lambda bad: hostile.checkpoint(bad, {"0": bytes(16)})  # noqa: E731
    path.write_bytes(wrap(good))
    want = told(understand(source))
    chance = random.Random(seed)
    refused = 0
    for _ in range(cases):
        path.write_bytes(wrap(damaged(good, chance)))
        try:
            found = understand(source)
        except PerdureError:
            refused += 1
            continue
        if kind == "zip":
            assert told(found) == want
    return refused, cases - refused


@pytest.mark.parametrize("kind", KINDS)
def test_damage_gives_an_error_of_ours_or_an_object(kind: str, tmp_path: Path) -> None:
    refused, _ = fuzz(kind, tmp_path, 400, seed=3)
    assert refused > 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_much_damage_gives_an_error_of_ours_or_an_object(kind: str, tmp_path: Path) -> None:
    refused, read = fuzz(kind, tmp_path, 100_000 // len(KINDS), seed=4)
    assert refused > read > 0

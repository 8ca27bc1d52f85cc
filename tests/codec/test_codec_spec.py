"""The examples of docs/spec/codecs.md are what kernels and twins write and read."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from perdure.codec import cluster_twin, mask_twin, planes_twin, ulp_twin

native = pytest.importorskip("perdure._native", reason="the kernels are not built")

PAGE = Path(__file__).parents[2] / "docs/spec/codecs.md"
MASK, ULP, TOGETHER, PLANES, CLUSTER = (
    bytes.fromhex("".join(block.split()))
    for block in re.findall(r"^```$(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
)


def written(encode: object, *args: object) -> bytes:
    out = np.zeros(8000, np.uint8)
    return out[: encode(*args[:2], out, *args[2:])].tobytes()  # type: ignore[operator]


@pytest.mark.parametrize("module", [native, mask_twin], ids=["native", "twin"])
def test_the_mask_of_the_specification_is_written_and_read(module: object) -> None:
    base = np.arange(1, 10, dtype=np.uint16)
    new = np.array([1, 2, 0x1E, 4, 5, 6, 7, 8, 0x5A], np.uint16)
    assert written(module.mask_encode, new, base, 2) == MASK  # type: ignore[attr-defined]
    out = np.zeros(18, np.uint8)
    assert module.mask_decode(MASK, base, out, 2)  # type: ignore[attr-defined]
    assert out.tobytes() == new.tobytes()


@pytest.mark.parametrize("module", [native, ulp_twin], ids=["native", "twin"])
def test_the_distances_of_the_specification_are_written_and_read(module: object) -> None:
    i = np.arange(256)
    base = (0x3C00 + 37 * i % 512).astype(np.uint16)
    new = (base + np.array([0, 0, 1, 0, 65535, 0, 0, 3])[i % 8]).astype(np.uint16)
    new[100] = 0x7FC1
    assert written(module.ulp_encode, new, base, 0, 4) == ULP  # type: ignore[attr-defined]
    out = np.zeros(512, np.uint8)
    assert module.ulp_decode(ULP, base, out, 0)  # type: ignore[attr-defined]
    assert out.tobytes() == new.tobytes()


@pytest.mark.parametrize("module", [native, ulp_twin], ids=["native", "twin"])
def test_the_literals_together_of_the_specification_are_written_and_read(module: object) -> None:
    base = np.full(2048, 0x3C00, np.uint16)
    new = np.where(np.arange(2048) % 2 == 1, 0x4100, 0x3C00).astype(np.uint16)
    coded = written(module.ulp_encode, new, base, 0, 4)  # type: ignore[attr-defined]
    assert len(coded) == 551
    assert coded[:32] + coded[-32:] == TOGETHER
    out = np.zeros(4096, np.uint8)
    assert module.ulp_decode(coded, base, out, 0)  # type: ignore[attr-defined]
    assert out.tobytes() == new.tobytes()


@pytest.mark.parametrize("module", [native, planes_twin], ids=["native", "twin"])
def test_the_planes_of_the_specification_are_written(module: object) -> None:
    data = np.tile(np.arange(256, dtype=np.uint32) ** 2 % 7, 4)
    coded = written(module.planes_encode, data, None, 4, False)  # type: ignore[attr-defined]
    assert len(coded) == 466
    assert coded[:64] == PLANES


@pytest.mark.parametrize("module", [native, cluster_twin], ids=["native", "twin"])
def test_the_clusters_of_the_specification_are_written_and_read(module: object) -> None:
    x = ((-3.0) ** np.arange(16) / 2**20).astype(np.float32)
    x.view(np.uint32)[[5, 9]] = 0, 0x7FC00001
    out = np.zeros(2000, np.uint8)
    assert out[: module.cluster_encode(x, out, 8)].tobytes() == CLUSTER  # type: ignore[attr-defined]
    y = np.zeros(16, np.float32)
    assert module.cluster_decode(CLUSTER, y.view(np.uint8))  # type: ignore[attr-defined]
    rounded = (x.view(np.uint32) + 0x4000) & 0xFFFF8000
    rounded[9] = 0x7FC00001
    assert y.tobytes() == rounded.tobytes()

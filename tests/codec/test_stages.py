"""The rule that every codec obeys, tried with one that is not shipped: what does not get smaller is stored raw."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pytest

from perdure.codec import decode, encode, frame, frame_info, header
from perdure.codec.dtypes import DType
from perdure.codec.stage import Bytes, Level
from perdure.codec.stages import CODECS, LOSSY, RAW, Raw
from perdure.errors import BlobCorrupt, CallError


class Difference:
    """Stores nothing if the tile equals its base, and everything otherwise."""

    name: ClassVar[str] = "difference"
    number: ClassVar[int] = 200

    def encode(self, tile: Bytes, *, dtype: DType, base: Bytes | None, level: Level) -> bytes:
        same = base is not None and np.array_equal(tile, base)
        return b"=" if same else tile.tobytes() + b"!"

    def decode(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes | None) -> None:
        assert coded.tobytes() == b"="
        assert base is not None
        out[:] = base


@pytest.fixture(autouse=True)
def with_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    codecs = MappingProxyType({"raw": RAW, "difference": Difference()})
    monkeypatch.setattr(frame, "CODECS", codecs)
    monkeypatch.setattr(header, "CODECS", codecs)
    monkeypatch.setattr(header, "_CODEC_NAMES", {0: "raw", 200: "difference"})


BASE = np.random.default_rng(1).standard_normal(3 << 19)  # 12 MiB: three tiles


def test_tiles_are_coded_against_the_same_place_of_the_base_and_fall_back_to_raw() -> None:
    array = BASE.copy()
    array[-1] += 1
    coded = encode(array, codec="difference", base=BASE)
    info = frame_info(coded)
    assert info.codec == "difference"
    assert info.coded_nbytes == (1, 1, 4 << 20)
    assert info.base == frame_info(encode(BASE)).digest
    assert np.array_equal(decode(coded, base=BASE), array)


def test_a_frame_that_gained_nothing_is_a_raw_frame_without_a_base() -> None:
    assert encode(BASE + 1, codec="difference", base=BASE) == encode(BASE + 1)


def test_a_missing_or_other_base_is_refused() -> None:
    coded = encode(BASE, codec="difference", base=BASE)
    with pytest.raises(CallError, match="needs its base"):
        decode(coded)
    with pytest.raises(CallError, match="made on base"):
        decode(coded, base=BASE + 1)
    with pytest.raises(CallError, match="bytes"):
        decode(coded, base=BASE[1:])


def test_a_codec_that_decodes_to_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    coded = encode(BASE, codec="difference", base=BASE)
    monkeypatch.setattr(Difference, "decode", lambda self, coded, out, *, dtype, base: out.fill(0))
    with pytest.raises(BlobCorrupt, match="tile 0"):
        decode(coded, base=BASE)


def test_the_shipped_codecs_have_names_and_numbers_of_their_own() -> None:
    numbers = {"raw": 0, "mask": 1, "ulp": 2, "planes": 3, "cluster": 4}
    assert {name: codec.number for name, codec in CODECS.items()} == numbers
    assert list(LOSSY) == ["cluster"]
    assert isinstance(CODECS["raw"], Raw)
    assert all(codec.name == name for name, codec in CODECS.items())

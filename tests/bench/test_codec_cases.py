"""Entropies, pairs and made inputs of `bench/codecs.py` are what their names say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codec_cases import Case, distances, order_0_bits, rounded, trace_cases
from codec_synthetic import synthetic
from codec_traces import Recipe, base_steps, read_trace, trace_file
from perdure.codec import DTYPES

SMALL = Recipe(steps=24, layers=1, width=32, batch=1)


def as_bytes(values: list[int], dtype: str) -> np.ndarray:
    return np.array(values, dtype).view(np.uint8)


@given(st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 65535)), max_size=50))
def test_distances_count_the_floats_between_and_know_every_bit(pairs: list[tuple[int, int]]) -> None:
    new, old = as_bytes([a for a, _ in pairs], "u2"), as_bytes([b for _, b in pairs], "u2")

    def place(bits: int) -> int:
        return bits if bits < 0x8000 else 0x7FFF - bits

    plain = [(place(a) - place(b) + 0x8000) % 0x10000 - 0x8000 for a, b in pairs]
    assert distances(new, old, 2).tolist() == plain


def test_distances_go_through_zero_one_float_at_a_time() -> None:
    around = [0x82, 0x81, 0x80, 0x00, 0x01, 0x02]  # -2, -1, -0, 0, 1, 2 units of an 8-bit float
    assert distances(as_bytes(around[1:], "u1"), as_bytes(around[:-1], "u1"), 1).tolist() == [1] * 5


@pytest.mark.parametrize(("counts", "bits"), [([8], 0.0), ([4, 4], 1.0), ([4, 2, 2], 1.5), ([1] * 8, 3.0), ([], 0.0)])
def test_the_entropy_is_that_of_the_shares(counts: list[int], bits: float) -> None:
    new = as_bytes([symbol for symbol, n in enumerate(counts) for _ in range(n)], "u2")
    assert math.isclose(order_0_bits(new, np.zeros_like(new), 2), bits)


def test_a_case_knows_what_changed_and_its_tensors() -> None:
    case = Case("x", "float32", as_bytes([1, 2, 3, 1 << 31], "u4"), as_bytes([1, 2, 4, 0], "u4"), tensors=(1, 3))
    assert case.changed == 0.5
    assert [part.changed for part in case.each_tensor()] == [0, 2 / 3]
    assert case.tiled(33).elements == 12
    assert case.tiled(33).changed == 0.5
    assert case.without_base().changed is None


def test_made_inputs_are_what_their_names_say() -> None:
    made = {case.name: case for case in synthetic(1 << 16, seed=3)}
    assert all(case.data.size == case.base.size == 1 << 16 for case in made.values() if case.base is not None)
    assert {case.dtype for case in made.values()} >= {"float8_e4m3fn", "float16", "int8", "int64", "bool", "complex64"}
    assert made["all equal"].changed == 0
    one = made["all changed by 1 ulp"]
    assert one.base is not None
    assert set(abs(distances(one.data, one.base, 2)).tolist()) == {1}
    flipped = made["all signs flipped"]
    assert flipped.base is not None
    assert set((flipped.data ^ flipped.base).tolist()) == {0, 0x80}
    nan = made["NaNs, payloads changed"]
    assert nan.base is not None
    for bits in (nan.data.view(np.uint16), nan.base.view(np.uint16)):
        assert np.isnan((bits.astype(np.uint32) << 16).view(np.float32)).all()
    for fraction in (0.05, 0.54, 0.9):
        assert made[f"{100 * fraction:g} % changed"].changed == pytest.approx(fraction, abs=0.02)
    rows = made["5 % of the rows of 256 changed"]
    assert rows.base is not None
    differs = (rows.data != rows.base).reshape(-1, 256, 2).any(2).sum(1)
    assert set(differs.tolist()) == {0, 256}
    assert (made["random bits"].h0_bits or 0) > 14
    for case in made.values():
        if case.name.endswith(", 5 % changed"):
            assert case.changed == pytest.approx(0.05, abs=0.02), case.name
            assert case.data.size % DTYPES[case.dtype].itemsize == 0


@pytest.fixture
def torch_threads() -> Iterator[None]:
    """A training sets the threads of the whole process; the tests that come after have theirs again."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("torch_threads")
def test_a_trace_is_trained_once_and_its_pairs_are_those_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = {stage: at for stage, at in base_steps(SMALL.steps, 2).items() if stage in ("peak", "decay")}
    assert bases == {"peak": 2, "decay": 22}
    kept = {2: True, 3: False, 4: True, 22: True, 23: False, 24: True}
    file = trace_file(SMALL, kept, tmp_path)
    monkeypatch.setattr("codec_traces.train", None)  # another training would be an error
    assert trace_file(SMALL, kept, tmp_path) == file
    trace = read_trace(file)
    assert sorted(trace.at) == sorted(kept)
    assert trace.at[24].loss < trace.at[2].loss
    made = list(trace_cases(trace, "", bases=bases, distances=(1, 2), timed=True))
    assert [case.name for case in made if "weights" in case.name] == [
        "weights 2 to 3 (peak)", "weights 2 to 4 (peak)", "weights 22 to 23 (decay)", "weights 22 to 24 (decay)",
    ]  # fmt: skip
    assert sum(case.origin is not None and case.origin.kind == "v" for case in made) == 2
    assert all(sum(case.tensors) == case.elements for case in made)
    assert all(case.origin.rounding for case in made if case.origin and case.name.startswith("weights") and case.alone)
    for case in made:
        assert case.changed is not None
        assert case.changed > 0.01


def test_another_seed_or_another_step_is_another_file() -> None:
    names = {Recipe(seed=seed, lr=lr).file_name({at: True}) for seed in (0, 1) for lr in (1e-3, 6e-4) for at in (5, 6)}
    assert len(names) == 8


def test_rounding_is_to_nearest_ties_to_even() -> None:
    master = np.array([0x3F800000, 0x3F808000, 0x3F808001, 0x3F818000, 0x3F817FFF], np.uint32).view(np.float32)
    assert rounded(master).tolist() == [0x3F80, 0x3F80, 0x3F81, 0x3F82, 0x3F81]

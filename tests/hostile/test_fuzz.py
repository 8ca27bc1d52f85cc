"""Random changes never give wrong tensors, nor any error but one that names what is wrong."""

from __future__ import annotations

import random

import frames
import fuzzing
import numpy as np
import pytest

from perdure.codec import decode
from perdure.errors import PerdureError

QUICK, SLOW = 700, 60_000
RIGHT = decode(frames.GOOD).tobytes()


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> fuzzing.Fuzz:
    return fuzzing.Fuzz(tmp_path_factory.mktemp("fuzz") / "run")


def torn(fuzz: fuzzing.Fuzz, seeds: range) -> None:
    before = fuzz.refused
    for seed in seeds:
        fuzz.torn(seed)
    assert fuzz.refused - before > len(seeds) // 3


def forged(fuzz: fuzzing.Fuzz, seeds: range) -> None:
    before = fuzz.accepted
    for seed in seeds:
        fuzz.forged(seed)
    assert fuzz.accepted - before > len(seeds) // 50, "nothing gets past the first check: the fuzzer is blind"


def framed(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(f"frame {seed}")
        frame = fuzzing.mutated(chance, frames.GOOD)
        header = frame[: frames.HEADER]
        if chance.random() < 0.7 and len(header) == frames.HEADER:
            frame = frames.checked(header) + frame[frames.HEADER :]
        try:
            found = decode(frame)
        except PerdureError:
            continue
        assert isinstance(found, np.ndarray)
        assert found.tobytes() == RIGHT, f"frame {seed}: other bytes than those of its digest"


def test_a_torn_run_is_refused_or_read_right(fuzz: fuzzing.Fuzz) -> None:
    torn(fuzz, range(QUICK))


def test_a_forged_run_is_refused_or_read_as_a_second_reader_reads_it(fuzz: fuzzing.Fuzz) -> None:
    forged(fuzz, range(QUICK))


def test_a_changed_frame_is_refused_or_decodes_right() -> None:
    framed(range(10 * QUICK))


def test_the_second_reader_reads_the_good_run(fuzz: fuzzing.Fuzz) -> None:
    fuzz._restore()
    assert fuzzing.naive(fuzz.folder) == fuzz.expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_more(fuzz: fuzzing.Fuzz) -> None:
    torn(fuzz, range(QUICK, QUICK + SLOW))
    forged(fuzz, range(QUICK, QUICK + SLOW))
    framed(range(10 * QUICK, 10 * (QUICK + SLOW)))

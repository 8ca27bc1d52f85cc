"""The verdict of `bench/codecs.py` can be either way, names the worst case, and says what was not measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

import codec_sides
from codec_cases import Case, Origin
from codec_measure import Sizes, Speed, floor_nbytes, measure_sizes, measure_speeds, sides_of
from codec_report import as_json, page, text
from codec_synthetic import synthetic
from codec_verdict import Verdict, judge, whole_states
from perdure import _native

AT = Origin("", "weights", "decay", 295, 285, True)


def weights(name: str, *, bits: float = 4.0, elements: int = 1 << 20, **nbytes: int) -> Sizes:
    sides = {name.replace("_", " ").replace("XOR ", "XOR + "): n for name, n in nbytes.items()}
    return Sizes(name, "bfloat16", elements, 2 * elements, 0.5, bits, sides, None, AT)


def speed(side: str, gbs: float, *, simd: str = "avx512", memcpy_gbs: float = 10, **facts: object) -> Speed:
    made = Speed(f"{side} case", "bfloat16", True, side, simd, 1, 10**9, 1 / memcpy_gbs, 1 / gbs, 1 / gbs, AT)
    return replace(made, **facts)  # type: ignore[arg-type]


def of(verdicts: list[Verdict], start: str) -> Verdict:
    (found,) = (verdict for verdict in verdicts if verdict.ask.startswith(start))
    return found


@pytest.mark.parametrize(
    ("nbytes", "met"), [(int(0.93 * (1 << 19)) + 1024, True), (int(0.93 * (1 << 19)) + 1030, False)]
)
def test_ulp_may_have_so_much_of_the_entropy_and_no_byte_more(nbytes: int, met: bool) -> None:
    good, other = weights("good", ulp=1000), weights("the worst", ulp=nbytes)
    found = of(judge([good, other], [], []), "ulp, of order-0 entropy")
    assert found.met is met
    assert found.at == "the worst"
    assert found.worst == pytest.approx(0.93, abs=1e-4)


def test_each_tensor_apart_has_its_own_allowance() -> None:
    apart = replace(weights("x", ulp=9), apart=(93_000 + 3 * 1024, 100_000.0, 3))
    assert of(judge([apart], [], []), "ulp, tensors apart").met is True
    assert (
        of(judge([replace(apart, apart=(93_100 + 3 * 1024, 100_000.0, 3))], [], []), "ulp, tensors apart").met is False
    )


def test_ulp_must_be_below_each_peer_on_every_pair() -> None:
    pairs = [weights("a", ulp=100, mask=300, XOR_ZipNN=150), weights("b", ulp=100, mask=200, XOR_ZipNN=100)]
    found = judge(pairs, [], [])
    assert of(found, "ulp below mask") == Verdict("ulp below mask: its bytes over ours", 2.0, "b", True)
    assert of(found, "ulp below XOR + ZipNN").met is False  # as large is not below
    assert of(found, "ulp below XOR + zstd -3").met is None


def test_speeds_are_judged_by_the_slowest_at_their_level() -> None:
    found = judge([], [speed("ulp", 5), speed("ulp", 3.5, case="slow"), speed("ulp", 1.2, simd="avx2")], [])
    assert of(found, "ulp, encode, avx512").met is True
    slow = of(found, "ulp, decode, avx512")
    assert (slow.met, slow.at, slow.memcpy) == (False, "ulp: slow", pytest.approx(0.35))
    assert of(found, "ulp, encode, avx2").met is True
    assert of(found, "ulp, decode, avx2").met is False


def test_mask_is_judged_by_memcpy_and_planes_by_zipnn() -> None:
    planes = speed("planes", 4, on_base=False, peers={"ZipNN": (1 / 0.7, 1 / 1.2), "zstd -3": (1, 1)})
    found = judge([], [speed("mask", 8.5), speed("mask", 7, origin=None), planes], [])
    assert of(found, "mask, encode of memcpy's, 16-bit traces").met is True
    assert of(found, "mask, encode of memcpy's, all others").met is False
    assert of(found, "planes, encode of ZipNN's").met is True
    assert of(found, "planes, decode of ZipNN's").met is False
    assert of(found, "round trip of everything else, avx512").met is None
    trip = of(judge([], [speed("ulp small", 1.9, case="small"), planes], []), "round trip of everything else, avx512")
    assert (trip.met, trip.at) == (False, "ulp small: small")


def test_nothing_measured_is_nothing_met() -> None:
    assert {verdict.met for verdict in judge([], [], [])} == {None}


def test_whole_states_add_up_and_count_the_rounding() -> None:
    n = 1000
    kinds = [weights("w", elements=n, ulp=500, planes=1500, planes_on_base=600, mask=900, raw=2 * n)]
    kinds += [
        Sizes(kind, "float32", n, 4 * n, 1.0, None, {"planes": 3000, "planes on base": 2000 + more, "raw": 4 * n}, None,
              replace(AT, kind=kind, rounding=False))
        for kind, more in (("master", 0), ("m", 2000), ("v", 500))
    ]  # fmt: skip
    whole, floats = whole_states(kinds)
    assert (whole.raw_nbytes, whole.nbytes["raw"], floats.raw_nbytes) == (14 * n, 14 * n, 12 * n)
    assert whole.nbytes["lossless"] == 500 + 2000 + 3000 + 2500
    assert whole.nbytes["rounding"] == floats.nbytes["lossless"] == 7500
    assert of(judge([], [], [whole, floats]), "whole state over 2+4+4+4").worst == pytest.approx(14 / 7.5)
    assert whole_states(kinds[:3]) == []
    near = replace(whole, origin=replace(AT, since=290))
    assert of(judge([], [], [near]), "whole state over 2+4+4+4").met is None


def test_the_floor_is_what_the_format_promises() -> None:
    assert [floor_nbytes(n) for n in (0, 999, 1000, 10**6)] == [64, 1063, 1065, 10**6 + 1064]


@pytest.mark.parametrize("installed", [True, False])
def test_a_small_run_measures_every_made_input_and_says_so(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        for peer in ("zstandard", "ZipNN"):
            monkeypatch.setattr(codec_sides, peer, None)
        assert len(codec_sides.missing_peers()) == 2
    facts, level = {"machine": "a test"}, _native.simd_levels()[-1]
    sizes, speeds = [], []
    for case in synthetic(1 << 14):
        sizes.append(measure_sizes(case))
        for timed in (case, case.without_base()):
            speeds += measure_speeds(timed, sides_of(timed, levels=[level], threads=[1, 2]), rounds=1)
    assert {"ulp", "mask", "planes", "ulp small", "frame ulp", "frame planes"} <= {s.side for s in speeds}
    assert all(min(s.memcpy_s, s.encode_s, s.decode_s) > 0 for s in speeds)
    found = (facts, sizes, whole_states(sizes), speeds, judge(sizes, speeds, []))
    assert all(size.case in text(*found) and size.case in page(*found) for size in sizes)
    assert "GB/s" in text(*found)
    assert len(as_json(*found)["sizes"]) == len(sizes)
    assert ("multiples of a peer's" in text(*found)) == any(s.peers for s in speeds)
    assert installed or not any(s.peers for s in speeds)


def test_a_side_that_lies_ends_the_run() -> None:
    (case,) = (case for case in synthetic(1 << 12) if case.name == "all equal")
    honest = sides_of(case, levels=_native.simd_levels()[-1:], threads=[1])[0]
    liar = replace(honest, decode=lambda coded: case.data[::-1])
    with pytest.raises(AssertionError, match="does not come back"):
        measure_speeds(case, [liar], rounds=1)


def test_a_case_without_elements_is_measured() -> None:
    nothing = synthetic(512).__next__().data[:0]
    size = measure_sizes(Case("nothing", "bfloat16", nothing, nothing))
    assert (size.changed, size.h0_bits, size.raw_nbytes) == (None, 0.0, 0)

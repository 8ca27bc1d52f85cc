"""Records: what is written comes back; what was not written is corrupt; what breaks the rules is refused."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import BlobCorrupt, BlobMissing, CallError, FormatRefused, IntegrityError, NotSerializable
from perdure.store.ram import Ram
from perdure.store.records import Commit, Epoch, Marker, PackRef, Part, PartRef, decode, encode, read_record

RUN = "0123456789abcdef" * 2
TOKEN = "f" * 32
META = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


def make_commit(**changes: Any) -> Commit:
    fields: dict[str, Any] = {
        "run": RUN,
        "slot": 7,
        "epoch": 2,
        "claim": TOKEN,
        "parent": 6,
        "step": 100,
        "session": "s1",
        "seq": 3,
        "parts": (PartRef(name="parts/0000000002/x.jsonl", nbytes=10, top_nbytes=10, digest=TOKEN),),
        "meta": {"loss": 1.5, "tags": ["a"]},
        "metric": 0.25,
        "pinned": False,
        "created": 1e9,
        "token": TOKEN,
    }
    return Commit(**(fields | changes))


def make_part(index: bytes = b'{"a":[1]}') -> Part:
    pack = PackRef(name="packs/x.safetensors", nbytes=5000, header_nbytes=4096, header_digest=TOKEN)
    return Part(
        run=RUN, writer="w0", epoch=2, step=100, seq=1, base=None, packs=(pack,), index=msgspec.Raw(index), leaves=()
    )


def envelope(kind: str, version: int, body: bytes) -> bytes:
    digest = xxhash.xxh3_128_hexdigest(f"{kind}\n{version}\n".encode() + body)
    return f'{{"perdure":"{kind}","format":{version},"digest":"{digest}","body":'.encode() + body + b"}\n"


def test_every_kind_comes_back() -> None:
    for record in (
        Marker(run=RUN, created_by="perdure 0.1", created=1e9),
        Epoch(run=RUN, epoch=3, owner="host a", created=1e9, token=TOKEN),
        make_part(),
        make_commit(),
        make_commit(parent=None, metric=None, meta={}, parts=(), pinned=True),
    ):
        assert decode(encode(record), type(record), file="x") == record  # type: ignore[type-var]


@given(META)
def test_meta_comes_back_or_is_an_error(meta: dict[str, Any]) -> None:
    commit = make_commit(meta=meta)
    assert decode(encode(commit), Commit, file="x").meta == meta


@pytest.mark.parametrize(
    "meta",
    [{"a": float("nan")}, {"a": float("inf")}, {"a": (1,)}, {1: "a"}, {"a": {1, 2}}, {"a": b"x"}, {"a": object()}],
)
def test_meta_that_would_not_come_back_is_an_error(meta: dict[str, Any]) -> None:
    with pytest.raises(NotSerializable) as caught:
        encode(make_commit(meta=meta))
    assert caught.value.key == "meta"


@pytest.mark.parametrize("metric", [float("nan"), float("inf"), -float("inf")])
def test_a_metric_that_is_not_finite_is_an_error_and_does_not_become_null(metric: float) -> None:
    with pytest.raises(NotSerializable, match="metric"):
        encode(make_commit(metric=metric))


def test_a_record_that_no_reader_would_take_is_not_written() -> None:
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    for commit in (
        make_commit(meta={"a": deep}),
        make_commit(step=-1),
        make_commit(slot=0, parent=None),
        make_commit(token="x"),
    ):
        with pytest.raises(CallError):
            encode(commit)
    with pytest.raises(ValueError, match="parent"):
        make_commit(slot=5, parent=5)
    with pytest.raises(CallError):
        encode(make_part(b"{not json"))
    with pytest.raises(CallError, match="levels deep"):
        encode(make_part(b"[" * 100 + b"]" * 100))


@given(st.data())
def test_a_flipped_bit_is_never_taken_for_what_was_written(data: st.DataObject) -> None:
    good = encode(make_commit())
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = decode(bytes(bad), Commit, file="slots/7")
    except IntegrityError:
        return
    assert found == make_commit()  # white space became other white space


@given(st.integers(0, 1000))
def test_a_cut_file_is_corrupt(nbytes: int) -> None:
    good = encode(make_commit()).rstrip(b"\n")
    with pytest.raises(BlobCorrupt) as caught:
        decode(good[: min(nbytes, len(good) - 1)], Commit, file="slots/7")
    assert caught.value.file == "slots/7"


def test_a_later_format_is_refused_by_number_whatever_its_body_is() -> None:
    for kind in (Marker, Epoch, Part, Commit):
        data = envelope(kind.__name__.lower(), 3, b'{"wholly":"new"}')
        with pytest.raises(FormatRefused, match="written by format 3; this release reads 1") as caught:
            decode(data, kind, file="x")  # type: ignore[type-var]
        assert (caught.value.found, caught.value.reads) == (3, 1)


BODY = msgspec.json.encode(make_commit())


@pytest.mark.parametrize(
    "data",
    [
        envelope("epoch", 0, BODY),
        envelope("marker", 0, b"{}"),
        envelope("commit", 0, b"{}"),
        envelope("commit", 0, b"[]"),
        envelope("commit", 0, BODY[:-1] + b',"more":1}'),
        envelope("commit", 0, BODY.replace(b'"slot":7', b'"slot":-7')),
        envelope("commit", 0, BODY.replace(b'"slot":7', b'"slot":7.5')),
        envelope("commit", 0, BODY.replace(b'"slot":7', b'"slot":"7"')),
        envelope("commit", 0, BODY.replace(b'"slot":7', b'"slot":99999999999999999999')),
        envelope("commit", 0, BODY.replace(b'"parent":6', b'"parent":7')),
        envelope("commit", 0, BODY.replace(b"parts/0000000002/x", b"../../etc/passwd")),
        envelope("commit", 0, BODY.replace(b"parts/0000000002/x", b"/etc/passwd")),
        envelope("commit", 0, BODY.replace(b'"pinned":false', b'"pinned":0')),
        envelope("commit", 0, BODY.replace(b'"tags":["a"]', b'"tags":' + b"[" * 100 + b"]" * 100)),
        envelope("commit", 0, b"[" * 5_000_000),
        envelope("commit", 0, b" " * (17 << 20)),
    ],
)
def test_what_breaks_the_rules_is_refused(data: bytes) -> None:
    with pytest.raises(FormatRefused) as caught:
        decode(data, Commit, file="slots/7")
    assert caught.value.file == "slots/7"
    assert "slots/7" in str(caught.value)


def test_depth_is_measured_in_linear_time_and_not_fooled_by_strings() -> None:
    commit = make_commit(meta={"text": "[" * 1000 + '\\"{' * 1000})
    assert decode(encode(commit), Commit, file="x") == commit
    start = time.perf_counter()
    for hostile in (b'"\\' * 2_000_000, b'"' + b'\\"[' * 2_000_000, b'[{"' * 2_000_000):
        with pytest.raises(IntegrityError):
            decode(hostile, Commit, file="x")
    assert time.perf_counter() - start < 20  # minutes, if it were quadratic


def test_reading_is_bounded_before_anything_is_read() -> None:
    ram = Ram()
    ram.put("big", [bytes(65 << 10)])
    with pytest.raises(FormatRefused, match="too long"):
        read_record(ram, "big", Marker)
    with pytest.raises(BlobMissing):
        read_record(ram, "none", Marker)

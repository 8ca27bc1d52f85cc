"""Hostile records: marker, epochs, commits, tombstones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from forging import Case, Change, Forged, dumps, edit, record, replace

SLOT = "slots/0000000002.json"
DEEP = b"[" * 100 + b"]" * 100


def text(name: str, change: Change) -> Callable[[Forged], None]:
    """Change the bytes of a file."""
    return lambda run: _write(run, name, change)


def _write(run: Forged, name: str, change: Change) -> None:
    path = run.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(change(path.read_bytes() if path.exists() else b""))


def body(name: str, change: Change) -> Callable[[Forged], None]:
    return lambda run: run.record(name, change)


def fields(name: str = SLOT, **changes: Any) -> Callable[[Forged], None]:
    return body(name, edit(lambda found: found.update(changes)))


def part_field(key: str, value: Any) -> Callable[[Forged], None]:
    return body(SLOT, edit(lambda found: found["parts"][0].update({key: value})))


def later(name: str) -> Callable[[Forged], None]:
    return lambda run: run.record(name, lambda _: b'{"wholly":"new"}', version=2)


def turned(data: bytes) -> bytes:
    """The envelope with a digest that is not its own."""
    at = data.index(b'"digest":"') + 10
    return data[:at] + (b"0" if data[at : at + 1] != b"0" else b"1") + data[at + 1 :]


def envelope(data: bytes, **changes: Any) -> bytes:
    return dumps(json.loads(data) | changes) + b"\n"


MARKER = [
    Case("marker: empty", text("perdure.json", lambda _: b""), "cannot be read", "open", kinds=("corrupt",)),
    Case("marker: no JSON", text("perdure.json", lambda _: b"hello"), "cannot be read", "open", kinds=("corrupt",)),
    Case("marker: NUL bytes", text("perdure.json", lambda d: bytes(len(d))), "cannot be read", "open",
         kinds=("corrupt",)),
    Case("marker: 1 MB", text("perdure.json", lambda d: d + b" " * (1 << 20)), "too long", "open"),
    Case("marker: wrong digest", text("perdure.json", turned), "does not hash", "open", kinds=("corrupt",)),
    Case("marker: run too short", fields("perdure.json", run="00"), "refused", "open"),
    Case("marker: run with a line feed", fields("perdure.json", run="0" * 32 + "\n"), "refused", "open"),
    Case("marker: run in capitals", fields("perdure.json", run="A" * 32), "refused", "open"),
    Case("marker: unknown field", fields("perdure.json", more=1), "unknown field", "open"),
    Case("marker: an epoch in its place", lambda run: (run.folder / "perdure.json").write_bytes(
        (run.folder / "epochs/0000000001.json").read_bytes()), "it is a 'epoch'", "open"),
    Case("marker: later format", later("perdure.json"), "written by format 2; this release reads 1", "open"),
    Case("marker: of another run", fields("perdure.json", run="0" * 32), "copied from elsewhere", "commit", SLOT),
    Case("marker: not there", lambda run: (run.folder / "perdure.json").unlink(), "not there", "open",
         kinds=("missing",)),
]  # fmt: skip

ONE = "epochs/0000000001.json"
EPOCH = [
    Case("epoch: number 0", fields(ONE, epoch=0), "refused", "epoch"),
    Case("epoch: number of 11 digits", fields(ONE, epoch=10**10), "refused", "epoch"),
    Case("epoch: token too short", fields(ONE, token="f" * 31), "refused", "epoch"),
    Case("epoch: owner of 1 MB", fields(ONE, owner="x" * (1 << 20)), "too long", "epoch"),
    Case("epoch: owner over 1000 characters", fields(ONE, owner="x" * 1001), "refused", "epoch"),
    Case("epoch: created is text", fields(ONE, created="now"), "refused", "epoch"),
    Case("epoch: created 1e400", body(ONE, replace(b'"created":', b'"created":1e400,"x":')), "refused", "epoch"),
    Case("epoch: created beyond any double", body(ONE, lambda d: d.replace(
        d[d.index(b'"created":') : d.index(b',"token"')], b'"created":1e400')), "refused", "epoch"),
    Case("epoch: later format", later(ONE), "this release reads 1", "epoch"),
    Case("epoch: the last number there is", lambda run: (run.folder / "epochs/9999999999.json").write_bytes(b"x"),
         "remove it", "claim", "epochs/9999999999.json"),
]  # fmt: skip

COMMIT = [
    Case("commit: empty", text(SLOT, lambda _: b""), "cannot be read", "commit", kinds=("corrupt",)),
    Case("commit: cut in the middle", text(SLOT, lambda d: d[: len(d) // 2]), "cannot be read", "commit",
         kinds=("corrupt",)),
    Case("commit: twice", text(SLOT, lambda d: d + d), "cannot be read", "commit", kinds=("corrupt",)),
    Case("commit: a byte order mark", text(SLOT, lambda d: b"\xef\xbb\xbf" + d), "cannot be read", "commit",
         kinds=("corrupt",)),
    Case("commit: CR LF", text(SLOT, lambda d: d[:-1] + b"\r\n"), "spelling", "commit"),
    Case("commit: no line feed", text(SLOT, lambda d: d[:-1]), "last byte is missing", "commit", kinds=("corrupt",)),
    Case("commit: spaces", text(SLOT, lambda d: d.replace(b'"format":1', b'"format": 1', 1)), "spelling", "commit"),
    Case("commit: UTF-16", text(SLOT, lambda d: d.decode().encode("utf-16")), "cannot be read", "commit",
         kinds=("corrupt",)),
    Case("commit: 17 MB of spaces", text(SLOT, lambda d: d + b" " * (17 << 20)), "too long", "commit"),
    Case("commit: 10 MB of [", text(SLOT, lambda _: b"[" * (10 << 20)), "deeper than 64", "commit"),
    Case("commit: 10 MB of {\"a\":", text(SLOT, lambda _: b'{"a":' * (2 << 20)), "deeper than 64", "commit"),
    Case("commit: 10 MB of quotes and escapes", text(SLOT, lambda _: b'"\\' * (5 << 20)), "cannot be read", "commit",
         kinds=("corrupt",)),
    Case("commit: a 10 MB number", text(SLOT, lambda _: b"9" * (10 << 20)), "cannot be read", "commit",
         kinds=("corrupt",)),
    Case("commit: a list", text(SLOT, lambda _: b"[]\n"), "cannot be read", "commit", kinds=("corrupt",)),
    Case("commit: unknown field in the envelope", text(SLOT, lambda d: envelope(d, more=1)), "cannot be read",
         "commit", kinds=("corrupt",)),
    Case("commit: format 0", lambda run: run.record(SLOT, lambda d: d, version=0), "this release reads 1", "commit"),
    Case("commit: format 2", later(SLOT), "written by format 2; this release reads 1", "commit"),
    Case("commit: format 2^62", lambda run: run.record(SLOT, lambda d: d, version=1 << 62), "reads 1", "commit"),
    Case("commit: format 2^64", lambda run: run.record(SLOT, lambda d: d, version=1 << 64), "cannot be read", "commit",
         kinds=("corrupt",)),
    Case("commit: wrong digest", text(SLOT, turned), "does not hash", "commit", kinds=("corrupt",)),
    Case("commit: digest too short", text(SLOT, lambda d: d.replace(d[34:66], d[34:60], 1)), "cannot be read",
         "commit", kinds=("corrupt",)),
    Case("commit: duplicate key in the envelope", text(SLOT, replace(b'"format":1,', b'"format":1,"format":1,')),
         "spelling", "commit"),
    Case("commit: duplicate key in the body", body(SLOT, replace(b'"step":20', b'"step":10,"step":20')), "duplicate",
         "commit"),
    Case("commit: duplicate key in meta", body(SLOT, replace(b'{"note":', b'{"note":"evil","note":')), "duplicate",
         "commit"),
    Case("commit: fields in another order", body(SLOT, edit(lambda c: c.update(run=c.pop("run")))), "spelling",
         "commit"),
    Case("commit: missing field", body(SLOT, edit(lambda c: c.pop("meta"))), "missing", "commit"),
    Case("commit: unknown field", fields(more=None), "unknown field", "commit"),
    Case("commit: of another slot", fields(slot=3), "copied from elsewhere", "commit"),
    Case("commit: of another run", fields(run="0" * 32), "copied from elsewhere", "commit"),
    Case("commit: slot 0", fields(slot=0, parent=None), "refused", "commit"),
    Case("commit: slot -1", fields(slot=-1, parent=None), "refused", "commit"),
    Case("commit: epoch 0", fields(epoch=0), "refused", "commit"),
    Case("commit: its own parent", fields(parent=2), "parent", "commit"),
    Case("commit: a later parent", fields(parent=3), "parent", "commit"),
    Case("commit: parent 0", fields(parent=0), "refused", "commit"),
    Case("commit: step -1", fields(step=-1), "refused", "commit"),
    Case("commit: step 2^63", fields(step=1 << 63), "refused", "commit"),
    Case("commit: step of 5000 digits", body(SLOT, replace(b'"step":20', b'"step":' + b"9" * 5000)), "refused",
         "commit"),
    Case("commit: step 20.0", body(SLOT, replace(b'"step":20', b'"step":20.0')), "refused", "commit"),
    Case("commit: step -0", body(SLOT, replace(b'"step":20', b'"step":-0')), "refused", "commit"),
    Case("commit: step as text", fields(step="20"), "refused", "commit"),
    Case("commit: metric NaN", body(SLOT, replace(b'"metric":0.5', b'"metric":NaN')), "cannot be read", "commit",
         kinds=("corrupt",)),
    Case("commit: metric 1e400", body(SLOT, replace(b'"metric":0.5', b'"metric":1e400')), "refused", "commit"),
    Case("commit: metric 0.50", body(SLOT, replace(b'"metric":0.5', b'"metric":0.50')), "spelling", "commit"),
    Case("commit: metric 5e-1", body(SLOT, replace(b'"metric":0.5', b'"metric":5e-1')), "spelling", "commit"),
    Case("commit: pinned is 0", fields(pinned=0), "refused", "commit"),
    Case("commit: meta holds 1e400", body(SLOT, replace(b'"good"', b"1e400")), "refused", "commit"),
    Case("commit: meta is a list", fields(meta=[]), "refused", "commit"),
    Case("commit: meta 100 deep", body(SLOT, replace(b'"good"', DEEP)), "deeper than 64", "commit"),
    Case("commit: a lone surrogate", body(SLOT, replace(b'"good"', b'"\\ud800"')), "cannot be read", "commit",
         kinds=("corrupt",)),
    Case("commit: not UTF-8", body(SLOT, replace(b'"good"', b'"\xff"')), "refused", "commit"),
    Case("commit: UTF-8 surrogates", body(SLOT, replace(b'"good"', b'"\xed\xa0\x80"')), "refused", "commit"),
    Case("commit: overlong UTF-8", body(SLOT, replace(b'"good"', b'"\xc0\xaf"')), "refused", "commit"),
    Case("commit: a control character", body(SLOT, replace(b'"good"', b'"\x01"')), "cannot be read", "commit",
         kinds=("corrupt", "format-refused")),
    Case("commit: escaped in another way", body(SLOT, replace(b'"good"', b'"\\u0067ood"')), "spelling", "commit"),
    Case("commit: session of 1 MB", fields(session="s" * (1 << 20)), "refused", "commit"),
    Case("commit: the record of a part", lambda run: run.slot.write_bytes(
        run.parts()[0].read_bytes().split(b"\n")[0] + b"\n"), "it is a 'part'", "commit"),
    *(
        Case(f"commit: a part called {name!r:.30}", part_field("name", name), "refused", "commit")
        for name in ("../x", "/etc/passwd", "parts/../x", "parts//x", "parts/x/", ".hidden", "parts/.x", "", "x" * 600,
                     "parts/a b", "parts/a\nb", "parts/a\0b", "parts\\x", "parts/ä", "C:/x", "parts/" + "x" * 201)
    ),
    Case("commit: part digest too short", part_field("digest", "0" * 31), "refused", "commit"),
    Case("commit: part of -1 bytes", part_field("nbytes", -1), "refused", "commit"),
    Case("commit: part of 2^60 bytes", part_field("nbytes", 1 << 60), "not the part", "catalog", kinds=("corrupt",),
         file="parts/"),
    Case("commit: record of a part of 2^60 bytes", part_field("top_nbytes", 1 << 60), "not the part", "catalog",
         kinds=("corrupt",), file="parts/"),
    Case("commit: record of a part of 2^63-1 bytes", part_field("top_nbytes", (1 << 63) - 1), "not the part",
         "catalog", kinds=("corrupt",), file="parts/"),
    Case("commit: record of a part of 0 bytes", part_field("top_nbytes", 0), "not the part", "catalog",
         kinds=("corrupt",), file="parts/"),
    Case("commit: a part that is not there", part_field("name", "parts/0000000001/none.jsonl"), "not there", "catalog",
         kinds=("missing",), file="parts/0000000001/none.jsonl"),
    Case("commit: a pack as its part", lambda run: part_field("name", str(run.packs()[0].relative_to(run.folder)))(run),
         "not the part", "catalog", kinds=("corrupt",), file="packs/"),
    Case("commit: the same part twice", body(SLOT, edit(lambda c: c["parts"].append(c["parts"][0]))),
         "others are of", "catalog", file="parts/"),
    Case("commit: a part is left out", body(SLOT, edit(lambda c: c["parts"].pop())), "rank 1 is not", "catalog",
         file="parts/"),
    Case("commit: no parts", fields(parts=[]), "no part", "catalog"),
    Case("commit: parts of another step", lambda run: run.commit(
        edit(lambda c: c.update(parts=json.loads(run.body(run.folder / "slots/0000000001.json"))["parts"]))),
        "another save", "catalog", file="parts/"),
    Case("commit: the last slot there is", lambda run: (run.folder / "slots/9999999999.json").write_bytes(b"x"),
         "remove it", "save", "slots/9999999999.json"),
]  # fmt: skip


def tombstone(**changes: Any) -> Callable[[Forged], None]:
    def make(run: Forged) -> None:
        of = json.loads(run.body(run.slot))["run"]
        path = run.folder / "pruned/0000000001.json"
        path.parent.mkdir()
        path.write_bytes(record("pruned", dumps({"run": of, "slot": 1, "step": 10, "created": 1.5} | changes)))

    return make


PRUNED = [
    Case("pruned: slot 0", tombstone(slot=0), "refused", "pruned"),
    Case("pruned: step -1", tombstone(step=-1), "refused", "pruned"),
    Case("pruned: created is null", tombstone(created=None), "refused", "pruned"),
    Case("pruned: unknown field", tombstone(more=1), "unknown field", "pruned"),
    Case("pruned: run is no hex", tombstone(run="g" * 32), "refused", "pruned"),
    Case("pruned: empty", text("pruned/0000000001.json", lambda _: b""), "cannot be read", "pruned",
         kinds=("corrupt",)),
]  # fmt: skip

CASES = [*MARKER, *EPOCH, *COMMIT, *PRUNED]

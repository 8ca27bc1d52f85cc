"""Hostile files of other formats, made by code: torch.save (both formats), safetensors, Hugging Face and DCP folders.

Each function of a table makes one in an empty folder and returns what is to be imported. Those that try to run code
would make the file ``canary`` in the folder.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from foreign_dcp import CANARY, DCP, Runs, dcp_folder

__all__ = ["CANARY", "PICKLES", "dcp_folder", "every", "good_zip", "legacy", "safetensors_of", "small"]

Make = Callable[[Path], Path]


# --- files as they should be -----------------------------------------------------------------------------------------


def small() -> dict[str, Any]:
    """A checkpoint of a few hundred bytes with all that matters in it."""
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return {
        "w": weight,
        "tied": weight,
        "t": weight.t(),
        "n": 3,
        "text": "é",
        "opt": {0: [torch.ones(1)], 1: (1.5, None)},
    }


def legacy(tree: Any) -> bytes:
    """``tree`` in the format before the zip format."""
    out = io.BytesIO()
    torch.save(tree, out, _use_new_zipfile_serialization=False)
    return out.getvalue()


def zip_of(records: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file of ``records``, which may repeat names."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in records:
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def checkpoint(pickled: bytes, storages: dict[str, bytes] | None = None) -> bytes:
    """A torch.save file with that pickle and those storages."""
    data = [(f"x/data/{key}", raw) for key, raw in (storages or {}).items()]
    return zip_of([("x/data.pkl", pickled), ("x/byteorder", b"little"), *data, ("x/version", b"3\n")])


def safetensors_of(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file; ``header`` is text, or what is to be JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


# --- pickles, by hand ------------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def whole(value: int) -> bytes:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def tuple_of(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def called(module: str, name: str, *arguments: bytes) -> bytes:
    return f"c{module}\n{name}\n".encode() + tuple_of(*arguments) + b"R"


def storage(numel: int = 4, key: str = "0", kind: str = "FloatStorage") -> bytes:
    named = f"ctorch\n{kind}\n".encode()
    return tuple_of(text("storage"), named, text(key), text("cpu"), whole(numel)) + b"Q"


def tensor(
    shape: tuple[int, ...] = (4,),
    stride: tuple[int, ...] = (1,),
    offset: int = 0,
    of: bytes | None = None,
    more: bytes = b"",
) -> bytes:
    sizes, steps = (tuple_of(*map(whole, each)) for each in (shape, stride))
    hooks = called("collections", "OrderedDict")
    parts = (of or storage(), whole(offset), sizes, steps, b"\x89", hooks, *([more] if more else []))
    return called("torch._utils", "_rebuild_tensor_v2", *parts)


def dict_of(**values: bytes) -> bytes:
    return b"}(" + b"".join(text(name) + value for name, value in values.items()) + b"u"


def program(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def one(value: bytes, storages: dict[str, bytes] | None = None) -> Callable[[Path], bytes]:
    """A file with ``value`` as its only entry, and a storage of 16 bytes."""
    return lambda folder: checkpoint(program(dict_of(a=value)), {"0": bytes(16)} if storages is None else storages)


def laughs(first: bytes, again: int) -> bytes:
    """``first``, doubled ``again`` times by reference."""
    lines = b"(" + first + b"q\x00"
    for i in range(1, again):
        lines += b"]" + b"q" + bytes([i]) + b"(h" + bytes([i - 1]) + b"h" + bytes([i - 1]) + b"e"
    return lines + b"t"


def deep_key() -> bytes:
    return b"}" + b")" + b"\x85" * 100_000 + b"N" + b"s"


PICKLES: dict[str, Callable[[Path], bytes]] = {
    "a reduce of os.system": lambda folder: checkpoint(pickle.dumps({"a": Runs(folder)}, 2)),
    "the same in protocol 4": lambda folder: checkpoint(pickle.dumps({"a": Runs(folder)}, 4)),
    "eval": lambda folder: checkpoint(
        program(called("builtins", "eval", text(f"open({str(folder / CANARY)!r}, 'w')")))
    ),
    "exec in Python 2's spelling": lambda folder: checkpoint(
        program(called("__builtin__", "exec", text(f"open({str(folder / CANARY)!r}, 'w')")))
    ),
    "getattr as a ladder": one(called("builtins", "getattr", b"cbuiltins\nint\n", text("__class__"))),
    "a dotted name": one(called("torch", "serialization.os.system", text("true"))),
    "a name of torch that is no dtype": one(called("torch", "load", text("/etc/passwd"))),
    "torch.hub": one(called("torch.hub", "load", text("x"))),
    "an import by name": one(called("importlib", "import_module", text("this"))),
    "NEWOBJ of a class": one(b"cargparse\nNamespace\n)\x81}b"),
    "a dtype that is called": one(b"ctorch\nfloat32\n)R"),
    "a storage class that is called": one(b"ctorch\nFloatStorage\n)R"),
    "a text that is called": one(text("os.system") + b")R"),
    "a quantized tensor": one(called("torch._utils", "_rebuild_qtensor")),
    "a sparse tensor": one(called("torch._utils", "_rebuild_sparse_tensor")),
    "a tensor of a class of its own": one(
        called(
            "torch._tensor",
            "_rebuild_from_type_v2",
            b"ctorch._utils\n_rebuild_tensor_v2\n",
            b"cos\nsystem\n",
            b")",
            b"}",
        )
    ),
    "lists nested deep": one(b"]" * 200_000 + b"a" * 199_999),
    "tuples nested deep": one(b")" + b"\x85" * 300_000),
    "a million marks": one(b"(" * 1_000_000),
    "a key nested deep": one(deep_key()),
    "a thousand million laughs": one(laughs(b"]", 60)),
    "laughs of text": one(laughs(text("ha" * 50_000), 30)),
    "laughs of tensors": one(laughs(tensor(), 60)),
    "a list in itself": one(b"]q\x00h\x00a"),
    "a dict in itself": one(b"}q\x00" + text("a") + b"h\x00s"),
    "a million steps that make nothing": one(b"N0" * 600_000 + b"N"),
    "millions of sets": one(b"(" + b"\x8f" * 1_000_000 + b"l"),
    "bytes made again and again": one(
        text("x" * 1_000_000) + b"q\x000(" + called("_codecs", "encode", b"h\x00", text("latin1")) * 300 + b"l"
    ),
    "a huge integer": one(b"\x8b" + struct.pack("<I", 50_000_000) + b"\x01" * 1000),
    "text longer than the file": one(b"X\xff\xff\xff\xff"),
    "text longer than memory": one(b"\x8d" + b"\xff" * 8),
    "text that is no UTF-8": one(b"X\x02\x00\x00\x00\xff\xfe"),
    "a list as a key": one(b"}]Ns"),
    "a huge integer as a key": one(b"}" + whole(1 << 100) + b"Ns"),
    "an empty stack": one(b"000000"),
    "a group that never began": one(b"t"),
    "a memo that is not there": one(b"h\x07"),
    "an opcode of protocol 0": one(b"(ios\nsystem\n"),
    "an extension code": one(b"\x82\x01"),
    "a persistent id that is text": one(text("0") + b"Q"),
    "a state for a number": one(whole(3) + b"}b"),
    "an append to a tuple": one(b")Na"),
    "a name that does not end": one(b"c" + b"x" * 2000),
    "two names that read alike": lambda folder: checkpoint(
        program(b"}(" + text("a.b") + tensor() + text("a") + dict_of(b=tensor(offset=1, shape=(1,))) + b"u"),
        {"0": bytes(16)},
    ),
    "a storage that is too short": one(tensor(), {"0": bytes(12)}),
    "a storage that is too long": one(tensor(), {"0": bytes(32)}),
    "a storage that is not there": one(tensor(of=storage(key="1"))),
    "a storage key that leads out": one(tensor(of=storage(key="../../data/0"))),
    "a storage of a huge size": one(tensor(of=storage(1 << 60))),
    "a storage of a negative size": one(tensor(of=storage(-4))),
    "an offset beyond the storage": one(tensor(offset=1)),
    "a negative offset": one(tensor(offset=-1)),
    "a stride beyond the storage": one(tensor(stride=(2,))),
    "a negative stride": one(tensor(stride=(-1,), offset=3)),
    "a shape of 2**61 twice": one(tensor(shape=(1 << 61, 1 << 61), stride=(0, 0))),
    "an expanded tensor of a petabyte": one(tensor(shape=(1 << 48,), stride=(0,))),
    "sizes that overflow 64 bits": one(tensor(shape=(1 << 70,), stride=(0,))),
    "a shape that is a number": one(
        called("torch._utils", "_rebuild_tensor_v2", storage(), whole(0), whole(4), whole(1))
    ),
    "a tensor of no storage": one(called("torch._utils", "_rebuild_tensor_v2", b"N", whole(0), b")", b")")),
    "a conjugate of real numbers": one(tensor(more=dict_of(conj=b"\x88"))),
    "NumPy objects": one(
        called("numpy._core.multiarray", "scalar", called("numpy", "dtype", text("O")), b"C\x08" + bytes(8))
    ),
    "a NumPy array of a huge shape": one(
        called("numpy._core.multiarray", "_reconstruct", b"cnumpy\nndarray\n", b")", b"N")
        + tuple_of(whole(1), tuple_of(whole(1 << 60)), called("numpy", "dtype", text("u1")), b"\x89", b"C\x00")
        + b"b"
    ),
}


# --- zip files -------------------------------------------------------------------------------------------------------


def patched(data: bytes, old: bytes, new: bytes, *, last: bool = False) -> bytes:
    at = data.rindex(old) if last else data.index(old)
    return data[:at] + new + data[at + len(old) :]


def good_zip() -> bytes:
    return checkpoint(program(dict_of(a=tensor())), {"0": bytes(16)})


def with_entry(number: int, offset: int, form: str, value: int) -> bytes:
    """A good file whose directory entry ``number`` is changed at ``offset``."""
    data = bytearray(good_zip())
    at = -1
    for _ in range(number + 1):
        at = data.index(b"PK\x01\x02", at + 1)
    struct.pack_into(form, data, at + offset, value)
    return bytes(data)


def overlapping() -> bytes:
    """Two records over the same bytes: one local header inside the data of another record."""
    data = bytearray(checkpoint(program(dict_of(a=tensor())), {"0": bytes(16), "1": b""}))
    inner = b"PK\x03\x04" + bytes(22) + struct.pack("<HH", len("x/data/1"), 0) + b"x/data/1"
    outer = checkpoint(program(dict_of(a=tensor())), {"0": inner + bytes(16), "1": b""})
    data = bytearray(outer)
    entry = data.rindex(b"PK\x01\x02", 0, data.rindex(b"x/data/1"))
    struct.pack_into("<I", data, entry + 42, data.index(inner))
    return bytes(data)


_PICKLE = program(b"}")
ZIPS: dict[str, Callable[[Path], bytes]] = {
    "a name that climbs": lambda folder: zip_of([("x/data.pkl", _PICKLE), ("x/../../canary", b"")]),
    "an absolute name": lambda folder: zip_of([("x/data.pkl", _PICKLE), ("/x/canary", b"")]),
    "a name with a drive": lambda folder: zip_of([("x/data.pkl", _PICKLE), ("x/c:\\canary", b"")]),
    "a record that unfolds": lambda folder: zip_of(
        [("x/data.pkl", program(b"N0" * 5_000_000 + b"}"))], zipfile.ZIP_DEFLATED
    ),
    "an encrypted record": lambda folder: with_entry(0, 8, "<H", 1),
    "a method of compression": lambda folder: with_entry(0, 10, "<H", 8),
    "a record that is there twice": lambda folder: zip_of([("x/data.pkl", _PICKLE), ("x/data.pkl", _PICKLE)]),
    "records over one another": lambda folder: overlapping(),
    "a record longer than the file": lambda folder: patched(
        with_entry(2, 20, "<I", 1 << 30), struct.pack("<II", 1 << 30, 16), struct.pack("<II", 1 << 30, 1 << 30)
    ),
    "a record beyond the file": lambda folder: with_entry(2, 42, "<I", 1 << 30),
    "a record that is no record": lambda folder: with_entry(2, 42, "<I", 7),
    "a record of another name": lambda folder: patched(good_zip(), b"x/data/0", b"x/data/1"),
    "a wrong checksum of the pickle": lambda folder: with_entry(0, 16, "<I", 1),
    "a wrong checksum of a tensor": lambda folder: with_entry(2, 16, "<I", 1),
    "a directory that lies outside": lambda folder: good_zip()[:-6] + struct.pack("<IH", 1 << 31, 0),
    "a directory of too many": lambda folder: good_zip()[:-14] + struct.pack("<HH", 60_000, 60_000) + good_zip()[-10:],
    "a comment at the end": lambda folder: good_zip()[:-2] + struct.pack("<H", 3) + b"abc",
    "something at the end": lambda folder: good_zip() + b"abc",
    "a zip64 directory that is not there": lambda folder: (
        good_zip()[:-22] + b"PK\x06\x07" + struct.pack("<IQI", 0, 1 << 60, 1) + good_zip()[-22:]
    ),
    "two folders": lambda folder: zip_of([("x/data.pkl", _PICKLE), ("y/data.pkl", _PICKLE)]),
    "no pickle": lambda folder: zip_of([("x/version", b"3\n")]),
    "a program of TorchScript": lambda folder: zip_of(
        [("x/data.pkl", _PICKLE), ("x/code/a.py", b""), ("x/constants.pkl", b"")]
    ),
    "big-endian numbers": lambda folder: zip_of([("x/data.pkl", _PICKLE), ("x/byteorder", b"big")]),
    "nothing but its first bytes": lambda folder: b"PK\x03\x04",
}


def legacy_of(body: bytes, tail: bytes = b"") -> bytes:
    good = legacy({})
    system = pickle.dumps({"little_endian": True}, 2)
    return good[:15] + pickle.dumps(1001, 2) + system + body + tail


LEGACY: dict[str, Callable[[Path], bytes]] = {
    "a reduce of os.system": lambda folder: legacy_of(pickle.dumps({"a": Runs(folder)}, 2), pickle.dumps([], 2)),
    "os.system in the third pickle": lambda folder: (
        legacy({})[:15] + pickle.dumps(1001, 2) + pickle.dumps(Runs(folder), 2)
    ),
    "a tensor cut short": lambda folder: legacy(small())[:-1],
    "something at the end": lambda folder: legacy(small()) + b"x",
    "storages that are not listed": lambda folder: patched(
        legacy(small()), b"]q\x00(", b"]q\x00(" + text("7"), last=True
    ),
    "a length that lies": lambda folder: patched(
        legacy({"a": torch.zeros(4)}), struct.pack("<q", 4), struct.pack("<q", 5), last=True
    ),
    "another protocol": lambda folder: legacy({})[:15] + pickle.dumps(9999, 2) + pickle.dumps({}, 2),
    "big-endian numbers": lambda folder: patched(legacy({}), b"\x88", b"\x89"),
}


# --- safetensors -----------------------------------------------------------------------------------------------------


def f32(shape: Any, lo: Any, hi: Any, **more: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [lo, hi], **more}


_A = f32([1], 0, 4)
SAFETENSORS: dict[str, Callable[[Path], bytes]] = {
    "no bytes": lambda folder: b"",
    "seven bytes": lambda folder: bytes(7),
    "a header of nothing": lambda folder: safetensors_of(b"", b"\0" * 8),
    "a header longer than memory": lambda folder: safetensors_of({}, length=(1 << 64) - 1),
    "a header longer than the file": lambda folder: safetensors_of({"a": _A}, bytes(4), length=1000),
    "a header longer than 100 MB": lambda folder: safetensors_of({"a": _A}, bytes(4), length=100_000_001),
    "a header that is a list": lambda folder: safetensors_of([]),
    "a header with space before it": lambda folder: safetensors_of(
        b' {"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', bytes(4)
    ),
    "a header that is no UTF-8": lambda folder: safetensors_of(
        b'{"\xff":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', bytes(4)
    ),
    "a header nested deep": lambda folder: safetensors_of(b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"),
    "half a surrogate as a name": lambda folder: safetensors_of(
        b'{"\\ud800":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', bytes(4)
    ),
    "an overlap": lambda folder: safetensors_of({"a": f32([2], 0, 8), "b": f32([2], 4, 12)}, bytes(12)),
    "the same bytes twice": lambda folder: safetensors_of({"a": _A, "b": _A}, bytes(4)),
    "a gap": lambda folder: safetensors_of({"a": _A, "b": f32([1], 8, 12)}, bytes(12)),
    "a gap at the start": lambda folder: safetensors_of({"a": f32([1], 4, 8)}, bytes(8)),
    "something at the end": lambda folder: safetensors_of({"a": _A}, bytes(5)),
    "data cut short": lambda folder: safetensors_of({"a": _A}, bytes(3)),
    "a key that is there twice": lambda folder: safetensors_of(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}',
        bytes(4),
    ),
    "a key that is there twice, spelled otherwise": lambda folder: safetensors_of(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\\u0061":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}',
        bytes(4),
    ),
    "a field that is there twice": lambda folder: safetensors_of(
        b'{"a":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}}', bytes(4)
    ),
    "a field that nobody knows": lambda folder: safetensors_of({"a": f32([1], 0, 4, more=1)}, bytes(4)),
    "a dtype that nobody knows": lambda folder: safetensors_of({"a": {**_A, "dtype": "F33"}}, bytes(4)),
    "a shape that the bytes do not fill": lambda folder: safetensors_of({"a": f32([2], 0, 4)}, bytes(4)),
    "a shape that overflows": lambda folder: safetensors_of({"a": f32([1 << 61, 8], 0, 0)}),
    "a shape that overflows to the right size": lambda folder: safetensors_of({"a": f32([1 << 62, 1 << 62], 0, 0)}),
    "a shape of a thousand dims": lambda folder: safetensors_of({"a": f32([1] * 1000, 0, 4)}, bytes(4)),
    "a negative shape": lambda folder: safetensors_of({"a": f32([-1], 0, 4)}, bytes(4)),
    "offsets the wrong way round": lambda folder: safetensors_of({"a": f32([0], 4, 0)}, bytes(4)),
    "negative offsets": lambda folder: safetensors_of({"a": f32([1], -4, 0)}, bytes(4)),
    "offsets that are fractions": lambda folder: safetensors_of({"a": f32([1], 0, 4.5)}, bytes(4)),
    "metadata that is no text": lambda folder: safetensors_of({"__metadata__": {"a": 1}, "a": _A}, bytes(4)),
    "bytes of a dtype that nobody knows": lambda folder: safetensors_of(
        {
            "__metadata__": {"perdure.as_bytes": '{"a": {"dtype": "qint8", "shape": [4]}}'},
            "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        },
        bytes(4),
    ),
    "bytes that do not fill their true shape": lambda folder: safetensors_of(
        {
            "__metadata__": {"perdure.as_bytes": '{"a": {"dtype": "complex128", "shape": [4]}}'},
            "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        },
        bytes(4),
    ),
}


def hf(folder: Path, index: Any, shards: dict[str, bytes]) -> Path:
    here = folder / "hf"
    here.mkdir()
    (here / "model.safetensors.index.json").write_bytes(
        index if isinstance(index, bytes) else json.dumps(index).encode()
    )
    for name, data in shards.items():
        (here / name).write_bytes(data)
    return here


_SHARD = safetensors_of({"a": _A}, bytes(4))
FOLDERS: dict[str, Make] = {
    "a shard that climbs": lambda folder: (
        (folder / "out.safetensors").write_bytes(_SHARD) and hf(folder, {"weight_map": {"a": "../out.safetensors"}}, {})
    ),
    "a shard with an absolute name": lambda folder: hf(folder, {"weight_map": {"a": "/etc/passwd"}}, {}),
    "a shard that is the folder": lambda folder: hf(folder, {"weight_map": {"a": "."}}, {}),
    "a shard with a null byte": lambda folder: hf(folder, {"weight_map": {"a": "x\0y"}}, {}),
    "a shard that is not there": lambda folder: hf(folder, {"weight_map": {"a": "x.safetensors"}}, {}),
    "a tensor that is not there": lambda folder: hf(folder, {"weight_map": {"b": "x", "a": "x"}}, {"x": _SHARD}),
    "a tensor that the index does not know": lambda folder: hf(folder, {"weight_map": {"b": "x"}}, {"x": _SHARD}),
    "a tensor in two shards": lambda folder: hf(
        folder, {"weight_map": {"a": "x", "b": "y"}}, {"x": _SHARD, "y": _SHARD}
    ),
    "an index of nothing": lambda folder: hf(folder, {"weight_map": {}}, {}),
    "an index that is no JSON": lambda folder: hf(folder, b"{", {}),
    "an index nested deep": lambda folder: hf(folder, b'{"metadata":' + b"[" * 1_000_000, {}),
    "an alias of what is not there": lambda folder: hf(
        folder, {"weight_map": {"a": "x"}, "metadata": {"perdure_aliases": {"c": "b"}}}, {"x": _SHARD}
    ),
}


def every() -> list[tuple[str, Make]]:
    """Every hostile source by name: its function gets an empty folder and returns what to import."""

    def file(make: Callable[[Path], bytes], suffix: str) -> Make:
        def write(folder: Path) -> Path:
            path = folder / f"hostile{suffix}"
            path.write_bytes(make(folder))
            return path

        return write

    tables: list[tuple[str, dict[str, Any], str | None]] = [
        ("pickle", PICKLES, ".pt"),
        ("zip", ZIPS, ".pt"),
        ("legacy", LEGACY, ".pt"),
        ("safetensors", SAFETENSORS, ".safetensors"),
        ("folder", FOLDERS, None),
        ("dcp", DCP, None),
    ]
    return [
        (f"{kind}: {name}", make if suffix is None else file(make, suffix))
        for kind, table, suffix in tables
        for name, make in table.items()
    ]

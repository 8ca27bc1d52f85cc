"""Hostile parts: the record, the index, the leaves, values. Every digest above them is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forging import Case, Change, Forged, dumps, edit, replace

PART = "parts/0000000001/000000000020-000001-rank0.jsonl"
B, NONE, ONE, U, W, Z = range(6)  # the tensors of rank 0, by name
ENTRY_FIELDS = {"name": 0, "dtype": 1, "shape": 2, "where": 3, "packs": 4}


def part(change: Change) -> Callable[[Forged], None]:
    return lambda run: run.part(change)


def fields(**changes: Any) -> Callable[[Forged], None]:
    return part(edit(lambda found: found.update(changes)))


def pack_ref(**changes: Any) -> Callable[[Forged], None]:
    return part(edit(lambda found: found["packs"][1].update(changes)))


def leaf_ref(number: int, at: int, value: Any) -> Callable[[Forged], None]:
    """Another value for a field of the reference to a leaf."""
    return part(edit(lambda found: found["leaves"][number].__setitem__(at, value)))


def index(**changes: Any) -> Callable[[Forged], None]:
    return part(edit(lambda found: found["index"].update(changes)))


def grid(parts: list[int], first: int, strides: list[int], **entry: Any) -> Callable[[Forged], None]:
    """The grid of `w` becomes another one."""

    def make(run: Forged) -> None:
        run.part(edit(lambda found: found["index"]["layouts"].__setitem__(2, [parts, first, strides])))
        if entry:
            tensor(W, **entry)(run)

    return make


def tensor(number: int, **changes: Any) -> Callable[[Forged], None]:
    """Other fields of a tensor of rank 0."""

    def change(found: list[Any]) -> None:
        for key, value in changes.items():
            found[number][ENTRY_FIELDS[key]] = value

    return lambda run: run.entries("tensors", change)


def entries(kind: str, change: Callable[[list[Any]], object], **options: Any) -> Callable[[Forged], None]:
    return lambda run: run.entries(kind, change, **options)


def leaf(kind: str, change: Change, **options: Any) -> Callable[[Forged], None]:
    return lambda run: run.leaf(kind, change, **options)


def value(encoded: bytes) -> Callable[[Forged], None]:
    """The value `lr` becomes this JSON."""
    return leaf("values", replace(b'["lr",null,0.1]', b'["lr",null,' + encoded + b"]"))


def other_run(run: Forged) -> None:
    run.part(edit(lambda found: found.update(run="0" * 32)))


RECORD = [
    Case("part: of another run", other_run, "of another run", "catalog", PART),
    Case("part: of another writer", fields(writer="rank7"), "another save", "catalog", PART),
    Case("part: writer with a slash", fields(writer="a/b"), "refused", "catalog", PART),
    Case("part: of another step", fields(step=10), "another save", "catalog", PART),
    Case("part: epoch 0", fields(epoch=0), "refused", "catalog", PART),
    Case("part: base 0", fields(base=0), "refused", "catalog", PART),
    Case("part: later format", lambda run: run.part(lambda _: b'{"new":[]}', version=2), "written by format 2",
         "catalog", PART),
    Case("part: duplicate key", part(replace(b'"seq":1', b'"seq":2,"seq":1')), "duplicate", "catalog", PART),
    Case("part: unknown field", fields(more=1), "unknown field", "catalog", PART),
    Case("part: spaces", lambda run: run.top(replace(b'"seq":1', b'"seq": 1')), "", "catalog", PART,
         kinds=("corrupt", "format-refused")),
    Case("part: a byte order mark", lambda run: run.top(lambda d: b"\xef\xbb\xbf" + d), "cannot be read", "catalog",
         PART, kinds=("corrupt",)),
    Case("part: index 100 deep", part(replace(b'"index":{', b'"index":{"x":' + b"[" * 100 + b"]" * 100 + b",")),
         "deeper than 64", "catalog", PART),
    Case("part: 10 MB of [ in the index", lambda run: run.top(replace(b'"index":{', b'"index":' + b"[" * (10 << 20))),
         "deeper than 64", "catalog", PART),
    Case("part: bytes after its leaves", lambda run: run.write_part(
        *_cut(run, lambda top, leaves: (top, leaves + b"x"))), "leaves that it does not name", "catalog", PART),
    Case("part: its leaves are cut", lambda run: run.write_part(
        *_cut(run, lambda top, leaves: (top, leaves[:-1]))), "leaves that it does not name", "catalog", PART),
    *(
        Case(f"part: a pack called {name!r:.30}", pack_ref(name=name), "refused", "catalog", PART)
        for name in ("../../etc/passwd", "/etc/passwd", "packs/../x", "packs/\n", "packs/.x", "", "x" * 513)
    ),
    Case("part: a pack of -1 bytes", pack_ref(nbytes=-1), "refused", "catalog", PART),
    Case("part: a pack of 2^63 bytes", pack_ref(nbytes=1 << 63), "refused", "catalog", PART),
    Case("part: a pack of 2^62 bytes", pack_ref(nbytes=1 << 62), "is not the pack", "all", "packs/",
         kinds=("corrupt",)),
    Case("part: a pack header of 2^62 bytes", pack_ref(header_nbytes=1 << 62), "", "all", "packs/",
         kinds=("corrupt", "format-refused")),
    Case("part: a pack header of 0 bytes", pack_ref(header_nbytes=0), "is not the pack", "all", "packs/",
         kinds=("corrupt",)),
    Case("part: a pack digest too short", pack_ref(header_digest="0" * 30), "refused", "catalog", PART),
    Case("part: a pack digest of another", pack_ref(header_digest="0" * 32), "is not the pack", "all", "packs/",
         kinds=("corrupt",)),
    Case("part: a pack that is not there", pack_ref(name="packs/0000000001/none.safetensors"), "not there", "all",
         "packs/0000000001/none.safetensors", kinds=("missing",)),
    Case("part: a slot as its pack", pack_ref(name="slots/0000000001.json"), "is not the pack", "all", "slots/",
         kinds=("corrupt",)),
]  # fmt: skip


def _cut(run: Forged, change: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    top, leaves = run.parts()[0].read_bytes().split(b"\n", 1)
    return change(top + b"\n", leaves)


INDEX = [
    Case("index: world 0", index(world=0), "refused", "catalog", PART),
    Case("index: world 2^24 + 1", index(world=(1 << 24) + 1), "refused", "catalog", PART),
    Case("index: world 2^62", index(world=1 << 62), "refused", "catalog", PART),
    Case("index: world 2^24, of which two are there", lambda run: [
        run.part(edit(lambda found: found["index"].update(world=1 << 24)), n) for n in (0, 1)], "is not", "catalog",
        "parts/"),
    Case("index: other world than the other part", index(world=3), "others are of", "catalog", "parts/"),
    Case("index: rank beyond the world", index(ranks=[2]), "rank 2 of 2", "catalog", PART),
    Case("index: rank of the other part", index(ranks=[1]), "", "catalog", "parts/"),
    Case("index: ranks twice", index(ranks=[0, 0]), "do not rise", "catalog", PART),
    Case("index: ranks fall", index(ranks=[1, 0]), "do not rise", "catalog", PART),
    Case("index: rank -1", index(ranks=[-1]), "refused", "catalog", PART),
    Case("index: a rank of 30 digits", index(ranks=[10**30]), "refused", "catalog", PART),
    Case("index: unknown field", index(more=1), "refused", "catalog", PART),
    Case("index: a list", part(edit(lambda found: found.update(index=[]))), "refused", "catalog", PART),
    Case("index: duplicate key", part(replace(b'"world":2', b'"world":9,"world":2')), "another way", "catalog", PART),
    Case("index: not UTF-8", part(replace(b'"world":2', b'"wor\xffld":2')), "refused", "catalog", PART),
    Case("grid: 2^60 parts", grid([1 << 60], 0, [0]), "refused", "catalog", PART),
    Case("grid: 2^60 parts of a tensor of 2^60", grid([1 << 60, 1], 0, [0, 0], shape=[1 << 60, 1]), "refused",
         "catalog", PART),
    Case("grid: 2^24 blocks on one rank", grid([1 << 24], 0, [0], shape=[1 << 24]), "refused", "catalog", PART),
    Case("grid: 2^24 blocks in 24 dims", grid([2] * 24, 0, [0] * 24, shape=[2] * 24), "refused", "catalog", PART),
    Case("grid: 2^24 blocks that few ranks hold", grid([2] * 24, 0, [0] * 23 + [1], shape=[2] * 24), "refused",
         "catalog", PART),
    Case("grid: 1000 dims of 2^60", grid([1 << 60] * 1000, 0, [0] * 1000), "refused", "catalog", PART),
    Case("grid: 200000 dims of 2^62", grid([1 << 62] * 200_000, 0, [0] * 200_000), "refused", "catalog", PART),
    Case("grid: parts of 4000 digits", grid([10**4000], 0, [0]), "refused", "catalog", PART),
    Case("grid: parts of 5000 digits", part(replace(b"[[2,1],0,[1,0]]", b"[[" + b"9" * 5000 + b",1],0,[1,0]]")),
         "refused", "catalog", PART),
    Case("grid: 100000 dims", grid([1] * 100_000, 0, [0] * 100_000), "refused", "catalog", PART),
    Case("grid: -1 parts", grid([-1, -2], 0, [1, 0]), "no grid", "catalog", PART),
    Case("grid: 0 parts", grid([0, 1], 0, [1, 0]), "no grid", "catalog", PART),
    Case("grid: first rank -1", grid([2, 1], -1, [1, 0]), "no grid", "catalog", PART),
    Case("grid: strides fall", grid([2, 1], 1, [-1, 0]), "no grid", "catalog", PART),
    Case("grid: strides beyond the world", grid([2, 1], 0, [2, 0]), "beyond", "catalog", PART),
    Case("grid: stride 2^62", grid([2, 1], 0, [1 << 62, 0]), "beyond", "catalog", PART),
    Case("grid: first rank beyond the world", grid([1, 1], 5, [0, 0]), "beyond", "catalog", PART),
    Case("grid: more strides than dims", grid([2, 1], 0, [1, 0, 0]), "no grid", "catalog", PART),
    Case("grid: of another number of dims", grid([2], 0, [1]), "does not fit", "catalog", PART),
    Case("grid: parts left empty", grid([2, 1], 0, [1, 0], shape=[1, 16]), "empty", "catalog", PART),
    Case("grid: the ranks of the parts differ", grid([2, 1], 0, [0, 0]), "", "catalog", "parts/"),
]  # fmt: skip

T, L = "tensors", "locals"
LEAVES = [
    Case("leaf: wrong digest", leaf_ref(0, 6, "0" * 32), "does not hash", "catalog", PART, kinds=("corrupt",)),
    Case("leaf: digest too short", leaf_ref(0, 6, "0" * 31), "refused", "catalog", PART),
    Case("leaf: of 2^62 bytes", leaf_ref(0, 5, 1 << 62), "refused", "catalog", PART),
    Case("leaf: of 64 MiB + 1", leaf_ref(0, 5, (64 << 20) + 1), "refused", "catalog", PART),
    Case("leaf: of 0 bytes", leaf_ref(0, 5, 0), "refused", "catalog", PART),
    Case("leaf: of 64 MiB that are not there", leaf_ref(3, 5, 64 << 20), "leaves that it does not name", "catalog",
         PART),
    Case("leaf: starts at 2^62", leaf_ref(1, 4, 1 << 62), "gap", "catalog", PART),
    Case("leaf: overlaps the one before", leaf_ref(1, 4, 0), "overlap", "catalog", PART),
    Case("leaf: unknown kind", leaf_ref(0, 0, "thing"), "unknown kind", "catalog", PART),
    Case("leaf: kinds in another order", leaf_ref(0, 0, "values"), "order", "catalog", PART),
    Case("leaf: kind of another leaf", leaf_ref(0, 0, "locals"), "", "catalog", PART),
    Case("leaf: count too high", leaf_ref(0, 3, 7), "not sorted", "catalog", PART),
    Case("leaf: count 2^62", leaf_ref(0, 3, 1 << 62), "not sorted", "catalog", PART),
    Case("leaf: count 0", leaf_ref(0, 3, 0), "not sorted", "catalog", PART),
    Case("leaf: another first name", leaf_ref(0, 1, "a"), "holds others", "catalog", PART),
    Case("leaf: another last name", leaf_ref(0, 2, "zz"), "holds others", "catalog", PART),
    Case("leaf: not sorted", entries(T, lambda e: e.reverse()), "not sorted", "catalog", PART),
    Case("leaf: an entry twice", entries(T, lambda e: e.insert(1, e[0])), "not sorted", "catalog", PART),
    Case("leaf: empty list", leaf(T, lambda _: b"[]\n"), "not sorted", "catalog", PART),
    Case("leaf: no list", leaf(T, lambda _: b"{}\n"), "refused", "catalog", PART),
    Case("leaf: no line feed", leaf(T, lambda d: d[:-1]), "another way", "catalog", PART),
    Case("leaf: spaces", leaf(T, replace(b",", b", ")), "another way", "catalog", PART),
    Case("leaf: CR LF", leaf(T, lambda d: d[:-1] + b"\r\n"), "another way", "catalog", PART),
    Case("leaf: NUL bytes", leaf(T, lambda d: bytes(len(d))), "refused", "catalog", PART),
    Case("leaf: not UTF-8", leaf(T, replace(b'"b"', b'"\xff"')), "refused", "catalog", PART),
    Case("leaf: a lone surrogate", leaf(T, replace(b'"b"', b'"\\ud800"')), "refused", "catalog", PART),
    Case("leaf: 10 MB of [", leaf(T, lambda _: b"[" * (10 << 20)), "refused", "catalog", PART),
    Case("leaf: too few fields", entries(T, lambda e: e[0].pop()), "refused", "catalog", PART),
    Case("leaf: too many fields", entries(T, lambda e: e[0].append(0)), "", "catalog", PART),
    Case("tensor: of an unknown dtype", tensor(W, dtype="float31"), "does not know", "catalog", PART),
    Case("tensor: dtype is a class", tensor(W, dtype="os.system"), "does not know", "catalog", PART),
    Case("tensor: dtype of another width", tensor(W, dtype="float64"), "different dtypes", "catalog", "parts/"),
    Case("tensor: negative extent", tensor(W, shape=[-64, 16]), "refused", "catalog", PART),
    Case("tensor: extent 2^62", tensor(B, shape=[1 << 62, 1]), "", "catalog", PART),
    Case("tensor: extent 64.0", leaf(T, replace(b"[64,16]", b"[64.0,16]")), "refused", "catalog", PART),
    Case("tensor: extent 1e1", leaf(T, replace(b"[64,16]", b"[1e1,16]")), "refused", "catalog", PART),
    Case("tensor: extent -0", leaf(T, replace(b"[0,4]", b"[-0,4]")), "another way", "catalog", PART),
    Case("tensor: shape of 65 dims", tensor(W, shape=[1] * 65), "refused", "catalog", PART),
    Case("tensor: 2^3900 elements", tensor(Z, shape=[1 << 61] * 64, where=[[0, [0] * 64, [1 << 61] * 64]]),
         "refused", "catalog", PART),
    Case("tensor: 2^61 bytes", tensor(Z, shape=[1 << 57], where=[[0, [0], [1 << 57]]]), "refused", "catalog", PART),
    Case("tensor: larger than its pack", tensor(Z, shape=[1 << 20], where=[[0, [0], [1 << 20]]]), "refused",
         "catalog", PART),
    Case("tensor: grid that is not there", tensor(W, where=99), "not there", "catalog", PART),
    Case("tensor: grid -1", tensor(W, where=-1), "refused", "catalog", PART),
    Case("tensor: grid 2^62", tensor(W, where=1 << 62), "refused", "catalog", PART),
    Case("tensor: pack that is not there", tensor(B, packs=[2]), "packs", "catalog", PART),
    Case("tensor: pack -3", tensor(B, packs=[-3]), "packs", "catalog", PART),
    Case("tensor: pack 2^62", tensor(B, packs=[1 << 62]), "packs", "catalog", PART),
    Case("tensor: pack -2^63", tensor(B, packs=[-(1 << 63)]), "packs", "catalog", PART),
    Case("tensor: pack of 30 digits", tensor(B, packs=[10**30]), "packs", "catalog", PART),
    Case("tensor: no packs", tensor(B, packs=[]), "more than 0 blocks", "catalog", PART),
    Case("tensor: too many packs", tensor(B, packs=[1] * 100_000), "names 100000 packs", "catalog", PART),
    Case("tensor: a pack that lacks its key", tensor(W, packs=[1]), "", "all", "packs/",
         kinds=("missing", "corrupt")),
    Case("tensor: a name that no pack has", tensor(Z, name="zz"), "holds no tensor", "all", "packs/",
         kinds=("missing",)),
    Case("tensor: said to be a frame", tensor(Z, packs=[-2]), "frame", "all", "packs/"),
    Case("tensor: of the same width in another dtype", tensor(B, dtype="uint8"), "not those of its box", "all",
         "packs/", kinds=("corrupt",)),
    Case("tensor: of the same bytes in another shape", tensor(B, shape=[2, 3]), "not those of its box", "all",
         "packs/", kinds=("corrupt",)),
    Case("block: of a rank of the other part", tensor(U, where=[[1, [0], [1]]]), "another part", "catalog", PART),
    Case("block: of rank 2^62", tensor(U, where=[[1 << 62, [0], [1]]]), "refused", "catalog", PART),
    Case("block: outside", tensor(U, where=[[0, [1001], [1002]]]), "outside", "catalog", PART),
    Case("block: ends before it starts", tensor(U, where=[[0, [1], [0]]]), "end before it starts", "catalog", PART),
    Case("block: of another number of dims", tensor(U, where=[[0, [0, 0], [1, 1]]]), "outside", "catalog", PART),
    Case("block: of two numbers of dims", tensor(U, where=[[0, [0], [1, 1]]]), "bounds", "catalog", PART),
    Case("block: negative", tensor(U, where=[[0, [-1], [1]]]), "refused", "catalog", PART),
    Case("blocks: overlap", tensor(U, where=[[0, [0], [2]]]), "elements", "catalog", "parts/"),
    Case("blocks: one twice", tensor(U, where=[[0, [0], [1]]] * 2, packs=[0, 0]), "", "catalog", "parts/"),
    Case("blocks: a gap", entries(T, lambda e: e.pop(U)), "elements", "catalog", "parts/"),
    Case("blocks: a block of a grid is left out", entries(T, lambda e: e.pop(W)), "other names", "catalog", "parts/"),
    Case("local: of the other rank", entries(L, lambda e: e[0].__setitem__(1, 1)), "another part", "catalog", PART),
    Case("local: of rank 2^62", entries(L, lambda e: e[0].__setitem__(1, 1 << 62)), "refused", "catalog", PART),
    Case("local: outside", entries(L, lambda e: e[0].__setitem__(4, [[[0], [6]]])), "outside", "catalog", PART),
    Case("local: 2^53 elements, of which 5 are there", entries(L, lambda e: e[0].__setitem__(3, [1 << 53])),
         "holds no tensor", kinds=("missing",)),
    Case("local: twice", entries(L, lambda e: e.append(e[0])), "not sorted", "catalog", PART),
    Case("alias: of what is not there", entries("aliases", lambda e: e[0].__setitem__(1, "nothing")), "nothing",
         "catalog", PART),
    Case("alias: is the name of another", entries("aliases", lambda e: e[0].__setitem__(0, "b")),
         "two different tensors", "catalog", "parts/"),
    Case("alias: another tensor's in the other part", entries("aliases", lambda e: e[0].__setitem__(1, "b")),
         "two different tensors", "catalog", "parts/"),
]  # fmt: skip

COLLIDING = dumps({"$": "dict", "v": [[{"$": "int", "v": hex(n * ((1 << 61) - 1))}, 0] for n in range(1, 60_000)]})
BAD_VALUES: dict[str, tuple[bytes, str]] = {
    "of an unknown type": (b'{"$":"os.system","v":"true"}', "unknown type"),
    "whose type is a list": (b'{"$":["int"],"v":"0x1"}', "no name"),
    "whose type is null": (b'{"$":null}', "no name"),
    "that is no int": (b'{"$":"int","v":"__import__"}', "malformed"),
    "that is an int of 1.5": (b'{"$":"int","v":1.5}', "malformed"),
    "that is a short float": (b'{"$":"float","v":"00"}', "malformed"),
    "that is no base64": (b'{"$":"bytes","v":"!!"}', "malformed"),
    "that is a dict of three": (b'{"$":"dict","v":[[1,2,3]]}', "malformed"),
    "that is a dict with a list as key": (b'{"$":"dict","v":[[[1],2]]}', "malformed"),
    "that is a set of dicts": (b'{"$":"set","v":[{}]}', "malformed"),
    "that is a tuple of text": (b'{"$":"tuple","v":"abc"}', "list should be"),
    "that is a range of step 0": (b'{"$":"range","v":[0,1,0]}', "malformed"),
    "that is an array of objects": (b'{"$":"np.array","dtype":"|O","shape":[1],"v":"AAAAAAAAAAA="}', "does not hold"),
    "that is an array of a record": (b'{"$":"np.array","dtype":"i4,i4","shape":[1],"v":"AAAAAAAAAAA="}',
                                     "does not hold"),
    "that is an array of 2^62": (b'{"$":"np.array","dtype":"<i8","shape":[4611686018427387904],"v":""}', "malformed"),
    "that is an array of overflow": (b'{"$":"np.array","dtype":"<i8","shape":[4294967296,4294967296],"v":""}',
                                     "malformed"),
    "that is an array of a giant text": (b'{"$":"np.array","dtype":"<U999999999","shape":[1],"v":"AAAA"}',
                                         "malformed"),
    "that is an array of -1": (b'{"$":"np.array","dtype":"<i2","shape":[-1],"v":"AAAA"}', "shape"),
    "that is an array of too few bytes": (b'{"$":"np.array","dtype":"<i2","shape":[9],"v":"AAAA"}', "malformed"),
    "that is an array without a shape": (b'{"$":"np.array","dtype":"<i2","v":"AAAA"}', "malformed"),
    "that is an array of no letters": (b'{"$":"np.array","dtype":"<U1","shape":[1],"v":"/////w=="}', ""),
    "that is a dict of colliding keys": (COLLIDING, "collide"),
    "that is a set of colliding keys": (COLLIDING.replace(b'"dict"', b'"set"').replace(b"[{", b"{").replace(
        b"},0]", b"}").replace(b'"v":{', b'"v":[{'), "collide"),
    "that is 1000 deep": (b"[" * 1000 + b"]" * 1000, "deep|recursion"),
    "that is 10 MB of [": (b"[" * (5 << 20) + b"]" * (5 << 20), "deep|recursion"),
    "that is 200 tuples deep": (b'{"$":"tuple","v":[' * 200 + b"]}" * 200, "deep|recursion"),
    "that is NaN": (b"NaN", "refused"),
    "that is 1e400": (b"1e400", ""),
    "that is -0": (b"-0", "another way"),
    "that is 0.10": (b"0.10", "another way"),
    "that is an int of 5000 digits": (b"9" * 5000, ""),
    "with a key twice": (b'{"a":1,"a":2}', "another way"),
    "with a control character": (b'"\x00"', "refused"),
}  # fmt: skip
VALUES = [Case(f"value: {name}", value(data), words) for name, (data, words) in BAD_VALUES.items()] + [
    Case("value: of the other rank", entries("values", lambda e: e[0].__setitem__(1, 1)), "", file="parts/"),
    Case("value: of rank 2^62", entries("values", lambda e: e[0].__setitem__(1, 1 << 62)), "", file="parts/"),
    Case("value: there in both parts", lambda run: run.entries(
        "values", lambda e: e.append(["lr", None, 0.2]), part=1), "twice", file="parts/"),
]  # fmt: skip

CASES = [*RECORD, *INDEX, *LEAVES, *VALUES]

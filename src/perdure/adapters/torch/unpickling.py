"""Understand pickles of others without running them: an interpreter that can build containers, and what it is handed.

A pickle is a program that names functions and calls them. Python's own machine imports whatever is named; this one
never imports. A name is looked up in a closed table (`find`), whose functions are perdure's own and inert; any other is
refused by its full name before it could be called. The opcodes are those that ``torch.save`` and ``pickle.dumps`` up to
protocol 4 write. What a hostile file may cost is bounded: how many opcodes run, how many bytes of objects they make,
how deep marks and keys go. Cycles and shared references are kept as references; whoever walks the result must count.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from perdure.errors import FormatRefused

__all__ = ["Inert", "Limits", "Malformed", "State", "unpickle"]


class Malformed(Exception):
    """Raised by inert functions for arguments that their name does not take; becomes a `FormatRefused`."""


@dataclass(frozen=True, slots=True)
class Inert:
    """A name of the closed table. ``build`` makes what a call of it stands for; None: it is only named, not called."""

    name: str
    build: Callable[..., Any] | None = None


class State:
    """What takes a state after it was made (the opcode BUILD); each kind checks its own."""

    __slots__ = ()

    def set_state(self, state: Any) -> None:
        """Take ``state``; raise `Malformed` if it is none of this kind."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one pickle may cost: a part that is free, and on top as much for each of its bytes as real ones need."""

    pickle_bytes: int = 256 << 20
    opcodes: int = 500_000
    opcodes_a_byte: float = 0.5
    object_bytes: int = 24 << 20
    object_bytes_a_byte: int = 32
    marks: int = 500
    int_bytes: int = 128


_U8, _U16, _U32, _U64, _I32, _F64 = map(struct.Struct, ("<B", "<H", "<I", "<Q", "<i", ">d"))
_ATOMS = (str, int, float, bool, bytes, type(None))
_CONTAINER_BYTES: dict[Any, int] = {list: 64, tuple: 48, dict: 72, set: 224}
_ENTRY_BYTES: dict[Any, int] = {list: 8, tuple: 8, dict: 104, set: 72}


def unpickle(
    data: memoryview,
    *,
    file: str,
    find: Callable[[str], Any],
    persistent: Callable[[Any], Any] | None = None,
    start: int = 0,
    limits: Limits | None = None,
) -> tuple[Any, int]:
    """Return the object that the pickle at ``start`` describes, and where the pickle ends.

    ``find`` gets ``module.name`` and returns what stands for it, mostly an `Inert`, or raises; ``persistent`` gets what
    the writer stored in the place of an object. Raises `FormatRefused` for all that is not understood.
    """
    machine = _Machine(data, start, file, find, persistent, limits or Limits())
    try:
        return machine.run(), machine.at
    except Malformed as error:
        machine.refuse(str(error))
    except RecursionError:
        machine.refuse("its objects are nested too deep")


class _Machine:
    """The stack machine of pickle. ``stack`` holds what came after the last mark, ``outer`` what came before."""

    def __init__(
        self,
        data: memoryview,
        start: int,
        file: str,
        find: Callable[[str], Any],
        persistent: Callable[[Any], Any] | None,
        limits: Limits,
    ) -> None:
        self.data, self.at, self.file = data, start, file
        self.find, self.persistent, self.limits = find, persistent, limits
        self.end = min(len(data), start + limits.pickle_bytes)
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        size = self.end - start
        self.budget = limits.object_bytes + limits.object_bytes_a_byte * size
        self.opcodes = limits.opcodes + int(limits.opcodes_a_byte * size)

    def refuse(self, why: str) -> NoReturn:
        raise FormatRefused(f"{self.file} is refused: {why}; nothing of it was run", file=self.file, why=why)

    def run(self) -> Any:
        """Carry out opcodes until STOP."""
        ops, data = _OPS, self.data
        for _ in range(self.opcodes):
            if self.at >= self.end:
                self.refuse("its pickle ends in the middle")
            code = data[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                if len(self.stack) != 1 or self.outer:
                    self.refuse("its pickle leaves other than one object")
                return self.stack[0]
            op = ops.get(code)
            if op is None:
                self.refuse(f"its pickle has the opcode 0x{code:02x}, which torch.save does not write")
            op(self)
        self.refuse(f"its pickle takes more than {self.opcodes:,} steps, far more than a checkpoint of its size")

    # What opcodes are made of.

    def take(self, nbytes: int) -> memoryview:
        if nbytes > self.end - self.at:
            self.refuse("its pickle ends in the middle")
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def number(self, form: struct.Struct) -> Any:
        if form.size > self.end - self.at:
            self.refuse("its pickle ends in the middle")
        self.at += form.size
        return form.unpack_from(self.data, self.at - form.size)[0]

    def charge(self, nbytes: int) -> None:
        self.budget -= nbytes
        if self.budget < 0:
            self.refuse("its pickle makes more objects than a checkpoint of its size has")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack:
            self.refuse("its pickle takes from an empty stack")
        return self.stack.pop()

    def top(self) -> Any:
        if not self.stack:
            self.refuse("its pickle takes from an empty stack")
        return self.stack[-1]

    def mark(self) -> None:
        if len(self.outer) >= self.limits.marks:
            self.refuse("its objects are nested too deep")
        self.charge(64)
        self.outer.append(self.stack)
        self.stack = []

    def to_mark(self) -> list[Any]:
        if not self.outer:
            self.refuse("its pickle ends a group that it never began")
        items, self.stack = self.stack, self.outer.pop()
        return items

    def text(self, nbytes: int) -> None:
        self.charge(50)
        raw = bytes(self.take(nbytes))
        self.charge(4 * nbytes if not raw.isascii() else nbytes)
        try:
            self.push(raw.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            self.refuse("its pickle holds text that is no UTF-8")

    def raw(self, nbytes: int) -> None:
        self.charge(40 + nbytes)
        self.push(bytes(self.take(nbytes)))

    def integer(self, nbytes: int) -> None:
        if nbytes > self.limits.int_bytes:
            self.refuse(f"its pickle holds an integer of {nbytes} bytes")
        self.charge(32 + nbytes)
        self.push(int.from_bytes(self.take(nbytes), "little", signed=True))

    def new(self, value: Any) -> None:
        kind = type(value)
        self.charge(_CONTAINER_BYTES[kind] + _ENTRY_BYTES[kind] * len(value))
        self.push(value)

    def put(self, slot: int) -> None:
        if slot not in self.memo:
            self.charge(100)
        self.memo[slot] = self.top()

    def get(self, slot: int) -> None:
        if slot not in self.memo:
            self.refuse("its pickle refers to an object that is not there")
        self.push(self.memo[slot])

    def named(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            self.refuse("its pickle names something by what is no text")
        self.push(self.find(f"{module}.{name}"))

    def line(self) -> str:
        """The text up to the next end of line."""
        window = bytes(self.data[self.at : min(self.end, self.at + 512)])
        length = window.find(b"\n")
        if length < 0:
            self.refuse("its pickle holds a name that does not end")
        self.at += length + 1
        try:
            return window[:length].decode()
        except UnicodeDecodeError:
            self.refuse("its pickle holds a name that is no text")

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if type(function) is not Inert or function.build is None:
            shown = function.name if type(function) is Inert else f"a {type(function).__name__}"
            self.refuse(f"its pickle calls {shown}, which makes nothing")
        if type(arguments) is not tuple:
            self.refuse(f"its pickle calls {function.name} with no tuple of arguments")
        self.charge(200 + _weight(arguments))
        try:
            self.push(function.build(*arguments))
        except TypeError as error:
            self.refuse(f"its pickle calls {function.name} with arguments that it does not take: {error}")

    def append(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            self.refuse(f"its pickle appends to a {type(target).__name__}")
        self.charge(8 * len(items))
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, dict) or len(items) % 2:
            self.refuse(f"its pickle sets items of a {type(target).__name__}, or a key without a value")
        self.charge(_ENTRY_BYTES[dict] * len(items))
        for i in range(0, len(items), 2):
            target[self.key(items[i])] = items[i + 1]

    def add_items(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not set:
            self.refuse(f"its pickle adds to a {type(target).__name__}")
        self.charge(_ENTRY_BYTES[set] * len(items))
        target.update(self.key(item) for item in items)

    def key(self, value: Any) -> Any:
        """``value``, if it is small and plain enough that to hash it costs nothing and calls nothing."""
        parts = value if type(value) is tuple and len(value) <= 64 else (value,)
        for part in parts:
            inner = part if isinstance(part, tuple) and len(part) <= 64 else (part,)
            for each in inner:
                if type(each) not in _ATOMS and not getattr(type(each), "plain_key", False):
                    self.refuse(f"its pickle has a {type(each).__name__} as a key")
                if type(each) is int and each.bit_length() > 64:
                    self.refuse("its pickle has a huge integer as a key")
        return value

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if isinstance(target, State):
            self.charge(_weight(state) if type(state) is tuple else 0)
            target.set_state(state)
        elif not isinstance(target, dict) or type(state) is not dict:  # a dict with attributes: they are left out
            self.refuse(f"its pickle gives a state to a {type(target).__name__}")

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        self.named(module, name)

    def global_(self) -> None:
        module = self.line()
        self.named(module, self.line())

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            self.refuse("its pickle takes from an empty stack")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.new(items)

    def persistent_id(self) -> None:
        if self.persistent is None:
            self.refuse("its pickle refers to an object outside of it")
        self.charge(120)
        self.push(self.persistent(self.pop()))

    def one(self) -> list[Any]:
        return [self.pop()]

    def two(self) -> list[Any]:
        value, key = self.pop(), self.pop()
        return [key, value]

    def protocol(self) -> None:
        if self.take(1)[0] > 5:
            self.refuse("its pickle is of a protocol that this release does not read")

    def memoize(self) -> None:
        self.put(len(self.memo))

    def frozen(self) -> None:
        items = self.to_mark()
        self.charge(224 + 72 * len(items))
        self.push(frozenset(self.key(item) for item in items))


def _weight(parts: tuple[Any, ...]) -> int:
    """Bytes that a call may make of ``parts``, at most: references are short, what is made of them is not."""
    each: dict[Any, int] = {list: 80, tuple: 80, str: 1, bytes: 1}
    return sum(each[type(part)] * len(part) for part in parts if type(part) in each)


def _drop(_: object) -> None:
    """What an opcode took is of no use."""


_OPS: dict[int, Callable[[_Machine], None]] = {
    ord("\x80"): _Machine.protocol,
    ord("\x95"): lambda m: _drop(m.take(8)),  # FRAME: how far to read ahead
    ord("("): _Machine.mark,
    ord("0"): lambda m: _drop(m.pop()),
    ord("1"): lambda m: _drop(m.to_mark()),
    ord("N"): lambda m: m.push(None),
    ord("\x88"): lambda m: m.push(True),
    ord("\x89"): lambda m: m.push(False),
    ord("K"): lambda m: m.push(m.number(_U8)),
    ord("M"): lambda m: m.push(m.number(_U16)),
    ord("J"): lambda m: m.push(m.number(_I32)),
    ord("\x8a"): lambda m: m.integer(m.number(_U8)),
    ord("\x8b"): lambda m: m.integer(m.number(_U32)),
    ord("G"): lambda m: m.push(m.number(_F64)),
    ord("X"): lambda m: m.text(m.number(_U32)),
    ord("\x8c"): lambda m: m.text(m.number(_U8)),
    ord("\x8d"): lambda m: m.text(m.number(_U64)),
    ord("B"): lambda m: m.raw(m.number(_U32)),
    ord("C"): lambda m: m.raw(m.number(_U8)),
    ord("\x8e"): lambda m: m.raw(m.number(_U64)),
    ord("]"): lambda m: m.new([]),
    ord("}"): lambda m: m.new({}),
    ord(")"): lambda m: m.push(()),
    ord("\x8f"): lambda m: m.new(set()),
    ord("t"): lambda m: m.new(tuple(m.to_mark())),
    ord("l"): lambda m: m.new(m.to_mark()),
    ord("\x85"): lambda m: m.tuple_of(1),
    ord("\x86"): lambda m: m.tuple_of(2),
    ord("\x87"): lambda m: m.tuple_of(3),
    ord("a"): lambda m: m.append(m.one()),
    ord("e"): lambda m: m.append(m.to_mark()),
    ord("s"): lambda m: m.set_items(m.two()),
    ord("u"): lambda m: m.set_items(m.to_mark()),
    ord("\x90"): lambda m: m.add_items(m.to_mark()),
    ord("\x91"): _Machine.frozen,
    ord("q"): lambda m: m.put(m.number(_U8)),
    ord("r"): lambda m: m.put(m.number(_U32)),
    ord("\x94"): _Machine.memoize,
    ord("h"): lambda m: m.get(m.number(_U8)),
    ord("j"): lambda m: m.get(m.number(_U32)),
    ord("c"): _Machine.global_,
    ord("\x93"): _Machine.stack_global,
    ord("R"): _Machine.call,
    ord("\x81"): _Machine.call,  # NEWOBJ: to an inert name the same
    ord("b"): _Machine.build,
    ord("Q"): _Machine.persistent_id,
}

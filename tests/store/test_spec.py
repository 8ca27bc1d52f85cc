"""The specification's examples are what the code writes; `tests/test_golden.py` has whole runs."""

from __future__ import annotations

import ast
import inspect
import re
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example as tried
from hypothesis import given
from hypothesis import strategies as st

from perdure.adapters.torch import nested
from perdure.codec import header as frame_header
from perdure.codec.dtypes import DTYPES
from perdure.codec.stages import CODECS
from perdure.errors import FormatRefused, NotSerializable
from perdure.state import values
from perdure.state.values import decode_value, encode_value
from perdure.store.pack import PackItem, parse_header, plan_pack
from perdure.store.pack_header import CODES
from perdure.store.records import Epoch, _digest, decode, encode

SPEC = Path(__file__).parents[2] / "docs" / "spec" / "format-v1.md"


def example(title: str) -> str:
    """The indented block below the line of the specification that ends with ``title``."""
    found = re.search(rf"{re.escape(title)}\n\n((?:    .*\n)+)", SPEC.read_text("utf-8"))
    assert found, title
    return "".join(line[4:] + "\n" for line in found[1].splitlines())


def table(head: str) -> list[list[str]]:
    """The cells of the rows of the table whose first row is ``head``."""
    _, found, rest = SPEC.read_text("utf-8").partition(f"\n{head}\n")
    assert found, head
    _, *rows = rest.partition("\n\n")[0].splitlines()
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def code(cell: str) -> str:
    """What stands between the backquotes of a cell."""
    assert cell[0] == cell[-1] == "`", cell
    return cell[1:-1]


def spelled(number: float) -> str:
    """A double as "Spelling" says, from Python's shortest digits."""
    sign = "-" if struct.pack(">d", number)[0] & 0x80 else ""
    if number == 0:
        return f"{sign}0.0"
    mantissa, _, exponent = f"{abs(number)!r}".partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    at = len(whole) - 1 + int(exponent or 0) - (len(whole + part) - len(digits))  # of the first digit
    digits = digits.rstrip("0")
    if not -5 <= at <= 15:
        return f"{sign}{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{at}"
    if at < 0:
        return f"{sign}0.{'0' * (-at - 1)}{digits}"
    return f"{sign}{digits[: at + 1].ljust(at + 1, '0')}.{digits[at + 1 :] or '0'}"


def double(text: str) -> float:
    """A cell such as ``-1.25 x 10^-7``."""
    if text == "-0":
        return -0.0
    factor, _, power = text.rpartition(" x ")
    found = Fraction(factor) if factor else Fraction(1)
    if "^" in power:
        base, _, exponent = power.partition("^")
        found *= Fraction(base) ** int(exponent)
    else:
        found *= Fraction(power)
    return float(found)


def test_the_examples_of_doubles_are_what_is_written() -> None:
    rows = table("| double | spelling |")
    assert len(rows) > 8
    for number, spelling in rows:
        assert msgspec.json.encode(double(number)).decode() == code(spelling)


@given(st.floats(allow_nan=False, allow_infinity=False))
@tried(1e15)
@tried(9999999999999998.0)
@tried(1e16)
@tried(1e21)
@tried(1e22)
@tried(1e-5)
@tried(9.999e-6)
@tried(-0.0)
@tried(5e-324)
@tried(1.7976931348623157e308)
def test_every_double_is_written_as_the_rule_says(number: float) -> None:
    assert msgspec.json.encode(number).decode() == spelled(number)
    assert float(spelled(number)) == number


def test_the_examples_of_texts_are_what_is_written() -> None:
    rows = table("| text, by code points | spelling |")
    assert len(rows) > 4
    for points, spelling in rows:
        text = "".join(chr(int(point, 16)) for point in points.split())
        assert msgspec.json.encode(text).decode() == code(spelling)


def test_every_letter_is_written_as_the_rule_says() -> None:
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
    for point in (*range(0xD800), *range(0xE000, 0x11000), 0x1F600, 0x10FFFF):
        letter = chr(point)
        stands = short.get(letter, letter if point >= 0x20 else f"\\u00{point:02x}")
        assert msgspec.json.encode(letter) == f'"{stands}"'.encode()


def test_a_record_with_a_number_or_text_in_another_spelling_is_refused() -> None:
    record = Epoch(run="0" * 32, epoch=1, owner="/\x7f", created=1e16, token="0" * 32)
    for mine, other in (("1e16", "10000000000000000.0"), ("1e16", "1e+16"), ("/", "\\/"), ("\x7f", "\\u007f")):
        _, _, body = encode(record).decode().rstrip("}\n").partition('"body":')
        assert mine in body
        body = body.replace(mine, other) + "}"
        digest = _digest("epoch", 1, body.encode())
        text = f'{{"perdure":"epoch","format":1,"digest":"{digest}","body":{body}}}\n'
        with pytest.raises(FormatRefused, match="spelling"):
            decode(text.encode(), Epoch, file="example")


def test_the_table_of_dtypes_is_that_of_the_code() -> None:
    rows = table("| dtype | bits | in a pack | number in a frame |")
    assert [(code(name), int(bits), code(stored), int(number)) for name, bits, stored, number in rows] == [
        (each.name, each.bits, CODES[each.name][0] if each.name in CODES else "U8 [nbytes]", each.number)
        for each in DTYPES.values()
    ]
    assert set(CODES) <= set(DTYPES)


def tags() -> set[str]:
    """Every tag that the code reads: what it compares tags with, its tables, and what adapters register."""
    tree = ast.parse(inspect.getsource(values._decode_tagged))
    compared = {
        constant.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Compare) and isinstance(each.left, ast.Name) and each.left.id == "tag"
        for constant in ast.walk(each)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }
    assert {"int", "bytes", "np.scalar"} <= compared
    return compared | {*values._DICTS, *values._SEQUENCES, *values._readers}


def test_every_tag_of_values_is_in_the_table_with_an_example_that_is_what_is_written() -> None:
    assert nested.TensorRef in values._writers  # torch's are registered
    rows = table("| `$` | `v`, and what else | example |")
    written = {tag for tag in tags() if not tag.startswith("test.")}
    assert sorted(code(tag) for tag, *_ in rows) == sorted(written)
    for tag, _, text in rows:
        read: Any = msgspec.json.decode(code(text))
        assert read["$"] == code(tag)
        again = encode_value(decode_value(read, key="k"), key="k")
        assert msgspec.json.encode(again).decode() == code(text)


def test_values_are_as_deep_and_integers_as_large_as_the_specification_says() -> None:
    value: Any = 1
    for _ in range(56):
        value = [value]
    encode_value(value, key="k")
    with pytest.raises(NotSerializable):
        encode_value([value], key="k")
    assert encode_value(2**53, key="k") == 2**53
    assert encode_value(-(2**53) - 1, key="k") == {"$": "int", "v": "-0x20000000000001"}


def test_the_table_of_a_frame_is_that_of_the_code() -> None:
    rows = {at: (size, what) for at, size, what in table("| at | bytes | what |")}
    assert sorted(int(at) for at in rows if at) == [0, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 40]
    sizes = [int(size) for at, (size, _) in rows.items() if at and at != "40"]
    assert sizes == [struct.calcsize(f"<{each}") for each in re.findall(r"\d*s|[BHI]", frame_header._FIXED.format[1:])]
    assert rows["0"][1] == f"magic `{frame_header.MAGIC.decode()}`"
    assert rows["4"][1] == f"version, {frame_header.VERSION}"
    assert rows["5"][1].endswith(", ".join(f"{each.number} {name}" for name, each in CODECS.items()))
    assert rows["7"][1].endswith(f"at most {frame_header.MAX_DIMS}")
    assert rows["9"][1].endswith(f"{frame_header.TILE_LOG2[0]} to {frame_header.TILE_LOG2[-1]}")


def test_the_example_of_a_record_is_what_is_written() -> None:
    record = Epoch(run="0" * 31 + "1", epoch=1, owner="node1", created=1767225600.0, token="0" * 31 + "2")
    text = example("Example of a record:")
    assert encode(record).decode() == text
    assert decode(text.encode(), Epoch, file="example") == record


def test_the_example_of_a_pack_is_what_is_written() -> None:
    plan = plan_pack([PackItem("w", "float32", (2,), 8), PackItem("b", "bfloat16", (1,), 2)])
    header = plan.render_header(bytes(range(32)))
    text = example("before its spaces, begins and reads:")
    length, json_ = text.split("\n", 1)
    assert header[:8].hex(" ") == length
    assert header[8:].rstrip().decode() == json_.rstrip("\n").replace("\n", "")
    index = parse_header(lambda start, nbytes: header[start : start + nbytes], plan.total_nbytes)
    assert [(entry.key, entry.start) for entry in index.entries] == [("w", 4096), ("b", 4160)]
    assert index.digest(1) == bytes(range(16, 32))

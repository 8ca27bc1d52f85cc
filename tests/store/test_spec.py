"""The specification's examples are what the code writes; `tests/test_golden.py` has whole runs."""

from __future__ import annotations

import re
from pathlib import Path

from perdure.store.pack import PackItem, parse_header, plan_pack
from perdure.store.records import Epoch, decode, encode

SPEC = Path(__file__).parents[2] / "docs" / "spec" / "format-v1.md"


def example(title: str) -> str:
    """The indented block below the line of the specification that ends with ``title``."""
    found = re.search(rf"{re.escape(title)}\n\n((?:    .*\n)+)", SPEC.read_text("utf-8"))
    assert found, title
    return "".join(line[4:] + "\n" for line in found[1].splitlines())


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

"""The specification's examples are what the code writes, and runs of every release stay readable."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.store.disk import Disk
from perdure.store.lineage import Run
from perdure.store.pack import PackItem, parse_header, plan_pack
from perdure.store.records import Commit, Epoch, decode, encode

SPEC = Path(__file__).parents[2] / "docs" / "spec" / "format-v1.md"
GOLDEN = Path(__file__).parent / "golden"


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


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_runs_of_every_release_are_read(name: str, assert_whole: Callable[[Run, Commit], None]) -> None:
    run = Run.open(Disk(GOLDEN / name), create=False)
    assert [(commit.slot, commit.step, commit.epoch) for commit in run.chain()] == [(3, 15, 2), (1, 10, 1)]
    for slot in (1, 2, 3):
        assert_whole(run, run.read_slot(slot))


def test_what_is_written_today_is_what_the_release_wrote() -> None:
    store = Disk(GOLDEN / "format-v1")
    for slot in (1, 2, 3):
        name = f"slots/{slot:010d}.json"
        data = bytes(store.read(name))
        assert encode(decode(data, Commit, file=name)) == data

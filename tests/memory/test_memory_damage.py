"""Whatever becomes of the files of a space, a call ends with a result or with an error that says what to do."""

from __future__ import annotations

import functools
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.errors import BlobCorrupt, PerdureError
from perdure.memory import Memory

CUT_WHILE_OPEN = """
import os, sys
from perdure.memory import Memory
memory = Memory(sys.argv[1])
memory.observe_many([{"text": f"I visited place{at} with Bob{at % 7}."} for at in range(2000)])
memory.search("place7")
os.truncate(memory.folder / sys.argv[2], int(sys.argv[3]))
for question in ("place9", "Bob1", "place1999"):
    assert memory.search(question)
assert memory.doctor() == [] or memory.doctor(repair=True) is not None
print(len(memory.search("place1500")))
"""


@pytest.mark.parametrize(("file", "nbytes"), [("index.db", 16384), ("index.db", 4096), ("index.db", 0)])
def test_an_index_that_is_cut_off_while_it_is_open_is_made_again(tmp_path: Path, file: str, nbytes: int) -> None:
    command = [sys.executable, "-c", CUT_WHILE_OPEN, str(tmp_path), file, str(nbytes)]
    done = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip() != "0") == (0, True), done.stderr


def test_only_this_user_may_enter_the_folder_of_a_memory(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Memory(tmp_path / "new").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    os.chmod(tmp_path / "new", 0o755)
    Memory(tmp_path / "new").close()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o755


CALLS: dict[str, Callable[[Memory], object]] = {
    "search": lambda memory: memory.search("place7"),
    "ask": lambda memory: memory.ask("What is my cat called?"),
    "observe": lambda memory: memory.observe("More text."),
    "topics": lambda memory: memory.topics(),
    "doctor": lambda memory: memory.doctor(),
    "repair": lambda memory: memory.doctor(repair=True),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    with Memory(root) as memory:
        memory.observe_many(
            [{"text": f"I visited place{at} with Bob{at % 7}.", "speaker": "Anna"} for at in range(300)]
        )
        memory.observe("My cat is called Miso.", speaker="Anna")
        memory.consolidate()
        memory.search("cat")
    return root


def failed(call: Callable[[], object]) -> str:
    """What an error of perdure said; nothing where there was none."""
    try:
        call()
    except PerdureError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("flips", [1, 5, 200])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("file", ["ledger.db", "index.db"])
def test_flipped_bytes_end_in_an_error_that_says_what_to_do(
    tmp_path: Path, whole: Path, file: str, seed: int, flips: int
) -> None:
    shutil.copytree(whole, tmp_path / "m")
    path = tmp_path / "m" / "default" / file
    data, chance = bytearray(path.read_bytes()), random.Random(seed * 1000 + flips)
    for _ in range(flips):
        data[chance.randrange(4096, len(data))] ^= 0xFF
    path.write_bytes(data)
    said = failed(lambda: Memory(tmp_path / "m").close())
    assert ("backup" in said) if said else True
    if said:
        assert file == "ledger.db"
        return
    with Memory(tmp_path / "m") as memory:
        wrong = {name: why for name, call in CALLS.items() if (why := failed(functools.partial(call, memory)))}
        assert not wrong or file == "ledger.db"
        if file == "index.db":
            assert memory.doctor() == []


def test_text_that_is_no_utf8_is_damage(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("My cat is called Miso.", speaker="Anna")
        with memory._ledger.change() as db:
            db.execute("UPDATE evidence SET speaker = CAST(x'ff41' AS TEXT)")
        with pytest.raises(BlobCorrupt, match="backup"):
            memory.search("cat")
        assert [each.kind for each in memory.doctor()] == []  # what it reads is whole


def test_an_index_that_cannot_be_read_is_repaired(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "m")
    (tmp_path / "m" / "default" / "index.db").write_bytes(b"garbage " * 5000)
    with Memory(tmp_path / "m") as memory:
        assert [(each.kind, each.repaired) for each in memory.doctor()] == [("index", False)]
        assert [(each.kind, each.repaired) for each in memory.doctor(repair=True)] == [("index", True)]
        assert memory.doctor() == []
        assert memory.search("place7")


def test_an_export_of_damaged_rows_is_refused(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("My cat is called Miso.", meta={"n": "one"})
        with memory._ledger.change() as db:
            db.execute("UPDATE evidence SET meta = x'00ff'")
        with pytest.raises(BlobCorrupt, match="backup"):
            memory.export(tmp_path / "out.jsonl")
        assert not (tmp_path / "out.jsonl").exists()

"""Whatever becomes of the files of a space, a call ends with a result or with an error that says what to do."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

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

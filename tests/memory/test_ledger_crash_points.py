"""Every write and every sync of a ledger is a crash point: counted by a library that is loaded before libc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.memory import Memory
from perdure.memory.ledger import Ledger

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int calls;

static void note(const char *what, int fd) {
    static int log = -1;
    char link[64], path[512], line[640];
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return;
    path[n] = 0;
    const char *last = strrchr(path, '/');
    last = last ? last + 1 : path;
    if (fd != 1 && strncmp(last, "ledger.db", 9) && strncmp(last, ".new-", 5) && strcmp(last, "default")) return;
    if (log < 0) log = open(getenv("CALLS"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    n = snprintf(line, sizeof line, "%s %s\n", what, fd == 1 ? "said" : last);
    real(log, line, n);
    const char *die = getenv("DIE_AT");
    if (die && ++calls == atoi(die)) kill(getpid(), SIGKILL);
}

#define WRAP(type, name, params, args, what)                     \
    type name params {                                           \
        static type(*real) params;                               \
        if (!real) real = (type(*) params)dlsym(RTLD_NEXT, #name); \
        note(what, fd);                                          \
        return real args;                                        \
    }

WRAP(ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n), "write")
WRAP(ssize_t, pwrite, (int fd, const void *b, size_t n, off_t at), (fd, b, n, at), "write")
WRAP(ssize_t, pwrite64, (int fd, const void *b, size_t n, off64_t at), (fd, b, n, at), "write")
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), "cut")
WRAP(int, ftruncate64, (int fd, off64_t n), (fd, n), "cut")
WRAP(int, fsync, (int fd), (fd), "sync")
WRAP(int, fdatasync, (int fd), (fd), "sync")
"""

TELLER = """
import sys
from pathlib import Path
from perdure.memory import Memory
with Memory(Path(sys.argv[1])) as memory:
    for number in range(3):
        done = memory.observe(f"number {number} is told. And more.", key=str(number))
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("CRASH POINTS ARE NOT TESTED: there is no C compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "calls.c").write_text(LIBRARY)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / "calls.so"), str(folder / "calls.c"), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return folder / "calls.so"


def told_under(library: Path, root: Path, *, die_at: int = 0) -> tuple[list[str], list[str]]:
    """What it said, and the calls that it made (write, sync, cut of a file of the ledger, or what was said)."""
    log = root.with_name(f"{root.name}.calls")
    environment = os.environ | {"LD_PRELOAD": str(library), "CALLS": str(log)}
    if die_at:
        environment["DIE_AT"] = str(die_at)
    done = subprocess.run(
        [sys.executable, "-c", TELLER, str(root)], env=environment, stdout=subprocess.PIPE, text=True, timeout=60
    )
    return done.stdout.split(), log.read_text().splitlines()


def check_synced(calls: list[str]) -> None:
    """Whatever was written to the log is synced before the next word is said."""
    dirty: set[str] = set()
    for call in calls:
        what, name = call.split(" ", 1)
        if name == "said":
            assert "ledger.db-wal" not in dirty
        elif what == "write":
            dirty.add(name)
        elif what == "sync":
            dirty.discard(name)


def test_nothing_is_acknowledged_before_it_is_synced_and_its_folder_before_that(tmp_path: Path, library: Path) -> None:
    said, calls = told_under(library, tmp_path / "m")
    assert said == ["0", "1", "2"]
    check_synced(calls)
    first = calls.index("write said")
    assert "sync default" in calls[:first]
    between = calls[first : len(calls) - calls[::-1].index("write said")]
    assert between.count("sync ledger.db-wal") == 2  # one for each that was told, and no other
    assert [each for each in between if each.startswith("sync")] == ["sync ledger.db-wal"] * 2


def check_killed(library: Path, root: Path, die_at: int) -> None:
    said, _ = told_under(library, root, die_at=die_at)
    with Memory(root) as memory:
        rows = memory._ledger.connection().execute("SELECT identity FROM evidence ORDER BY id").fetchall()
        assert [row[0] for row in rows][: len(said)] == [f"k:{each}" for each in said]
        assert len(rows) <= len(said) + 1
        for number in range(3):
            memory.observe(f"number {number} is told. And more.", key=str(number))
        assert memory.status().facts == 6
        assert memory.doctor() == []


def test_killed_at_some_writes_and_syncs_it_keeps_what_it_acknowledged(tmp_path: Path, library: Path) -> None:
    _, calls = told_under(library, tmp_path / "whole")
    for die_at in range(1, len(calls) + 1, max(1, len(calls) // 5)):
        check_killed(library, tmp_path / str(die_at), die_at)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_every_write_and_sync_it_keeps_what_it_acknowledged(tmp_path: Path, library: Path) -> None:
    _, calls = told_under(library, tmp_path / "whole")
    assert len(calls) > 40
    for die_at in range(1, len(calls) + 1):
        check_killed(library, tmp_path / str(die_at), die_at)


def test_a_checkpoint_that_is_torn_anywhere_loses_nothing(tmp_path: Path) -> None:
    def bytes_of(path: Path) -> bytes:
        return subprocess.run(["cat", str(path)], stdout=subprocess.PIPE, check=True, timeout=30).stdout

    with Memory(tmp_path / "m") as memory:
        for number in range(12):
            memory.observe(f"number {number} is told. And more. " * 20, key=str(number))
        before, wal = bytes_of(memory.folder / "ledger.db"), bytes_of(memory.folder / "ledger.db-wal")
        path = memory.folder / "ledger.db"
    after = path.read_bytes()
    for pages in range(0, len(after) // 4096 + 1, 3):
        for torn in (0, 1000):
            at = pages * 4096 + torn
            place = tmp_path / f"torn{at}"
            place.mkdir()
            (place / "ledger.db").write_bytes(after[:at] + before[at:])
            (place / "ledger.db-wal").write_bytes(wal)
            ledger = Ledger(place / "ledger.db")
            assert ledger.connection().execute("SELECT count(*) FROM fact").fetchone() == (12 * 40,)
            assert ledger.connection().execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            ledger.close()

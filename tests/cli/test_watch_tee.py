"""A command's stderr is passed on byte by byte and at once, and its lines are read beside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perdure.cli.watch_tee import Tee


def read_all(fd: int) -> bytes:
    found = b""
    while data := os.read(fd, 1 << 16):
        found += data
    return found


def test_every_byte_is_passed_on_and_lines_are_plain_text(tmp_path: Path) -> None:
    said = b"one\n\x1b[31mtwo\x1b[0m\n" + bytes(range(256)) + b"\n10%\r20%\nno end"
    source, theirs = os.pipe()
    with open(tmp_path / "sink", "wb") as sink:
        tee = Tee(source, sink.fileno(), node="a")
        for byte in said:
            os.write(theirs, bytes([byte]))
        os.close(theirs)
        tee.finish()
    assert (tmp_path / "sink").read_bytes() == said
    texts = [each.text for each in tee.lines()]
    assert (texts[:2], texts[-1]) == (["one", "two"], "20%")
    assert tee.lines() == []


def test_nothing_waits_for_an_end_of_line() -> None:
    source, theirs = os.pipe()
    back, sink = os.pipe()
    tee = Tee(source, sink)
    os.write(theirs, b"half a li")
    assert os.read(back, 100) == b"half a li"
    os.close(theirs)
    tee.finish()
    os.close(back)
    os.close(sink)


def test_of_a_storm_the_first_and_last_lines_are_kept_and_all_is_passed_on(tmp_path: Path) -> None:
    source, theirs = os.pipe()
    with open(tmp_path / "sink", "wb") as sink:
        tee = Tee(source, sink.fileno())
        lines = b"".join(b"line %d\n" % number for number in range(100_000))
        with os.fdopen(theirs, "wb") as out:
            out.write(lines)
        tee.finish(30.0)
    assert (tmp_path / "sink").read_bytes() == lines
    texts = [each.text for each in tee.lines()]
    assert (texts[0], texts[-1], len(texts), tee.dropped) == ("line 0", "line 99999", 2000, 98_000)


def test_a_sink_that_does_not_block_is_waited_for() -> None:
    source, theirs = os.pipe()
    back, sink = os.pipe()
    os.set_blocking(sink, False)
    tee = Tee(source, sink)
    with os.fdopen(theirs, "wb") as out:
        out.write(b"x" * 60_000)
        out.flush()
        time.sleep(0.1)
        found = os.read(back, 1 << 16)
        out.write(b"y" * 60_000)
    while len(found) < 120_000:
        found += os.read(back, 1 << 16)
    tee.finish()
    assert found == b"x" * 60_000 + b"y" * 60_000
    os.close(back)
    os.close(sink)


def test_a_command_learns_that_nobody_reads_its_errors() -> None:
    source, theirs = os.pipe()
    back, sink = os.pipe()
    os.close(back)
    tee = Tee(source, sink)
    os.write(theirs, b"gone")
    tee.finish()
    with pytest.raises(BrokenPipeError):
        os.write(theirs, b"more")
    os.close(theirs)
    os.close(sink)


def test_watching_passes_errors_on_unchanged_and_leaves_a_terminal_alone() -> None:
    tell = "import sys; sys.stderr.write('a\\rb' + str(sys.stderr.isatty())); sys.exit(3)"
    command = [sys.executable, "-m", "perdure", "watch", "--", sys.executable, "-c", tell]
    ended = subprocess.run(command, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr.startswith(b"a\rbFalse")) == (3, True)
    master, terminal = os.openpty()
    ended = subprocess.run(command, stderr=terminal, stdout=subprocess.DEVNULL, timeout=60)
    os.close(terminal)
    shown = os.read(master, 1 << 16)
    os.close(master)
    assert (ended.returncode, b"bTrue" in shown) == (3, True)

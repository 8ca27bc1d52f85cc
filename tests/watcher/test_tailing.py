"""Logs of ranks under writers that are fast, rotate, break off, and write what is no text."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from perdure.supervisor import output
from perdure.watcher.tailing import LONGEST_LINE, FileTail, LogTail, plain


def test_lines_come_whole_and_once(tmp_path: Path) -> None:
    path = tmp_path / "rank-3.log"
    path.write_text("one\ntw")
    tail = LogTail(tmp_path, node="n1")
    (line,) = tail.read(0.0)
    assert (line.text, line.rank, line.node, line.source, line.at_s) == ("one", 3, "n1", "rank", 0.0)
    with path.open("a") as file:
        file.write("o\nthree\n")
    assert [line.text for line in tail.read(0.5)] == ["two", "three"]
    assert tail.read(1.0) == []
    tail.close()


def test_only_logs_of_ranks_are_read_and_later_ones_too(tmp_path: Path) -> None:
    for name in ("rank-x.log", "rank-1.log.1", "notes.txt", "rank-1.txt"):
        (tmp_path / name).write_text("no\n")
    (tmp_path / "rank-9.log").mkdir()
    (tmp_path / "rank-8.log").symlink_to("/etc/hostname")
    tail = LogTail(tmp_path / "later")
    assert tail.read(0.0) == []
    tail = LogTail(tmp_path)
    assert tail.read(0.0) == []
    (tmp_path / "rank-12.log").write_text("yes\n")
    assert [(line.rank, line.text) for line in tail.read(1.0)] == [(12, "yes")]
    tail.close()


def test_what_is_there_already_is_left_out_if_asked_but_new_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("old\n")
    tail = LogTail(tmp_path, from_end=True)
    assert tail.read(0.0) == []
    (tmp_path / "rank-1.log").write_text("new\n")
    with (tmp_path / "rank-0.log").open("a") as file:
        file.write("more\n")
    assert sorted(line.text for line in tail.read(1.0)) == ["more", "new"]
    tail.close()


def test_last_words_without_an_end_are_given_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("Killed")
    tail = FileTail(path)
    assert tail.read(0.0, most_lines=9) == []
    assert tail.read(1.0, most_lines=9) == []
    assert tail.read(2.5, most_lines=9) == ["Killed"]
    with path.open("a") as file:
        file.write(" by whom\nnext\n")
    assert tail.read(3.0, most_lines=9) == ["next"]
    tail.close()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xfe caf\xc3\xa9\n", "\ufffd\ufffd caf\u00e9"),
        (b" 10%|#\r 20%|##\r\n", " 20%|##"),
        (b"\x1b[1;31mError\x1b[0m\x07: \x1b]0;title\x07x", "Error : x"),
        (b"a\x00b", "a b"),
        (b"", ""),
        (b"\xf0\x9f\x92\xa5", "\U0001f4a5"),
    ],
)
def test_any_bytes_become_text(data: bytes, text: str) -> None:
    assert plain(data) == text


def test_a_line_without_an_end_is_cut_and_the_next_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        for _ in range(40):
            file.write(b"x" * 50_000)
    tail = FileTail(path)
    found = []
    for look in range(4):
        found += tail.read(look / 10, most_lines=100)
    with path.open("ab") as file:
        file.write(b"y\nnext\n")
    found += tail.read(1.0, most_lines=100)
    assert found[-1] == "next"
    assert all(set(line) == {"x"} and len(line) <= LONGEST_LINE for line in found[:-1])
    tail.close()


def test_a_file_that_shrank_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthree\n")
    tail = FileTail(path)
    assert tail.read(0.0, most_lines=9) == ["one", "two", "three"]
    with path.open("r+") as file:
        file.truncate(0)
        file.write("four\n")
    assert tail.read(1.0, most_lines=9) == ["four"]
    tail.close()


def test_a_log_that_was_rotated_several_times_between_two_looks_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_text("1\n")
    tail = FileTail(path)
    assert tail.read(0.0, most_lines=99) == ["1"]
    with path.open("a") as file:
        file.write("2\nlast of it")
    for text in ("3\n", "4\n"):
        if (tmp_path / "rank-0.log.1").exists():
            (tmp_path / "rank-0.log.1").rename(tmp_path / "rank-0.log.2")
        path.rename(tmp_path / "rank-0.log.1")
        path.write_text(text)
    assert tail.read(1.0, most_lines=99) == ["2", "last of it", "3", "4"]
    tail.close()


def test_what_was_rotated_before_the_first_look_is_read_first(tmp_path: Path) -> None:
    for name, text in (("rank-0.log.2", "1\n"), ("rank-0.log.1", "2\n"), ("rank-0.log", "3\n")):
        (tmp_path / name).write_text(text)
    tail = LogTail(tmp_path)
    assert [line.text for line in tail.read(0.0)] == ["1", "2", "3"]
    tail.close()
    tail = LogTail(tmp_path, from_end=True)
    assert tail.read(0.0) == []
    tail.close()


def test_a_program_that_keeps_writing_to_the_renamed_file_is_heard(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    with path.open("a", buffering=1) as old:
        tail = FileTail(path)
        tail.read(0.0, most_lines=9)
        path.rename(tmp_path / "log.1")
        path.touch()
        old.write("late\n")
        assert tail.read(1.0, most_lines=9) == ["late"]
    path.write_text("new\n")
    assert tail.read(2.0, most_lines=9) == ["new"]
    tail.close()


def test_of_a_storm_the_first_and_the_last_are_kept_and_the_rest_is_counted(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("".join(f"line {i}\n" for i in range(10_000)))
    (tmp_path / "rank-1.log").write_text("quiet\n")
    tail = LogTail(tmp_path, most_lines=100)
    found = tail.read(0.0)
    of_0 = [line.text for line in found if line.rank == 0]
    assert (len(of_0), of_0[0], of_0[-1]) == (100, "line 0", "line 9999")
    assert [line.text for line in found if line.rank == 1] == ["quiet"]
    dropped = tail.dropped()
    assert list(dropped) == [0]
    assert (dropped[0].lines, dropped[0].nbytes) == (9_900, 0)
    tail.close()


def test_a_storm_too_fast_to_read_is_passed_over_but_for_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    with path.open("w") as file:
        file.write("first\n")
        for i in range(200_000):
            file.write(f"{i:06d} {'x' * 93}\n")
        file.write("Traceback: last\n")
    size = path.stat().st_size
    tail = LogTail(tmp_path)
    began = time.process_time()
    found = [line.text for line in tail.read(0.0)]
    took_s = time.process_time() - began
    assert (found[0], found[-1], len(found)) == ("first", "Traceback: last", 200)
    assert all(len(text) == 100 for text in found[1:-1])
    dropped = tail.dropped()[0]
    assert dropped.nbytes > size - (1 << 20)
    assert took_s < 1.0
    assert tail.read(1.0) == []
    tail.close()


def test_all_ranks_together_are_bounded(tmp_path: Path) -> None:
    for rank in range(50):
        (tmp_path / f"rank-{rank}.log").write_text("".join(f"{i}\n" for i in range(200)))
    tail = LogTail(tmp_path, most_lines=200, most_in_all=500)
    assert len(tail.read(0.0)) == 500
    assert sum(one.lines for one in tail.dropped().values()) == 50 * 200 - 500
    tail.close()


class Looks:
    """How often the reader has looked."""

    count = 0

    def wait_for_another(self) -> None:
        """Wait until a look that begins after now is over."""
        wanted = self.count + 2
        while self.count < wanted:
            time.sleep(0.001)


def test_nothing_is_lost_or_doubled_under_a_fast_writer_that_rotates(tmp_path: Path) -> None:
    """The launcher's own log, made so short that it turns often, against a reader that looks all the time."""
    log = output._Log(tmp_path / "rank-0.log")
    total, seed = 4_000, random.Random(5)
    done, looks = threading.Event(), Looks()

    def write() -> None:
        written = 0
        while written < total:
            lines = [b"%d\n" % i for i in range(written, min(total, written + seed.randrange(1, 40)))]
            log.write(b"".join(lines))
            written += len(lines)
            if seed.random() < 0.05:
                time.sleep(0.002)
            if seed.random() < 0.02:
                log._turn()
                looks.wait_for_another()  # two old logs are kept: who looks each second sees none vanish
        done.set()

    writer = threading.Thread(target=write)
    tail = FileTail(tmp_path / "rank-0.log")
    found: list[str] = []
    writer.start()
    while not done.is_set():
        found += tail.read(time.monotonic(), most_lines=1 << 20)
        looks.count += 1
    writer.join()
    found += tail.read(time.monotonic(), most_lines=1 << 20)
    log.close()
    tail.close()
    assert found == [str(i) for i in range(total)]


def test_open_files_do_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.touch()
    tail = LogTail(tmp_path)
    tail.read(0.0)
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(20):
        path.rename(tmp_path / "rank-0.log.1")
        path.write_text(f"{turn}\n")
        assert [line.text for line in tail.read(1.0 + turn)] == [str(turn)]
    assert len(os.listdir("/proc/self/fd")) == before
    tail.close()

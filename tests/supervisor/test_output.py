"""What ranks print: passed on by lines, remembered by its end, kept in logs that do not grow for ever."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from perdure.supervisor import output
from perdure.supervisor.output import Output


def printed(tmp_path: Path, lines: list[bytes]) -> tuple[bytes, Output]:
    reader, writer = os.pipe()
    error_reader, error_writer = os.pipe()
    shown = io.BytesIO()
    out = Output(
        stdouts={3: reader},
        stderrs={3: error_reader},
        to_stdout=shown,
        to_stderr=io.BytesIO(),
        log_dir=tmp_path / "logs",
    )
    for line in lines:
        os.write(writer, line)
    os.close(writer)
    os.close(error_writer)
    out.finish(timeout_s=10)
    for fd in (reader, error_reader):
        os.close(fd)
    return shown.getvalue(), out


def test_a_log_is_turned_before_it_grows_over_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LOG_BYTES", 50_000)
    lines = [b"line %05d\n" % i for i in range(30_000)]
    shown, _ = printed(tmp_path, lines)
    assert shown.count(b"\n") == 30_000  # everything is shown
    logs = sorted((tmp_path / "logs").iterdir())
    assert [log.name for log in logs] == ["rank-3.log", "rank-3.log.1", "rank-3.log.2"]
    assert all(log.stat().st_size <= 50_000 + (1 << 16) for log in logs)  # one read at most over the bound
    assert logs[0].read_bytes().endswith(b"line 29999\n")


def test_a_log_goes_on_when_its_folder_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LOG_BYTES", 10)
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "no room")))
    shown, _ = printed(tmp_path, [b"one line of text\n", b"and another one\n"])
    assert shown.count(b"\n") == 2
    assert b"another" in (tmp_path / "logs/rank-3.log").read_bytes()

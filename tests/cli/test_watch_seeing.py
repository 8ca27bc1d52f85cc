"""What the watcher sees gets out (terminal, JSON, webhook, Prometheus, record), and nothing of that holds it up."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.cli.watch_live import picture
from perdure.cli.watch_outlets import Outlets, add_outlet_flags
from perdure.errors import CallError
from perdure.watcher.evidence import Stage, Verdict
from perdure.watcher.heat import Heat, HeatRecord
from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.prometheus import parse
from perdure.watcher.recording import HEAT, METRICS, VERDICTS
from perdure.watcher.samples import NodeLook, RankSample

RANK = """
import os, pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
here, rank, x = pathlib.Path(sys.argv[1]), dist.get_rank(), torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(x.parameters(), lr=0.01)
for step in range(100_000):
    on = torch.tensor(0.0 if (here / "finish").exists() else 1.0)
    dist.all_reduce(on, op=dist.ReduceOp.MIN)
    if not on:
        break
    x(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    if step % 50 == 0 and rank == 0:
        print(f"the job is at step {step}")
    if step == 50:
        (here / f"new-{rank}").write_text(str(os.getpid()))
        (here / f"new-{rank}").rename(here / f"pid-{rank}")
dist.destroy_process_group()
"""


class Listener:
    """A web server that keeps what is posted to it."""

    def __init__(self, status: int = 200) -> None:
        got: list[Any] = []
        self.got, code = got, status

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(code)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def listener() -> Iterator[Listener]:
    one = Listener()
    yield one
    one.server.shutdown()
    one.server.server_close()


def outlets(*words: str) -> Outlets:
    parser = argparse.ArgumentParser()
    add_outlet_flags(parser)
    return Outlets.of(parser.parse_args(words), job="train")


def verdict(**fields: Any) -> Verdict:
    usual = {
        "incident": "0.1", "stage": Stage.VERDICT, "label": Label.UNKNOWN, "owner": Owner.TRANSIENT, "ranks": (1,),
        "action": Action.RESTART, "confidence": 0.9, "sentence": "rank 1 is stopped", "at_s": time.monotonic(),
    }  # fmt: skip
    return Verdict(**{**usual, **fields})


def look(n: int = 2, **fields: Any) -> NodeLook:
    usual = {"node": "a", "at_s": 0.0, "step": 7, "step_s": 0.1, "compute_s": 0.05, "wait_s": 0.05, "phase": "forward"}
    return NodeLook(node="a", samples=tuple(RankSample(rank=i, **{**usual, **fields}) for i in range(n)))  # type: ignore[arg-type]


def give(to: Outlets, *told: Verdict, looks: tuple[NodeLook, ...] = ()) -> None:
    still_open = [each for each in told if each.stage is not Stage.CLEARED]
    to.give(told, looks=looks, still_open=still_open, now_s=time.monotonic())


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def eventually(what: Any, within_s: float = 60.0) -> None:
    give_up = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_a_verdict_goes_everywhere(tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_WEBHOOK", listener.url)
    with outlets("--json", str(tmp_path / "v"), "--record", str(tmp_path / "r"), "--name", "seven") as to:
        give(to, verdict(stage=Stage.SUSPICION), looks=(look(),))
        give(to, verdict(), looks=(look(),))
        eventually(lambda: listener.got)
        give(to, verdict(stage=Stage.CLEARED), looks=(look(),))
    told = [json.loads(line) for line in (tmp_path / "v").read_text().splitlines()]
    assert [each["stage"] for each in told] == ["suspicion", "verdict", "cleared"]
    assert abs(told[1]["wall_s"] - time.time()) < 30
    assert (tmp_path / "r" / VERDICTS).read_text() == (tmp_path / "v").read_text()
    assert [each["text"].split("*")[1] for each in listener.got] == ["Verdict", "Cleared"]  # a suspicion calls nobody
    assert "in job seven: rank 1 is stopped" in listener.got[0]["text"]
    heat = msgspec.json.decode((tmp_path / "r" / HEAT).read_bytes(), type=HeatRecord)
    assert (heat.job, len(heat.rows)) == ("seven", 2)
    page = parse((tmp_path / "r" / METRICS).read_text())
    assert [each.value for each in page.of("perdure_watch_ranks")] == [2]
    assert sum(each.value for each in page.of("perdure_watch_verdicts_total")) == 3


def test_suspicions_are_posted_where_that_is_asked_for(listener: Listener) -> None:
    words = ("--webhook", listener.url, "--webhook-form", "alertmanager", "--webhook-suspicions")
    with outlets(*words) as to:
        give(to, verdict(stage=Stage.SUSPICION))
    assert [each["labels"]["severity"] for each in listener.got[0]] == ["warning"]


def test_metrics_are_served_on_this_machine_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with outlets("--metrics-port", "0") as to:
        give(to, verdict(), looks=(look(),))
        to._stderr.drain(5.0)
        url = re.search(r"metrics at (\S+)", capfd.readouterr().err)[1]  # type: ignore[index]
        assert url.startswith("http://127.0.0.1:")
        status, text = get(url)
        assert status == 200
        assert {each.labels["rank"] for each in parse(text).of("perdure_watch_rank_step")} == {"0", "1"}
        give(to, looks=(look(3),))
        assert len(parse(get(url)[1]).of("perdure_watch_rank_step")) == 3
        assert parse(get(url)[1]).of("perdure_watch_verdict") == []
        assert get(url.replace("/metrics", "/"))[0] == 404
        assert get(url, Host="evil.example")[0] == 401  # what a page led here by its own name would send
        with pytest.raises(CallError, match="give another port"):
            outlets("--metrics-port", url.split(":")[2].split("/")[0])


def test_whoever_reaches_the_metrics_from_elsewhere_shows_a_token(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CallError, match="token"):
        outlets("--metrics-port", "0", "--metrics-host", "0.0.0.0")
    (tmp_path / "token").write_text("sixteen or more of it\n")
    words = ("--metrics-port", "0", "--metrics-host", "0.0.0.0", "--metrics-token-file", str(tmp_path / "token"))
    with outlets(*words) as to:
        to._stderr.drain(5.0)
        url = re.search(r"metrics at (\S+)", capfd.readouterr().err)[1].replace("0.0.0.0", "127.0.0.1")  # type: ignore[index]
        assert get(url)[0] == 401
        assert get(url, Authorization="Bearer wrong")[0] == 401
        assert get(url, Authorization="Bearer sixteen or more of it")[0] == 200


def test_what_cannot_be_delivered_is_said_once_and_holds_up_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    began_s = time.monotonic()
    with outlets("--json", "/dev/full", "--webhook", "http://127.0.0.1:9/hook") as to:
        for number in range(200):
            give(to, verdict(incident=f"0.{number}"))
            if number == 100:
                eventually(lambda: to._json is not None and to._json.problem)
        took_s = time.monotonic() - began_s
    assert took_s < 5.0
    said = capfd.readouterr().err
    assert said.count("cannot be written to /dev/full: No space left on device; the watch goes on") == 1
    assert said.count("rank 1 is stopped") == 200


def test_a_pipe_that_nobody_reads_holds_up_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    began_s = time.monotonic()
    with outlets("--json", str(tmp_path / "pipe")) as to:
        for number in range(5000):
            give(to, verdict(incident=f"0.{number}"))
    assert time.monotonic() - began_s < 30.0
    lines = os.read(reader, 1 << 20).splitlines()
    os.close(reader)
    assert json.loads(lines[0])["incident"] == "0.0"


def test_a_secret_goes_by_https_or_stays_here(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="password"):
        outlets("--webhook", "http://hooks.example/T0/secret")
    outlets("--webhook", "http://hooks.example/T0/secret", "--webhook-plain").close()
    outlets("--webhook", "http://alerts.example/api/v2/alerts", "--webhook-form", "alertmanager").close()
    with pytest.raises(CallError, match="https"):
        outlets("--webhook", "hooks.example")
    with pytest.raises(CallError, match="cannot write"):
        outlets("--json", str(tmp_path / "none" / "v"))
    (tmp_path / "file").touch()
    with pytest.raises(CallError, match="cannot write into"):
        outlets("--record", str(tmp_path / "file"))


def drawn(n: int, *, height: int) -> str:
    from rich.console import Console

    heat = Heat(job="train")
    for second in range(3):
        samples = [
            msgspec.structs.replace(
                each, node=f"n{each.rank // 8}", compute_s=0.09 if each.rank == n // 2 else 0.05, loss=2.5
            )
            for each in look(n).samples
        ]
        heat.feed(samples, now_s=float(second))
    console = Console(width=120, no_color=True)
    with console.capture() as got:
        console.print(picture(heat, samples, [verdict()], width=120, height=height))
    return got.get()


def test_the_view_shows_each_rank_or_those_that_stand_out() -> None:
    few = drawn(4, height=40)
    assert "4 ranks on 1 node, step 7, 4 work" in few
    assert re.search(r"^ +2  n0 +7 +100 ms +90 ms +1\.80 +50%  works \(forward\) +2\.5 .*█", few, re.MULTILINE)
    assert "verdict rank 1 is stopped [0.1]" in few
    assert "restart, for transient" in few
    many = drawn(16384, height=40)
    assert "16384 ranks on 2048 nodes" in many
    assert re.search(r"^ *8192  n1024 ", many, re.MULTILINE)
    assert re.search(r"^n1024 +8 +7 +1\.80", many, re.MULTILINE)
    assert len(many.splitlines()) <= 30


@pytest.mark.timeout(200)
def test_below_what_a_job_prints_there_is_a_view(tmp_path: Path, listener: Listener) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["--live", "--record", str(tmp_path / "record"), "--json", "/dev/full"]
    command = [sys.executable, "-m", "perdure", "watch", "run", *words, "--", *torchrun]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PERDURE_WEBHOOK": listener.url, "TERM": "xterm-256color"}
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                seen.extend(os.read(master, 1 << 16))
            except OSError:
                return

    with subprocess.Popen(
        [*command, str(tmp_path / "rank.py"), str(tmp_path)], env=env, stdin=terminal, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        eventually(lambda: (tmp_path / "pid-1").exists())
        eventually(lambda: b"works" in seen)
        pid = int((tmp_path / "pid-1").read_text())
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: any("rank 1" in each["text"] for each in listener.got))
        os.kill(pid, signal.SIGCONT)
        time.sleep(3.0)
        (tmp_path / "finish").touch()
        assert process.wait(60) == 0
    reader.join(10)
    os.close(master)
    text = seen.decode()
    assert "the job is at step 0" in text
    assert "PERDURE" not in text
    assert "state T" in text
    assert "cannot be written to /dev/full" in text
    assert text.rstrip().endswith("\x1b[?25h") or text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # a cursor again
    told = [json.loads(line) for line in (tmp_path / "record" / VERDICTS).read_text().splitlines()]
    assert [each["stage"] for each in told if each["ranks"] == [1]] == ["verdict", "cleared"]
    heat = msgspec.json.decode((tmp_path / "record" / HEAT).read_bytes(), type=HeatRecord)
    assert [row.name for row in heat.rows] == ["rank 0", "rank 1"]

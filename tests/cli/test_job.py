"""``perdure job`` beside a real job: it is looked at, loses a rank, is drained, and is stopped."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.job_logs import _logs, _new_lines
from perdure.supervisor import JobFolder
from perdure.testing.jobs import SteppingJob


class Tool:
    """``perdure job`` for the jobs below ``home``."""

    def __init__(self, home: Path, **env: str) -> None:
        self.env = os.environ | {"PERDURE_STATE": str(home), **env}

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "perdure", "job", *words]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=100)
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done

    def text(self, *words: str) -> str:
        return self.run(*words).stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)

    def refused(self, *words: str, code: int = 64) -> str:
        return self.run(*words, code=code).stderr

    def begin(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "perdure", "job", *words]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True)


class Screen:
    """``perdure job show --live`` on a terminal, which is read all the time."""

    def __init__(self, tool: Tool) -> None:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "perdure", "job", "show", "--live"]
        env = tool.env | {"TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
        self.process = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self._said = bytearray()
        self._thread = threading.Thread(target=self._read, args=(ours,))
        self._thread.start()

    def _read(self, fd: int) -> None:
        while True:
            try:
                self._said += os.read(fd, 65536)
            except OSError:  # nobody has the other end any more
                os.close(fd)
                return

    def end(self) -> str:
        assert self.process.wait(60) == 143
        self._thread.join(60)
        return self._said.decode()


@pytest.mark.timeout(300)
def test_a_job_is_followed_through_a_death_a_drain_and_its_stop(tmp_path: Path) -> None:
    with SteppingJob(tmp_path, step_s=0.05) as job:
        tool = Tool(job.home)
        job.wait_for_step(10)
        screen = Screen(tool)
        live, follow, logs = tool.begin("show", "--live"), tool.begin("events", "-f"), tool.begin("logs", "-f")
        (row,) = tool.json("ls")["jobs"]
        assert (row["job"], row["state"], row["attempt"], row["live"]) == ("train", "execute", 0, True)
        line = tool.text("ls", "--running").splitlines()[1].split()
        assert (line[0], line[1], line[2], line[4], line[5]) == ("train", "execute", "0", "2", "4")

        whole = tool.json("show")
        assert [(node["node"], node["standing"], node["place"]) for node in whole["nodes"]] == [
            ("n0", "runs", 0),
            ("n1", "runs", 1),
            ("n2", "spare", None),
        ]
        ranks = [rank for node in whole["nodes"] for rank in node["ranks"]]
        assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
        assert all(rank["step"] > 0 and rank["phase"] in ("forward", "step") for rank in ranks)

        job.kill_rank(3)
        job.wait_for_step(whole["step"] + 10, attempt=1)
        whole = tool.json("show", "train")
        assert (whole["attempt"], whole["account"]["restarts"]["rank failed"]) == (1, 1)
        assert 0 < whole["account"]["goodput"] < 1
        assert sum(whole["account"]["seconds"].values()) == pytest.approx(whole["account"]["wall_s"], abs=0.01)
        shown = tool.text("show")
        assert "job train: execute since" in shown
        assert "restarts: 1 (1 rank failed)" in shown
        assert "rank 3 on n1 was killed by SIGKILL" in shown

        assert "has no node n7; it has n0, n1, n2" in tool.refused("drain", "n7")
        assert "node n1 of job train is left" in tool.text("drain", "train", "n1", "--wait", "60")
        after = job.wait_for_step(whole["step"] + 20, attempt=2)
        standing = {node.facts.name: node.standing for node in after.view.nodes}
        assert standing == {"n0": "runs", "n1": "drained", "n2": "runs"}
        assert "the job needs 2" in tool.refused("drain", "n0")
        assert "may be used again" in tool.text("uncordon", "n1")
        job.wait_for("n1 to be a spare", lambda view: [n.standing for n in view.nodes] == ["runs", "runs", "spare"])

        kinds = [event["kind"] for event in map(json.loads, tool.text("events", "--json").splitlines())]
        assert kinds.count("attempt-started") == kinds.count("steps-began") == 3
        assert kinds.index("rank-died") < kinds.index("node-drained") < kinds.index("place-taken")
        assert len(tool.text("events", "--last", "2").splitlines()) == 2
        assert tool.text("logs", "--rank", "1", "--attempt", "0") == "[1] rank 1 goes on from step 0\n"
        assert tool.json("logs", "--rank", "2") == {
            "attempt": 2,
            "rank": 2,
            "line": (job.log_dir / "attempt-2/rank-2.log").read_text().strip(),
        }
        assert "attempts there: 0, 1, 2" in tool.refused("logs", "--attempt", "9")

        assert "job train is over" in tool.text("stop", "--wait", "60")
        assert job.exit_codes() == [143, 143, 143]
        lived, _ = live.communicate(timeout=60)
        assert live.returncode == 143  # that of the job
        assert "the job stopped on SIGTERM" in lived
        assert "job train: stopped" in lived
        shown = screen.end()
        for words in ("standing", "n2", "spare", "forward", "was killed by SIGKILL", "restarts: 1 (1 rank failed)"):
            assert words in shown
        assert "the job stopped on SIGTERM" in follow.communicate(timeout=60)[0]
        followed = logs.communicate(timeout=60)[0].splitlines()
        assert followed[0].endswith("goes on from step 0")
        assert len(followed) == 12  # each rank of each attempt, once

        shown = tool.text("show", "train")
        assert "(the job is over: stopped)" in shown
        assert "restarts: 2 (1 rank failed, 1 drained)" in shown
        assert "stopped" in tool.text("ls")
        assert tool.text("ls", "--running").startswith("no job runs in")
        assert "no job runs here; name one of: train" in tool.refused("stop")
        assert "job train is over: stopped" in tool.refused("stop", "train")
        assert "not -3" in tool.refused("events", "train", "--last", "-3")
        assert tool.text("events", "train", "--last", "0") == ""


def test_a_job_without_a_controller_is_shown_from_its_journal(tmp_path: Path) -> None:
    with SteppingJob(tmp_path, nodes=1, spares=0, nproc=1, step_s=0.05) as job:
        tool = Tool(job.home)
        before = job.wait_for_step(5).view
        job.kill_launchers_and_controllers()
        shown = tool.text("show", "train")
        assert "this is what its journal has" in shown
        assert "node n0 (127.0.0.1): unknown" in shown
        (row,) = tool.json("ls")["jobs"]
        assert (row["live"], row["state"], row["run"]) == (False, "execute", before.job.run)
        assert "no controller" in tool.text("ls")
        assert "is not over" in tool.refused("show", "train", "--live", code=73)
        assert "attempt 0 started" in tool.text("events", "train", "-f")


def test_a_controller_elsewhere_is_found_by_its_address_and_token(tmp_path: Path) -> None:
    with SteppingJob(tmp_path, nodes=1, spares=0, nproc=1, step_s=0.05) as job:
        job.wait_for_step(3)
        folder = JobFolder(job.home, job.name)
        where = folder.where()
        assert where is not None
        away = Tool(tmp_path / "elsewhere", PERDURE_TOKEN=folder.token().decode())
        door = ("--controller", f"{where.host}:{where.port}")
        assert away.json("show", "train", *door)["job"] == "train"
        (tmp_path / "token").write_bytes(folder.token())
        other = Tool(tmp_path / "elsewhere")
        assert "train: execute" in other.text("show", "train", *door, "--token-file", str(tmp_path / "token"))
        assert "needs its token" in other.refused("show", "train", *door)
        assert "needs the job's name" in away.refused("show", *door)
        assert "the name and the token" in away.refused("show", "other", *door, code=73)
        wrong = Tool(tmp_path / "elsewhere", PERDURE_TOKEN="not it")
        assert "the name and the token" in wrong.refused("stop", "train", *door, code=73)
        assert "no job train in" in away.refused("show", "train")
        assert job.wait_for_step(5).live
        assert "job train is stopping" in away.text("stop", "train", *door)
        assert job.exit_codes() == [143]
        assert "Connection refused" in away.refused("show", "train", *door, code=75)


def test_two_jobs_must_be_told_apart(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with SteppingJob(tmp_path, nodes=1, spares=0, nproc=1) as one:
        with SteppingJob(tmp_path / "b", home=one.home, name="other", nodes=1, spares=0, nproc=1) as two:
            one.wait_for_step(1)
            two.wait_for_step(1)
            tool = Tool(one.home)
            assert "2 jobs run here; name one of: other, train" in tool.refused("show")
            assert [row["job"] for row in tool.json("ls")["jobs"]] == ["other", "train"]
            assert two.finish() == [0]
            assert tool.json("show")["job"] == "train"  # the only one that runs


def test_logs_that_are_turned_are_read_in_order_and_once(tmp_path: Path) -> None:
    log = tmp_path / "attempt-0" / "rank-0.log"
    log.parent.mkdir()
    at: dict[int, int] = {}

    def read() -> list[str]:
        return [line for _, path in _logs(tmp_path, 0, None) for line in _new_lines(path, at, whole=False)]

    log.write_text("1\n2\nhal")
    assert read() == ["1", "2"]
    with open(log, "a") as file:
        file.write("f\n")
    log.rename(log.with_name("rank-0.log.1"))
    log.write_text("4\n")
    (log.parent / "rank-10.log").write_text("ten\n")
    assert read() == ["half", "4", "ten"]
    log.with_name("rank-0.log.1").rename(log.with_name("rank-0.log.2"))
    log.rename(log.with_name("rank-0.log.1"))
    assert read() == []
    assert [path.name for _, path in _logs(tmp_path, 0, [0])] == ["rank-0.log.2", "rank-0.log.1"]


@pytest.mark.parametrize("command", ["ls", "show", "logs", "events", "drain", "uncordon", "stop"])
def test_help_is_there_and_light(command: str) -> None:
    code = (
        "import sys\nfrom perdure.cli.main import main\n"
        f"try: main(['job', '{command}', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'msgspec', 'numpy', 'torch', 'rich', 'starlette'} & set(sys.modules), 'too much'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout

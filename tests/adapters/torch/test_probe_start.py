"""How the probe comes into a process: the start-up file in unmodified code, `attach`, and what it leaves alone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import perdure
from perdure.adapters.torch import probe
from perdure.errors import CallError
from perdure.process.environ import ProbeTold
from perdure.progress.probing import probe_env
from perdure.progress.stacks import request_stack
from perdure.progress.vitals import Vitals, vitals_files
from perdure.watcher.reading import read_rank

from . import gloo

SCRIPT = """
import ctypes, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
open(sys.argv[1] + ".trained", "w").close()
if sys.argv[2] == "hold":
    while True:  # a signal ends a sleep in C
        ctypes.PyDLL(None).sleep(60)
time.sleep(2.2)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = tempfile.mkdtemp(prefix="perdure-probe-", dir="/dev/shm")
    yield Path(made)
    shutil.rmtree(made)


def rank_env(folder: Path, **more: str) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    base = {**base, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **more}
    base.pop("PERDURE_PROBE_OWNER", None)
    return {**base, **probe_env(folder, base=base)}


def start(folder: Path, how: str, **more: str) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", SCRIPT, str(folder / "rank"), how]
    return subprocess.Popen(arguments, env=rank_env(folder, **more), stdin=subprocess.DEVNULL)


def until(what: object, *, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not what() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.05)
    assert what()  # type: ignore[operator]


def test_unmodified_code_is_watched_to_its_end(folder: Path) -> None:
    with start(folder, "end") as rank:
        assert rank.wait(100) == 0
    (path,) = vitals_files(folder)
    read = Vitals.read(path)
    assert (read.rank, read.world, read.pid, read.step, read.finished) == (0, 1, rank.pid, 3, True)
    assert read.groups[0].enqueued >= 3
    assert not list(folder.glob("trouble-*"))
    assert read_rank(path, node="n").state == "X"


def test_stacks_come_while_c_holds_python_and_a_rank_that_is_stopped_shows(folder: Path) -> None:
    with start(folder, "hold") as rank:
        try:
            until((folder / "rank.trained").exists)
            (path,) = vitals_files(folder)
            time.sleep(1.5)
            beat = Vitals.read(path).beat
            time.sleep(2.2)
            assert Vitals.read(path).beat == beat
            stack = request_stack(path, within_s=20)
            assert stack[0].startswith("<string>:"), stack
            os.kill(rank.pid, signal.SIGSTOP)
            until(lambda: read_rank(path, node="n").state == "T")
            stopped = read_rank(path, node="n").beat
            time.sleep(1.2)
            sample = read_rank(path, node="n")
            assert sample.beat == stopped
            assert sample.beat_age_s is not None
            assert sample.beat_age_s > 1.0
            assert request_stack(path, within_s=0.3) == ()
        finally:
            rank.kill()


def test_a_process_that_wants_no_probe_has_none(folder: Path) -> None:
    code = "import sys, torch; sys.exit('perdure' in sys.modules)"
    asked = rank_env(folder, PERDURE_PROBE="off")  # before whoever starts ranks makes their environment
    assert subprocess.run([sys.executable, "-c", code], env=asked, timeout=100).returncode == 0
    told = {**rank_env(folder), "PERDURE_PROBE": "off"}  # after it
    subprocess.run([sys.executable, "-c", "import torch"], env=told, timeout=100, check=True)
    assert vitals_files(folder) == ()


def test_without_torch_nothing_is_loaded_and_another_sitecustomize_still_runs(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.was_here = __name__\n")
    env = rank_env(folder, PYTHONPATH=str(tmp_path))
    code = "import sys, json; print(was_here, [m for m in sys.modules if m.startswith('perdure')])"
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split(maxsplit=1) == ["sitecustomize", "[]\n"]
    assert vitals_files(folder) == ()


def test_children_of_a_rank_are_not_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PERDURE_PROBE": str(folder), "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PERDURE_PROBE_OWNER", str(os.getppid()))
    assert not probe.start_from_environment()
    monkeypatch.delenv("PERDURE_PROBE_OWNER")
    monkeypatch.delenv("RANK")
    assert not probe.start_from_environment()
    assert vitals_files(folder) == ()


def test_a_folder_that_is_not_private_is_refused_and_the_rank_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.chmod(0o755)
    assert probe.start(ProbeTold(folder=str(folder))) is None
    assert "0700" in capsys.readouterr().err


def test_under_attach_step_and_phase_are_those_of_the_run(folder: Path, tmp_path: Path) -> None:
    def work() -> list[tuple[int | None, str]]:
        os.environ.update(PERDURE_PROBE=str(folder))
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = perdure.attach(model, optimizer, to=tmp_path / "run", every=2, agent=False)
        mine = probe.running()
        assert mine is not None
        seen = []
        while run.step < 4:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            mine.tick()
            read = Vitals.read(mine.file.path)
            seen.append((read.step, read.phase))
        run.close()
        return seen

    first = gloo.run(1, work)[0]
    assert [step for step, _ in first] == [1, 2, 3, 4]
    assert first[-1][1] == "forward"
    again = gloo.run(1, lambda: _resumed(folder, tmp_path))[0]
    assert again == 5


def in_a_fork(be: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        try:
            be()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def become_rank(folder: Path) -> None:
    """What a process does that was forked from one with torch, and is to be a rank."""
    os.environ.pop("PERDURE_PROBE_OWNER", None)
    assert not probe.start_from_environment()
    os.environ.update(PERDURE_PROBE=str(folder), RANK="3", WORLD_SIZE="4")
    assert probe.start_from_environment()
    mine = probe.running()
    assert probe.start_from_environment()
    assert probe.running() is mine is not None
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        weight.sum().backward()
        optimizer.step()
    mine.tick()
    read = Vitals.read(mine.file.path)
    assert (read.rank, read.world, read.pid, read.step, read.loss_step) == (3, 4, os.getpid(), 2, 2)
    assert any("become_rank" in frame for frame in request_stack(mine.file.path, within_s=20))


def test_a_rank_that_is_forked_from_a_process_with_torch_starts_when_it_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PERDURE_PROBE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    assert not probe.start_from_environment()
    assert dict(os.environ) == before
    in_a_fork(lambda: become_rank(folder))
    assert probe.running() is None
    assert len(vitals_files(folder)) == 1


def test_a_rank_that_is_forked_from_one_with_a_probe_has_its_own(folder: Path) -> None:
    def parent() -> None:
        mine = probe.start(ProbeTold(folder=str(folder), rank=0, world=4))
        assert mine is not None
        in_a_fork(lambda: become_rank(folder))
        assert Vitals.read(mine.file.path).step is None
        assert any("parent" in frame for frame in request_stack(mine.file.path, within_s=20))

    in_a_fork(parent)
    assert len(vitals_files(folder)) == 2


def test_a_handler_of_the_program_is_kept_before_and_after(folder: Path) -> None:
    def work() -> None:
        number = probe.STACK_SIGNAL
        for first in (True, False):
            heard: list[int] = []
            mine = None if first else probe.Probe(ProbeTold(folder=str(folder)), rank=0, world=1)
            signal.signal(number, lambda *_, heard=heard: heard.append(1))
            mine = probe.Probe(ProbeTold(folder=str(folder)), rank=1, world=2) if mine is None else mine
            mine.begin()
            assert Vitals.read(mine.file.path).stack_signal == 0
            with pytest.raises(CallError):
                request_stack(mine.file.path)
            mine.leave()
            assert heard == []
            os.kill(os.getpid(), number)
            assert heard == [1]
            signal.signal(number, signal.SIG_DFL)

    in_a_fork(work)


def test_a_rank_that_becomes_another_program_is_watched_on(folder: Path) -> None:
    code = "import torch, os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import torch'])"
    with subprocess.Popen([sys.executable, "-c", code], env=rank_env(folder)) as rank:
        assert rank.wait(100) == 0
    (path,) = vitals_files(folder)
    read = Vitals.read(path)
    assert (read.pid, read.finished) == (rank.pid, True)


@pytest.mark.parametrize("how", ["-I", "-S"])
def test_a_python_that_runs_no_start_up_file_is_not_watched_and_runs(folder: Path, how: str) -> None:
    subprocess.run([sys.executable, how, "-c", "pass"], env=rank_env(folder), timeout=60, check=True)
    assert vitals_files(folder) == ()


def _resumed(folder: Path, tmp_path: Path) -> int | None:
    os.environ.update(PERDURE_PROBE=str(folder))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = perdure.attach(model, optimizer, to=tmp_path / "run", every=2, agent=False)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    mine = probe.running()
    assert mine is not None
    read = Vitals.read(mine.file.path)
    run.close()
    return read.step


def test_what_is_compiled_stays_whole(folder: Path) -> None:
    def work() -> tuple[float, int | None]:
        mine = probe.start(ProbeTold(folder=str(folder)))
        assert mine is not None
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        forward = torch.compile(model.module, backend="aot_eager", fullgraph=True)
        step = torch.compile(optimizer.step, backend="aot_eager")

        @torch.compile(backend="aot_eager", fullgraph=True)
        def reduced(x: torch.Tensor) -> torch.Tensor:
            import torch.distributed._functional_collectives as functional

            return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

        for _ in range(3):
            forward(torch.ones(2, 4)).sum().backward()
            step()
            optimizer.zero_grad()
        value = float(reduced(torch.ones(1)).item())
        return value, Vitals.read(mine.file.path).step

    ((value, step),) = gloo.run(1, work, timeout_s=100)
    assert value == 3.0
    assert step == 3


@pytest.mark.parametrize("asked", [True, False])
def test_a_script_that_gave_no_loader_is_told_early_that_no_batch_can_be_left_out(folder: Path, asked: bool) -> None:
    env = rank_env(folder, PERDURE_EVENTS=str(folder / "events"), **({"PERDURE_MAY_SKIP": "1"} if asked else {}))
    words = [sys.executable, "-c", SCRIPT, str(folder / "rank"), "end"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("--skip-bad-batch cannot leave out a batch of this job") == asked
    assert (folder / "events").exists() == asked

"""Standby interpreters with real processes: a rank that is forked is what a rank that is started cold would be."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from perdure.clock import Deadline
from perdure.errors import CallError, DeadlineExceeded, LinkLost
from perdure.process import marked
from perdure.process.tree import Ending, Rank, become_subreaper, kill_attempt, reap_orphans
from perdure.process.zygote import Zygote, modules_of

SRC = str(Path(__file__).parents[2] / "src")


@pytest.fixture(autouse=True, scope="module")
def subreaper() -> Iterator[None]:
    become_subreaper()
    yield
    reap_orphans(keep=())
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, off: other tests run in this process


@pytest.fixture
def mark() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    assert marked.sweep(name, timeout_s=5)[1] == []
    reap_orphans(keep=())


@pytest.fixture
def base(tmp_path: Path) -> dict[str, str]:
    modules = tmp_path / "modules"
    modules.mkdir()
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(modules), "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}


@pytest.fixture
def start(mark: str, base: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Zygote]]:
    """Start a zygote for a command, in a folder of the test's own; end it with the test."""
    started: list[Zygote] = []

    def start_one(command: Sequence[str], *preload: str, env: Mapping[str, str] | None = None) -> Zygote:
        all_env = {**base, **(env or {}), "PERDURE_MARK": f"{mark}.standby"}
        started.append(Zygote.start(command, preload=preload, env=all_env, cwd=str(tmp_path)))
        return started[-1]

    yield start_one
    for zygote in started:
        zygote.close()


def soon(what: str = "the test") -> Deadline:
    return Deadline.after(60, what)


def until(true: Callable[[], object], *, within_s: float = 30.0) -> None:
    give_up = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.005)


def exists(pid: int) -> bool:
    fields = marked.stat_fields(pid)
    return fields is not None and fields[0] != b"Z"


def settled(zygote: Zygote) -> str | None:
    until(lambda: zygote.ready() or zygote.refusal() is not None, within_s=120)
    return zygote.refusal()


def end_of(rank: Rank) -> tuple[Ending, str, str]:
    """Wait for a rank; how it ended and what it printed (little enough for a pipe)."""
    until(rank.poll, within_s=60)
    ending = rank.poll()
    assert ending is not None
    texts = []
    for fd in (rank.stdout, rank.stderr):
        os.set_blocking(fd, False)
        try:
            texts.append(os.read(fd, 1 << 16).decode())
        except BlockingIOError:
            texts.append("")
    rank.reap()
    rank.close()
    return ending, texts[0], texts[1]


@pytest.fixture
def both(start: Callable[..., Zygote], base: dict[str, str], mark: str, tmp_path: Path) -> Callable[..., object]:
    """Run a script cold and warm; assert that both end and print the same; return that."""

    def run(
        script: str, *arguments: str, options: Sequence[str] = (), preload: Sequence[str] = (), name: str = "it.py"
    ) -> tuple[Ending, str, str]:
        (tmp_path / name).write_text(script)
        command = [sys.executable, *options, name, *arguments]
        env = {**base, "RANK": "3", "PERDURE_MARK": f"{mark}.0"}
        cold = end_of(Rank.start(command, env=env, cwd=str(tmp_path)))
        zygote = start(command, *preload)
        assert settled(zygote) is None
        warm = end_of(Rank.fork(zygote, command, env=env, deadline=soon()))
        assert warm == cold
        return warm

    return run


SELF = """
import os, sys
print(sys.argv, sys.path[0], __file__, __name__, __package__, __spec__, __cached__, type(__loader__).__name__)
print(sys.modules["__main__"].__dict__ is globals(), sys.flags, sys.orig_argv, sys.warnoptions, os.getcwd())
print(sorted(os.environ.items()))
print(sys.stdout.line_buffering, sys.stdout.encoding, sys.getrecursionlimit(), len(os.listdir("/proc/self/task")))
fds = [f"/proc/self/fd/{fd}" for fd in range(64)]
print([(fd, os.readlink(fd).partition(":")[0]) for fd in fds if os.path.lexists(fd)])
print(os.getsid(0) == os.getpgrp() == os.getpid(), os.getppid())
import signal, threading
print(threading.main_thread().native_id == os.getpid(), threading.current_thread().name, threading.active_count())
print([signal.getsignal(number) for number in range(1, 32)], signal.pthread_sigmask(signal.SIG_BLOCK, []))
import ctypes
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print([libc.getenv(name) for name in (b"RANK", b"PERDURE_MARK", b"PERDURE_STANDBY_ROOM", b"PATH", b"HOME")])
died_with = ctypes.c_int()
libc.prctl(2, ctypes.byref(died_with), 0, 0, 0)
print(died_with.value, open("/proc/self/oom_score_adj").read(), open("/proc/self/comm").read())
"""


@pytest.mark.parametrize("options", [["-W", "ignore", "-X", "utf8"], ["-I"], ["-uO"]], ids=" ".join)
def test_a_forked_rank_sees_of_itself_what_a_cold_one_sees(
    options: list[str], both: Callable[..., tuple[Ending, str, str]]
) -> None:
    ending, out, err = both(SELF, "a b", "-c", options=options, preload=["json", "socket"])
    assert (ending, err) == (Ending(code=0), "")
    assert "['it.py', 'a b', '-c']" in out
    assert "b'3'" in out


ENDS = {
    "an exit code": "raise SystemExit(7)",
    "an exit message": "import sys; sys.exit('this went wrong')",
    "an uncaught exception": "def f():\n    raise ValueError('no') from KeyError('k')\n\nf()\n",
    "an exception of an exception": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    undefined\n",
    "an exception group": "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])",
    "a syntax error": "def f(:\n    pass\n",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "an interrupt": "raise KeyboardInterrupt",
    "a hook": "import sys\nsys.excepthook = lambda t, v, tb: print(t, v, tb.tb_frame.f_code.co_name)\n1 / 0\n",
    "a module that raises": "import helper_that_raises",
    "atexit and threads": (
        "import atexit, threading, time\natexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('end')\n"
    ),
    "_exit": "import os; os._exit(9)",
    "output that nobody flushed": "import sys; sys.stdout.write('no newline'); 1 / 0",
}


@pytest.mark.parametrize("script", ENDS.values(), ids=ENDS.keys())
def test_a_forked_rank_ends_as_a_cold_one(
    script: str, both: Callable[..., tuple[Ending, str, str]], base: dict[str, str]
) -> None:
    Path(base["PYTHONPATH"], "helper_that_raises.py").write_text("def f():\n    raise OSError('helper')\n\nf()\n")
    both(script, preload=["json"])


def test_python_m_runs_and_fails_as_a_cold_one(
    start: Callable[..., Zygote], base: dict[str, str], mark: str, tmp_path: Path
) -> None:
    package = tmp_path / "job"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(
        "import sys, job\nprint(sys.argv, sys.path[0], __spec__.name, __package__)\n1 / 0\n"
    )
    command = [sys.executable, "-um", "job.train", "-m"]
    env = {**base, "PERDURE_MARK": f"{mark}.0"}
    cold = end_of(Rank.start(command, env=env, cwd=str(tmp_path)))
    warm = end_of(Rank.fork(start(command, "json"), command, env=env, deadline=soon()))
    assert warm == cold
    assert "ZeroDivisionError" in warm[2]


def test_what_imports_print_and_set_each_rank_prints_and_sets(
    both: Callable[..., tuple[Ending, str, str]], base: dict[str, str]
) -> None:
    Path(base["PYTHONPATH"], "loud.py").write_text(
        "import os, warnings\nprint('loud')\nwarnings.warn('careful')\n"
        "os.environ.setdefault('LOUD', '1')\nos.environ.setdefault('RANK', 'imported')\nos.environ.pop('PATH')\n"
        "os.putenv('SET_BY_C', '1')\n"
    )
    script = "import loud, ctypes, os\nprint(sorted(os.environ), ctypes.CDLL(None).getenv(b'SET_BY_C') != 0)\n"
    _, out, err = both(script, preload=["loud"])
    assert "loud" in out
    assert "'LOUD'" in out
    assert "True" in out
    assert "'PATH'" not in out
    assert "careful" in err


def test_children_by_fork_and_by_exec_carry_the_mark_of_the_attempt(
    start: Callable[..., Zygote], mark: str, base: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "it.py").write_text(
        "import os, subprocess, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(100)\n    os._exit(0)\n"
        "subprocess.Popen(['sleep', '100'], start_new_session=True)\nprint('on', flush=True)\ntime.sleep(100)\n"
    )
    command = [sys.executable, "it.py"]
    zygote = start(command)
    ranks = []
    for attempt in range(2):
        env = {**base, "PERDURE_MARK": f"outer:{mark}.{attempt}"}
        ranks.append(Rank.fork(zygote, command, env=env, deadline=soon()))
        assert os.read(ranks[-1].stdout, 9) == b"on\n"
    until(lambda: len(marked.pids_marked(f"{mark}.0")) == 3)
    assert marked.pids_marked(f"{mark}.standby") == [zygote.pid]
    shown = Path(f"/proc/{ranks[0].pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    assert shown == f"{sys.executable} it.py"
    pids = marked.pids_marked(f"{mark}.0")
    assert kill_attempt(f"{mark}.0", sessions=[]).left == ()  # by the mark alone
    assert not any(exists(pid) for pid in pids)
    assert ranks[1].poll() is None
    assert zygote.ready()
    kill_attempt(f"{mark}.1", sessions=[])
    for rank in ranks:
        until(rank.poll)
        rank.reap()
        rank.close()


LOADER = """
import multiprocessing, os, pickle, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return index * index

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Numbers())).__class__ is Numbers
    for method in ("fork", "spawn"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context=method)
        print(method, [batch.tolist() for batch in loader])
    model = torch.nn.Linear(4, 4)
    torch.optim.SGD(model.parameters(), 0.1).zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    print(torch.get_num_threads(), torch.get_num_interop_threads())
"""


def test_data_loaders_work_and_nothing_is_left(both: Callable[..., tuple[Ending, str, str]], mark: str) -> None:
    ending, out, err = both(LOADER, preload=["torch", "torch.utils.data", "torch._dynamo"])
    assert (ending, err) == (Ending(code=0), "")
    assert out.count("[0, 1, 4, 9]") == 2
    until(lambda: not marked.pids_marked(f"{mark}.0"))  # multiprocessing's tracker ends after the rank


def test_ranks_do_not_share_random_numbers(
    start: Callable[..., Zygote], base: dict[str, str], mark: str, tmp_path: Path
) -> None:
    (tmp_path / "it.py").write_text(
        "import multiprocessing as m, numpy, random, torch, uuid\n"
        "print(random.random(), numpy.random.rand(), torch.rand(()).item(), uuid.uuid4())\n"
        "print(m.current_process().authkey.hex())\n"
    )
    command = [sys.executable, "it.py"]
    zygote = start(command, "numpy.random", "random", "torch", "uuid", "multiprocessing")
    env = {**base, "PERDURE_MARK": f"{mark}.0"}
    a, b = (end_of(Rank.fork(zygote, command, env=env, deadline=soon()))[1].split() for _ in range(2))
    assert len(a) == len(b) == 5
    assert not set(a) & set(b)


UNFIT = {
    "import threads started a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start()\n"
    ),
    "import broken failed in the standby interpreter: ValueError: no": "raise ValueError('no')\n",
    "import sockets opened socket:": "import socket\nkept = socket.socket()\n",
    "ended by signal 9": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "ended with code 3": "import os\nos._exit(3)\n",
}


@pytest.mark.parametrize(("sentence", "module"), UNFIT.items(), ids=UNFIT.keys())
def test_a_zygote_that_cannot_be_forked_says_why(
    sentence: str, module: str, start: Callable[..., Zygote], base: dict[str, str], tmp_path: Path
) -> None:
    words = sentence.split()
    name = words[1] if words[0] == "import" else "dies"
    Path(base["PYTHONPATH"], f"{name}.py").write_text(module)
    (tmp_path / "it.py").write_text("")
    zygote = start([sys.executable, "it.py"], "json", name)
    refusal = settled(zygote)
    assert refusal is not None
    assert sentence in refusal
    assert not zygote.ready()
    with pytest.raises(LinkLost, match=re.escape(sentence)):
        Rank.fork(zygote, [sys.executable, "it.py"], env=base, deadline=soon())


def test_a_module_that_is_not_there_is_left_to_the_script(start: Callable[..., Zygote], tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("")
    assert settled(start([sys.executable, "it.py"], "no_such_module", "json.no_such", "no_such.sub")) is None


def test_a_rank_calls_what_it_is_told_to_with_its_own_environment_and_before_its_script(
    start: Callable[..., Zygote], base: dict[str, str], mark: str, tmp_path: Path
) -> None:
    (tmp_path / "modules" / "hook.py").write_text(
        "import os, threading\n"
        "print('imported')\n"
        "def begin():\n"
        "    print('rank', os.environ['RANK'])\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "    raise ValueError('which is nobody elses matter')\n"
    )
    (tmp_path / "it.py").write_text("import os\nprint('script', len(os.listdir('/proc/self/task')))")
    command = [sys.executable, "it.py"]
    for calls, says in (("hook:begin", "imported\nrank 3\nscript 2\n"), ("no_such_hook:begin", "script 1\n")):
        env = {**base, "PERDURE_MARK": f"{mark}.standby"}
        zygote = Zygote.start(command, preload=(), env=env, cwd=str(tmp_path), calls=calls)
        try:
            assert settled(zygote) is None
            env = {**base, "RANK": "3", "PERDURE_MARK": f"{mark}.0"}
            ending, out, err = end_of(Rank.fork(zygote, command, env=env, deadline=soon()))
            assert (ending.code, out, err) == (0, says, "")
        finally:
            zygote.close()


def test_threads_of_a_pool_that_ends_them_before_a_fork_are_no_reason_to_refuse(
    start: Callable[..., Zygote], base: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "it.py").write_text("import numpy as np; print(int((np.ones((300, 300)) @ np.ones((300, 300))).sum()))")
    command = [sys.executable, "it.py"]
    zygote = start(command, "numpy", env={"OMP_NUM_THREADS": "4"})
    assert settled(zygote) is None
    for _ in range(2):
        rank = Rank.fork(zygote, command, env={**base, "OMP_NUM_THREADS": "4"}, deadline=soon())
        assert end_of(rank)[:2] == (Ending(code=0), "27000000\n")


def test_an_option_that_python_refuses_is_in_the_refusal(start: Callable[..., Zygote], tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("")
    refusal = settled(start([sys.executable, "it.py"], env={"PYTHONHASHSEED": "nonsense"}))
    assert refusal is not None
    assert "PYTHONHASHSEED" in refusal


def test_ranks_that_a_zygote_cannot_become_are_refused_and_it_lives_on(
    start: Callable[..., Zygote], base: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "it.py").write_text("")
    command = [sys.executable, "it.py"]
    zygote = start(command, "colorsys")
    with pytest.raises(CallError, match="another OMP_NUM_THREADS"):
        Rank.fork(zygote, command, env={**base, "OMP_NUM_THREADS": "4"}, deadline=soon())
    with pytest.raises(CallError, match="was not started for"):
        Rank.fork(zygote, [sys.executable, "-O", "it.py"], env=base, deadline=soon())
    with pytest.raises(CallError, match="differs too much"):
        Rank.fork(zygote, command, env={**base, "PERDURE_LONG": "x" * 40_000}, deadline=soon())
    (tmp_path / "colorsys.py").write_text("")
    with pytest.raises(CallError, match="colorsys beside the script"):
        Rank.fork(zygote, command, env=base, deadline=soon())
    (tmp_path / "colorsys.py").unlink()
    assert end_of(Rank.fork(zygote, command, env=base, deadline=soon()))[0] == Ending(code=0)


def test_a_zygote_that_hangs_is_given_up_and_leaves_no_rank(
    start: Callable[..., Zygote], base: dict[str, str], mark: str, tmp_path: Path
) -> None:
    (tmp_path / "it.py").write_text("import time; time.sleep(100)")
    command = [sys.executable, "it.py"]
    zygote = start(command)
    assert settled(zygote) is None
    os.kill(zygote.pid, signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded, match="gave up waiting for a fork"):
        Rank.fork(zygote, command, env={**base, "PERDURE_MARK": f"{mark}.0"}, deadline=Deadline.after(0.3, "a fork"))
    until(lambda: not marked.pids_marked(mark))
    assert "has not forked" in str(zygote.refusal())


def test_ranks_live_on_when_the_zygote_is_killed(
    start: Callable[..., Zygote], base: dict[str, str], mark: str, tmp_path: Path
) -> None:
    (tmp_path / "it.py").write_text(
        "import sys; print('on', flush=True); sys.stdin.read(); open('go').read(); print('done')"
    )
    os.mkfifo(tmp_path / "go")
    command = [sys.executable, "it.py"]
    zygote = start(command)
    env = {**base, "PERDURE_MARK": f"{mark}.0"}
    rank = Rank.fork(zygote, command, env=env, deadline=soon())
    assert os.read(rank.stdout, 9) == b"on\n"
    os.kill(zygote.pid, signal.SIGKILL)
    until(zygote.refusal)
    assert "signal 9" in str(zygote.refusal())
    with pytest.raises(LinkLost, match="signal 9"):
        Rank.fork(zygote, command, env=env, deadline=soon())
    (tmp_path / "go").write_text("")
    assert end_of(rank)[:2] == (Ending(code=0), "done\n")


LAUNCHER = """
import sys, time
from perdure.clock import Deadline
from perdure.process.tree import Rank, become_subreaper
from perdure.process.zygote import Zygote
mark, env = sys.argv[1], {"PATH": "/usr/bin:/bin"}
become_subreaper()
command = [sys.executable, "it.py"]
zygote = Zygote.start(command, preload=["json"], env={**env, "PERDURE_MARK": mark + ".standby"})
soon = Deadline.after(60, "ranks")
ranks = [Rank.fork(zygote, command, env={**env, "PERDURE_MARK": mark + ".0"}, deadline=soon) for _ in range(2)]
print(zygote.pid, *[rank.pid for rank in ranks], flush=True)
time.sleep(100)
"""


def test_zygote_and_ranks_die_with_the_launcher(mark: str, tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("import time; time.sleep(100)")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": SRC}
    command = [sys.executable, "-c", LAUNCHER, mark]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=tmp_path) as launcher:
        assert launcher.stdout is not None
        pids = [int(word) for word in launcher.stdout.readline().split()]
        assert len(pids) == 3
        assert all(exists(pid) for pid in pids)
        launcher.kill()
        until(lambda: not any(exists(pid) for pid in pids))


FORKING = """
import sys
from perdure.clock import Deadline
from perdure.process.tree import Rank, become_subreaper
from perdure.process.zygote import Zygote
mark, env = sys.argv[1], {"PATH": "/usr/bin:/bin"}
become_subreaper()
command = [sys.executable, "it.py"]
zygote = Zygote.start(command, preload=["json"], env={**env, "PERDURE_MARK": mark + ".standby"})
print(zygote.pid, flush=True)
while True:
    rank = Rank.fork(zygote, command, env={**env, "PERDURE_MARK": mark + ".0"}, deadline=Deadline.after(60, "a rank"))
    print(rank.pid, flush=True)
"""


@pytest.mark.parametrize("victim", ["launcher", "zygote"])
@pytest.mark.parametrize("after_s", [0.0, 0.003, 0.011, 0.02, 0.037])
def test_whatever_is_killed_while_it_forks_no_rank_is_left_over(
    victim: str, after_s: float, mark: str, tmp_path: Path
) -> None:
    (tmp_path / "it.py").write_text("import time; time.sleep(100)")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": SRC}
    command = [sys.executable, "-c", FORKING, mark]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path, text=True
    ) as launcher:
        assert launcher.stdout is not None
        zygote = int(launcher.stdout.readline())
        assert launcher.stdout.readline().strip()  # the first rank
        time.sleep(after_s)
        if victim == "zygote":
            os.kill(zygote, signal.SIGKILL)
            assert launcher.wait(timeout=60) == 1  # it has seen that, and ended by the exception
        launcher.kill()
        out, err = launcher.communicate()
        until(lambda: not marked.pids_marked(mark))
        assert ("LinkLost" in err) == (victim == "zygote"), (out, err)


def test_closing_ends_the_zygote_and_twice_is_fine(start: Callable[..., Zygote], tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("")
    zygote = start([sys.executable, "it.py"])
    zygote.close()
    zygote.close()
    assert not exists(zygote.pid)
    assert "closed" in str(zygote.refusal())


def test_what_is_preloaded_is_installed_and_imported_by_the_script_or_by_its_own_modules(tmp_path: Path) -> None:
    package = tmp_path / "model"
    package.mkdir()
    (package / "__init__.py").write_text("from .layers import Layer\nfrom . import names\n")
    (package / "layers.py").write_text("import numpy as np\nfrom ..outside import x\nclass Layer:\n    import bisect\n")
    (package / "names.py").write_text("import fractions\nraise SystemExit('never run')\n")
    (package / "unused.py").write_text("import smtplib\n")
    (tmp_path / "broken.py").write_text("import wave\ndef (\n")
    (tmp_path / "random").mkdir()  # a mere folder hides nothing
    (tmp_path / "train.py").write_text(
        "import sys, random\nfrom typing import TYPE_CHECKING\nimport model, broken, no_such\n"
        "try:\n    import tomllib\nexcept ImportError:\n    import ftplib\n"
        "with open('x') as f:\n    import csv\n"
        "if TYPE_CHECKING:\n    import poplib\n"
        "def main():\n    import telnetlib\n"
        "if __name__ == '__main__':\n    import imaplib\n    main()\n"
    )
    found = modules_of([sys.executable, "-u", "train.py", "--import", "x"], cwd=str(tmp_path))
    assert found is not None
    tops = [name for name in found if "." not in name]
    assert tops == ["sys", "random", "typing", "numpy", "bisect", "fractions", "tomllib", "csv"]
    assert modules_of([sys.executable, "-m", "model.layers"], cwd=str(tmp_path)) is not None


def test_a_script_with_torch_and_perdure_preloads_what_these_import_later(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nimport perdure\n")
    found = modules_of([sys.executable, "train.py"], cwd=str(tmp_path))
    assert found is not None
    assert {"torch", "perdure", "torch._dynamo", "perdure.adapters.torch.attach"} <= set(found)


@pytest.mark.parametrize(
    "command",
    [
        *([], ["no-such"], ["sh", "train.py"], ["/usr/bin/env", "python", "train.py"], [sys.executable]),
        *([sys.executable, *rest] for rest in (["-c", "pass"], ["-"], ["-i", "train.py"], ["no-such.py"])),
    ],
    ids=" ".join,
)
def test_commands_that_are_not_plain_python_have_no_standby(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    assert modules_of(command, cwd=str(tmp_path)) is None
    if command:
        with pytest.raises(CallError, match="not plain Python"):
            Zygote.start(command, preload=(), env={}, cwd=str(tmp_path))

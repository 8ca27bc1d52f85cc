"""The standby interpreter: import what a rank will need, wait, and fork a rank whenever the launcher asks for one.

This file imports the standard library only and runs as a script, ``python [options] zygote_child.py <socket> <launcher>
<room>``; its other half is `perdure.process.zygote`. It has one thread, and sees to it that imports start none.

A rank is to be what a cold interpreter would be. What that takes:

- *Parent.* A fork within a fork, of which the middle one exits: the kernel gives the rank to the launcher (the nearest
  subreaper), which can wait for it. Only then the rank asks to die with its parent, and looks whether it still has it.
- *Mark.* /proc/<pid>/environ shows the memory that exec filled, and a fork's children inherit it. The standby is
  exec'ed with a last variable that is only room; the rank writes its own environment over it. So it carries its mark,
  and so do data loaders that it forks, wherever they go; no privilege and no kernel option is needed.
- *Environment.* C's is emptied and filled anew, Python's with it. What imports changed in it is changed again, unless
  the rank's environment gives that variable another value than the standby's did.
- *What watches it.* Whoever started the standby may name a function that each rank calls once it is itself, as what
  starts a thread with an import could not do so in the standby.
- *Output.* What imports printed (warnings) is printed by each rank, to its own pipes.
- *The script.* Runs as ``__main__`` in a fresh module, one frame below it; that frame is taken out of the traceback of
  an exception that nobody caught. Exit, exit codes, atexit and waiting for threads are the interpreter's own.

What stays different: ranks of one standby share their hash seed and the addresses of what was imported; a package that
reads RANK while it is imported finds none; objects made by imports are not looked at by the garbage collector before
exit; `traceback.print_stack` shows one frame more.
"""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # this file's folder, before anything in it hides a module of the standard library

_AT_START = frozenset(sys.modules)  # what every interpreter has loaded before it looks into the script's folder

import array
import atexit
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import io
import json
import random
import runpy
import shlex
import signal
import socket
import stat
import time
import types
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_ROOM = b"PERDURE_STANDBY_ROOM="
_MARK = b"PERDURE_MARK="
HEADER_BYTES = 4
_RANK_FDS = 3


class Standby:
    """The one state of this process: its socket, what imports did, and where its own environment lies in memory."""

    def __init__(self, control: int, launcher: int) -> None:
        self.control = socket.socket(fileno=control)
        self.launcher = launcher
        self.before: dict[bytes, bytes] = {}
        self.changed: dict[bytes, bytes | None] = {}
        self.printed = (b"", b"")
        self.areas = _areas()
        self.calls: str | None = None

    def serve(self) -> "Rank | None":
        """Import, then fork on request; returns in a rank, and with None once the launcher has gone."""
        preload = _receive(self.control)
        if preload is None:
            return None
        os.environb.pop(_ROOM[:-1], None)
        refusal = self._preload(preload[0]["preload"], preload[0]["calls"])
        self.control.sendall(json.dumps({"refusal": refusal}).encode() + b"\n")
        while refusal is None:
            request = _receive(self.control)
            if request is None:
                break
            rank = self._fork(*request)
            if rank is not None:
                return rank
        return None

    def _preload(self, names: list[str], calls: str | None) -> str | None:
        """Import ``names``; return why this process cannot be forked, or None. Keeps what imports printed.

        What ranks are to call (``module:function``) is imported last; if it cannot be, they do without.
        """
        self.before = _c_environ()
        n_threads, open_before = _n_threads(), _open_fds()
        captured = [os.memfd_create(name) for name in ("stdout", "stderr")]
        for number, fd in enumerate(captured, start=1):
            os.dup2(fd, number)
        refusal = None
        for name in names:
            refusal = _import(name) or _after(name, n_threads, open_before | set(captured))
            if refusal is not None:
                break
        if refusal is None and calls is not None:
            module = calls.partition(":")[0]
            self.calls = calls if _import(module) is None and module in sys.modules else None
            refusal = _after(module, n_threads, open_before | set(captured))
        sys.stdout.flush()
        sys.stderr.flush()
        _LIBC.fflush(None)
        self.printed = (_all_of(captured[0]), _all_of(captured[1]))
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.close(null)
        after = _c_environ()
        self.changed = {
            name: after.get(name) for name in self.before | after if self.before.get(name) != after.get(name)
        }
        gc.collect()
        gc.freeze()  # ranks share this memory; a collection that visited it would copy it for each of them
        atexit.register(gc.unfreeze)  # what lives in cycles is finalised at exit all the same
        return refusal

    def _fork(self, request: dict[str, Any], fds: list[int]) -> "Rank | None":
        *output, answer = fds
        refusal = _hidden(request["folder"])
        if refusal is None:
            try:
                middle = os.fork()
            except OSError as error:
                refusal = f"the standby interpreter cannot fork: {error.strerror}"
            else:
                if middle == 0:
                    middle = os.getpid()
                    _leave_a_child(answer)
                    self.control.close()
                    return Rank(self, request, middle, output, answer)
                os.waitpid(middle, 0)
        if refusal is not None:
            _answer(answer, refusal=refusal)
        for fd in fds:
            os.close(fd)
        return None


class Rank:
    """What a forked process does until it runs the user's script."""

    def __init__(self, standby: Standby, request: dict[str, Any], middle: int, output: list[int], answer: int) -> None:
        self.command: list[str] = request["command"]
        self.module: str | None = request["module"]
        self.script: str | None = request["script"]
        self.path = None if self.script is None else os.path.join(os.getcwd(), self.script)
        os.setsid()
        standby.areas.show(self.command, os.fsencode(request["shown"]))
        _become_child_of(standby.launcher, middle)
        _answer(answer, pid=os.getpid())
        if os.read(answer, 1) != b"g":
            os._exit(127)  # the launcher gave up on it, or died
        os.close(answer)
        _set_environ(request["env"], standby.before, standby.changed)
        null = os.open(os.devnull, os.O_RDWR)
        for number, fd in enumerate((null, *output)):
            os.dup2(fd, number)
            os.close(fd)
        for number, printed in enumerate(standby.printed, start=1):
            _write_all(number, printed)
        _reseed()
        importlib.invalidate_caches()
        if standby.calls is not None:
            _call(standby.calls)
        self._set_sys(request["folder"], request["arguments"])

    def _set_sys(self, folder: str, arguments: list[str]) -> None:
        sys.argv[:] = ["-m" if self.script is None else self.script, *arguments]
        sys.orig_argv[:] = self.command
        if not sys.flags.safe_path:
            sys.path.insert(0, folder)
        main = types.ModuleType("__main__")
        main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
        if self.path is not None:
            loader = importlib.machinery.SourceFileLoader("__main__", self.path)
            main.__dict__.update(__file__=self.path, __cached__=None, __loader__=loader)
        sys.modules["__main__"] = main
        self.main = main


class _Areas:
    """Where exec put this process's arguments and environment: memory that ps and /proc show."""

    def __init__(self, arguments: tuple[int, int], environ: tuple[int, int]) -> None:
        self.arguments = arguments
        self.environ = environ

    def show(self, command: list[str], environ: bytes) -> None:
        """Show ``command`` and the variables of ``environ`` from now on; the caller has checked that they fit."""
        low, high = self.environ
        if len(environ) > high - low:
            raise SystemExit("the room for a rank's environment is too small")
        ctypes.memmove(low, environ.ljust(high - low, b"\0"), high - low)
        low, high = self.arguments
        title = os.fsencode(shlex.join(command))[: high - low - 2].ljust(high - low - 1, b"\0")
        ctypes.memmove(
            low, title + b".", high - low
        )  # the last byte is not NUL: so the kernel shows it up to its first


def _areas() -> _Areas:
    """Find the areas; of the environment the part that begins with the mark, or else with the room."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arg_low, arg_high, env_low, env_high = map(int, fields[45:49])
    place = env_low
    for entry in ctypes.string_at(env_low, env_high - env_low).split(b"\0"):
        if entry.startswith((_MARK, _ROOM)):
            return _Areas((arg_low, arg_high), (place, env_high))
        place += len(entry) + 1
    raise SystemExit("the standby interpreter was started without room for the environment of its ranks")


def _import(name: str) -> str | None:
    """Import module ``name`` if there is one; return a sentence if it raised."""
    try:
        parent, _, last = name.rpartition(".")
        if parent and hasattr(importlib.import_module(parent), last):
            return None
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    except ModuleNotFoundError:
        return None  # whoever needs it says so, and a script that can do without goes on
    except BaseException as error:
        return f"import {name} failed in the standby interpreter: {type(error).__name__}: {error}"
    return None


def _call(name: str) -> None:
    """Call ``module:function``, which is no part of the rank's own work: what it raises does not reach the rank."""
    module, _, function = name.partition(":")
    try:
        getattr(sys.modules[module], function)()
    except Exception:
        pass


def _after(name: str, n_threads: int, known_fds: set[int]) -> str | None:
    """Return why the import of ``name`` forbids to fork, or None."""
    if _n_threads() > n_threads:
        child = os.fork()  # pools that know of forks (OpenBLAS) end their threads before one
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    started = _n_threads() - n_threads
    if started > 0:
        threads = "a thread" if started == 1 else f"{started} threads"
        return f"import {name} started {threads}, which a fork would lose"
    for fd in sorted(_open_fds() - known_fds):
        shared = _shared_by_forks(fd)
        if shared is not None:
            return f"import {name} opened {shared}, which ranks must not share"
    return None


def _hidden(folder: str) -> str | None:
    """Return a sentence if a file beside the script would have been imported in place of a module that is loaded."""
    if sys.flags.safe_path:
        return None
    try:
        files = os.listdir(folder)
    except OSError:
        return None  # nothing can be imported from there either
    suffixes = importlib.machinery.all_suffixes()
    local = {name[: -len(suffix)] for name in files for suffix in suffixes if name.endswith(suffix)}
    local |= {name for name in files if os.path.isfile(os.path.join(folder, name, "__init__.py"))}
    for name in sorted(local & sys.modules.keys() - _AT_START):
        origin = getattr(sys.modules[name], "__file__", None)
        if origin is not None and os.path.realpath(origin).startswith(os.path.join(os.path.realpath(folder), name)):
            continue  # it is that very file
        return f"{name} beside the script has the name of a module that the standby interpreter has imported"
    return None


def _shared_by_forks(fd: int) -> str | None:
    """Return what ``fd`` is if it would be wrong for ranks to share it: all but files that are only read."""
    try:
        target = os.readlink(f"/proc/self/fd/{fd}")
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags"))
        mode = os.fstat(fd).st_mode
    except OSError:
        return None  # the descriptor of the folder that was listed
    only_read = flags & os.O_ACCMODE == os.O_RDONLY and (stat.S_ISREG(mode) or stat.S_ISCHR(mode) or stat.S_ISDIR(mode))
    return None if only_read else target


def _n_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _open_fds() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


def _all_of(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    printed = os.pread(fd, size, 0) if size else b""
    os.close(fd)
    return printed


def _leave_a_child(answer: int) -> None:
    """In the middle process: fork, exit; returns in the child."""
    try:
        if os.fork() > 0:
            os._exit(0)
    except OSError as error:
        _answer(answer, refusal=f"the standby interpreter cannot fork: {error.strerror}")
        os._exit(1)


def _become_child_of(launcher: int, middle: int) -> None:
    """Wait until the middle process has gone, then ask to be killed with the launcher; exit if that is gone too."""
    while os.getppid() == middle:
        time.sleep(0.0002)  # it is about to exit: it does nothing else
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != launcher:
        os._exit(127)


def _set_environ(env: dict[str, str], before: dict[bytes, bytes], changed: dict[bytes, bytes | None]) -> None:
    """Make ``env`` the environment of C and Python, with the changes that imports made to the standby's."""
    seen_by_python = set(os.environb)
    os.environ.clear()
    _LIBC.clearenv()
    os.environ.update(env)
    for name, value in changed.items():
        if os.environb.get(name) != before.get(name):
            continue
        if value is None:
            os.environb.pop(name, None)
        elif name in seen_by_python:
            os.environb[name] = value
        else:
            os.putenv(name, value)  # C code set it, so Python would not see it in a cold interpreter either


def _c_environ() -> dict[bytes, bytes]:
    """Return the environment as C sees it."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(_LIBC, "environ")  # not NULL: nobody has cleared it yet
    found: dict[bytes, bytes] = {}
    place = 0
    while (entry := entries[place]) is not None:
        name, _, value = entry.partition(b"=")
        found[name] = value
        place += 1
    return found


def _reseed() -> None:
    """Give new seeds to the generators that a cold interpreter seeds from the system."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # the CPU's alone: those of GPUs begin with the same seed in every process
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request and its descriptors, or None at the end."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(_RANK_FDS * fds.itemsize)
    header, ancillary, _, _ = control.recvmsg(HEADER_BYTES, room, socket.MSG_CMSG_CLOEXEC | socket.MSG_WAITALL)
    if len(header) < HEADER_BYTES:
        return None
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data)
    left = int.from_bytes(header, "little")
    body = io.BytesIO()
    while left > 0:
        chunk = control.recv(min(left, 1 << 16))
        if not chunk:
            return None
        left -= body.write(chunk)
    return json.loads(body.getvalue()), list(fds)


def _answer(fd: int, **what: object) -> None:
    _write_all(fd, json.dumps(what).encode() + b"\n")


def _write_all(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        pass  # nobody reads any more: a cold interpreter's print at exit would end the same way


def hide_standby(error: BaseException) -> None:
    """Take this file's frames out of what is printed for ``error``, by whichever hook prints it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    hook = sys.excepthook

    def print_without(kind: type[BaseException], value: BaseException, _: types.TracebackType | None) -> None:
        hook(kind, value.with_traceback(traceback), traceback)

    sys.excepthook = print_without


if __name__ == "__main__":
    _rank = Standby(int(sys.argv[1]), int(sys.argv[2])).serve()
    if _rank is not None:
        try:
            if _rank.path is None:
                # What ``python -m`` itself calls.
                runpy._run_module_as_main(_rank.module)  # type: ignore[attr-defined]
            else:
                with io.open_code(_rank.path) as _file:
                    _source = _file.read()
                exec(compile(_source, _rank.path, "exec", dont_inherit=True), _rank.main.__dict__)
        except SystemExit:
            raise
        except BaseException as _error:
            hide_standby(_error)
            raise

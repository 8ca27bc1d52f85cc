"""The probe: a thread in each rank that says each second how the rank is, so that a watcher outside can compare ranks.

It writes one record (`perdure.progress.vitals`) into the folder that PERDURE_PROBE names, and nothing else. It starts
in three ways: by `perdure.attach`, by the ranks of `perdure run`, and in unmodified code by the start-up file of
`perdure.progress.probing`. Without PERDURE_PROBE, and with PERDURE_PROBE=off, there is no probe.

Three hands write the record. The thread here: beat, phase, what the groups have done (`probe_recorder`), values that a
device has computed (`probe_later`). The main thread, in hooks that torch calls: steps, waits, losses (`probe_steps`)
and gradients (`probe_gradients`). And faulthandler, in C, on a signal: the stacks. A rank whose Python is held in C, or
that is stopped, shows by its beat, which stands.

A rank trains as it would without: hooks read and never write, and what fails in the probe switches that part of it off
and is said in ``trouble-RANK.PID`` beside the record. This module is imported before torch, and does not import it.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.adapters.torch.probe_frames import Doing, look
from perdure.errors import CallError
from perdure.process.environ import ProbeTold, claim_probe
from perdure.progress.page import Phase, Record
from perdure.progress.stacks import catches, stack_path
from perdure.progress.vitals import LOADING, GroupVitals, VitalsFile

if TYPE_CHECKING:
    from perdure.adapters.torch.probe_steps import Steps

__all__ = ["STACK_SIGNAL", "Probe", "follow", "running", "start", "start_from_environment", "watch_torch"]

STACK_SIGNAL = signal.SIGRTMIN + 13
"""Asks a rank for its stacks where PERDURE_PROBE_SIGNAL names no other: one that torch, gloo, NCCL, Python's own
libraries and batch systems leave alone."""

_PERIOD_S = 1.0
_FIRST_STEPS = 2
_NO_SKIPS = (
    "--skip-bad-batch cannot leave out a batch of this job: its script trains and has given no loader to perdure; call "
    "perdure.attach(..., loader=loader) in it, or leave the flag out"
)


class Probe:
    """The probe of this process. `start` makes it."""

    def __init__(self, told: ProbeTold, *, rank: int, world: int) -> None:
        if told.folder is None:
            raise CallError("a probe needs the folder that PERDURE_PROBE names")
        self.pid = os.getpid()
        self.rank = rank
        self.world = world
        self.main = threading.main_thread().ident or 0
        self.checksum_steps = told.checksum_steps
        self.number = number = _free_signal(told.signal)
        self.file = VitalsFile(told.folder, rank=rank, world=world, stack_signal=number, main=self.main)
        self._stacks = open(stack_path(self.file.path), "ab", buffering=0, opener=_private)  # noqa: SIM115
        if number:
            faulthandler.register(number, file=self._stacks, all_threads=True, chain=False)
            _registered.add(number)
        self.groups: Callable[[], list[GroupVitals]] | None = None
        self.later: Callable[[], None] | None = None
        self.steps: Steps | None = None
        self.record: Callable[[], Record | None] = _no_record
        self.off = False
        self._beat = 0
        self._phase = Phase.STARTING.name.lower()
        self._since_ns = time.monotonic_ns()
        self._deadline_ns = 0
        self._evaluates = False
        self._cannot_skip = told if told.may_skip and rank == 0 else None
        self._troubles: set[str] = set()
        self._ticking = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="perdure-probe", daemon=True)

    def begin(self) -> None:
        """Start to beat."""
        self.tick()
        self._thread.start()
        atexit.register(self._finish)

    def watch(self, model: Any = None) -> None:
        """Set the hooks, once torch is imported; ``model`` is one that was made before."""
        try:
            if self.steps is None:
                from perdure.adapters.torch.probe_steps import hook_torch

                hook_torch(self)
            if self.steps is not None and model is not None:
                self.steps.gradients.know(model)
        except Exception:  # the beat goes on
            self.trouble("hooks")

    def leave(self) -> None:
        """Stop to beat and take the hooks back; the record stays as it is."""
        self._stop.set()
        self._thread.join()
        atexit.unregister(self._finish)
        self._tell_later()
        if self.steps is not None:
            self.steps.unhook()
        if self.number:
            faulthandler.unregister(self.number)
            _registered.discard(self.number)
        self._stacks.close()
        self.off = True

    def tick(self) -> None:
        """Write what is to be written each second. From whichever thread: what was seen first is written first."""
        with self._ticking:
            self._write()

    def _write(self) -> None:
        self._beat += 1
        if self.number and signal.getsignal(self.number) is not signal.SIG_DFL:
            self.number = 0  # the program has taken it since: its handler is not to be called for us
            self.file.no_stacks()
        doing: frozenset[Doing] | None = None
        try:
            doing = look(sys._current_frames().get(self.main))
            self._tell_phase(doing)
        except Exception:
            self.trouble("phase")
        self._tell(None if doing is None else Doing.COLLECTIVE in doing)
        try:
            if self.groups is not None:
                self.file.groups(self.groups())
        except Exception:
            self.groups = None
            self.trouble("groups")
        self._tell_later()
        self._tell_of_skips()

    def _tell_later(self) -> None:
        try:
            if self.later is not None:
                self.later()
        except Exception:
            self.later = None
            self.trouble("values")

    def _tell_of_skips(self) -> None:
        """Say once, on rank 0, that no batch of this loop can be left out, where the job was asked to."""
        told, steps = self._cannot_skip, self.steps
        if told is None or steps is None or steps.step < _FIRST_STEPS:
            return
        self._cannot_skip = None
        if steps.run is not None:
            return  # attach has refused a loader that cannot
        try:
            from perdure.events import Log, Notice  # lazy: few jobs need it

            log = Log(told.events)
            log.emit(Notice(text=_NO_SKIPS))
            log.close()
        except Exception:
            self.trouble("notice")

    def trouble(self, where: str) -> None:
        """Say in a file beside the record what went wrong ``where``, once: the rank goes on with less of a probe."""
        if where in self._troubles or self.off:
            return
        self._troubles.add(where)
        try:
            path = self.file.path.with_name("trouble-" + self.file.path.name.removeprefix("rank-"))
            with open(path, "a", encoding="utf-8", opener=_private) as file:
                file.write(f"{where}: {traceback.format_exc()}\n")
        except OSError:  # a full disk: the record itself is still there
            pass

    def forget(self) -> None:
        """Never write again: this is a forked child, whose parent's record it is."""
        self.off = True
        if self.steps is not None:
            self.steps.off = True

    def _tell(self, in_frames: bool | None) -> None:
        self.file.beat(
            self._beat,
            phase=self._phase,
            phase_since_ns=self._since_ns,
            in_frames=in_frames,
            deadline_ns=self._deadline_ns,
        )

    def _beat_on(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            self.tick()

    def _tell_phase(self, doing: frozenset[Doing]) -> None:
        record = self.record()
        if record is not None:
            phase, since_ns, self._deadline_ns = record.phase.name.lower(), record.phase_since_ns, record.deadline_ns
        else:
            phase, since_ns, self._deadline_ns = self._guess(doing), 0, 0
        if phase != self._phase:
            self._phase, self._since_ns = phase, since_ns or time.monotonic_ns()
        self._since_ns = max(self._since_ns, since_ns)

    def _guess(self, doing: frozenset[Doing]) -> str:
        """The phase of a loop that tells none: what its main thread's frames and its steps say."""
        steps = self.steps
        if Doing.SAVING in doing:
            return Phase.SAVING.name.lower()
        if Doing.RESTORING in doing:
            return Phase.RESTORING.name.lower()
        if steps is None or steps.step == 0:
            return Phase.STARTING.name.lower()
        trained = steps.trained
        steps.trained = False
        self._evaluates = Doing.EVALUATING in doing or steps.evaluates or (self._evaluates and not trained)
        if self._evaluates:
            return Phase.EVALUATING.name.lower()
        self._since_ns = max(self._since_ns, steps.ended_ns)
        return LOADING if Doing.LOADING in doing else Phase.FORWARD.name.lower()

    def _finish(self) -> None:
        """At exit: say that the work is done, unless an exception that nobody caught ends the process."""
        if self.off or os.getpid() != self.pid:
            return
        self._stop.set()
        self._thread.join(2.0)
        if self._thread.is_alive():
            return  # it would write over what is said here; the exit code says as much
        if getattr(sys, "last_value", None) is None:
            self._phase, self._since_ns = Phase.FINISHED.name.lower(), time.monotonic_ns()
            self._deadline_ns = 0
        self._beat += 1
        self._tell_later()
        self._tell(False)
        self.forget()


_probe: Probe | None = None
_at_fork = False
_registered: set[int] = set()
"""Signals that probes of this process, or of one that it was forked from, have faulthandler answer."""


def running() -> Probe | None:
    """The probe of this process, if it has one."""
    return _probe


def start(told: ProbeTold | None = None) -> Probe | None:
    """Start the probe of this process unless it runs already; None if it is not to be watched.

    What stands in the way (a folder that is gone, or not private) is said on stderr, and the rank goes on.
    """
    global _probe, _at_fork
    told = ProbeTold.read() if told is None else told
    if _probe is not None or told.folder is None:
        return _probe
    try:
        probe = Probe(told, rank=told.rank or 0, world=told.world or 1)
        probe.begin()
    except (CallError, OSError) as error:
        print(f"perdure: this rank is not watched: {error}", file=sys.stderr)
        return None
    _probe = probe
    claim_probe()
    if not _at_fork:
        os.register_at_fork(after_in_child=_forget)
        _at_fork = True
    if "torch" in sys.modules and hasattr(sys.modules["torch"], "optim"):
        watch_torch()
    return probe


def start_from_environment() -> bool:
    """Start the probe if this process is a rank that is to be watched, and no child of one; return whether it runs.

    For whoever makes a process a rank: also by a fork from one that has imported torch, once the environment says which
    rank it is. Called again it does nothing, nor where PERDURE_PROBE names no folder.
    """
    if _probe is not None:
        return True
    told = ProbeTold.read()
    return told.wanted and start(told) is not None


def watch_torch() -> None:
    """Set the hooks; called when torch has been imported."""
    if _probe is not None:
        _probe.watch()


def follow(run: Any, model: Any, *, record: Callable[[], Record | None]) -> None:
    """Take the step from a ``run`` that `attach` watches over, the phase from its ``record`` on the launcher's page
    once it has one, and ``model`` as what is trained.
    """
    probe = start()
    if probe is None:
        return
    probe.record = record
    probe.watch(model)
    if probe.steps is not None:
        probe.steps.run = run


def _no_record() -> None:
    return None


def _forget() -> None:
    global _probe
    if _probe is not None:
        _probe.forget()
        _probe = None


def _free_signal(wanted: int | None) -> int:
    """The signal for stacks; 0 if the program has a handler of its own for it."""
    number = int(STACK_SIGNAL if wanted is None else wanted)
    if number in _registered and signal.getsignal(number) in (signal.SIG_DFL, None):
        return number  # ours, inherited over a fork
    try:
        taken = catches(os.getpid(), number) or signal.getsignal(number) is not signal.SIG_DFL
    except ValueError:
        return 0
    return 0 if taken else number


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

"""A training loop that `perdure.attach` watches over: hooks where its steps end, where it draws, and where it ends.

The cut of a step is the end of its iteration: after ``optimizer.step`` and whatever the loop still does (a scheduler,
an evaluation), at the loader draw that follows, or where no loader is given at the next forward that trains, or at
exit. There the step is saved if its turn has come, and there all ranks stop together once one of them was asked to. The
copy of what the optimizer owns runs beside the next forward and backward; the next ``optimizer.step`` waits for it (the
fence).
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from perdure.adapters.torch.checkpointer import Checkpointer
from perdure.adapters.torch.hooks import never_compiled
from perdure.adapters.torch.loader import watch_draws
from perdure.adapters.torch.resuming import Skips, require_skippable, restore_as_told
from perdure.adapters.torch.rng import Rng
from perdure.adapters.torch.views import Stage
from perdure.checkpoint.noted_stop import NotedStop
from perdure.checkpoint.rhythm import Rhythm
from perdure.checkpoint.saved import Saved
from perdure.errors import CallError, PerdureError, Superseded
from perdure.events import Notice, StopAgreed
from perdure.process.environ import Placement
from perdure.progress import Phase, Record, StopAgreement

__all__ = ["Run"]

_FAILING_S = 20.0  # that a rank which fails may wait until the others have staged what is under way too


_exit_codes: list[int] = []


def _leave() -> None:
    """End with the code of a last save that failed; registered before all others of ours, so it runs after them."""
    if _exit_codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_codes[0])


atexit.register(_leave)


class _Hook:
    """Calls ``action`` before a forward; in a copy of the model (by ``deepcopy``, by pickle) it does nothing."""

    def __init__(self, action: Callable[[], None] | None) -> None:
        self._action = action

    def __call__(self, *_: Any) -> None:
        if self._action is not None:
            self._action()

    def __reduce__(self) -> tuple[type[_Hook], tuple[None]]:
        return _Hook, (None,)


class Run:
    """A loop that `attach` watches over. ``step`` is the number of completed optimizer steps."""

    def __init__(self, ckpt: Checkpointer, tree: dict[str, Any], *, rhythm: Rhythm, rng: Rng) -> None:
        self.step = 0
        self.checkpointer = ckpt
        self._tree = tree
        self._rhythm = rhythm
        self._told_no_memory = False
        self._skips: Skips | None = None
        self._evaluates = False
        self._rng = rng
        self._cut_at: int | None = None
        self._saved_at: int | None = None
        self._last: Saved | None = None
        self._pending_rng: dict[str, Any] | None = None
        self._record: Record | None = None
        self._agreement: StopAgreement | None = None
        self._noted_stop: NotedStop | None = None
        self._signal: int | None = None
        self._holding: set[object] = {"beginning"}
        self._holds = threading.Lock()
        self._stepping = False
        self._draws = False
        self._began = 0
        self._told = False  # by `cut`, where an iteration ends
        self._untold = False
        self._version = 0  # of the model's parameters after the last step
        self._loop_changes = False  # between an optimizer step and the cut, as weight clipping does
        self._model: torch.nn.Module = torch.nn.Module()
        self._optimizers: frozenset[int] = frozenset()
        self._not_stepped: frozenset[int] = frozenset()
        self._failed = False
        self._closed = False
        self._over = False
        self._pid = os.getpid()

    def state_dict(self) -> dict[str, int]:
        """What of the run itself is saved."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at the saved step."""
        self.step = state["step"]

    def begin(
        self,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        loader: Any,
        *,
        step: int | None,
        where: str,
    ) -> None:
        """Meet the others, restore, and hook the loop; called by `attach`."""
        self._tree["run"] = self
        self._hook_failures()
        told = Placement.read()
        draws = loader is not None or not isinstance(self._tree["model"], Stage)
        if told.may_skip and draws:
            require_skippable(loader, why="batches may come to be left out (--skip-bad-batch)")
        ckpt = self.checkpointer
        ckpt.engage()
        page = ckpt.page
        if page is not None:
            local = ckpt.local_rank
            self._record = page.rank(local)
            self._record.claim(rank=ckpt.rank)
            several = ckpt.several_nodes
            gone = (lambda: not ckpt.has_agent) if several else (lambda: False)
            self._agreement = StopAgreement(page, local_rank=local, arbitrates=not several, gone=gone)
        if ckpt.notes is not None and (page is None or ckpt.several_nodes):
            self._noted_stop = NotedStop(
                ckpt.notes,
                session=ckpt.session,
                rank=ckpt.rank,
                world=ckpt.world,
                agreement=self._agreement,
                page=page,
                has_agents=lambda: ckpt.has_agent,
                tell=lambda fact, everywhere: ckpt.tell(fact, everywhere=everywhere),
            )
        self._enter(Phase.RESTORING)
        if restore_as_told(ckpt, self._tree, step=step, told=told, where=where) is not None:
            self._saved_at = self.step
            self._began = self.step
            self._pending_rng = self._rng.state_dict()  # again at the first cut: what the loop does before it may draw
        if told.skip:
            self._skips = Skips(told.skip, loader, draws=draws, tell=ckpt.tell)
        self._model = model
        self._version = self._model_version()
        if self._record is not None:
            self._record.step = self._record.began = self.step
        model.register_forward_pre_hook(_Hook(self._before_forward), prepend=True)
        for i, each in enumerate(optimizers):
            each.register_step_pre_hook(self._before_step)
            each.register_step_post_hook(functools.partial(self._after_step, i))
        self._not_stepped = self._optimizers = frozenset(range(len(optimizers)))
        watched = loader is not None and watch_draws(loader, self._before_draw)
        self._untold = isinstance(self._tree["model"], Stage) or (loader is not None and not watched)
        self._hook_exit()
        self._enter(Phase.FORWARD)

    def cut(self) -> None:
        """The iteration ends here. To be called in each by ranks of a pipeline that draw from no loader.

        Elsewhere `attach` finds out by itself; but a stage's forward waits for the stage before it, which would wait
        for all ranks at its own. So it is for a loader without ``__iter__``.
        """
        self._told = True
        self._cut()

    def close(self) -> None:
        """Save the last step if it is not saved, wait until all saves are durable, let go of the agent.

        Called by itself at a clean exit; call it earlier to be told of a failure by an exception.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._enter(Phase.CLOSING)
        if not self._failed:
            self._hold("closing")
        try:
            if not self._failed and self.step > 0 and self._saved_at != self.step:
                if not self._loop_changes and self._model_version() != self._version:
                    raise CallError(
                        f"the model was changed after its last optimizer step, so step {self.step} cannot be saved; "
                        "call run.close() right after the loop"
                    )
                self._last = self.checkpointer.save(self.step, self._tree)
            if self._last is not None and not self._failed:
                self._last.committed()
        except BaseException:
            self._failed = True
            raise
        finally:
            self.checkpointer.close(leaving_within_s=_FAILING_S if self._failed else None)
            self._over = True
            if not self._failed:
                self._enter(Phase.FINISHED)

    # --- hooks -------------------------------------------------------------------------------------------------------

    def _before_draw(self) -> None:
        self._draws = True
        self._tell_evaluation(False)
        self._cut()
        if self._skips is not None:
            self._skips.before_draw(self.step)

    def _before_forward(self) -> None:
        """Where nothing is drawn an iteration ends at the next forward that trains; evaluations are part of it."""
        trains = torch.is_grad_enabled() and self._model.training
        if not torch.compiler.is_compiling():
            self._tell_evaluation(not trains)
        if not self._draws and trains:
            if self._untold:
                self._resume_generators()
            else:
                self._cut()

    def _tell_evaluation(self, evaluates: bool) -> None:
        """An evaluation is a phase of its own, and begins anew with each batch: it may last, but not stand still."""
        if self._record is None or self._closed or os.getpid() != self._pid:
            return
        if evaluates:
            self._enter(Phase.EVALUATING)
        elif self._evaluates:
            self._enter(Phase.FORWARD)
        self._evaluates = evaluates

    @never_compiled
    def _before_step(self, *_: Any) -> None:
        if self._untold and not (self._draws or self._told or self.step == self._began):
            raise CallError(
                "nobody knows where the iterations of this rank end: it is a stage of a pipeline, or has a loader that "
                "cannot be watched, and has drawn no batch; call run.cut() at the end of each iteration"
            )
        self.checkpointer.fence()
        self._stepping = True
        self._enter(Phase.STEP)

    @never_compiled
    def _after_step(self, optimizer: int, *_: Any) -> None:
        self._stepping = False
        self._not_stepped -= {optimizer}
        if self._not_stepped:
            return  # a step is complete when every optimizer has done its own, in whatever order
        self._not_stepped = self._optimizers
        self.step += 1
        self._version = self._model_version()
        if self._skips is not None:
            self._skips.stepped()
        if self._record is not None:
            self._record.step = self.step
        self._enter(Phase.FORWARD)

    def _cut(self) -> None:
        """The end of an iteration. Everything that happens between two steps happens here."""
        if self._cut_at == self.step or self._closed or os.getpid() != self._pid:
            return
        self._cut_at = self.step
        self._loop_changes = self._loop_changes or self._model_version() != self._version
        self._resume_generators()
        if self._last is not None and isinstance(self._last.error, Superseded):
            raise self._last.error
        stop = self._should_stop()
        due = self._rhythm.due(self.step) if self.step > 0 else None
        if stop and self.step > 0:
            due = "disk"
        if due == "memory" and not self.checkpointer.has_agent:
            due = None
            if not self._told_no_memory:
                self._told_no_memory = True
                text = "saves to memory alone end here, because there is no agent; those to disk go on"
                self.checkpointer.tell(Notice(text=text))
        if due is not None and self._saved_at != self.step:
            self._enter(Phase.COPYING)
            copying = object()
            self._hold(copying)  # peers may have what only this rank's part makes whole
            saved = self.checkpointer.save(self.step, self._tree, tier=due)
            saved.when_staged(functools.partial(self._let_go, copying))
            if due == "disk":
                self._last = saved
                self._rhythm.saved(saved)
                self._saved_at = self.step
            if self._stepping:  # a closure (LBFGS): this very step is about to change what is being copied
                self.checkpointer.fence()
            self._enter(Phase.FORWARD)
        if stop:
            self._stop()

    def _resume_generators(self) -> None:
        if self._pending_rng is not None:
            self._rng.load_state_dict(self._pending_rng)
            self._pending_rng = None

    def _should_stop(self) -> bool:
        asked = self._signal is not None
        if self._noted_stop is not None:
            try:
                return self._noted_stop.at_cut(self.step, asked=asked)
            except PerdureError as error:
                text = f"this rank stops after step {self.step} and saves nothing: {error}"
                self.checkpointer.tell(Notice(text=text), everywhere=True)
                self._failed = True
                raise SystemExit(128 + (self._signal or signal.SIGTERM)) from None
        return asked if self._agreement is None else self._agreement.at_cut(self.step)

    def _stop(self) -> None:
        self.checkpointer.tell(StopAgreed(step=self.step))
        code = 128 + (self._signal or signal.SIGTERM)
        try:
            self.close()
        except PerdureError as error:
            self._tell_not_saved(error)
        raise SystemExit(code)

    def _model_version(self) -> int:
        """Grows with every change in place of a parameter."""
        return sum(
            (each._local_tensor if isinstance(each, DTensor) else each)._version for each in self._model.parameters()
        )

    def _hold(self, what: object) -> None:
        """From here on something would be lost if this rank were killed, even one of an attempt that has failed."""
        with self._holds:
            self._holding.add(what)
            self._tell_holding()

    def _let_go(self, what: object) -> None:
        with self._holds:
            self._holding.discard(what)
            self._tell_holding()

    def _tell_holding(self) -> None:
        if self._record is not None:
            self._record.expendable = not self._holding

    def _enter(self, phase: Phase) -> None:
        if self._record is not None:
            self._record.enter(phase)

    def _hook_failures(self) -> None:
        """An exception that nobody catches: no save at exit, and the exit code of its class in perdure's tree."""
        before = sys.excepthook

        def note_failure(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._failed = True
            self._hold("failing")
            before(kind, error, trace)
            self._let_go("failing")  # it has said what it is
            if isinstance(error, PerdureError):
                raise SystemExit(error.exit_code)  # the interpreter heeds it here

        sys.excepthook = note_failure

    def _hook_exit(self) -> None:
        atexit.register(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            alone = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            for number in (signal.SIGTERM, signal.SIGINT):
                self._take_signal(number)
            if alone:
                self._let_go("beginning")

    def _take_signal(self, number: signal.Signals) -> None:
        before = signal.getsignal(number)

        def asked(got: int, frame: FrameType | None) -> None:
            if os.getpid() != self._pid or self._signal is not None or self._over:
                ends = before not in (None, signal.SIG_IGN)  # a shell starts what is in its background deaf to Ctrl-C
                signal.signal(got, before if ends else signal.SIG_DFL)
                signal.raise_signal(got)  # the second time it ends at once
                return
            self._signal = got  # if the run is being closed, that is all: its last step is saved there
            if self._record is not None:
                self._record.ask_to_stop()

        signal.signal(number, asked)

    def _at_exit(self) -> None:
        try:
            self.close()
        except CallError as error:  # the script's own doing after its loop: say it
            self._tell_not_saved(error)
        except Exception as error:  # at exit nobody can catch it: say it, and let the exit code say it too
            self._tell_not_saved(error)
            _exit_codes.append(error.exit_code if isinstance(error, PerdureError) else 1)

    def _tell_not_saved(self, error: Exception) -> None:
        if self._last is None or self._last.error is None:  # else the checkpointer has said so
            self.checkpointer.tell(Notice(text=f"the last step was not saved: {error}"), everywhere=True)

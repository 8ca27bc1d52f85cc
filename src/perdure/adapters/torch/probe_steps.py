"""Steps, waits and losses of a training loop, in hooks that torch calls on the main thread.

* A **step** ends where an optimizer's ``step`` returns (torch's global hook). One inside another is a part of it. Of
  several side by side (a GAN, one per parameter) the steps of one count: of the first, until another does two between
  two of its.
* A **wait** is time that the main thread spends in ``Work.wait`` (every collective of torch.distributed that blocks
  ends there: FSDP2's as well), in ``wait_tensor`` (functional collectives, DTensor), in the broadcast of DDP's buffers,
  and between DDP's last local gradient and the end of the backward, where its reducer waits in C++. The methods are
  patched where they are defined, so it does not matter under which names a program has imported functions that call
  them. The rest of a step is the rank's **own work**, data loading included.
* The **loss** is the scalar that the first ``backward`` of a step is called on (before a `GradScaler` scales it).

On a CUDA device a collective blocks no thread of the host, so waits do not show there, but in frames and numbers.

A compiler that traces through a patched function sees the original: the patches ask ``is_compiling`` first.
"""

from __future__ import annotations

import functools
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from perdure.adapters.torch.hooks import never_compiled
from perdure.adapters.torch.probe_gradients import Gradients
from perdure.adapters.torch.probe_later import Later
from perdure.adapters.torch.probe_recorder import best
from perdure.adapters.torch.probe_replicas import Replicas

if TYPE_CHECKING:
    from perdure.adapters.torch.probe import Probe

__all__ = ["Steps", "hook_torch"]

_now = time.monotonic_ns
_thread = threading.get_ident
_compiling = torch.compiler.is_compiling
_LAST_WORDS_APART_NS = 1_000_000_000


class Steps:
    """What the hooks have seen. All of it belongs to the main thread; the probe's thread reads single words."""

    def __init__(self, probe: Probe) -> None:
        self.off = False
        self.main = probe.main
        self.step = 0
        self.ended_ns = 0
        self.trained = False
        "Set by each backward; whoever reads it sets it back."
        self.trains_as_evaluated = False
        "Whether a backward was seen while the model was in evaluation mode: then the mode says nothing."
        self.waiting = False
        self.last_words = False
        "What is written now may be the last of the groups."
        self.wait_ns = 0
        self.run: Any = None
        self.later = Later()
        self.replicas = Replicas(probe.file, every=probe.checksum_steps)
        self._file = probe.file
        self._trouble = probe.trouble
        self._tick = probe.tick
        self._told_ns = 0
        self._lead: weakref.ref[torch.optim.Optimizer] | None = None
        self._rivals: dict[int, int] = {}
        self._inside: list[int] = []
        self._backwards = 0
        self._unscaled: torch.Tensor | None = None
        self._has_loss = False
        self._bad_loss = -1
        self._loss = self._told_loss = (-1, 0.0, -1)
        self._sums = [0, 0, 0, 0]
        self._undo: list[Callable[[], None]] = []
        self.gradients = Gradients(probe.file, self.later, probe.file.wait, self.patch)

    def tell(self) -> None:
        """Write what may wait: each second, by the probe's thread."""
        self.later.collect()
        loss = self._loss
        if loss is not self._told_loss:
            self._told_loss = loss
            self._file.loss(*loss)

    def patch(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put what ``make`` makes of ``owner.name`` in its place, if it has one."""
        before = getattr(owner, name, None)
        if before is not None:
            setattr(owner, name, functools.wraps(before)(make(before)))
            self._undo.append(lambda: setattr(owner, name, before))

    def hook(self, handle: Any) -> None:
        """Remember a hook that was set."""
        self._undo.append(handle.remove)

    def unhook(self) -> None:
        """Take all hooks and patches back, but those of a fallback; whoever patched after us must have left."""
        self.off = True
        self._file.wait(0)
        while self._undo:
            self._undo.pop()()
        self.gradients.unhook()

    def fail(self) -> None:
        """Something in a hook went wrong: say it, and leave the program alone from now on."""
        self.off = True
        self._file.wait(0)
        self._trouble("hooks")

    def tell_calls(self) -> None:
        """A collective has raised, or the groups are taken down. The rank may end before the next beat, so what it has
        called is written now.
        """
        if self.off or _now() - self._told_ns < _LAST_WORDS_APART_NS:
            return
        self._told_ns, self.last_words = _now(), True
        try:
            self._tick()
        finally:
            self.last_words = False

    # --- losses and backwards ----------------------------------------------------------------------------------------

    def before_backward(self, tensors: Any) -> None:
        """A backward begins; one inside another is part of it."""
        self._backwards += 1
        if self._backwards > 1:
            return
        self.trained = True
        if self.gradients.in_evaluation:
            self.trains_as_evaluated = True
        if self._inside:  # of a step that has failed; one with a closure is then the outermost when it ends
            self._inside.clear()
        step = self.next_step
        if not self._has_loss:
            self._take_loss(tensors, step)
        self.gradients.before_backward(step, self.wait_ns)

    def after_backward(self) -> None:
        """A backward is over; the reducer of DDP has waited at its end."""
        self._backwards -= 1
        if self._backwards:
            return
        gradients = self.gradients
        gradients.after_backward()
        if gradients.last_ns:
            self._file.wait(0)
            self.wait_ns += max(0, _now() - gradients.last_ns - (self.wait_ns - gradients.waited_ns))

    def _take_loss(self, tensors: Any, step: int) -> None:
        loss, self._unscaled = self._unscaled, None
        if loss is None:
            loss = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
        if type(loss) is not torch.Tensor or loss.numel() != 1:
            return
        if loss.is_cpu:
            value = loss.item()
            if isinstance(value, float):
                self._has_loss = True
                self._note_loss(step, value)
        elif not loss.is_complex():
            self._has_loss = True
            self.later.give(loss.detach(), functools.partial(self._note_loss, step))

    def scaled(self, loss: Any) -> None:
        """What a `GradScaler` is about to scale is the loss."""
        if type(loss) is torch.Tensor:
            self._unscaled = loss.detach()

    def _note_loss(self, step: int, loss: float) -> None:
        if math.isfinite(loss):
            self._bad_loss = -1
        elif self._bad_loss < 0:
            self._bad_loss = step
        self._loss = step, loss, self._bad_loss

    # --- steps -------------------------------------------------------------------------------------------------------

    @property
    def evaluates(self) -> bool:
        """Whether the model is in evaluation mode, where that means that it is not trained now."""
        return not self.trains_as_evaluated and self.gradients.in_evaluation

    @property
    def next_step(self) -> int:
        """The step that is under way."""
        return (self.step if self.run is None else int(self.run.step)) + 1

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer begins a step, maybe inside another's, or inside its own (a subclass that calls ``super``)."""
        self._inside.append(id(optimizer))
        if len(self._inside) > 1:
            return
        self.gradients.know_optimizer(optimizer)
        lead = None if self._lead is None else self._lead()
        if (lead is None or lead is optimizer) and not self._backwards:
            self.gradients.before_step(optimizer, self.next_step)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has done a step."""
        if self._inside:
            self._inside.pop()
        if self._inside or not self._leads(optimizer):
            return
        now = _now()
        step = self.step = self.step + 1 if self.run is None else int(self.run.step)
        times = (0, 0, 0)
        if self.ended_ns:
            took = now - self.ended_ns
            waited = min(self.wait_ns, took)
            times = (took, took - waited, waited)
            sums = self._sums
            sums[0] += 1
            sums[1] += took
            sums[2] += took - waited
            sums[3] += waited
            self.gradients.step_ns = took
        self._file.step(step, times, self._sums)
        self.ended_ns = now
        self.wait_ns = 0
        self._has_loss = False
        if self.replicas.due(step):
            self.replicas.after_step(step, self.gradients.replicated, step_ns=times[0])

    def _leads(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is the optimizer whose steps count: the first, until another steps twice between two of its."""
        lead = None if self._lead is None else self._lead()
        if lead is optimizer:
            if self._rivals:
                self._rivals.clear()
            return True
        count = self._rivals[id(optimizer)] = self._rivals.get(id(optimizer), 0) + 1
        if lead is not None and count < 2:
            return False
        self._lead = weakref.ref(optimizer)
        self._rivals.clear()
        return True


def hook_torch(probe: Probe) -> None:
    """Set all hooks of ``probe``."""
    steps = Steps(probe)
    probe.steps = steps
    probe.later = steps.tell
    _hook_optimizers(steps)
    steps.patch(torch.autograd, "backward", functools.partial(_backward, steps))
    steps.patch(torch.amp.GradScaler, "scale", functools.partial(_scale, steps))
    steps.patch(torch.nn.utils, "clip_grad_norm_", functools.partial(_clip, steps))
    steps.patch(torch.nn.parallel.DistributedDataParallel, "__init__", functools.partial(_made, steps))
    if dist.is_available():
        probe.groups = best(lambda: steps.waiting, lambda: steps.last_words)
        steps.patch(dist.Work, "wait", functools.partial(_wait, steps))
        steps.patch(dist, "destroy_process_group", functools.partial(_destroy, steps))
        steps.patch(dist.ProcessGroup, "monitored_barrier", functools.partial(_wait, steps))
        steps.patch(dist, "_broadcast_coalesced", functools.partial(_wait, steps))
        import torch.distributed._functional_collectives as functional

        steps.patch(functional, "wait_tensor", functools.partial(_wait, steps))


def _hook_optimizers(steps: Steps) -> None:
    @never_compiled
    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not steps.off and _thread() == steps.main:
            try:
                steps.before_step(optimizer)
            except Exception:
                steps.fail()

    @never_compiled
    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not steps.off and _thread() == steps.main:
            try:
                steps.after_step(optimizer)
            except Exception:
                steps.fail()

    steps.hook(register_optimizer_step_pre_hook(before))
    steps.hook(register_optimizer_step_post_hook(after))


def _backward(steps: Steps, before: Callable[..., Any]) -> Callable[..., Any]:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if _compiling() or steps.off or _thread() != steps.main:
            return before(tensors, *args, **kwargs)
        try:
            steps.before_backward(tensors)
        except Exception:
            steps.fail()
        try:
            return before(tensors, *args, **kwargs)
        except RuntimeError:  # perhaps of the reducer, which waits in C++
            steps.tell_calls()
            raise
        finally:
            if not steps.off:
                try:
                    steps.after_backward()
                except Exception:
                    steps.fail()

    return backward


def _wait(steps: Steps, before: Callable[..., Any]) -> Callable[..., Any]:
    def wait(*args: Any, **kwargs: Any) -> Any:
        if _compiling() or steps.off or steps.waiting or _thread() != steps.main:
            return before(*args, **kwargs)
        began = _now()
        steps.waiting = True
        steps._file.wait(began)
        try:
            return before(*args, **kwargs)
        except RuntimeError:
            steps.tell_calls()
            raise
        finally:
            if not steps.off:
                steps._file.wait(0)
                steps.wait_ns += _now() - began
            steps.waiting = False

    return wait


def _destroy(steps: Steps, before: Callable[..., Any]) -> Callable[..., Any]:
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        if _thread() == steps.main:
            steps.tell_calls()
        return before(*args, **kwargs)

    return destroy_process_group


def _scale(steps: Steps, before: Callable[..., Any]) -> Callable[..., Any]:
    def scale(scaler: Any, outputs: Any) -> Any:
        if not (_compiling() or steps.off):
            steps.scaled(outputs)
        return before(scaler, outputs)

    return scale


def _clip(steps: Steps, before: Callable[..., Any]) -> Callable[..., Any]:
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        norm = before(*args, **kwargs)
        if not (_compiling() or steps.off) and type(norm) is torch.Tensor:
            steps.gradients.clipped = norm.detach()
        return norm

    return clip_grad_norm_


def _made(steps: Steps, before: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(module: Any, *args: Any, **kwargs: Any) -> None:
        before(module, *args, **kwargs)
        if not steps.off:
            steps.gradients.know(module)

    return __init__

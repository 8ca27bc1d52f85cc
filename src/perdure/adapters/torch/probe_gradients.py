"""Norms of the gradient before and after it is reduced, and whose is the first number that is not finite.

A NaN that one rank puts into its gradient is on all ranks one reduce later, so the rank where it began is known only
from gradients that nobody has reduced yet:

* **DDP**: a hook of the parameter whose gradient comes last runs before the reducer has copied results back, so there
  all gradients are this rank's own. Where gradients are views of the reducer's buckets, each is looked at in its own
  hook.
* **FSDP2**: in the group's ``post_backward``, before the reduce-scatter. (FSDP1: not at all.)
* **otherwise** (a loop that reduces by itself, one process): at the end of the backward.

Reading all of a large gradient costs a pass over memory, so it is done each K-th step, with K as small as a share of
0.1 % of the step's time allows (1 for small models or long steps); that what begins in between is not missed, each step
looks at a small parameter among those whose gradient comes last: what goes wrong in a batch, an activation or a weight
has reached it by then. A single number that goes wrong in one gradient alone is found for sure where K is 1.

The whole norm is read where the optimizer begins its step, by the same rule with half the share; where the program
clips by ``clip_grad_norm_``, it is the norm that this has found. Of a sharded gradient it is not known without
asking others, so there only the flag is told. A gradient whose square overflows float32 counts as not finite.
"""

from __future__ import annotations

import functools
import math
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from perdure.adapters.torch.probe_later import Later
from perdure.progress.vitals import VitalsFile

__all__ = ["Budget", "Gradients"]

_now = time.monotonic_ns
_LOCAL_SHARE, _WHOLE_SHARE = 0.001, 0.0005
_MOST_STEPS = 1000
_SMALL = 16384  # elements of a parameter that is looked at in each step
_LAST = 8


class Budget:
    """How often something may be done that costs time: each ``every``-th step."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._cost_ns = 0.0
        self._next = 2  # in the first step everything is cold
        self.every = 1

    def due(self, step: int) -> bool:
        """Whether it is to be done in ``step``."""
        return step >= self._next

    def done(self, step: int, cost_ns: int, step_ns: int) -> None:
        """It was done in ``step`` and has cost ``cost_ns``, of steps that take ``step_ns``."""
        self._cost_ns = cost_ns if not self._cost_ns else 0.7 * self._cost_ns + 0.3 * min(cost_ns, 4 * self._cost_ns)
        if step_ns > 0:
            self.every = max(1, min(_MOST_STEPS, math.ceil(self._cost_ns / (self._share * step_ns))))
        self._next = step + self.every


class Gradients:
    """The gradients of what the optimizers of this process train. Called by `probe_steps`, on the main thread."""

    def __init__(self, file: VitalsFile, later: Later, begin_wait: Callable[[], None]) -> None:
        self.step_ns = 0
        self.clipped: torch.Tensor | None = None
        self._file = file
        self._later = later
        self._begin_wait = begin_wait
        self._modules: list[weakref.ref[torch.nn.Module]] = []
        self._known: set[int] = set()
        self._parameters: list[torch.Tensor] = []
        self._ddp: list[torch.Tensor] = []
        self._views = False
        self._sharded = False
        self._hooked: list[Any] = []
        self._order: list[int] = []
        self._last: torch.Tensor | None = None
        self._small: list[torch.Tensor] = []
        self._last_ns = 0
        self._waits = 0
        self._step = 0
        self._looks = False
        self._parts: list[torch.Tensor] = []
        self._cost_ns = 0
        self._local, self._whole = Budget(_LOCAL_SHARE), Budget(_WHOLE_SHARE)
        self._bad_small = False
        self._bad = {"local": -1, "global": -1}

    def know(self, module: Any) -> None:
        """``module`` is trained; of interest if it is a DDP."""
        ddp = isinstance(module, torch.nn.parallel.DistributedDataParallel)
        if ddp and all(each() is not module for each in self._modules):
            self._modules.append(weakref.ref(module))
            self._ddp += [each for each in module.parameters() if each.requires_grad]
            self._views = self._views or bool(getattr(module, "gradient_as_bucket_view", False))
            self._last = None

    @property
    def replicated(self) -> torch.nn.Module | None:
        """The module whose parameters should be equal on several ranks, if there is just one."""
        modules = [module for module in (each() for each in self._modules) if module is not None]
        return modules[0] if len(modules) == 1 else None

    # --- backward ----------------------------------------------------------------------------------------------------

    def before_backward(self, step: int, wait_ns: int) -> None:
        """A backward of ``step`` begins; ``wait_ns`` is what the step has waited so far."""
        if step != self._step:
            self._step = step
            self._parts, self._cost_ns, self._bad_small = [], 0, False
            self._looks = self._local.due(step)
        self._last_ns, self._waits = 0, wait_ns
        if self._ddp and (self._last is None or (self._views and self._looks)):
            self._order = []
            self.unhook()
            for i, each in enumerate(self._ddp):
                self._hook(each, functools.partial(self._each, i))

    def after_backward(self) -> tuple[int, int]:
        """The backward is over. Return when DDP's last local gradient came (0: not known), and what the step had
        waited before it.
        """
        if self._ddp:
            if self._order:
                self._learn()
            elif not self._last_ns:
                self._last = None  # it got no gradient this time: learn anew
        elif not self._sharded:
            self._look_small(self._small)
            if self._looks:
                self._look([each.grad for each in self._parameters])
        last_ns, self._last_ns = self._last_ns, 0
        return last_ns, self._waits

    def _hook(self, parameter: torch.Tensor, call: Callable[[torch.Tensor], None]) -> None:
        self._hooked.append(parameter.register_post_accumulate_grad_hook(call))  # type: ignore[no-untyped-call]

    def unhook(self) -> None:
        """Take the hooks of parameters away."""
        for handle in self._hooked:
            handle.remove()
        self._hooked = []

    def _each(self, index: int, parameter: torch.Tensor) -> None:
        """The gradient of a parameter of DDP is there, while all are hooked."""
        if torch.compiler.is_compiling():
            return
        self._order.append(index)
        if self._looks and self._views:
            self._look([parameter.grad])
        self._last_ns = _now()

    def _learn(self) -> None:
        """All were hooked in this backward: keep the hook of the last alone, and remember a small one near it."""
        self.unhook()
        order, self._order = self._order, []
        self._last = self._ddp[order[-1]]
        near = [self._ddp[i] for i in order[-_LAST:]]
        small = sorted((each for each in near if each.numel() <= _SMALL), key=lambda each: each.numel())
        self._small = [each for each in small[:1] if each.device.type == "cpu"]
        self._hook(self._last, self._came_last)

    def _came_last(self, parameter: torch.Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        self._look_small([parameter] if self._views else self._small)
        if self._looks and not self._views:
            self._look([each.grad for each in self._ddp])
        self._last_ns = _now()
        self._begin_wait()

    # --- looking -----------------------------------------------------------------------------------------------------

    def _look(self, gradients: Iterable[Any]) -> None:
        """Take the norms of all that is there, as numbers of their device."""
        began = _now()
        self._parts += _norms(gradients)
        self._cost_ns += _now() - began

    def _look_small(self, parameters: Iterable[torch.Tensor]) -> None:
        for each in parameters:
            gradient = each.grad
            if gradient is None or each.numel() > _SMALL or each.device.type != "cpu":
                continue
            if gradient.dtype is torch.float32 and gradient.is_contiguous():  # a norm would take three times as long
                flat = gradient.view(-1)
                self._bad_small = self._bad_small or not math.isfinite(torch.dot(flat, flat).item())
            else:
                for norm in _norms([gradient]):
                    self._bad_small = self._bad_small or not math.isfinite(norm.item())

    def look_sharded(self, group: Any) -> None:
        """A group of FSDP2 is about to reduce its gradients."""
        if not self._looks:
            return
        gradients = []
        for each in group.fsdp_params:
            if getattr(each, "unsharded_accumulated_grad", None) is not None:
                gradients.append(each.unsharded_accumulated_grad_data)
            elif hasattr(each, "_unsharded_param") and each.unsharded_param.grad is not None:
                gradients.append(each.unsharded_grad_data)
        self._look(gradients)

    # --- step --------------------------------------------------------------------------------------------------------

    def before_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """The optimizer is about to use the gradients: tell what is known of them."""
        if id(optimizer) not in self._known:
            self._adopt(optimizer)
        if self._parts:
            norm = _norm_of(self._parts)
            self._local.done(step, self._cost_ns, self.step_ns)
            self._later.give(norm, functools.partial(self._tell, "local", step, self._bad_small))
        elif self._bad_small:
            self._tell("local", step, True, math.nan)
        self._parts, self._looks = [], False
        clipped, self.clipped = self.clipped, None
        if clipped is not None:
            self._later.give(clipped, functools.partial(self._tell, "global", step, False))
        elif self._whole.due(step):
            began = _now()
            norms = _norms(each.grad for group in optimizer.param_groups for each in group["params"])
            if norms:
                self._later.give(_norm_of(norms), functools.partial(self._tell, "global", step, False))
            self._whole.done(step, _now() - began, self.step_ns)

    def _tell(self, which: str, step: int, bad: bool, norm: float) -> None:
        if bad or not math.isfinite(norm):
            if self._bad[which] < 0:
                self._bad[which] = step
        else:
            self._bad[which] = -1
        if which == "local":
            self._file.local(step, norm, self._bad[which], self._local.every)
        else:
            known = not self._sharded or self._bad[which] >= 0
            self._file.whole(step, norm if known else math.nan, self._bad[which], self._whole.every)

    def _adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn what ``optimizer`` trains."""
        self._known.add(id(optimizer))
        mine = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        self._parameters += mine
        if any(_is_sharded(each) or _is_flat(each) for each in mine):
            self._sharded = True
            _patch_fsdp(self)
        elif not self._ddp:
            small = sorted((each for each in mine[:_LAST] if each.numel() <= _SMALL), key=lambda each: each.numel())
            self._small = small[:1]


def _norms(gradients: Iterable[Any]) -> list[torch.Tensor]:
    """The norm of each gradient that is there and dense; of what has fewer bits than float32, in float32."""
    there = [_plain(each) for each in gradients if each is not None]
    dense = [each for each in there if each.layout is torch.strided and each.numel()]
    narrow = [each for each in dense if each.dtype in (torch.float16, torch.bfloat16)]
    other = [each for each in dense if each.dtype in (torch.float32, torch.float64)]
    found = list(torch._foreach_norm(other, 2)) if other else []
    return found + (list(torch._foreach_norm(narrow, 2, dtype=torch.float32)) if narrow else [])


def _norm_of(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(norms) == 1:
        return norms[0]
    where = norms[0].device
    together = torch.stack([each.to(where, torch.float32) for each in norms])
    return torch._foreach_norm([together], 2)[0]


def _dtensor() -> Any:
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", None)


def _is_sharded(tensor: torch.Tensor) -> bool:
    kind = _dtensor()
    return kind is not None and isinstance(tensor, kind)


def _is_flat(tensor: torch.Tensor) -> bool:
    """Whether FSDP1 has flattened this parameter: its gradient has been reduced when the backward is over."""
    return bool(getattr(tensor, "_fsdp_flattened", False))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a gradient that this process holds."""
    tensor = tensor.detach()
    return tensor._local_tensor if _is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def _patch_fsdp(gradients: Gradients) -> None:
    module = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_param_group")
    group: Any = getattr(module, "FSDPParamGroup", None)
    before = getattr(group, "post_backward", None)
    if before is None or getattr(before, "_perdure", False):
        return

    @functools.wraps(before)
    def post_backward(self: Any, *unused: Any) -> Any:
        if not torch.compiler.is_compiling():
            gradients.look_sharded(self)
        return before(self, *unused)

    post_backward._perdure = True  # type: ignore[attr-defined]
    group.post_backward = post_backward

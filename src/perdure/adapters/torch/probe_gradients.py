"""Norms of the gradient before and after it is reduced, and whose is the first number that is not finite.

A NaN that one rank puts into its gradient is on all ranks one reduce later, so the rank where it began is known only
from gradients that nobody has reduced yet:

* **DDP**: a hook of the parameter whose gradient comes last runs before the reducer has copied results back, so there
  all gradients are this rank's own. Where gradients are views of the reducer's buckets, each is looked at in its own
  hook.
* **FSDP2**: in the group's ``post_backward``, before the reduce-scatter; **FSDP1**: where a flat parameter is reduced.
* **otherwise** (a loop that reduces by itself, one process): at the end of the backward.

Reading all of a large gradient costs a pass over memory, so it is done each K-th step, with K as small as a share of
0.1 % of the step's time allows (1 for small models or long steps). That what begins in between is not missed, each
step looks at a few small parameters among those whose gradient comes last (under FSDP1 at none, under FSDP2 at one):
what goes wrong in a batch, an activation or a weight has reached them by then. A single number that goes wrong in one
gradient alone is found for sure where K is 1, or where that gradient is among these.

The whole norm is read where the optimizer begins its step, by the same rule with a quarter of the share; where the
program clips by ``clip_grad_norm_``, it is the norm that this has found. Of a sharded gradient it is not known without
asking others, so there only the flag is told. A gradient whose square overflows float32 counts as not finite.
"""

from __future__ import annotations

import functools
import math
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from perdure.adapters.torch.probe_later import Later
from perdure.progress.vitals import VitalsFile

__all__ = ["Budget", "Gradients", "Small"]

_now = time.monotonic_ns
_LOCAL_SHARE, _WHOLE_SHARE = 0.001, 0.00025
_MOST_STEPS = 1000
_SMALL = 16384  # elements of the parameters that are looked at in each step
_MOST_SMALL = 4
_LARGEST = 2.0**64  # its square overflows float32
_LAST = 8
_MOST_LASTS = 8  # parameters that are hooked for good, because their gradient came last in some backward
_LEARN = 8
_NARROW = (torch.float16, torch.bfloat16)

Patch = Callable[[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], None]


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
        """It was done in ``step`` and has cost ``cost_ns``, of steps that take ``step_ns``.

        What it costs is believed soon where it is less than was thought, and slowly where it is more: on a busy machine
        most of that is what others took meanwhile.
        """
        known = self._cost_ns or cost_ns
        more = cost_ns - known
        self._cost_ns = known + (0.5 * more if more < 0 else min(0.3 * more, 0.1 * known))
        if step_ns > 0:
            self.every = max(1, min(_MOST_STEPS, math.ceil(self._cost_ns / (self._share * step_ns))))
        self._next = step + self.every


class Gradients:
    """The gradients of what the optimizers of this process train. Called by `probe_steps`, on the main thread.

    Nothing of the program is kept alive from here: modules, optimizers and parameters are held by weak references.
    """

    def __init__(self, file: VitalsFile, later: Later, begin_wait: Callable[[int], None], patch: Patch) -> None:
        self.step_ns = 0
        self.clipped: torch.Tensor | None = None
        self.last_ns = 0
        "When DDP's last local gradient of this backward came; 0: not known."
        self.waited_ns = 0
        "What the step had waited before this backward."
        self._file = file
        self._later = later
        self._begin_wait = begin_wait
        self._patch = patch
        self._modules: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._views = False
        self._sharded = False
        self._every: list[Any] = []
        self._lasts: dict[int, Any] = {}
        self._order: list[weakref.ref[torch.Tensor]] = []
        self._learns = 0
        "In how many backwards all parameters are to be hooked, until one of them is new as the last."
        self._missed = 0
        self._small: Small | None = None
        self._small_of: weakref.ref[Any] | None = None
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
            self._modules = [each for each in self._modules if each() is not None]
            self._modules.append(weakref.ref(module))
            self._views = self._views or bool(getattr(module, "gradient_as_bucket_view", False))
            self._learns = _LEARN

    @property
    def replicated(self) -> torch.nn.Module | None:
        """The module whose parameters should be equal on several ranks, if there is just one."""
        modules = [module for module in (each() for each in self._modules) if module is not None]
        return modules[0] if len(modules) == 1 else None

    @property
    def in_evaluation(self) -> bool:
        """Whether every DDP that is known is in evaluation mode, itself or the module in it; False if none is known."""
        modules = [module for module in (each() for each in self._modules) if module is not None]
        return bool(modules) and not any(each.training and getattr(each, "module", each).training for each in modules)

    # --- backward ----------------------------------------------------------------------------------------------------

    def before_backward(self, step: int, wait_ns: int) -> None:
        """A backward of ``step`` begins; ``wait_ns`` is what the step has waited so far.

        What an earlier backward of the step has left is in the gradients still, so only the last is told.
        """
        if step != self._step:
            self._step, self._cost_ns = step, 0
            self._looks = self._local.due(step)
        if self._parts:
            self._parts = []
        self._bad_small = False
        self.last_ns, self.waited_ns = 0, wait_ns
        if self._modules and (self._learns or (self._views and self._looks)):
            began = _now()
            self._order = []
            for each in self._replicated_parameters():
                self._every.append(_hook(each, self._each))
            self._cost_ns += _now() - began

    def after_backward(self) -> None:
        """The backward is over."""
        if self._every:
            self._learn()
        elif self._modules:
            if not self.last_ns and len(self._lasts) < _MOST_LASTS:
                self._missed += 1  # a last gradient that is not known yet; learning costs, so it grows rare
                self._learns = _LEARN if self._missed & (self._missed - 1) == 0 else 0
        elif not self._sharded:
            if self._small is not None and not self._small.is_finite():
                self._bad_small = True
            if self._looks:
                self._look(each.grad for each in self._trained_parameters())

    def unhook(self) -> None:
        """Take the hooks of parameters away."""
        for handle in (*self._every, *self._lasts.values()):
            handle.remove()
        self._every, self._lasts = [], {}

    def _replicated_parameters(self) -> Iterator[torch.Tensor]:
        modules = [module for module in (each() for each in self._modules) if module is not None]
        return (each for module in modules for each in module.parameters() if each.requires_grad)

    def _trained_parameters(self) -> Iterator[torch.Tensor]:
        there = [optimizer for optimizer in (each() for each in self._optimizers.values()) if optimizer is not None]
        return (each for optimizer in there for group in optimizer.param_groups for each in group["params"])

    def _each(self, parameter: torch.Tensor) -> None:
        """The gradient of a parameter of DDP is there, while all are hooked."""
        if torch.compiler.is_compiling():
            return
        self._order.append(weakref.ref(parameter))
        if self._looks and self._views:
            self._look([parameter.grad])
        self.last_ns = _now()

    def _learn(self) -> None:
        """All were hooked in this backward: hook the one that came last for good, and remember a small one near it."""
        for handle in self._every:
            handle.remove()
        order = [each for each in (known() for known in self._order) if each is not None]
        self._every, self._order, self._learns = [], [], max(0, self._learns - 1)
        if order and id(order[-1]) not in self._lasts:
            self._learns = 0
            small = Small.among(order[-1:] if self._views else order[-_LAST:])
            self._lasts[id(order[-1])] = _hook(order[-1], functools.partial(self._came_last, small))

    def _came_last(self, small: Small | None, _: torch.Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        if small is not None and not small.is_finite():
            self._bad_small = True
        if self._looks and not self._views:
            self._parts = []
            self._look(each.grad for each in self._replicated_parameters())
        self.last_ns = now = _now()
        self._begin_wait(now)

    # --- looking -----------------------------------------------------------------------------------------------------

    def _look(self, gradients: Iterable[Any]) -> None:
        """Take the norms of all that is there, as numbers of their device."""
        began = _now()
        self._parts += _norms(gradients)
        self._cost_ns += _now() - began

    def look_sharded(self, group: Any) -> None:
        """A group of FSDP2 is about to reduce its gradients."""
        small_of = None if self._small_of is None else self._small_of()
        if self._looks:
            self._look(each for parameter in group.fsdp_params for each in _unsharded(parameter))
            self._small_of = weakref.ref(group)  # the last remains
        elif small_of is not None and small_of is group:
            there = [each for parameter in group.fsdp_params for each in _unsharded(parameter)]
            least = min((each for each in there if _is_small(each)), key=lambda each: each.numel(), default=None)
            if least is not None and not _is_finite(least, torch.float32 if least.dtype in _NARROW else None):
                self._bad_small = True

    def look_flat(self, handle: Any) -> None:
        """A flat parameter of FSDP1 is about to be reduced."""
        if self._looks:
            self._look([handle.flat_param.grad])

    # --- step --------------------------------------------------------------------------------------------------------

    def know_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer`` is about to step: learn what it trains, the first time."""
        known = self._optimizers.get(id(optimizer))
        if known is not None and known() is optimizer:
            return
        self._optimizers = {key: each for key, each in self._optimizers.items() if each() is not None}
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        mine = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        if not self._sharded and any(_is_sharded(each) or _is_flat(each) for each in mine):
            self._sharded = True
            _patch_fsdp(self, self._patch)
        elif not self._modules:
            self._small = Small.among(mine[:_LAST]) or self._small

    def before_step(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """The optimizer whose steps count is about to use the gradients: tell what is known of them."""
        if self._parts:
            norm = _norm_of(self._parts)
            self._local.done(step, self._cost_ns, self.step_ns)
            self._later.give(norm, functools.partial(self._tell, "local", step, self._bad_small))
            self._parts = []
        elif self._bad_small:
            self._tell("local", step, True, math.nan)
        self._looks = False
        if self.clipped is not None:
            clipped, self.clipped = self.clipped, None
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


class Small:
    """The smallest of some parameters, a few of them, whose gradients are looked at in each step."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._each = [(weakref.ref(each), torch.float32 if each.dtype in _NARROW else None) for each in parameters]

    @classmethod
    def among(cls, parameters: Iterable[torch.Tensor]) -> Small | None:
        """The smallest of ``parameters`` that have a dense gradient on the CPU and are small together."""
        fit = sorted((each for each in parameters if each.grad is not None and _is_small(each.grad)), key=torch.numel)
        room = _SMALL
        chosen: list[torch.Tensor] = []
        for each in fit[:_MOST_SMALL]:
            room -= each.numel()
            if room >= 0:
                chosen.append(each)
        return cls(chosen) if chosen else None

    def is_finite(self) -> bool:
        """Whether their gradients are; also where one has none."""
        for known, dtype in self._each:
            parameter = known()
            gradient = None if parameter is None else parameter.grad
            if gradient is not None and not _is_finite(gradient, dtype):
                return False
        return True


def _is_small(gradient: torch.Tensor) -> bool:
    strided = gradient.layout is torch.strided and not _is_sharded(gradient)
    return strided and 0 < gradient.numel() <= _SMALL and gradient.is_cpu and gradient.is_floating_point()


def _is_finite(gradient: torch.Tensor, dtype: torch.dtype | None) -> bool:
    """Whether a gradient is finite, and so is its square.

    A sum, because of all that torch has for this it touches the least memory when its code is not in a cache: the step
    has just filled them.
    """
    return bool(abs(gradient.sum(dtype=dtype).item()) < _LARGEST)


def _hook(parameter: torch.Tensor, call: Callable[[torch.Tensor], None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(call)  # type: ignore[no-untyped-call]


def _unsharded(parameter: Any) -> list[torch.Tensor]:
    """What a parameter of FSDP2 has of gradients that are not reduced: of this backward, and of those before it."""
    found = []
    if getattr(parameter, "unsharded_accumulated_grad", None) is not None:
        found.append(parameter.unsharded_accumulated_grad_data)
    if hasattr(parameter, "_unsharded_param") and parameter.unsharded_param.grad is not None:
        found.append(parameter.unsharded_grad_data)
    return found


def _norms(gradients: Iterable[Any]) -> list[torch.Tensor]:
    """The norm of each gradient that is there and dense; of what has fewer bits than float32, in float32."""
    there = [_plain(each) for each in gradients if each is not None]
    dense = [each for each in there if each.layout is torch.strided and each.numel()]
    narrow = [each for each in dense if each.dtype in _NARROW]
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


def _patch_fsdp(gradients: Gradients, patch: Patch) -> None:
    """Have both kinds of FSDP show their gradients before they reduce them."""

    def make(look: Callable[[Any], None], which: int, before: Callable[..., Any]) -> Callable[..., Any]:
        def reduce(*args: Any) -> Any:
            if not torch.compiler.is_compiling():
                look(args[which])
            return before(*args)

        return reduce

    two = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_param_group")
    patch(getattr(two, "FSDPParamGroup", None), "post_backward", functools.partial(make, gradients.look_sharded, 0))
    one = sys.modules.get("torch.distributed.fsdp._runtime_utils")
    for name in ("_reduce_grad", "_reduce_grad_no_shard"):  # (state, handle)
        patch(one, name, functools.partial(make, gradients.look_flat, 1))

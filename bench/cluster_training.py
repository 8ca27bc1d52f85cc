"""The training of `bench/cluster.py`: one that can go on from any state, with any order of the data.

The model and the text are those of `bench/codec_traces.py`; what differs from it is that a state can be put back.
"""

from __future__ import annotations

import math
import pathlib
import sysconfig
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from codec_traces import BETAS, CONTEXT, DECAY, EPS, GPT, TEXT_BYTES

__all__ = ["Floats", "State", "Training", "update_of"]

Floats = npt.NDArray[np.float32]
_HELD_OUT = 64  # sequences that no training sees


@dataclass(frozen=True, slots=True)
class State:
    """All parameters after ``step`` steps, each kind in one array, and the moments of the optimizer."""

    step: int
    master: Floats
    m: Floats
    v: Floats

    def with_moments(self, m: Floats, v: Floats) -> State:
        """The same state with other moments."""
        return replace(self, m=m, v=v)


def update_of(state: State) -> Floats:
    """The direction of AdamW's update, m / (sqrt(v) + eps), with the corrections for its first steps."""
    m = state.m / np.float32(1 - BETAS[0] ** state.step)
    v = state.v / np.float32(1 - BETAS[1] ** state.step)
    return m / (np.sqrt(v) + np.float32(EPS))


class Training:
    """A small GPT in training: bfloat16 weights in the forward pass, float32 master, AdamW, cosine learning rate."""

    def __init__(self, *, seed: int, lr: float, steps: int, layers: int, width: int, batch: int, threads: int) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        self._lr, self._steps, self._batch = lr, steps, batch
        self._model = GPT(layers, width)
        self._params = list(self._model.parameters())
        for name, param in self._model.named_parameters():
            if param.dim() == 2 and "norm" not in name:
                nn.init.normal_(param, std=0.02)
        self._masters = [param.detach().clone() for param in self._params]
        self._m = [torch.zeros_like(param) for param in self._params]
        self._v = [torch.zeros_like(param) for param in self._params]
        self._step = 0
        text = b"".join(file.read_bytes() for file in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")))
        rows = torch.frombuffer(bytearray(text[:TEXT_BYTES]), dtype=torch.uint8).unfold(0, CONTEXT + 1, CONTEXT)
        mixed = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
        self._held_out, self._data = mixed[:_HELD_OUT].long(), mixed[_HELD_OUT:]
        self.order(seed)

    def order(self, seed: int) -> None:
        """From now on draw the data in the order of ``seed``."""
        self._draw = torch.Generator().manual_seed(1000 + seed)

    def state(self) -> State:
        """What a checkpoint would hold."""
        return State(self._step, *(_flat(kind) for kind in (self._masters, self._m, self._v)))

    def resume(self, state: State) -> None:
        """Go on from ``state``."""
        self._step = state.step
        for kind, whole in ((self._masters, state.master), (self._m, state.m), (self._v, state.v)):
            at = 0
            for tensor in kind:
                tensor.copy_(torch.from_numpy(whole[at : at + tensor.numel()].reshape(tensor.shape).copy()))
                at += tensor.numel()

    def run(self, steps: int) -> npt.NDArray[np.float64]:
        """Make so many steps; their losses."""
        return np.array([self._one() for _ in range(steps)])

    def held_out_loss(self) -> float:
        """The loss on text that no training sees."""
        self._round()
        with torch.no_grad():
            return float(self._model(self._held_out))

    def _round(self) -> None:
        with torch.no_grad():
            for param, master in zip(self._params, self._masters, strict=True):
                param.copy_(master.bfloat16())

    def _one(self) -> float:
        self._step += 1
        step = self._step
        warm = min(1.0, step / max(1, self._steps // 20))
        lr = self._lr * warm * (0.05 + 0.475 * (1 + math.cos(math.pi * min(1.0, step / self._steps))))
        self._round()
        loss = self._model(self._data[torch.randint(len(self._data), (self._batch,), generator=self._draw)].long())
        self._model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._params, 1.0)
        with torch.no_grad():
            for param, master, m, v in zip(self._params, self._masters, self._m, self._v, strict=True):
                assert param.grad is not None
                m.mul_(BETAS[0]).add_(param.grad, alpha=1 - BETAS[0])
                v.mul_(BETAS[1]).addcmul_(param.grad, param.grad, value=1 - BETAS[1])
                root = (v / (1 - BETAS[1] ** step)).sqrt_().add_(EPS)
                master.mul_(1 - lr * DECAY * (param.dim() == 2)).addcdiv_(m, root, value=-lr / (1 - BETAS[0] ** step))
        return loss.item()


def _flat(tensors: list[Tensor]) -> Floats:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy().copy()

"""Training traces for `bench/codecs.py`: a small GPT really trained, its states kept at the steps that are asked for.

bfloat16 weights in the forward pass, float32 master, AdamW, cosine learning rate with warm-up: what large trainings
keep. Made anew on every machine from the source text of Python's standard library; the same recipe gives the same trace
on the same machine, and a folder that keeps traces gives it back without training.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import platform
import sysconfig
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

__all__ = ["STAGES", "Recipe", "Snapshot", "Trace", "base_steps", "read_trace", "trace_file", "train"]

CONTEXT, TEXT_BYTES = 128, 4_000_000
BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1
WARM_PART = 20  # the warm-up is this part of the schedule

STAGES = ("warm-up", "peak", "middle", "decay")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a training is made from."""

    seed: int = 0
    lr: float = 6e-4
    """the highest learning rate"""
    steps: int = 300
    """of the whole schedule"""
    layers: int = 4
    width: int = 256
    """a multiple of 32"""
    batch: int = 4
    """sequences of 128 bytes in a step"""
    threads: int = 1
    """of the training: another number adds in another order"""

    def file_name(self, kept: Mapping[int, bool]) -> str:
        """The name of the trace in a folder: every option, the text's Python, and what this file itself says."""
        options = "-".join(f"{field.name}{getattr(self, field.name):g}" for field in fields(self))
        steps = zlib.crc32(repr(sorted(kept.items())).encode())
        code = zlib.crc32(pathlib.Path(__file__).read_bytes())
        return f"trace-{options}-at{steps:08x}-python{platform.python_version()}-{code:08x}.npz"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after one step, all parameters of a kind in one array; master, m and v of some steps only."""

    step: int
    loss: float
    weights: npt.NDArray[np.uint16]
    """the bits of the bfloat16 copy"""
    master: npt.NDArray[np.float32] | None
    m: npt.NDArray[np.float32] | None
    v: npt.NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class Trace:
    """The states of one training, and the elements of each of its tensors, in order."""

    tensors: tuple[int, ...]
    at: Mapping[int, Snapshot]


def base_steps(steps: int, reach: int) -> dict[str, int]:
    """The step that the pairs of each stage begin with, in a schedule of ``steps``; they end up to ``reach`` later.

    >>> base_steps(300, 10)
    {'warm-up': 5, 'peak': 30, 'middle': 150, 'decay': 285}
    """
    warm = max(1, steps // WARM_PART)
    return {
        "warm-up": max(1, warm - reach),
        "peak": 2 * warm,
        "middle": steps // 2,
        "decay": max(1, min(steps * 19 // 20, steps - reach)),
    }


class GPT(nn.Module):
    """Bytes in, the next byte out."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        options = {"dim_feedforward": 4 * width, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, width // 32, **options) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """The loss of predicting each byte of ``text``, int64[batch, CONTEXT + 1]."""
        x = self.bytes(text[:, :-1]) + self.places.weight
        for block in self.blocks:
            x = block(x, src_mask=nn.Transformer.generate_square_subsequent_mask(CONTEXT), is_causal=True)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), text[:, 1:].flatten())


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    warm = min(1.0, step / max(1, recipe.steps // WARM_PART))
    return recipe.lr * warm * (0.05 + 0.475 * (1 + math.cos(math.pi * min(1.0, step / recipe.steps))))


def train(recipe: Recipe, kept: Mapping[int, bool]) -> Trace:
    """Train up to the last step of ``kept`` and return the states at them, those that are true with master, m and v."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    model = GPT(recipe.layers, recipe.width)
    params = list(model.parameters())
    for name, param in model.named_parameters():
        if param.dim() == 2 and "norm" not in name:
            nn.init.normal_(param, std=0.02)
    masters = [param.detach().clone() for param in params]
    moments = [(torch.zeros_like(param), torch.zeros_like(param)) for param in params]
    text = b"".join(file.read_bytes() for file in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")))
    data = torch.frombuffer(bytearray(text[:TEXT_BYTES]), dtype=torch.uint8).unfold(0, CONTEXT + 1, CONTEXT)
    draw = torch.Generator().manual_seed(recipe.seed + 1)
    found: dict[int, Snapshot] = {}
    for step in range(1, max(kept) + 1):
        lr = learning_rate(recipe, step)
        with torch.no_grad():
            for param, master in zip(params, masters, strict=True):
                param.copy_(master.bfloat16())
        loss = model(data[torch.randint(len(data), (recipe.batch,), generator=draw)].long())
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        with torch.no_grad():
            for param, master, (m, v) in zip(params, masters, moments, strict=True):
                assert param.grad is not None
                m.mul_(BETAS[0]).add_(param.grad, alpha=1 - BETAS[0])
                v.mul_(BETAS[1]).addcmul_(param.grad, param.grad, value=1 - BETAS[1])
                root = (v / (1 - BETAS[1] ** step)).sqrt_().add_(EPS)
                master.mul_(1 - lr * DECAY * (param.dim() == 2)).addcdiv_(m, root, value=-lr / (1 - BETAS[0] ** step))
        if step in kept:
            weights = flat(master.bfloat16().view(torch.int16) for master in masters).view(np.uint16)
            whole = [flat(masters), flat(m for m, _ in moments), flat(v for _, v in moments)] if kept[step] else None
            found[step] = Snapshot(step, loss.item(), weights, *(whole or (None, None, None)))
    return Trace(tuple(param.numel() for param in params), MappingProxyType(found))


def trace_file(recipe: Recipe, kept: Mapping[int, bool], folder: pathlib.Path) -> pathlib.Path:
    """The file in ``folder`` that holds what `train` returns; trains only if it is not there yet."""
    file = folder / recipe.file_name(kept)
    if file.exists():
        return file
    made = train(recipe, kept)
    arrays: dict[str, npt.NDArray[Any]] = {"tensors": np.array(made.tensors)}
    for step, state in made.at.items():
        arrays[f"{step} loss"], arrays[f"{step} weights"] = np.array(state.loss), state.weights
        arrays |= {f"{step} {kind}": getattr(state, kind) for kind in ("master", "m", "v") if kept[step]}
    folder.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as out:
        np.savez(out, **arrays)
    part.replace(file)
    return file


def read_trace(file: pathlib.Path) -> Trace:
    """The trace that `trace_file` wrote."""
    with np.load(file, allow_pickle=False) as arrays:
        steps = sorted(int(name.split()[0]) for name in arrays if name.endswith(" loss"))
        at = {
            step: Snapshot(
                step, float(arrays[f"{step} loss"]), arrays[f"{step} weights"],
                *(arrays[name] if (name := f"{step} {kind}") in arrays else None for kind in ("master", "m", "v")),
            )
            for step in steps
        }  # fmt: skip
        return Trace(tuple(int(n) for n in arrays["tensors"]), MappingProxyType(at))


def flat(tensors: Iterable[Tensor]) -> npt.NDArray[Any]:
    """All ``tensors`` in one row."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Recipe):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    parser.add_argument("--at", type=int, nargs="+", required=True, help="steps whose states are kept")
    parser.add_argument("--traces", type=pathlib.Path, required=True, help="the folder for the .npz file")
    options = parser.parse_args()
    recipe = Recipe(**{field.name: getattr(options, field.name) for field in fields(Recipe)})
    start = time.perf_counter()
    file = trace_file(recipe, dict.fromkeys(options.at, True), options.traces)
    made = read_trace(file)
    print(f"{file}: {sum(made.tensors)} parameters, {time.perf_counter() - start:.0f} s")
    for step, state in made.at.items():
        print(f"  step {step}: loss {state.loss:.3f}")


if __name__ == "__main__":
    main()

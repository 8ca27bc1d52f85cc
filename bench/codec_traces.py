"""Training traces for `bench/codecs.py`: a small GPT really trained, its states kept at the steps that are asked for.

bfloat16 weights in the forward pass, float32 master, AdamW, cosine learning rate with warm-up: what large trainings
keep. `--steps` is the length of the whole schedule, `--at` the steps whose states are kept. Made anew on every machine
from the source text of Python's standard library; the same options give the same trace on the same machine.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sysconfig
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

__all__ = ["Snapshot", "add_options", "trace"]

CONTEXT, TEXT_BYTES = 128, 4_000_000
BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after one step, all parameters of a kind in one array."""

    step: int
    loss: float
    weights: npt.NDArray[np.uint16]
    """the bits of the bfloat16 copy"""
    master: npt.NDArray[np.float32]
    m: npt.NDArray[np.float32]
    v: npt.NDArray[np.float32]


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


def trace(options: argparse.Namespace) -> list[Snapshot]:
    """Train and return the states at the steps ``options.at``, in order."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    model = GPT(options.layers, options.width)
    params = list(model.parameters())
    for name, param in model.named_parameters():
        if param.dim() == 2 and "norm" not in name:
            nn.init.normal_(param, std=0.02)
    masters = [param.detach().clone() for param in params]
    moments = [(torch.zeros_like(param), torch.zeros_like(param)) for param in params]
    text = b"".join(file.read_bytes() for file in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")))
    data = torch.frombuffer(bytearray(text[:TEXT_BYTES]), dtype=torch.uint8).unfold(0, CONTEXT + 1, CONTEXT)
    draw = torch.Generator().manual_seed(options.seed + 1)
    kept: list[Snapshot] = []
    for step in range(1, max(options.at) + 1):
        warm = min(1.0, step / max(1, options.steps // 20))
        lr = options.lr * warm * (0.05 + 0.475 * (1 + math.cos(math.pi * min(1.0, step / options.steps))))
        with torch.no_grad():
            for param, master in zip(params, masters, strict=True):
                param.copy_(master.bfloat16())
        loss = model(data[torch.randint(len(data), (options.batch,), generator=draw)].long())
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
        if step in options.at:
            kept.append(
                Snapshot(
                    step,
                    loss.item(),
                    _flat([master.bfloat16().view(torch.int16) for master in masters]).view(np.uint16),
                    _flat(masters),
                    _flat([m for m, _ in moments]),
                    _flat([v for _, v in moments]),
                )
            )
    return kept


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a trace can be asked for."""
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=6e-4, help="the highest learning rate")
    parser.add_argument("--steps", type=int, default=300, help="steps of the whole schedule")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of 32")
    parser.add_argument("--batch", type=int, default=4, help="sequences of 128 bytes in a step")
    parser.add_argument("--threads", type=int, default=1, help="threads of the training")
    parser.add_argument(
        "--at", type=int, nargs="+", default=[150, 151, 160, 285, 286, 295], help="steps whose states are kept"
    )


def _flat(tensors: list[Tensor]) -> npt.NDArray[np.float32]:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--to", type=pathlib.Path, required=True, help="a .npz file")
    options = parser.parse_args()
    start = time.perf_counter()
    kept = trace(options)
    arrays = {f"{name}_{s.step}": getattr(s, name) for s in kept for name in ("weights", "master", "m", "v")}
    np.savez(options.to, **arrays)
    print(f"{kept[0].weights.size} parameters, {time.perf_counter() - start:.0f} s:")
    for s in kept:
        print(f"  step {s.step}: loss {s.loss:.3f}")


if __name__ == "__main__":
    main()

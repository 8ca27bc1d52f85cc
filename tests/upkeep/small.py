"""A run of three steps on two ranks, in memory: tensors that are cut, whole, of many tiles, unchanged."""

from __future__ import annotations

from functools import cache

from perdure.checkpoint.unchanged import Stored
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.store import Ram, Run
from perdure.testing.ranks import Bytes, random_bytes
from perdure.testing.runs import blobs_of, copy_of, save_step

BIG, ROWS, BIAS, CODE = "big", "rows", "bias", "phase"
LAYOUT = Layout(
    {
        BIG: TensorLayout((9 << 18,), (Piece.alone(0, Box((0,), (9 << 18,))),), "float32"),  # 9 MiB, 3 tiles
        ROWS: TensorLayout((6, 10), tuple(Piece.alone(r, Box((3 * r, 0), (3 * r + 3, 10))) for r in (0, 1)), "float32"),
        BIAS: TensorLayout((5,), tuple(Piece.alone(r, Box((0,), (5,))) for r in (0, 1)), "bfloat16"),
        CODE: TensorLayout((3,), (Piece.alone(1, Box((0,), (3,))),), "complex128"),
    }
)


def wholes(seed: int) -> dict[str, Bytes]:
    """Tensors; `BIG` is the same for every seed."""
    return {
        name: random_bytes(each.dtype, each.shape, 0 if name == BIG else seed + number)
        for number, (name, each) in enumerate(LAYOUT.items())
    }


@cache
def _made() -> Ram:
    run = Run.open(Ram(), create=True)
    run.claim_epoch("test")
    stored: dict[str, Stored] = {}
    for step in (1, 2, 3):
        values = {"lr": 0.5 / step, "name": "small"}
        meta = {"step": step, "of": "small"}
        save_step(run, step, LAYOUT, wholes(10 * step), world=2, values=values, meta=meta, stored=stored)
    assert isinstance(run.store, Ram)
    return run.store


def small_run() -> Ram:
    """A fresh copy of the run."""
    copy = Ram()
    copy_of(_made(), copy)
    return copy


def original() -> dict[str, bytes]:
    """What must be in it."""
    return blobs_of(_made())

"""Compute the base that a relation tells of, with the same bits on every machine.

Elementwise, so any slice of a block can be computed from the same slices of its sources: a reader or writer goes tile
by tile, while the tile is in the cache. The arithmetic is fixed in `native/predict.h`; the floating-point mode of the
calling thread does not matter to the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from perdure.codec.digest import NATIVE
from perdure.codec.dtypes import DTYPES
from perdure.codec.stage import Bytes
from perdure.errors import CallError
from perdure.state import predict_twin
from perdure.state.relations import Previous, Relation, Rounding, SecondMoment, Update, n_sources

if NATIVE:
    from perdure import _native

    _update, _square, _rounding = _native.predict_update, _native.predict_square, _native.predict_rounding
else:
    _update, _square, _rounding = (
        predict_twin.predict_update,
        predict_twin.predict_square,
        predict_twin.predict_rounding,
    )

__all__ = ["NARROWER", "PREDICTABLE", "predict", "predict_into"]

PREDICTABLE: Final = ("float32", "float64")
"""The dtypes that predictions are made for; their sources have the same dtype."""

NARROWER: Final = {"bfloat16": ("float32", "float64"), "float16": ("float32", "float64"), "float32": ("float64",)}
"""What may be the rounding of what."""

_NARROW_NUMBERS: Final = {"bfloat16": 0, "float16": 1, "float32": 2}


def predict(relation: Relation, inputs: Sequence[Bytes], *, dtype: str, wide: str | None = None) -> Bytes:
    """`predict_into` new memory."""
    nbytes = inputs[0].size
    if isinstance(relation, Rounding) and wide is not None and wide in DTYPES:
        nbytes = nbytes // DTYPES[wide].itemsize * DTYPES[dtype].itemsize
    out = np.empty(nbytes, np.uint8)
    predict_into(out, relation, inputs, dtype=dtype, wide=wide)
    return out


def predict_into(
    out: Bytes, relation: Relation, inputs: Sequence[Bytes], *, dtype: str, wide: str | None = None
) -> None:
    """Compute the base of a tensor of ``dtype`` into ``out``, uint8[n], contiguous.

    ``inputs`` are the same elements of what `perdure.state.relations.sources` names, in that order, uint8[n],
    contiguous; ``wide`` is the dtype of the wider tensor of a `Rounding`. Releases the interpreter's lock; any thread
    may call.

    Raises: `CallError` if dtypes, sizes or the number of inputs do not fit the relation.
    """
    wanted = n_sources(relation)
    if len(inputs) != wanted:
        raise CallError(f"a {type(relation).__name__} needs {wanted} inputs, not {len(inputs)}", dtype=dtype)
    if isinstance(relation, Rounding):
        if wide not in NARROWER.get(dtype, ()):
            raise CallError(f"no {dtype} is the rounding of {wide}", dtype=dtype, wide=wide)
    elif dtype not in PREDICTABLE and not isinstance(relation, Previous):
        raise CallError(f"nothing predicts {dtype}, only {', '.join(PREDICTABLE)}", dtype=dtype)
    nbytes = out.size if wide is None else out.size // DTYPES[dtype].itemsize * DTYPES[wide].itemsize
    if out.size % DTYPES[dtype].itemsize or any(each.size != nbytes for each in inputs):
        raise CallError(
            f"inputs of {[each.size for each in inputs]} bytes do not have the {out.size} bytes' elements", dtype=dtype
        )
    width = DTYPES[dtype].itemsize
    match relation:
        case Previous():
            out[:] = inputs[0]
        case Rounding():
            assert wide is not None
            _rounding(inputs[0], out, DTYPES[wide].itemsize, _NARROW_NUMBERS[dtype])
        case SecondMoment():
            old, before, moment = inputs
            _square(old, before, moment, relation.keep, relation.fade, relation.by, relation.rest, out, width)
        case Update():
            rest = iter(inputs[1:])
            moments, squares = [], []
            for term in relation.terms:
                moments.append(next(rest))
                squares.append(None if term.square is None else next(rest))
            by, eps = [term.by for term in relation.terms], [term.eps for term in relation.terms]
            _update(inputs[0], relation.keep, moments, squares, by, eps, out, width)

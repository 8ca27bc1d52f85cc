"""Relations between tensors: how the base of a frame follows from other blocks of a checkpoint, as frozen values.

A frame may be made on a base that is stored nowhere, because it can be computed: a 16-bit copy is the rounding of its
master, a master follows from its older self and an optimizer's moments. A relation says how. It names blocks with the
same box of the same rank, in this step or in the base step; it says nothing of bytes, and it need not hold exactly:
what differs from the computed base is what the frame codes. `perdure.state.predicting` computes,
`perdure.state.relating` finds relations by looking at bytes alone.

Relations lie in manifests as tagged JSON; what is read back is bounded and checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from perdure.errors import FormatRefused

__all__ = [
    "MAX_TERMS",
    "Of",
    "Previous",
    "Relation",
    "Rounding",
    "SecondMoment",
    "Term",
    "Update",
    "decoding_order",
    "from_json",
    "n_sources",
    "sources",
    "to_json",
]

MAX_TERMS: Final = 8

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_Factor = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Of(_Value, frozen=True, array_like=True):
    """The block of the tensor ``name`` with the same box: in this step, or in the base step."""

    name: _Name
    step: Literal["this", "base"] = "this"


class Previous(_Value, frozen=True, tag="previous"):
    """The same block in the base step: a plain delta."""


class Rounding(_Value, frozen=True, tag="rounding"):
    """A wider tensor of this step, rounded to nearest, ties to even."""

    of: _Name


class Term(_Value, frozen=True, array_like=True):
    """What one step of an optimizer took off: ``by * moment / (sqrt(square) + eps)``, or ``by * moment`` alone."""

    moment: Of
    square: Of | None
    by: _Factor
    eps: _Factor = 0.0


class Update(_Value, frozen=True, tag="update"):
    """``keep * tensor - terms``, the tensor being this one in the base step: a tensor after an optimizer's steps.

    A master is its old self, decayed, less the share of each step whose moments are known; over several steps those in
    between are not, and the shares of the first and the last stand for them. A first moment of which nothing else is
    known is its old self, faded: no terms.
    """

    keep: _Factor
    terms: Annotated[tuple[Term, ...], msgspec.Meta(max_length=MAX_TERMS)] = ()


class SecondMoment(_Value, frozen=True, tag="second-moment"):
    """``keep * tensor + by * (moment - fade * before)**2 + rest * before**2``, the tensor being that of the base step.

    ``before`` and ``moment`` are the first moment in the base step and in this one: for a single step their difference
    is the gradient, and ``rest`` is 0.
    """

    moment: Of
    before: Of
    keep: _Factor
    fade: _Factor
    by: _Factor
    rest: _Factor = 0.0


Relation: TypeAlias = Previous | Rounding | Update | SecondMoment
"""How a base is computed."""


def sources(name: str, relation: Relation) -> tuple[Of, ...]:
    """What has to be there before the base of the tensor ``name`` can be computed, in the order that predicting wants.

    >>> sources("w.bf16", Rounding("w"))
    (Of(name='w', step='this'),)
    """
    match relation:
        case Rounding(of):
            return (Of(of),)
        case SecondMoment(moment, before):
            return (Of(name, "base"), before, moment)
        case Update(_, terms):
            parts = [(term.moment,) if term.square is None else (term.moment, term.square) for term in terms]
            return (Of(name, "base"), *(of for part in parts for of in part))
        case _:
            return (Of(name, "base"),)


def n_sources(relation: Relation) -> int:
    """How many blocks the base of ``relation`` is computed from."""
    return len(sources("", relation))


def decoding_order(relations: Mapping[str, Relation]) -> list[str]:
    """The names of ``relations``, each after those of this step that its base needs; what is not named needs nothing.

    Raises: `FormatRefused` if tensors need each other.

    >>> decoding_order({"w.bf16": Rounding("w"), "w": Update(1.0, (Term(Of("m"), None, 0.1),)), "m": Previous()})
    ['m', 'w', 'w.bf16']
    """
    order: list[str] = []
    entered: set[str] = set()
    done: set[str] = set()
    for name in relations:
        stack: list[tuple[str, Iterator[str]]] = []
        _enter(name, relations, entered, done, stack)
        while stack:
            current, needs = stack[-1]
            need = next(needs, None)
            if need is None:
                stack.pop()
                done.add(current)
                order.append(current)
            else:
                _enter(need, relations, entered, done, stack)
    return order


def _enter(
    name: str,
    relations: Mapping[str, Relation],
    entered: set[str],
    done: set[str],
    stack: list[tuple[str, Iterator[str]]],
) -> None:
    if name in done or name not in relations:
        return
    if name in entered:
        raise FormatRefused(f"the base of {name!r} would be computed from itself", tensor=name)
    entered.add(name)
    stack.append((name, iter([of.name for of in sources(name, relations[name]) if of.step == "this"])))


def to_json(relation: Relation) -> bytes:
    """``relation`` as tagged JSON; the same relation gives the same bytes."""
    return msgspec.json.encode(relation)


_DECODER: Final = msgspec.json.Decoder(Relation)


def from_json(data: bytes | msgspec.Raw) -> Relation:
    """What `to_json` made; raises `FormatRefused` for anything else.

    >>> from_json(b'{"type":"rounding","of":"w"}')
    Rounding(of='w')
    """
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatRefused(f"this is no relation that this release reads: {error}") from error

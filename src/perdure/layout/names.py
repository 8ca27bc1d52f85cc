"""Other names for the same tensors: wrappers, pipeline-local layers, fused against split.

None of these is a cut. A rename keeps every piece; a split view names parts of a fused tensor and keeps pointing into
the fused tensor's own memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from perdure.errors import LayoutError
from perdure.layout.box import Box
from perdure.layout.layout import Layout, Piece, TensorLayout

__all__ = ["canonical_name", "canonical_names", "rename", "shift_layer", "split_fused"]

# What torch.compile, FSDP1 and activation checkpointing put between a parent and its child, anywhere in a name.
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def canonical_name(name: str) -> str:
    """``name`` without what wrappers added to it.

    ``module.`` (DDP, AveragedModel) goes from the front only: deeper down it may be a child of that very name.

    >>> canonical_name("module._orig_mod.layers.0._checkpoint_wrapped_module.mlp.weight")
    'layers.0.mlp.weight'
    """
    *parents, leaf = name.split(".")
    kept = [part for part in parents if part not in _WRAPPERS]
    while kept and kept[0] == "module":
        del kept[0]
    return ".".join([*kept, leaf])


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Each name to its canonical one; raises `LayoutError` if two names would become one."""
    found = {name: canonical_name(name) for name in names}
    _refuse_collision(found)
    return found


def rename(layout: Layout, new_name: Callable[[str], str]) -> Layout:
    """``layout`` under other names; raises `LayoutError` if two tensors would share one."""
    found = {name: new_name(name) for name in layout}
    _refuse_collision(found)
    return Layout({found[name]: tensor for name, tensor in layout.items()})


def shift_layer(name: str, *, by: int, under: str = "layers") -> str:
    """``name`` with its layer number moved by ``by``: from a pipeline stage's own count to the model's, or back.

    >>> shift_layer("model.layers.3.mlp.weight", by=16), shift_layer("model.norm.weight", by=16)
    ('model.layers.19.mlp.weight', 'model.norm.weight')
    """
    pattern = rf"(?P<head>(?:^|\.){re.escape(under)}\.)(?P<layer>\d+)(?=\.|$)"
    return re.sub(pattern, lambda found: f"{found['head']}{int(found['layer']) + by}", name, count=1)


def split_fused(tensor: TensorLayout, *, dim: int, sections: Mapping[str, int]) -> Layout:
    """A fused tensor seen as the named ``sections`` (sizes in elements) that lie end to end along ``dim``.

    Places still point into the fused own tensor, so under each new name the rank's own tensor is the fused one.

    >>> fused = TensorLayout((4, 2), (Piece.alone(0, Box((0, 0), (4, 2))),), "float32")
    >>> str(split_fused(fused, dim=0, sections={"gate": 2, "up": 2})["up"].pieces[0].place)
    '[2:4, 0:2]'

    Raises `LayoutError` if the sections do not make up the dim, or a piece is flat.
    """
    if sum(sections.values()) != tensor.shape[dim]:
        raise LayoutError(f"sections {dict(sections)} do not make up dim {dim} of {list(tensor.shape)}", dim=dim)
    views: dict[str, TensorLayout] = {}
    start = 0
    for name, extent in sections.items():
        shape = (*tensor.shape[:dim], extent, *tensor.shape[dim + 1 :])
        back = tuple(-start if axis == dim else 0 for axis in range(len(shape)))
        section = Box.whole(shape).shift(tuple(-step for step in back))
        pieces = [_part(piece, section, back) for piece in tensor.pieces if piece.box.touches(section)]
        views[name] = TensorLayout(shape, tuple(pieces), tensor.dtype)
        start += extent
    return Layout(views)


def _part(piece: Piece, section: Box, back: tuple[int, ...]) -> Piece:
    if piece.flat:
        raise LayoutError("a tensor in a flat buffer cannot be split by name; lay out its sections instead")
    common = piece.box & section
    place = common.relative_to(piece.box).shift(piece.place.lo)
    return Piece(piece.rank, common.shift(back), place)


def _refuse_collision(found: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for name, new in found.items():
        other = owners.setdefault(new, name)
        if other != name:
            raise LayoutError(f"{other!r} and {name!r} would both be named {new!r}", names=[other, name])

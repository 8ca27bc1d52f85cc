"""Random cuts over random meshes for property tests: layouts by a rule, where `perdure.testing.layouts` has none.

Even, uneven, block-cyclic, by-head and fused cuts, several on one dim, replicas, empty parts, tensors that are at some
coordinates of the mesh alone, and flat slices of them. Needs the ``hypothesis`` of the test environment.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from perdure.layout import (
    BlockCyclic,
    ByHead,
    Cut,
    Even,
    Fused,
    Layout,
    Mesh,
    Rule,
    TensorLayout,
    Uneven,
    cut_tensor,
    flat_cut,
)

__all__ = ["cut_layouts", "cut_tensors", "cuts", "meshes", "rules"]


@st.composite
def meshes(draw: st.DrawFn, *, most_ranks: int = 12) -> Mesh:
    """Meshes of axes ``pp``, ``dp`` and ``tp``, in any order."""
    sizes: list[int] = []
    for _ in range(3):
        taken = 1
        for size in sizes:
            taken *= size
        sizes.append(draw(st.integers(1, max(most_ranks // taken, 1))))
    return Mesh(tuple(zip(draw(st.permutations(["pp", "dp", "tp"])), sizes, strict=True)))


@st.composite
def rules(draw: st.DrawFn, extent: int, parts: int) -> Rule:
    """A rule that cuts ``extent`` elements into ``parts``."""
    kind = draw(st.sampled_from(["even", "uneven", "cyclic", "heads", "fused"]))
    if kind == "uneven":
        edges = sorted(draw(st.lists(st.integers(0, extent), min_size=parts - 1, max_size=parts - 1)))
        return Uneven(tuple(b - a for a, b in zip([0, *edges], [*edges, extent], strict=True)))
    if kind == "cyclic":
        return BlockCyclic(draw(st.integers(1, 3)))
    heads = [n for n in range(1, extent + 1) if extent % n == 0 and (n >= parts or parts % n == 0)]
    if kind == "heads" and heads:
        return ByHead(draw(st.sampled_from(heads)))
    if kind == "fused":
        at = draw(st.integers(0, extent))
        return Fused(((at, Even()), (extent - at, BlockCyclic(2))))
    return Even()


@st.composite
def cuts(draw: st.DrawFn, shape: Sequence[int], mesh: Mesh, axes: Sequence[str]) -> tuple[Cut, ...]:
    """Cuts along some of ``axes``; a second cut of a dim is even, as it must fit whatever the first one left."""
    found: list[Cut] = []
    for axis in draw(st.permutations(list(axes))):
        dim = draw(st.integers(-1, len(shape) - 1))  # -1: this axis cuts nothing
        if dim >= 0:
            first = all(cut.dim != dim for cut in found)
            found.append(Cut(axis, dim, draw(rules(shape[dim], mesh.size(axis))) if first else Even()))
    return tuple(found)


@st.composite
def cut_tensors(draw: st.DrawFn, shape: Sequence[int], mesh: Mesh, *, dtype: str = "int32") -> TensorLayout:
    """A tensor that some axes cut; where ``pp`` does not, it may be on one stage alone."""
    made = draw(cuts(shape, mesh, mesh.names))
    alone = draw(st.booleans()) and all(cut.axis != "pp" for cut in made)
    at = {"pp": draw(st.integers(0, mesh.size("pp") - 1))} if alone else {}
    return cut_tensor(shape, mesh=mesh, cuts=made, dtype=dtype, at=at)


@st.composite
def cut_layouts(draw: st.DrawFn, forms: dict[str, tuple[int, ...]], *, dtype: str = "int32") -> Layout:
    """A layout of tensors of the shapes ``forms``: each cut by itself, or flat slices of all of them."""
    mesh = draw(meshes())
    if draw(st.booleans()):
        return Layout({name: draw(cut_tensors(shape, mesh, dtype=dtype)) for name, shape in forms.items()})
    inner = {name: draw(cuts(shape, mesh, ["tp"])) for name, shape in forms.items()}
    at = {"pp": draw(st.integers(0, mesh.size("pp") - 1))}
    return flat_cut(forms, mesh=mesh, cuts=inner, along="dp", dtype=dtype, at=at, align=draw(st.integers(1, 3)))

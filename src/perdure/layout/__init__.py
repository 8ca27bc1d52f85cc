"""Where each piece of each named tensor is. Geometry only: no data, no NumPy.

`Box` is a block of a tensor, `Mesh` arranges ranks, a `Cut` says how an axis cuts a dim, a `Piece` is what one rank
holds, a `Layout` is all of it; `Layout.check` proves that the pieces tile.
"""

from perdure.layout.box import Box
from perdure.layout.cut import BlockCyclic, ByHead, ByLayer, Cut, Even, Fused, Rule, Span, Uneven
from perdure.layout.cut_pattern import grid_pattern
from perdure.layout.element import element_bytes
from perdure.layout.even_grid import EvenGrid
from perdure.layout.flat import flat_boxes, flat_layout, flat_pieces
from perdure.layout.flat_pattern import flat_cut
from perdure.layout.grid import cut_tensor, pieces_at
from perdure.layout.index import BoxIndex
from perdure.layout.layout import Layout, TensorLayout
from perdure.layout.mesh import Mesh
from perdure.layout.names import canonical_name, canonical_names, rename, shift_layer, split_fused
from perdure.layout.pattern import Holding, Listed, Pattern, Pieces
from perdure.layout.piece import Piece
from perdure.layout.tiling import first_gap, first_overlap
from perdure.layout.view import view

__all__ = [
    "BlockCyclic",
    "Box",
    "BoxIndex",
    "ByHead",
    "ByLayer",
    "Cut",
    "Even",
    "EvenGrid",
    "Fused",
    "Holding",
    "Layout",
    "Listed",
    "Mesh",
    "Pattern",
    "Piece",
    "Pieces",
    "Rule",
    "Span",
    "TensorLayout",
    "Uneven",
    "canonical_name",
    "canonical_names",
    "cut_tensor",
    "element_bytes",
    "first_gap",
    "first_overlap",
    "flat_boxes",
    "flat_cut",
    "flat_layout",
    "flat_pieces",
    "grid_pattern",
    "pieces_at",
    "rename",
    "shift_layer",
    "split_fused",
    "view",
]

"""Meshes: ranks and coordinates."""

from __future__ import annotations

import numpy as np
import pytest

from perdure.errors import LayoutError
from perdure.layout import Mesh


def test_ranks_and_coordinates_are_row_major() -> None:
    mesh = Mesh((("pp", 2), ("dp", 3), ("tp", 4)))
    for rank in range(mesh.world):
        assert mesh.coordinates(rank) == tuple(int(at) for at in np.unravel_index(rank, (2, 3, 4)))
        assert mesh.rank(mesh.coordinates(rank)) == rank
        assert mesh.coordinate(rank, "dp") == mesh.coordinates(rank)[1]


def test_a_group_holds_the_ranks_that_differ_along_one_axis() -> None:
    mesh = Mesh((("dp", 2), ("tp", 3)))
    assert mesh.group(4, "tp") == (3, 4, 5)
    assert mesh.group(4, "dp") == (1, 4)


def test_a_mesh_without_axes_has_one_rank() -> None:
    assert Mesh(()).world == 1
    assert Mesh(()).coordinates(0) == ()


def test_what_is_not_in_the_mesh_is_refused_by_name() -> None:
    mesh = Mesh((("tp", 2),))
    with pytest.raises(LayoutError, match="rank 2"):
        mesh.coordinates(2)
    with pytest.raises(LayoutError, match="'dp'"):
        mesh.size("dp")
    with pytest.raises(LayoutError, match="coordinate 5"):
        mesh.rank((5,))
    with pytest.raises(LayoutError, match="different names"):
        Mesh((("tp", 2), ("tp", 2)))
    with pytest.raises(LayoutError, match="at least one"):
        Mesh((("tp", 0),))

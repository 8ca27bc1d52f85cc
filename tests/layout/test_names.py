"""Names of the same tensor."""

from __future__ import annotations

import numpy as np
import pytest

from perdure.errors import LayoutError
from perdure.layout import (
    ByHead,
    Cut,
    Even,
    Fused,
    Layout,
    Mesh,
    canonical_name,
    canonical_names,
    cut_tensor,
    flat_layout,
    rename,
    shift_layer,
    split_fused,
    view,
)
from perdure.testing.layouts import own_arrays


def test_wrappers_are_stripped_anywhere_and_module_at_the_front_only() -> None:
    assert canonical_name("module.layers.0.weight") == "layers.0.weight"
    assert canonical_name("_orig_mod.module.a._fsdp_wrapped_module.b") == "a.b"
    assert canonical_name("a._checkpoint_wrapped_module._orig_mod.weight") == "a.weight"
    assert canonical_name("block.module.weight") == "block.module.weight"
    assert canonical_name("module") == "module"


def test_two_names_that_would_become_one_are_refused() -> None:
    assert canonical_names(["module.a", "b"]) == {"module.a": "a", "b": "b"}
    with pytest.raises(LayoutError, match=r"'module\.a' and 'a'"):
        canonical_names(["module.a", "a"])


def test_layers_of_a_pipeline_stage_get_the_numbers_of_the_model() -> None:
    tensor = cut_tensor((4,), mesh=Mesh(()), cuts=[], dtype="float32")
    stage = Layout({"layers.0.w": tensor, "layers.1.w": tensor, "norm.w": tensor})
    assert list(rename(stage, lambda name: shift_layer(name, by=8))) == ["layers.8.w", "layers.9.w", "norm.w"]
    assert shift_layer("blocks.3", by=-2, under="blocks") == "blocks.1"
    assert shift_layer("sublayers.3.w", by=1) == "sublayers.3.w"


def test_sections_of_a_fused_weight_point_into_the_fused_tensor() -> None:
    whole = np.arange(16 * 3, dtype=np.int32).reshape(16, 3)
    rule = Fused(((8, ByHead(4)), (4, ByHead(2)), (4, ByHead(2))))
    fused = cut_tensor((16, 3), mesh=Mesh((("tp", 4),)), cuts=[Cut("tp", 0, rule)], dtype="int32")
    split = split_fused(fused, dim=0, sections={"q": 8, "k": 4, "v": 4})
    split.check()
    for rank in range(4):
        own = own_arrays(Layout({"qkv": fused}), rank, wholes={"qkv": whole})["qkv"]
        for name, section in {"q": whole[:8], "k": whole[8:12], "v": whole[12:]}.items():
            for piece in split[name].of_rank(rank):
                np.testing.assert_array_equal(view(own, piece, piece.box), section[piece.box.within(split[name].whole)])


def test_a_split_that_cannot_be_is_refused() -> None:
    fused = cut_tensor((4, 4), mesh=Mesh((("tp", 2),)), cuts=[Cut("tp", 0, Even())], dtype="float32")
    with pytest.raises(LayoutError, match="do not make up"):
        split_fused(fused, dim=1, sections={"gate": 2, "up": 1})
    flat = flat_layout({"w": (4, 4)}, bounds=[(0, 16)], dtype="float32")["w"]
    with pytest.raises(LayoutError, match="flat buffer"):
        split_fused(flat, dim=0, sections={"gate": 2, "up": 2})

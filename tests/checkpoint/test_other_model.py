"""A checkpoint of another model: every rank names the keys that do not fit, before anything live has changed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Forker, Place


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, forker: Forker) -> Callable[..., Path]:
    """Make the folder of a short run, once for each set of options."""
    made: dict[tuple[str, ...], Path] = {}

    def train(*options: str) -> Path:
        if options not in made:
            one = Place(tmp_path_factory.mktemp("trained"), forker)
            try:
                one.train("--steps", "2", "--every", "2", "--no-agent", *options)
            finally:
                one.end()
            made[options] = one.run_dir
        return made[options]

    return train


@pytest.mark.parametrize(
    ("saved", "here", "sentence"),
    [
        ((), ("--extra-layer",), r"(not in the checkpoint|not saved).*more\.weight"),
        (("--extra-layer",), (), r"not here.*more\.weight"),
        ((), ("--hidden", "256"), r"model\.inner\.0\.weight has shape \[256, 64\] here, \[512, 64\] in the checkpoint"),
        ((), ("--head-dtype", "bfloat16"), r"model\.head\.weight is bfloat16 here, float32 in the checkpoint"),
    ],
    ids=["missing", "unexpected", "shape", "dtype"],
)
def test_what_does_not_fit_is_named_on_every_rank_and_nothing_is_touched(
    place: Place, trained: Callable[..., Path], saved: tuple[str, ...], here: tuple[str, ...], sentence: str
) -> None:
    shutil.copytree(trained(*saved), place.run_dir)
    ranks = place.train("--steps", "4", "--every", "2", "--no-agent", *here, codes=[64, 64])
    for rank in (0, 1):
        assert re.search(rf"StateMismatch: .*{sentence}", ranks.out(rank)), ranks.text()
        assert re.search("^untouched$", ranks.out(rank), re.M), ranks.text()
    assert place.steps() == [2]


@pytest.mark.slow
def test_it_is_the_same_from_memory(place: Place) -> None:
    place.train("--steps", "2", "--every", "2")
    ranks = place.train("--steps", "4", "--every", "2", "--hidden", "256", codes=[64, 64])
    for rank in (0, 1):
        assert "model.inner.0.weight has shape [256, 64] here, [512, 64] in the checkpoint" in ranks.out(rank)
        assert re.search("^untouched$", ranks.out(rank), re.M), ranks.text()
    assert place.steps() == [2]

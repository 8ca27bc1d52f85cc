"""Host lists mean what Slurm means by them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.adapters.slurm.hostlist import hostnames
from perdure.errors import CallError
from perdure.testing.slurm import Slurm

_tails = st.text("abcz-.", min_size=1, max_size=3)
_fronts = st.tuples(st.sampled_from("abcz"), st.text("abcz-.", max_size=3)).map("".join)  # as names of hosts begin


@st.composite
def _brackets(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A bracket and what it stands for."""
    items, means = [], []
    for _ in range(draw(st.integers(1, 3))):
        width = draw(st.integers(1, 4))
        low, high = sorted((draw(st.integers(0, 120)), draw(st.integers(0, 120))))
        one = draw(st.booleans())
        first, last = str(low).zfill(width), str(high).zfill(width)
        items.append(first if one else f"{first}-{last}")
        means += [str(number).zfill(len(first)) for number in range(low, low + 1 if one else high + 1)]
    return f"[{','.join(items)}]", means


@st.composite
def _words(draw: st.DrawFn, *, tails: bool = True) -> tuple[str, list[str]]:
    """One word of a list, with up to one bracket in it, and maybe something behind that, which Slurm never writes."""
    front = draw(_fronts)
    if draw(st.booleans()):
        return front, [front]
    text, means = draw(_brackets())
    back = draw(st.one_of(st.just(""), _tails)) if tails else ""
    return f"{front}{text}{back}", [f"{front}{number}{back}" for number in means]


@given(st.lists(_words(), min_size=1, max_size=4))
def test_a_list_stands_for_its_names_in_order(words: list[tuple[str, list[str]]]) -> None:
    assert list(hostnames(",".join(text for text, _ in words))) == [name for _, means in words for name in means]


@given(st.text("ab[]-,12", max_size=12))
def test_any_text_is_a_list_or_is_refused(text: str) -> None:
    try:
        names = hostnames(text)
    except CallError:
        return
    assert all(name and not set(name) & set("[],") for name in names)


_NO_LISTS = ["node[1-4", "node]1[", "node[[1]]", "a,,b", "node[4-1]", "node[]", "node[a]", ",", "n[0-99999999]"]


@pytest.mark.parametrize("text", _NO_LISTS)
def test_what_is_no_list_is_refused_by_name(text: str) -> None:
    with pytest.raises(CallError, match="hosts"):
        hostnames(text)


def test_several_brackets_count_like_digits() -> None:
    assert hostnames("r[1-2]n[08-09]") == ("r1n08", "r1n09", "r2n08", "r2n09")


def test_slurm_says_the_same(slurm: Slurm) -> None:
    @settings(max_examples=20, deadline=None)
    @given(st.lists(_words(tails=False), min_size=1, max_size=4))
    def same(words: list[tuple[str, list[str]]]) -> None:
        text = ",".join(word for word, _ in words)
        assert list(hostnames(text)) == slurm.run("scontrol", "show", "hostnames", text).split()

    same()

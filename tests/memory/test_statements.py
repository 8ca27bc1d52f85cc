"""Statements: what is cut where, and that nothing is left out."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.memory.statements import statements


def cut(text: str) -> list[str]:
    return [text[start:stop] for start, stop, _ in statements(text)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Dr. Ana met Mr. Lee at 5 p.m. on Main St. near the bank. He left.", 2),
        ("Pi is 3.14 and v1.2.3 is out. See https://a.b/c?d=e.f for more.", 2),
        ("Write to a.b@c.org. Then wait.", 2),
        ("Ursula K. Le Guin wrote it. J. R. R. Tolkien did not.", 2),
        ("We chose plan B. Then it rained.", 2),
        ('He said "I moved. I live in Rome." She laughed.', 2),
        ("今日は晴れ。明日は雨！本当？", 3),
        ("मैं दिल्ली में रहता हूँ। वह मुंबई में है।", 2),
        ("أين تسكن؟ أسكن في دبي.", 2),
        ("Wir treffen uns am 3. Mai. Bis dann.", 2),
        ("0. Ana lives in Rome. 1. Bo lives in Oslo. 12. Cy lives in Bern.", 3),
        ("0. Ana lives in Washington, D.C..\n1. Bo works at Apple Inc..\n2. Cy is at St. Ives.", 3),
        ("well... i moved. anyway, how are you? fine!!", 3),
        ("He works at Apple Inc. in Cupertino.", 1),
        ("approx. five of them, e.g. Tom, etc. and so on", 1),
        ("She moved. :) Now she is in Rome", 2),
    ],
)
def test_sentences_are_cut_where_a_reader_would(text: str, parts: int) -> None:
    assert len(cut(text)) == parts, cut(text)


def test_numbered_facts_on_one_line_keep_their_numbers() -> None:
    assert cut("0. Ana lives in Rome. 1. Bo lives in Oslo.") == ["0. Ana lives in Rome.", "1. Bo lives in Oslo."]


def test_code_is_cut_at_lines_only_and_is_one_passage() -> None:
    found = statements("See:\n```py\na = 1. \nb = x ? y. z : w\n```\nDone. Bye.")
    assert [passage for _, _, passage in found] == [0, 1, 1, 1, 1, 5, 5]


def test_a_wrapped_sentence_is_one_statement_and_list_items_are_each_a_passage() -> None:
    assert len(cut("We have decided that the meeting of the committee will\nbe held on Friday. Bring tea.")) == 2
    assert [passage for _, _, passage in statements("- one\n- two\n1. three")] == [0, 1, 2]


texts = st.one_of(
    st.text(max_size=400),
    st.text(alphabet="ab.!? \n\"'`A1)(。।\u200d\u0301", max_size=400),
    st.lists(
        st.sampled_from(["```", "\n", "Dr.", " ", "...", "x" * 600, "1.", "”", "“", "e.g.", "\r\n"]), max_size=40
    ).map("".join),
)


@given(texts)
def test_every_character_that_is_no_space_is_in_exactly_one_statement(text: str) -> None:
    found = statements(text)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(found))
    assert "".join("".join(text[a:b].split()) for a, b, _ in found) == "".join(text.split())
    for at, (start, stop, passage) in enumerate(found):
        assert text[start:stop] == text[start:stop].strip() != ""
        assert passage <= at
        assert found[passage][2] == passage
    assert all(a[2] <= b[2] for a, b in itertools.pairwise(found))


@pytest.mark.parametrize(
    "unit", ["x", ".", '"', "a.", ".)", "```\n", "“", "1. ", "! ", "。", "\u0301", " \n", "é ", "Mr. "]
)
def test_time_is_linear_in_hostile_text(unit: str) -> None:
    def took(count: int) -> float:
        text = (unit * count)[:count]
        began = time.process_time()
        statements(text)
        return time.process_time() - began

    took(10_000)
    assert took(200_000) < 24 * max(took(25_000), 0.002)

"""What a fact is filed under."""

from __future__ import annotations

import pytest

from perdure.memory.records import Fact, Role
from perdure.memory.subjects import subjects, surface, terms_of


def facts(*texts: str, speaker: str = "") -> list[Fact]:
    return [
        Fact(n, 1, 0, len(text), n, text, speaker, Role.USER, "", "2026-01-01", 0.0) for n, text in enumerate(texts, 1)
    ]


@pytest.mark.parametrize(
    ("texts", "speaker", "last"),
    [
        (["Anna lives in Lisbon."], "", "Anna"),
        (["Anna Maria Rossi sings."], "", "Anna Maria Rossi"),
        (["Anna's cat sleeps."], "", "Anna"),
        (["Anna lives in Lisbon.", "She has a cat."], "", "Anna"),
        (["I love it in Lisbon."], "Carla", "Carla"),
        (["Glad to hear that."], "Carla", "Carla"),
        (["You've done it."], "Carla", "Carla"),
        (["the meeting with Dr. Wu was moved"], "", "Dr"),
        (["buy milk"], "", ""),
        (["日本語の文。"], "", ""),
        (["\ud800 \x00"], "", ""),
        ([""], "", ""),
    ],
)
def test_the_subject_is_whom_the_words_name(texts: list[str], speaker: str, last: str) -> None:
    assert subjects(facts(*texts, speaker=speaker))[len(texts)] == last


def test_terms_are_folded_and_shown_as_they_were_written() -> None:
    assert terms_of("She was cooking with the Cooks in Berlin") == ["cook", "berlin"]
    assert surface("cook", "She was cooking") == "cooking"
    assert terms_of("x " * 10_000) == []

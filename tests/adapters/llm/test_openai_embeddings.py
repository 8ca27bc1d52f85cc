"""Vectors of an endpoint: in the order of the texts, of length 1, of one size, and numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from perdure.adapters.llm import OpenAIEmbedder
from perdure.errors import CallError, DeadlineExceeded, StateMismatch
from perdure.testing.endpoint import Raw, Request, ScriptedEndpoint, vector_of


def rows(*vectors: Any) -> Raw:
    data = [{"index": at, "embedding": each} for at, each in enumerate(vectors)]
    return Raw(body=json.dumps({"data": data}).encode())


def test_vectors_come_in_the_order_of_the_texts_in_batches() -> None:
    texts = [f"text {at}" for at in range(10)]
    with ScriptedEndpoint(dims=8) as endpoint:
        embedder = OpenAIEmbedder(endpoint.url, "small", batch=4)
        found = embedder.embed(texts, kind="passage")
        assert (embedder.dims, embedder.name) == (8, "small/8")
    assert [len(each.body["input"]) for each in endpoint.requests] == [4, 4, 2]
    np.testing.assert_allclose(found, [vector_of(each, 8) for each in texts], atol=1e-6)
    assert found.dtype == np.float32


def test_no_texts_give_no_vectors() -> None:
    with ScriptedEndpoint(dims=8) as endpoint:
        assert OpenAIEmbedder(endpoint.url, "small", dims=8).embed([], kind="query").shape == (0, 8)
    assert endpoint.requests == []


def test_questions_and_passages_have_their_prefixes_and_the_name_says_so() -> None:
    with ScriptedEndpoint(dims=8) as endpoint:
        embedder = OpenAIEmbedder(endpoint.url, "small", dims=8, prefixes=("query: ", "passage: "))
        embedder.embed(["a"], kind="query")
        embedder.embed(["a"], kind="passage")
        assert embedder.name != OpenAIEmbedder(endpoint.url, "small", dims=8).name
    assert [each.body["input"] for each in endpoint.requests] == [["query: a"], ["passage: a"]]


def test_a_server_that_changes_its_model_is_found_out() -> None:
    """mem0#4212: 1536 dims were taken for granted, and every call failed after a change of the model."""
    with ScriptedEndpoint(embeddings=[rows([1.0, 0, 0]), rows([1.0, 0])]) as endpoint:
        embedder = OpenAIEmbedder(endpoint.url, "small")
        assert embedder.embed(["a"], kind="query").shape == (1, 3)
        with pytest.raises(StateMismatch, match=r"2 numbers.* 3; name the model"):
            embedder.embed(["a"], kind="query")
    with ScriptedEndpoint(dims=8) as endpoint, pytest.raises(StateMismatch):
        OpenAIEmbedder(endpoint.url, "small", dims=1536).embed(["a"], kind="query")


@pytest.mark.parametrize(
    "reply",
    [
        rows([float("nan"), 1.0]),
        rows([float("inf"), 1.0]),
        rows([0.0, 0.0]),
        rows(["x", 1.0]),
        rows([None, 1.0]),
        rows([[1.0], [2.0]]),
        rows([]),
        rows(),
        rows([1.0, 0.0], [1.0, 0.0]),
        Raw(body=b'{"data": [{"index": 7, "embedding": [1, 2]}]}'),
        Raw(body=b'{"data": [{"embedding": [1, 2]}]}'),
        Raw(body=b'{"data": 3}'),
        Raw(body=b"{}"),
        Raw(body=b"[]"),
    ],
)
def test_what_is_no_vector_for_the_text_is_refused(reply: Raw) -> None:
    with ScriptedEndpoint(embeddings=[reply]) as endpoint, pytest.raises(CallError):
        OpenAIEmbedder(endpoint.url, "small").embed(["a"], kind="query")


def test_texts_that_are_too_long_for_the_server_are_cut_and_none_is_lost() -> None:
    """agentric PR#421: the backend rejects more than 2,000 characters, and the longest memories were lost."""

    def strict(request: Request) -> Any:
        texts = request.body["input"]
        if any(len(each) > 2000 for each in texts):
            return Raw(status=400, body=b'{"error": {"message": "too long"}}')
        return rows(*(vector_of(each, 8) for each in texts))

    with ScriptedEndpoint(embeddings=[strict] * 40) as endpoint:
        found = OpenAIEmbedder(endpoint.url, "small").embed(["a", "b" * 7000, "c", "", "d\ud800"], kind="passage")
    assert found.shape == (5, 8)
    np.testing.assert_allclose(found[1], vector_of("b" * 1750, 8), atol=1e-6)


def test_a_refusal_of_short_texts_is_an_error_and_ends() -> None:
    no = Raw(status=400, body=b'{"error": {"message": "no"}}')
    with ScriptedEndpoint(embeddings=[no] * 100) as endpoint, pytest.raises(CallError, match="no"):
        OpenAIEmbedder(endpoint.url, "small").embed(["a" * 5000, "b"], kind="passage")
    assert len(endpoint.requests) < 10


def test_one_deadline_is_for_all_batches() -> None:
    slow = [Raw(wait_s=0.15, body=rows([1.0, 0]).body) for _ in range(20)]
    with ScriptedEndpoint(embeddings=slow) as endpoint, pytest.raises(DeadlineExceeded):
        OpenAIEmbedder(endpoint.url, "small", batch=1, deadline_s=0.5).embed(["a"] * 20, kind="query")
    assert len(endpoint.requests) < 6

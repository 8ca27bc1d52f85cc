"""Signatures, against the examples that Amazon publishes for version 4."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from perdure.adapters.objectstore.credentials import Keys
from perdure.adapters.objectstore.signing import signed_headers

KEYS = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
WHEN = datetime(2013, 5, 24, tzinfo=UTC)


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("?lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("?max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_published_examples_are_signed_alike(query: str, signature: str) -> None:
    url = f"https://examplebucket.s3.amazonaws.com/{query}"
    headers = signed_headers("GET", url, region="us-east-1", keys=KEYS, when=WHEN)
    assert headers["authorization"].endswith(f"Signature={signature}")


def test_a_session_token_is_signed_and_keys_have_no_text() -> None:
    keys = Keys("id", "hunter2", "hunter3")
    headers = signed_headers("GET", "https://b.s3.amazonaws.com/", region="us-east-1", keys=keys, when=WHEN)
    assert headers["x-amz-security-token"] == "hunter3"
    assert "x-amz-security-token" in headers["authorization"]
    assert "hunter" not in repr(keys)

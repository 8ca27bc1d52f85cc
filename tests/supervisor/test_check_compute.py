"""The products that find a core which computes wrong: their digests are those of exact arithmetic."""

from __future__ import annotations

import os

import numpy as np
import pytest

from perdure.supervisor import check_compute
from perdure.supervisor.checks import Context


@pytest.mark.parametrize("kind", list(check_compute.DIGESTS))
def test_the_known_digests_are_those_of_the_exact_products(kind: str) -> None:
    """Python's own whole numbers are the oracle; a product of int64 wraps."""
    a, b = (x.astype(object) for x in check_compute.operands(kind))
    exact = a @ b
    if kind != "int64":
        limit = {"float64": 2**53, "float32": 2**24, "small": 2**8}[kind]
        assert check_compute.SIZE * check_compute.LARGEST[kind] ** 2 <= limit
    wrapped = np.vectorize(lambda x: (int(x) + 2**63) % 2**64 - 2**63, otypes=[np.int64])(exact)
    assert check_compute.product_digest(wrapped) == check_compute.DIGESTS[kind]


def test_one_wrong_bit_of_one_element_changes_the_digest() -> None:
    a, b = check_compute.operands("float32")
    product = a @ b
    product[7, 100] ^= 1
    assert check_compute.product_digest(product) != check_compute.DIGESTS["float32"]


def test_a_core_that_computes_wrong_is_named_and_the_cores_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.sched_getaffinity(0)
    last = max(cores)
    monkeypatch.setattr(
        check_compute, "wrong_products", lambda: ["float32"] if os.sched_getaffinity(0) == {last} else []
    )
    found = check_compute.cpu(Context())
    assert found.word == "problem"
    assert found.says == f"it computes wrong, without an error: core {last} in float32"
    assert os.sched_getaffinity(0) == cores


def test_cores_that_there_was_no_time_for_are_told() -> None:
    found = check_compute.verdict({}, tried=3, cores=8)
    assert (found.word, found.says) == ("note", "3 of 8 cores compute right; time was over before the others")

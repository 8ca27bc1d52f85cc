"""Agreement on outcomes, where the contract of the fabric does not already show it."""

from __future__ import annotations

import pytest

from perdure.clock import Deadline
from perdure.errors import BlobCorrupt, Bug, LinkLost, ProtocolError
from perdure.fabric import SoloFabric, agree, all_gather_json
from perdure.fabric.api import Bytes
from perdure.fabric.threads import ThreadsFabric, run


def soon() -> Deadline:
    return Deadline.after(30.0, "agreement")


class Garbled(SoloFabric):
    """A fabric whose peer sends what it should not."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data

    def all_gather(self, data: Bytes, *, deadline: Deadline) -> list[bytes]:
        return [self._data]


class Cut(SoloFabric):
    """A fabric whose links are down."""

    def all_gather(self, data: Bytes, *, deadline: Deadline) -> list[bytes]:
        raise LinkLost("the links are down")


def test_an_exception_from_outside_the_tree_becomes_a_bug_and_keeps_its_cause() -> None:
    outcome = ZeroDivisionError("by zero")
    with pytest.raises(Bug, match="rank 0: ZeroDivisionError: by zero") as caught:
        agree(SoloFabric(), outcome, deadline=soon())
    assert caught.value.__cause__ is outcome


def test_the_first_of_several_failing_ranks_is_raised_everywhere() -> None:
    def work(fabric: ThreadsFabric) -> str:
        outcome = BlobCorrupt(f"tile {fabric.rank}", tile=fabric.rank) if fabric.rank else None
        with pytest.raises(BlobCorrupt) as caught:
            agree(fabric, outcome, deadline=soon())
        return f"{caught.value} {caught.value.facts}"

    assert run(4, work) == ["rank 1: tile 1 {'rank': 1, 'tile': 1}"] * 4


def test_facts_that_json_cannot_hold_still_travel_as_text() -> None:
    with pytest.raises(BlobCorrupt) as caught:
        agree(SoloFabric(), BlobCorrupt("bad", where=range(3)), deadline=soon())
    assert caught.value.where == "range(0, 3)"


def test_an_error_of_ones_own_is_raised_when_the_others_cannot_be_heard() -> None:
    with pytest.raises(BlobCorrupt, match="rank 0: bad"):
        agree(Cut(), BlobCorrupt("bad"), deadline=soon())
    with pytest.raises(LinkLost):
        agree(Cut(), None, deadline=soon())


def test_what_is_not_json_or_not_an_error_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        all_gather_json(Garbled(b"\xff{"), None, deadline=soon())
    with pytest.raises(ProtocolError, match="not an error"):
        agree(Garbled(b"[1]"), None, deadline=soon())

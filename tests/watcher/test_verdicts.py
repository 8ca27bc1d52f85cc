"""The table: each row can be reached, no row hides another for good, and the docs print it as it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import CLASSES, Action, Label, Owner
from perdure.watcher.verdicts import NOTHING, ROWS, STOPS, Names, Row, judge, kind_of, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "watcher-verdicts.md"
_MADE = {
    "hardware-line": Label.GPU_ECC,
    "stop-line": Label.GPU_OOM,
    "line": Label.NVLINK_NONFATAL,
    "noted": Label.THERMAL,
}


def evidence(kind: str, *, rank: int = 2, label: Label | None = None) -> Evidence:
    """Evidence that the table knows under ``kind``."""
    made = "something_new" if kind == "noted" else "line" if kind in _MADE else kind
    told = label or _MADE.get(kind)
    return Evidence(
        kind=made, at_s=0.0, sentence=f"{kind} found", ranks=(rank,), nodes=("b",), label=told, strength=0.7
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_decides_when_its_evidence_is_all_there_is(row: Row) -> None:
    found = [
        evidence(kind, label=Label.HOST_OOM if kind == "line" and len(row.kinds) > 1 else None) for kind in row.kinds
    ]
    ruling = judge(found)
    assert ruling is not None
    assert ruling.row is row
    if row.label is not None:
        assert (ruling.label, ruling.owner, ruling.action) == (row.label, row.owner, row.action)
    else:
        assert ruling.owner is CLASSES[ruling.label].owner
    assert row.says in ruling.sentence


@pytest.mark.parametrize("row", [row for row in ROWS if row.label is not None], ids=lambda row: row.name)
def test_whom_a_row_names_is_whom_the_ruling_accuses(row: Row) -> None:
    ruling = judge([evidence(kind) for kind in row.kinds])
    assert ruling is not None
    named = (bool(ruling.ranks), bool(ruling.nodes))
    assert named == {Names.NODE: (True, True), Names.RANK: (True, False), Names.NOBODY: (False, False)}[row.names]


def test_only_verdicts_about_a_machine_name_nodes_or_replace_them() -> None:
    for row in ROWS:
        if row.action is Action.EVICT:
            assert row.names is Names.NODE
            assert row.owner is Owner.NODE


def test_evidence_about_other_ranks_does_not_refine() -> None:
    ruling = judge([evidence("behind", rank=2), evidence("in-loading", rank=3)])
    assert ruling is not None
    assert ruling.row.name == "behind"


def test_a_line_about_the_machine_comes_before_what_died_of_it() -> None:
    ruling = judge([evidence("killed"), evidence("hardware-line")])
    assert ruling is not None
    assert (ruling.label, ruling.action, ruling.nodes) == (Label.GPU_ECC, Action.EVICT, ("b",))


def test_who_falls_over_calls_that_differ_is_not_the_one_that_called_wrongly() -> None:
    said = msgspec.structs.replace(evidence("stop-line"), label=Label.DESYNC)
    ruling = judge([evidence("crashed"), said])
    assert ruling is not None
    assert (ruling.label, ruling.action) == (Label.DESYNC, Action.STOP_USER)
    assert (ruling.ranks, ruling.nodes) == ((), ())


def test_a_line_says_why_a_rank_died() -> None:
    ruling = judge([evidence("raised"), evidence("stop-line")])
    assert ruling is not None
    assert (ruling.label, ruling.action) == (Label.GPU_OOM, Action.STOP_USER)


def test_a_line_of_what_stops_nobody_is_a_warning() -> None:
    ruling = judge([evidence("line")])
    assert ruling is not None
    assert (ruling.label, ruling.action) == (Label.NVLINK_NONFATAL, Action.WARN)


def test_a_kind_without_a_row_is_noted_with_its_own_label() -> None:
    ruling = judge([evidence("noted", label=Label.THERMAL)])
    assert ruling is not None
    assert (ruling.label, ruling.action, ruling.nodes) == (Label.THERMAL, Action.WARN, ("b",))


def test_no_evidence_is_no_verdict() -> None:
    assert judge([]) is None
    assert judge([evidence("in-loading")]) is None


def test_every_row_is_reachable_and_sure_of_itself_as_a_share() -> None:
    assert len({row.kinds for row in ROWS}) == len(ROWS)
    for number, row in enumerate(ROWS):
        assert 0 < row.early <= row.sure < 1
        assert not any(set(other.kinds) <= set(row.kinds) for other in ROWS[:number]), f"{row.name} is never reached"


def test_what_stops_a_job_is_known() -> None:
    assert {"killed", "behind", "stopped", "nan-source", "hardware-line", "stop-line"} <= STOPS
    assert not {"slow-rank", "clock-jump", "line", "noted", "loss-spike"} & STOPS
    assert kind_of(evidence("something-else")) == NOTHING
    assert kind_of(evidence("slow_rank")) == "slow-rank"
    assert kind_of(evidence("slow_job_over")) == NOTHING


def test_the_docs_hold_the_table_as_it_is() -> None:
    assert markdown() in PAGE.read_text()

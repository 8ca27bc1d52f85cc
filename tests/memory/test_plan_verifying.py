"""Whatever a plan says: what passes the judge loses no fact, rewrites none, and lets no lesser word win."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.memory.plan import (
    Alias,
    Assign,
    Conflict,
    Duplicate,
    Group,
    Merge,
    Op,
    Plan,
    Retitle,
    Split,
    Summarise,
    Supersede,
    decode,
    encode,
    sane_title,
)
from perdure.memory.records import Fact, Role, State
from perdure.memory.verifying import Known, after, tempered, verify


def fact(number: int, text: str = "Anna lives here", *, role: Role = Role.USER, topic: int | None = None) -> Fact:
    return Fact(number, number, 0, len(text), number, text, "", role, "", "2026-01-01", float(number), topic=topic)


TEXTS = ["Anna lives in Lisbon", "Anna moved to Porto now", "Bob likes tea", "anna lives in Lisbon."]
KNOWN = Known(
    {n: fact(n, TEXTS[n % 4], role=list(Role)[n % 4], topic=[None, 1, 2, 3][n // 3 % 4]) for n in range(1, 13)},
    frozenset({1, 2, 3}),
    frozenset(n for n in range(1, 13) if n // 3 % 4 == 0),
    {n: frozenset({f"s{n % 2}"}) for n in range(1, 13)},
    frozenset({(5, 4)}),
    frozenset({(7, 6)}),
    frozenset({1, 2}),
)
ids = st.integers(1, 14)
topics = st.integers(1, 4)
some = st.lists(ids, min_size=1, max_size=4).map(tuple)
titles = st.sampled_from(["Anna", "anna", "Bob", "", "\u202e", "# x", "[[y]]"])
ops: st.SearchStrategy[Op] = st.one_of(
    st.builds(Assign, some, topics | st.none(), titles),
    st.builds(Duplicate, ids, ids),
    st.builds(Supersede, ids, ids, st.sampled_from(["", "moved to Porto now", "now", "nonsense"])),
    st.builds(Conflict, ids, ids),
    st.builds(Split, topics, st.lists(st.builds(Group, titles, some), min_size=1, max_size=2).map(tuple)),
    st.builds(Merge, topics, st.lists(topics, min_size=1, max_size=3).map(tuple)),
    st.builds(Retitle, topics, titles),
    st.builds(Summarise, topics, titles),
    st.builds(Alias, topics, st.lists(titles, max_size=2).map(tuple)),
)
GOOD: tuple[Op, ...] = (Assign((1, 2), title="Anna"), Assign((12,), topic=3))


@settings(max_examples=300, deadline=None)
@given(st.lists(ops, max_size=6), st.booleans())
def test_a_plan_that_passes_keeps_every_fact_in_exactly_one_place(extra: list[Op], placed: bool) -> None:
    plan, _ = tempered(Plan((*(GOOD if placed else ()), *extra)), KNOWN)
    if verify(plan, KNOWN):
        return
    where = after(plan, KNOWN)
    assert where.keys() == KNOWN.facts.keys()
    merged = {topic for op in plan.ops if isinstance(op, Merge) for topic in op.topics}
    for number, place in where.items():
        assert place is not None
        assert place != "", f"f{number} lies nowhere"
        assert place not in merged
        assert isinstance(place, str) or place in KNOWN.topics
    _hidden_facts_lead_to_shown_ones(plan.ops)


def _hidden_facts_lead_to_shown_ones(done: Sequence[Op]) -> None:
    above: dict[int, set[int]] = {}
    for hiding, hidden in KNOWN.hides:
        above.setdefault(hidden, set()).add(hiding)
    for op in done:
        if isinstance(op, Supersede):
            assert KNOWN.facts[op.new].role.authority >= KNOWN.facts[op.old].role.authority
            above.setdefault(op.old, set()).add(op.new)
        elif isinstance(op, Duplicate):
            assert KNOWN.facts[op.of].role.authority >= KNOWN.facts[op.fact].role.authority
            above.setdefault(op.fact, set()).add(op.of)
    for start in above:
        seen, todo = set(), [start]
        while todo:
            for each in above.get(todo.pop(), ()):
                assert each != start, "a fact hides itself"
                if each not in seen:
                    seen.add(each)
                    todo.append(each)


@given(st.lists(ops, max_size=6))
def test_a_plan_reads_as_it_was_written(some_ops: list[Op]) -> None:
    plan = Plan(tuple(some_ops))
    assert decode(encode(plan)) == plan


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_anything_else_is_refused_and_not_half_read(data: bytes | str) -> None:
    try:
        decode(data)
    except CallError:
        return
    raw = data if isinstance(data, bytes) else data.encode()
    assert b'"ops"' in raw or raw.strip() == b"{}"


@pytest.mark.parametrize(
    "text",
    [
        '{"ops": [{"op": "delete", "facts": [1]}]}',
        '{"ops": [{"op": "assign", "facts": [1], "topic": 1, "text": "rewritten"}]}',
        '{"ops": [{"op": "assign", "facts": ["1"], "topic": 1}]}',
        '{"ops": [{"op": "assign", "facts": [], "topic": 1}]}',
        '{"ops": [{"op": "assign", "facts": [-1], "topic": 1}]}',
        '{"ops": [{"op": "assign", "facts": [1], "topic": 1e400}]}',
        '{"ops": [], "more": 1}',
        "[" * 5000,
        '{"ops": [' + ",".join(['{"op": "conflict", "fact": 1, "other": 2}'] * 20_001) + "]}",
    ],
)  # fmt: skip
def test_there_is_no_operation_that_deletes_or_rewrites(text: str) -> None:
    with pytest.raises(CallError, match="no plan"):
        decode(text)


def test_each_fault_is_named() -> None:
    def faults(*extra: Op) -> str:
        return "; ".join(each.text for each in verify(Plan(extra), KNOWN))

    assert "1 facts are not assigned: f12" in faults(GOOD[0])
    assert "f1 is assigned twice" in faults(*GOOD, Assign((1,), topic=1))
    assert "f99 is not of this batch" in faults(*GOOD, Assign((99,), topic=1))
    assert "f4 is not of this batch" in faults(*GOOD, Assign((4,), topic=1))
    assert "t9 is no topic" in faults(Assign((1, 2, 12), topic=9))
    assert "either a topic or a title" in faults(Assign((1, 2, 12)))
    assert "not shown whole" in faults(*GOOD, Split(3, (Group("x", (9,)),)))
    assert "cut or merged twice" in faults(*GOOD, Split(1, (Group("x", (4,)),)), Merge(1, (2,)))
    assert faults(*GOOD) == ""


def test_a_tools_word_cannot_replace_what_a_user_said() -> None:
    known = Known(
        {1: fact(1, "Anna lives in Lisbon", topic=1), 2: fact(2, "Anna now lives in Porto", role=Role.TOOL)},
        frozenset({1}), frozenset({2}), {1: frozenset({"s"}), 2: frozenset({"s"})},
    )  # fmt: skip
    plan, notes = tempered(Plan((Assign((2,), topic=1), Supersede(2, 1, "now"))), known)
    assert plan.ops[1] == Conflict(2, 1, "now")
    assert verify(plan, known) == []
    assert "less authority" in notes[0]


def test_nothing_is_replaced_without_a_slot_or_words_that_say_so() -> None:
    known = Known(
        {1: fact(1, "Anna lives in Lisbon", topic=1), 2: fact(2, "Anna plays chess")}, frozenset({1}), frozenset({2})
    )
    plan, notes = tempered(Plan((Assign((2,), topic=1), Supersede(2, 1, "plays chess"), Duplicate(2, 1))), known)
    assert plan.ops == (Assign((2,), topic=1),)
    assert len(notes) == 2


def test_a_forgotten_fact_hides_nothing() -> None:
    gone = Fact(2, 2, 0, 9, 2, "Anna lives in Lisbon", "", Role.USER, "", "2026-01-01", 2.0, State.FORGOTTEN, topic=1)
    known = Known({1: fact(1, "Anna lives in Lisbon"), 2: gone}, frozenset({1}), frozenset({1}))
    plan, _ = tempered(Plan((Assign((1,), topic=1), Duplicate(1, 2))), known)
    assert len(plan.ops) == 1


@given(st.text(max_size=300))
def test_a_title_is_one_short_line_without_controls(text: str) -> None:
    title = sane_title(text)
    assert len(title) <= 120
    assert title == " ".join(title.split())
    assert sane_title(title) == title
    assert title.isprintable() or "\u200c" in title or "\u200d" in title

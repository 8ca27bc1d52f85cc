"""What replaces what: by slots, by whose word it is, and in whatever order it comes to be known."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from perdure.memory import Memory, Role, State

TOLD = [
    ("2026-01-01T10:00+00:00", "Ana lives in Lisbon."),
    ("2026-02-01T10:00+00:00", "Ana lives in Porto."),
    ("2026-03-01T10:00+00:00", "Ana lives in Lisbon."),
    ("2026-04-01T10:00+00:00", "Ana lives in Faro."),
]


def states(memory: Memory) -> dict[str, str]:
    memory.settle()
    found: dict[str, str] = {}
    for number in range(1, 60):
        fact = memory._ledger.facts([number]).get(number)
        if fact is not None:
            found[f"{fact.observed[:7]} {fact.text}"] = fact.state.value
    return found


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
@pytest.mark.parametrize("each", [True, False])
def test_any_order_of_arrival_ends_in_the_same(tmp_path: Path, order: tuple[int, ...], each: bool) -> None:
    with Memory(tmp_path) as memory:
        for at in order:
            memory.observe(TOLD[at][1], at=TOLD[at][0], source="chat")
            if each:
                memory.settle()
        found = states(memory)
    assert [text for text, state in found.items() if state == "current"] == ["2026-04 Ana lives in Faro."]


def test_a_return_makes_the_new_telling_current(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        for at, text in TOLD[:3]:
            memory.observe(text, at=at)
        assert list(states(memory).values()) == ["superseded", "superseded", "current"]


def test_settling_again_changes_nothing(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        for at, text in TOLD:
            memory.observe(text, at=at)
        before = states(memory)
        memory._ledger.connection().execute("UPDATE fact SET settled = 0")
        assert memory.settle() == 4
        assert states(memory) == before
        count = memory._ledger.connection().execute("SELECT count(*) FROM link WHERE undone IS NULL").fetchone()[0]
        assert count == 3


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ("The deadline of the report is Friday.", "The deadline of the report is Monday.", ["superseded", "current"]),
        ("Ana's phone number is 12345.", "Ana's phone number is 67890.", ["superseded", "current"]),
        ("port = 8080", "port = 9090", ["superseded", "current"]),
        ("Ana speaks Spanish.", "Ana speaks Dutch.", ["current", "current"]),
        ("Ana has a cat.", "Ana has a dog.", ["current", "current"]),
        ("Ana lives in Lisbon.", "Maybe Ana lives in Porto.", ["current", "current"]),
        ("Ana lives in Lisbon.", "Ana lives in Porto?", ["current", "current"]),
        ("Ana lives in Lisbon.", "Ana used to live in Rome.", ["current", "current"]),
        ("Ana lives in Lisbon.", "Ana no longer lives in Lisbon.", ["superseded", "current"]),
        ("Ana lives in Lisbon.", "Ana lived in Rome in 2019.", ["current", "superseded"]),
        ("The meeting is on Tuesday at noon.", "Sorry, I meant Thursday.", ["superseded", "current"]),
        ("Ana lives in Lisbon.", "Ana lives in Lisbon.", ["current", "duplicate"]),
        ("The bins are emptied early.", "The bins are emptied early.", ["current", "duplicate"]),
    ],
)
def test_what_a_statement_does_to_an_earlier_one(tmp_path: Path, first: str, then: str, expected: list[str]) -> None:
    with Memory(tmp_path) as memory:
        memory.observe(first, at="2026-01-01T10:00+00:00", source="chat", speaker="Bo")
        memory.observe(then, at="2026-01-02T10:00+00:00", source="chat", speaker="Bo")
        memory.settle()
        assert [memory.fact(1).state.value, memory.fact(2).state.value] == expected


def test_i_and_my_are_the_speaker(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("I live in Lisbon.", at="2026-01-01T10:00+00:00", speaker="Ana")
        memory.observe("Ana lives in Porto.", at="2026-01-02T10:00+00:00", speaker="Bo")
        memory.observe("I live in Rome.", at="2026-01-03T10:00+00:00", speaker="Bo")
        assert list(states(memory).values()) == ["superseded", "current", "current"]


def test_memoria_89_a_correction_leaves_one_version_current(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("The wifi password is oldmill99.", at="2026-01-01T10:00+00:00")
        memory.observe("The wifi password is heron22.", at="2026-01-02T10:00+00:00")
        assert [hit.fact.text for hit in memory.search("wifi password")] == ["The wifi password is heron22."]


def test_mem0_4536_a_contradiction_keeps_the_new_fact_and_the_old_as_history(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        for at, text in TOLD[:2]:
            memory.observe(text, at=at)
        assert [hit.fact.text for hit in memory.search("Where does Ana live?")] == ["Ana lives in Porto."]
        old = memory.search("Where does Ana live?", history=True)[1]
        assert (old.fact.text, old.by) == ("Ana lives in Lisbon.", (2,))


def test_resolve_returns_what_holds_in_a_slot(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        for at, text in TOLD:
            memory.observe(text, at=at)
        memory.observe("port = 8080")
        for asked, text in [
            ("Ana lives in", "Ana lives in Faro."),
            ("port", "port = 8080"),
            ("Where does Ana live?", TOLD[3][1]),
        ]:
            hit = memory.resolve(asked)
            assert hit is not None
            assert hit.fact.text == text
        assert memory.resolve("xyzzy") is None


@pytest.mark.parametrize("arrival", [(0, 1), (1, 0)])
def test_a_tool_never_replaces_what_the_user_said(tmp_path: Path, arrival: tuple[int, int]) -> None:
    told = [
        ("Ana lives in Lisbon.", "2026-01-01T10:00+00:00", Role.USER),
        ("Ana lives in Moscow.", "2026-01-02T10:00+00:00", Role.TOOL),
    ]
    with Memory(tmp_path) as memory:
        for at in arrival:
            memory.observe(told[at][0], at=told[at][1], role=told[at][2])
            memory.settle()
        assert set(states(memory).values()) == {"current"}
        kinds = memory._ledger.connection().execute("SELECT kind FROM link WHERE undone IS NULL").fetchall()
        assert kinds == [("conflicts",)]


def test_an_identical_note_told_three_times_is_shown_once(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        for day in (1, 2, 3):
            memory.observe("Please buy oat milk on Fridays", at=f"2026-01-0{day}T10:00+00:00")
        assert len(memory.search("oat milk")) == 1


def test_numbered_facts_with_overrides_in_any_form_of_number(tmp_path: Path) -> None:
    for at, form in enumerate(["{}. {}", "Fact {}: {}", "[{}] {}", "{}) {}", "#{} {}", "- {}. {}"]):
        lines = [
            "Mara Lund plays the sport of chess.",
            "The capital of Orlia is Tesk.",
            "Mara Lund plays the sport of rugby.",
        ]
        with Memory(tmp_path / str(at)) as memory:
            memory.observe("\n".join(form.format(each, line) for each, line in enumerate(lines)))
            assert "rugby" in memory.search("What sport does Mara Lund play?")[0].fact.text, form
            assert sorted(states(memory).values()) == ["current", "current", "superseded"], form


def test_settling_gives_way_to_another_process_that_writes(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory, Memory(tmp_path) as other:
        memory.observe("Ana lives in Lisbon.")
        with other._ledger.change():
            assert memory.settle() == 0
            assert memory.search("Ana")[0].fact.text == "Ana lives in Lisbon."
        assert memory.settle() == 1


def test_what_was_undone_by_a_person_is_not_done_again(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        for at, text in TOLD[:2]:
            memory.observe(text, at=at)
        memory.settle()
        with memory._ledger.change() as db:
            db.execute("INSERT INTO change(kind, by, outcome, at_s) VALUES ('edit', 'human', 'ok', 0)")
            db.execute(
                "INSERT INTO link(kind, fact, other, reason, change) VALUES ('supersedes', 1, 2, 'a person said so', 2)"
            )
            db.execute("UPDATE fact SET state = 'superseded' WHERE id = 2")
        memory.observe(TOLD[0][1], at=TOLD[2][0])
        memory.settle()
        assert memory.fact(2).state is State.SUPERSEDED


def test_since_and_until_are_told_by_the_words(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("I have lived in Porto since May.", at="2026-08-01T10:00+02:00", speaker="Ana")
        memory.settle()
        assert (memory.fact(1).since, memory.fact(1).until) == ("2026-05", None)
        assert memory.fact(1).text == "I have lived in Porto since May."


@pytest.mark.parametrize(
    ("old", "new", "question", "answer"),
    [
        (
            "Mo Tan earns 1700 euros per month.",
            "Mo Tan earns 1900 euros per month.",
            "How much does Mo Tan earn?",
            "1900",
        ),
        (
            "Mo Tan takes the Red line to work.",
            "Mo Tan takes the Blue line to work.",
            "Which line does Mo take?",
            "Blue",
        ),
        ("Mo Tan works as head of sales.", "Mo Tan works as bus driver.", "What does Mo Tan work as?", "bus driver"),
        (
            "The author of Our Home is Li Wu.",
            "The author of Our Home is Al Po.",
            "Who is the author of Our Home?",
            "Al Po",
        ),
        ("Mo Tan drives a red Fiat.", "Mo Tan drives a red Audi.", "What does Mo Tan drive?", "Audi"),
        ("Mo's mentor is K. A. Li of Rome.", "Mo's mentor is J. R. Po of Oslo.", "Who is Mo's mentor?", "J. R. Po"),
    ],
)
def test_a_numbered_fact_replaces_an_earlier_one_of_its_template(
    tmp_path: Path, old: str, new: str, question: str, answer: str
) -> None:
    other = "Mo Tan is a citizen of Chad."
    with Memory(tmp_path) as memory:
        memory.observe("\n".join(f"{at}. {line}" for at, line in enumerate([old, other, new])))
        assert answer in memory.search(question)[0].fact.text
        assert sorted(states(memory).values()) == ["current", "current", "superseded"]


def test_what_undo_took_back_is_not_settled_again(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        for at, text in TOLD[:2]:
            memory.observe(text, at=at)
        memory.settle()
        memory.undo(memory.changes()[0].id)
        memory._ledger.connection().execute("UPDATE fact SET settled = 0")
        memory.settle()
        assert [memory.fact(1).state, memory.fact(2).state] == [State.CURRENT, State.CURRENT]


def test_a_statement_in_prose_that_plainly_replaces_another_supersedes_it_with_its_reason(tmp_path: Path) -> None:
    """Same subject, same attribute, a word that it is otherwise now, and another value of the same form."""
    with Memory(tmp_path) as memory:
        memory.observe("exporter listens on 9100, open it in the firewall", speaker="Ola", at="2025-01-01", source="c")
        memory.observe("lunch at 12:30 as ever", speaker="Ola", at="2025-01-02", source="c")
        memory.observe("moved the exporter to 9465, the firewall is done", speaker="Ola", at="2025-02-01", source="c")
        found = states(memory)
        assert [state for text, state in found.items() if "9100" in text] == ["superseded"]
        assert [state for text, state in found.items() if "lunch" in text] == ["current"]
        assert "it tells anew of" in memory.history(1).links[0].reason


@pytest.mark.parametrize(
    "later",
    [
        "we might move the exporter to 9465, the firewall would allow it",
        "has the exporter in the firewall moved to 9465?",
        "the new scraper listens on 9465 now",
    ],
)
def test_plans_questions_and_other_things_supersede_nothing(tmp_path: Path, later: str) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("exporter uses 9100, open it in the firewall", speaker="Ola", at="2025-01-01", source="c")
        memory.observe(later, speaker="Ola", at="2025-02-01", source="c")
        assert set(states(memory).values()) == {"current"}

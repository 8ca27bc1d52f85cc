"""Nested questions: made-up worlds in which the right chain is known, and facts that try to mislead or to tire."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.memory.edges import edges_of, key_of, tokens_of
from perdure.memory.hops import best_chain, follow, hits_of
from perdure.memory.ledger import Ledger
from perdure.memory.lexical import LexicalIndex
from perdure.memory.mentions import IndexFinder, Mention
from perdure.memory.records import Fact, Role

RELATIONS = {
    "spouse": ("person", "person", ["{s} is married to {o}.", "The husband of {s} is {o}."], ["the spouse of {x}"]),
    "employer": ("person", "firm", ["{s} works for {o}.", "{o} employs {s}."], ["the company {x} works for"]),
    "seat": (
        "firm",
        "town",
        ["{s} is based in {o}.", "{s} has its headquarters in {o}."],
        ["the headquarters of {x}", "the city where {x} is based"],
    ),
    "land": ("town", "land", ["{s} is a city in {o}.", "{s} lies in {o}."], ["the country where {x} is located"]),
    "capital": ("land", "town", ["{o} is the capital of {s}.", "{s}'s capital is {o}."], ["the capital of {x}"]),
    "premier": ("land", "person", ["{o} is the prime minister of {s}."], ["the head of government of {x}"]),
    "author": ("book", "person", ["{o} wrote {s}.", "The author of {s} is {o}."], ["the person who wrote {x}"]),
    "zorbel": ("person", "person", ["The zorbel of {s} is {o}.", "{s}'s zorbel is {o}."], ["the zorbel of {x}"]),
    "quimf": ("person", "person", ["{s} quimfed {o}."], ["the person whom {x} quimfed"]),
    "ally": ("firm", "firm", ["{s} is allied with {o}."], ["the ally of {x}"]),
}
SYLLABLES = [a + b for a in ("b", "k", "r", "t", "v", "gr") for b in ("a", "e", "i", "o", "é", "ö", "in", "or")]


class World:
    """Facts about things with made-up names; of each kind of fact about a thing the last one holds."""

    def __init__(self, seed: int, size: int) -> None:
        self.random = random.Random(seed)
        names = {"book": "The {} of {}", "firm": "{} Industries", "town": "New {}", "person": "{} {}", "land": "{}"}
        self.things = {kind: [self.name(form) for _ in range(size)] for kind, form in names.items()}
        self.truth: dict[tuple[str, str], str] = {}
        self.facts: list[str] = []
        said: dict[tuple[str, str], str] = {}
        for change in (0.85, 0.3):
            told = []
            for relation, (about, to, forms, _) in RELATIONS.items():
                for thing in self.things[about]:
                    other = self.random.choice(self.things[to])
                    if self.random.random() < change and other != thing:
                        form = said.setdefault((relation, thing), self.random.choice(forms))
                        told.append(form.format(s=thing, o=other))
                        self.truth[relation, thing] = other
            self.random.shuffle(told)
            self.facts += told

    def name(self, form: str) -> str:
        words = ["".join(self.random.choices(SYLLABLES, k=self.random.randint(3, 4))).capitalize() for _ in "ab"]
        return form.format(*words)

    def questions(self, count: int) -> Iterator[tuple[str, str]]:
        """Questions of two to four steps, no two of a kind in a row, with their answers."""
        made = 0
        while made < count:
            kind = self.random.choice(list(self.things))
            thing = self.random.choice(self.things[kind])
            words, before, seen = thing, "", {thing}
            for _ in range(self.random.randint(2, 4)):
                relations = [each for each, (about, *_) in RELATIONS.items() if about == kind and each != before]
                before = self.random.choice(relations)
                if self.truth.get((before, thing), thing) in seen:
                    break
                thing = self.truth[before, thing]
                seen.add(thing)
                kind = RELATIONS[before][1]
                words = self.random.choice(RELATIONS[before][3]).format(x=words)
            else:
                made += 1
                yield f"What is {words}?", thing


class Parts:
    """The parts of a memory that chains need."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(folder / "ledger.db")
        self.index = LexicalIndex(folder / "index.db", self.ledger)

    def tell(self, facts: Sequence[str]) -> None:
        self.ledger.append(
            "\n".join(facts),
            source="",
            speaker="",
            role=Role.USER,
            observed=("2020-01-01T00:00:00+00:00", 1577836800.0),
            key=None,
            dated=False,
            meta=None,
        )

    @property
    def finder(self) -> IndexFinder:
        return IndexFinder(self.ledger, self.index)

    def answer(self, question: str) -> str | None:
        chains = follow(question, self.finder, deadline_s=20.0)
        return chains[0].answer if chains else None


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.index.close()
    made.ledger.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_in_a_made_up_world_nearly_every_chain_is_found_and_what_is_sure_is_right(parts: Parts, seed: int) -> None:
    world = World(seed, 25)
    parts.tell(world.facts)
    right = sure = wrong = 0
    asked = list(world.questions(60))
    for question, gold in asked:
        chain = follow(question, parts.finder, deadline_s=20.0)[0]
        right += chain.answer == gold
        sure += chain.sure
        wrong += chain.sure and chain.answer != gold
    assert right >= 0.93 * len(asked)
    assert sure >= 0.85 * len(asked)
    assert wrong <= 2


def test_a_chain_shows_each_fact_and_the_answer_within_the_last(parts: Parts) -> None:
    parts.tell(
        ["Vara Kint wrote The Zorn of Mabek.", "Vara Kint was born in Old Tesk.", "Old Tesk is a city in Ruvia."]
    )
    question = "In which country is the birthplace of the author of The Zorn of Mabek located?"
    chain = best_chain(question, parts.finder)
    assert chain is not None
    hits = hits_of(chain)
    assert [hit.fact.name for hit in hits] == ["f3", "f2", "f1"]
    assert hits[0].why == "hop 3 of 3: Ruvia"
    chain = follow(question, parts.finder)[0]
    assert chain.sure
    assert chain.answer == "Ruvia"
    assert chain.unexplained == ()


def test_the_newest_fact_of_the_same_kind_is_followed(parts: Parts) -> None:
    parts.tell(
        [
            "The director of Kolb Works is Ana Perl.",
            "Ana Perl was born in Lund.",
            "Tom Voss was born in Bern.",
            "The director of Kolb Works is Tom Voss.",
        ]
    )
    assert parts.answer("Where was the director of Kolb Works born?") == "Bern"


def test_a_fact_that_is_superseded_is_never_followed(parts: Parts) -> None:
    parts.tell(["The director of Kolb Works is Ana Perl.", "Ana Perl was born in Lund."])
    with parts.ledger.change() as db:
        db.execute("UPDATE fact SET state = 'superseded' WHERE id = 2")
    assert best_chain("Where was the director of Kolb Works born?", parts.finder) is None


def test_accents_case_quotes_and_articles_do_not_matter(parts: Parts) -> None:
    parts.tell(["The author of The Cérvo is Ñora Béll.", "Ñora Béll is married to Al Mont."])
    assert parts.answer('who is the spouse of the author of "cervo"?') == "Al Mont"


def test_a_name_within_a_longer_name_is_another_thing(parts: Parts) -> None:
    parts.tell(
        [
            "Kingdom of Morla is located in the continent of Asia.",
            "Morla is located in the continent of Africa.",
            "Jo Tarn is a citizen of Morla.",
        ]
    )
    assert parts.answer("On which continent is the country of citizenship of Jo Tarn located?") == "Africa"


@pytest.mark.parametrize(
    "question",
    [
        "What is the capital of the country of citizenship of Unheard Person?",
        "How are you?",
        "Why?",
        "",
        "?",
        "the of",
        "What is the shoe size of the spouse of Ana Perl?",
    ],
)
def test_what_cannot_be_explained_is_left_to_plain_search(parts: Parts, question: str) -> None:
    parts.tell(["Ana Perl is married to Tom Voss.", "Tom Voss was born in Bern.", "The capital of Ruvia is Tesk."])
    assert best_chain(question, parts.finder) is None


def test_a_question_of_one_hop_falls_through(parts: Parts) -> None:
    parts.tell(["Ana Perl is married to Tom Voss.", "Tom Voss was born in Bern."])
    assert best_chain("Who is Ana Perl married to?", parts.finder) is None
    assert follow("Who is Ana Perl married to?", parts.finder)[0].answer == "Tom Voss"


def test_talk_is_no_chain(parts: Parts) -> None:
    parts.tell(
        [
            "Wow, Caroline, that painting is awesome!",
            "Art's awesome for showing us who we really are.",
            "I gotta tell you about my biz, Gina!",
            "Yeah Jon, I'm here for you!",
            "Is Caroline the author of Tides?",
        ]
    )
    for question in ("What inspired Caroline's painting for the art show?", "What does Jon tell Gina he won't do?"):
        assert best_chain(question, parts.finder) is None


def test_circles_end(parts: Parts) -> None:
    parts.tell(["Ana Perl is married to Tom Voss.", "Tom Voss is married to Ana Perl.", "Ana Perl's ally is Ana Perl."])
    question = "Who is the spouse of the spouse of the spouse of the spouse of the spouse of Ana Perl?"
    assert all(len(chain.facts) <= 4 for chain in follow(question, parts.finder))


class Counting:
    """A finder that counts, over facts in a list."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.calls = self.given = 0
        self.facts = [
            Fact(at, 1, 0, len(text), at, text, "", Role.USER, "", "2020-01-01T00:00:00+00:00", 0.0)
            for at, text in enumerate(texts, 1)
        ]

    def mentions(self, name: Sequence[str], *, with_any: Sequence[str], limit: int) -> list[Mention]:
        self.calls += 1
        found = []
        for fact in reversed(self.facts):
            words = [each.word for each in tokens_of(fact.text)]
            if any(words[at : at + len(name)] == list(name) for at in range(len(words))) and (
                not with_any or set(words) & set(with_any)
            ):
                found.append(Mention(fact, False))
        self.given += len(found[:limit])
        return found[:limit]


def test_a_thing_with_ten_thousand_facts_costs_a_few_lookups(parts: Parts) -> None:
    crowd = [f"Person{at} Vel is a citizen of Ruvia." for at in range(10_000)]
    parts.tell(["The capital of Ruvia is Tesk.", "Ana Perl wrote Tides.", *crowd, "Ana Perl is a citizen of Ruvia."])
    question = "What is the capital of the country of citizenship of the author of Tides?"
    assert parts.answer(question) == "Tesk"
    counting = Counting([])
    kept = parts.finder

    class Through:
        def mentions(self, name: Sequence[str], *, with_any: Sequence[str], limit: int) -> list[Mention]:
            found = kept.mentions(name, with_any=with_any, limit=limit)
            counting.calls += 1
            counting.given += len(found)
            return found

    follow(question, Through(), deadline_s=20.0)
    assert counting.calls <= 60
    assert counting.given <= 1500


def test_after_its_deadline_a_search_gives_what_it_has() -> None:
    finder = Counting(["Ana Perl is married to Tom Voss.", "Tom Voss was born in Bern."])
    now = iter(range(1000))
    follow("Where was the spouse of Ana Perl born?", finder, deadline_s=0.0, clock=lambda: float(next(now)))
    assert finder.calls == 0


HOSTILE = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(
            [
                *"Ana Perl\"'*)(:^-日本\x00\u0301?.,",
                "Ana",
                "Perl",
                "is",
                "the",
                "of",
                "capital",
                "OR",
                "NEAR",
                "was",
                "by",
            ]
        ),
        max_size=60,
    ).map(" ".join),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(HOSTILE, max_size=6), HOSTILE)
def test_no_text_or_question_breaks_it_and_answers_are_spans_of_facts(texts: list[str], question: str) -> None:
    for chain in follow(question, Counting(texts), deadline_s=5.0):
        assert chain.answer
        assert chain.answer in chain.facts[-1].text
        assert chain.score <= 1.0


@pytest.mark.parametrize(
    "question", ['"" OR *', "What is the capital of \x00 and \ud800?", 'NEAR(a b) "c', "a" * 5000, "a " * 5000]
)
def test_a_question_is_never_a_query(parts: Parts, question: str) -> None:
    parts.tell(['The capital of "Ru*via" OR x is Tesk.', "x" * 3000 + " is a."])
    assert follow(question, parts.finder) == []


@settings(max_examples=100, deadline=None)
@given(HOSTILE, HOSTILE)
def test_an_edge_leads_to_a_span_of_its_text(text: str, name: str) -> None:
    for edge in edges_of(text, key_of(name)):
        assert 0 <= edge.start < edge.stop <= len(text)
        assert "_" in edge.words


@pytest.mark.parametrize(
    ("text", "thing", "end"),
    [
        ("The chief executive officer of Apple Inc. is Tim Cook.", "Apple Inc.", "Tim Cook"),
        ("The name of the current head of the Tesk government is Jo Roth.", "Tesk", "Jo Roth"),
        ("Ana Perl is associated with the sport of rugby union.", "Ana Perl", "rugby union"),
        ("The type of music that Ana Perl plays is alternative Rock.", "Ana Perl", "alternative Rock"),
        ("Pedro worked in the city of Washington, D.C..", "Pedro", "Washington, D.C."),
        ("Kolb was founded by de Havilland.", "Kolb", "de Havilland"),
        ("Ana's favourite colour is dark blue.", "Ana", "dark blue"),
        ("Jo is famous for The Red Badge of Courage.", "Jo", "The Red Badge of Courage"),
        ("Tesk is the capital of Ruvia.", "Ruvia", "Tesk"),
    ],
)
def test_plain_statements_are_cut_where_their_names_begin(text: str, thing: str, end: str) -> None:
    edge = edges_of(text, key_of(thing))[0]
    assert text[edge.start : edge.stop] == end
    assert edge.exact
    assert not edge.backward

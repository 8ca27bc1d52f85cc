"""A fact survives being written into Markdown and read back, whatever is in it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.errors import FormatRefused
from perdure.memory.document_edits import Edits, Shown, edits, shown_next
from perdure.memory.document_files import slug
from perdure.memory.document_text import Ties, escaped, read, same, unescaped, write
from perdure.memory.records import Fact, Role, State, Topic

ODD = st.text(
    st.one_of(
        st.sampled_from(
            "\\`^f1<>[]{}#-*+ \t\n\r\v\f\x1c\x85\u2028\u2029\u202e\u200d\ufeff!|~:0.)=&'\"\x00\ud800e\u0301"
        ),
        st.characters(),
    ),
    max_size=60,
)


def fact(number: int, text: str, state: State = State.CURRENT) -> Fact:
    return Fact(number, 7, 0, len(text), number, text, "A b{}", Role.USER, "s", "2026-01-01", float(number), state)


@settings(max_examples=500, deadline=None)
@given(ODD)
@example("\\u0041 \\\\ \\")
@example("x {src=e1} ^f9")
@example("1. one")
def test_text_survives_being_escaped(text: str) -> None:
    line = escaped(text)
    assert unescaped(line) == text
    assert len(f"a{line}b".splitlines()) == 1
    line.encode()  # also what is no Unicode text


@settings(max_examples=300, deadline=None)
@given(st.lists(ODD.filter(str.strip), max_size=6), st.text(st.characters(codec="utf-8"), max_size=80))
def test_a_document_that_nobody_touched_holds_no_edit(texts: list[str], notes: str) -> None:
    notes = "\n".join(each for each in notes.split("\n") if not each.startswith("# ") and "<!--" not in each)
    notes = "\n".join(notes.replace("\r", "").split("\n")).strip("\n").rstrip()
    facts = [fact(at, text, list(State)[at % 3]) for at, text in enumerate(texts, 1)]
    topic = Topic(3, "Anna", ("a", 'q"'), "sum: mary", 5)
    text = write(topic, facts, {1: Ties((2,), (), (3,))}, notes=notes, extra="tags: [x]", updated="2026")
    names = {"title": "Anna", "aliases": topic.aliases, "summary": topic.summary, "notes": notes}
    shown = shown_next(Shown(), revision=5, ids=[each.id for each in facts], **names)  # type: ignore[arg-type]
    found = read(text)
    assert found.whole
    assert found.topic == 3
    assert found.revision == 5
    assert [each.fact for each in found.bullets if each.fact] == [each.fact for each in found.bullets]
    for bullet in found.bullets:
        assert same(bullet.text, texts[(bullet.fact or 0) - 1])
    known: dict[int, Fact | None] = {each.id: each for each in facts}
    assert edits(found, shown, known, standing=texts, notes=notes, extra="tags: [x]") == Edits()


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read(text)
        read("---\n" + text)
    except FormatRefused:
        pass


@given(st.text(max_size=100))
def test_a_slug_is_a_plain_name(title: str) -> None:
    name = slug(title)
    assert name
    assert len(name.encode("utf-8", "surrogatepass")) <= 121
    assert (not set(name) & set('/\\:*?"<>|. \0\n') and name.casefold() == slug(name).casefold()) or name.endswith("-")


def test_titles_that_look_alike_or_are_reserved_have_names_of_their_own() -> None:
    assert slug("Café") == slug("Cafe\u0301") == "café"
    assert slug("a-b/C d") == "a-b-c-d"
    assert slug("aux") == "aux-"
    assert slug("日本 語") == "日本-語"


@pytest.mark.parametrize(
    "text",
    [
        "---\nid: t1\nid: t2\n---\n",
        "---\nid: t1\n",
        '---\ntitle: "a\n---\n',
        "---\ntitle: [a\n  b: {c}\n- x: &a *b\n---\n",
        "---\n" + "a: b\n" * 400 + "---\n",
    ],
)
def test_front_matter_that_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(FormatRefused):
        read(text)


def test_front_matter_is_read_as_editors_write_it() -> None:
    found = read(
        "---\nid: t4\ntitle: Anna's house\naliases:\n  - one\n  - 'it''s'\ntags:\n  - x\nrevision: 3\n---\n- a ^f1\n"
    )
    assert (found.topic, found.title, found.aliases, found.revision) == (4, "Anna's house", ("one", "it's"), 3)
    assert found.extra == "tags:\n  - x"


def test_an_old_view_of_a_document_is_an_edit_of_that_view() -> None:
    one, two, three = fact(1, "one"), fact(2, "two"), fact(3, "three")
    then = shown_next(Shown(), revision=1, ids=[1, 2], title="T", aliases=[], summary="", notes="")
    now = shown_next(then, revision=5, ids=[2, 3], title="New", aliases=[], summary="", notes="")
    saved = read('---\nid: t1\ntitle: "T"\nrevision: 1\n---\n- one ^f1\n- TWO! ^f2\n<!-- end of t1 -->\n')
    done = edits(saved, now, {1: one, 2: two, 3: three}, standing=["two", "three"], notes="", extra="")
    assert done == Edits(changed=((2, "TWO!"),))

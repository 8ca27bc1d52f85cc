"""Read a plain statement as an edge: what it says of a thing that it names, and to which other thing that leads.

Not a grammar. The thing is known beforehand (a question named it, or another statement led to it), so only the rest has
to be cut into the relation's words and the other end. English word order gives the cut: names are capitalised, a
relation's words are not, and ``the city of``, ``by`` or a copula stand right before what is named.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from perdure.memory.relations import Relation, inverted, named
from perdure.memory.wordlists import word_set

__all__ = ["Edge", "Key", "Token", "edges_of", "folded", "key_of", "past", "tokens_of", "verbal"]

Key = tuple[str, ...]

_WORD: Final = re.compile(r"\w[\w\u0300-\u036f]*")
_LONGEST: Final = 400
_ARTICLES: Final = frozenset(["the", "a", "an"])
_COPULAS: Final = frozenset(["is", "are", "was", "were", "be", "became", "becomes", "remains"])
_AUXILIARY: Final = _COPULAS | word_set("has had have will can could does did would may might also now")
_PREPOSITIONS: Final = word_set("of in by for to at with from on as near into under over after about")
_JOINING: Final = word_set("of the de la le du von van der den del di da and for in on to al el y et '")
_PERSONAL: Final = word_set(
    "i me my mine we us our you your he him his she her it its they them their this these those here there"
)
_THEIRS: Final = frozenset(["its", "his", "her", "their"])
_NO_NAME: Final = word_set("and or but if so because when while who whom whose which what that not no just")
_LONGEST_NAME: Final = 14
_VERBS: Final = word_set(
    "began begot bore born bought broke brought built came caught chose did died drew drives drove fell felt"
    " fought found gave got grew heard held kept knew led left lost made meant met paid put ran read reads rode"
    " rose said sang sat saw sent shot slept sold spent spoke stood stole swam taught thought threw told took"
    " understood went won wore works wed wrote live like love work play hate own speak"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word of a text: folded, and where it stands."""

    word: str
    start: int
    stop: int
    lower: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """What a statement says of a thing: ``words`` (folded, ``_`` for the thing) lead to ``text[start:stop]``.

    ``backward`` means that it leads against the relation, as from an author to a book by "Its author is ...". ``exact``
    is False where the thing's name may be part of a longer one.
    """

    words: str
    relation: Relation | None
    start: int
    stop: int
    backward: bool
    exact: bool


def folded(text: str) -> str:
    """Without accents and upper case, so that names are compared as people type them.

    >>> folded("Cédric")
    'cedric'
    """
    if text.isascii():
        return text.lower()
    return "".join(each for each in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(each))


@lru_cache(8192)
def tokens_of(text: str) -> tuple[Token, ...]:
    """The words of a text, in order."""
    return tuple(
        Token(folded(each[0]), each.start(), each.end(), each[0][0].islower()) for each in _WORD.finditer(text)
    )


def key_of(text: str) -> Key:
    """What a name is compared by: its words, folded, without a leading article.

    >>> key_of("The Wheel of Time"), key_of("Washington, D.C.")
    (('wheel', 'of', 'time'), ('washington', 'd', 'c'))
    """
    words = tuple(each.word for each in tokens_of(text))
    return words[1:] if len(words) > 1 and words[0] in _ARTICLES else words


def edges_of(text: str, thing: Sequence[str]) -> list[Edge]:
    """Return the edges of a statement at each place where it names ``thing`` (a `key_of`)."""
    size = len(thing)
    tokens = tokens_of(text)
    if not size or not 1 <= len(tokens) - size <= _LONGEST or text.rstrip()[-1:] in ("?", "\uff1f"):
        return []
    found: list[Edge] = []
    for at in range(len(tokens) - size + 1):
        if tokens[at].word == thing[0] and all(tokens[at + more].word == thing[more] for more in range(1, size)):
            if at + size == len(tokens):
                found += _backward(text, tokens, at)
            else:
                found += _forward(text, tokens, at, at + size)
    return found


def _forward(text: str, tokens: tuple[Token, ...], at: int, end: int) -> list[Edge]:
    head, exact = _lead(text, tokens, at)
    rest = tokens[end:]
    follows = rest[0].lower and (bool(head) or verbal(rest[0].word))
    exact = exact and (follows or _owned(text, tokens, end))
    cut = _cut(tokens, end, bool(head) or _owned(text, tokens, end))
    if cut is None:
        return []
    if text[tokens[end - 1].stop :][:1] == "," or (head and text[tokens[at].start - 2 :][:1] == ","):
        exact = False
    if not _name(tokens[cut:]):
        return []
    return _edge(head, tokens[end:cut], tokens[cut].start, _stop(text, tokens), False, exact)


def _backward(text: str, tokens: tuple[Token, ...], at: int) -> list[Edge]:
    """The thing ends the statement: its subject is what stands before the verb."""
    _, exact = _lead(text, tokens, at)
    body = tokens[:at]
    while body and body[-1].word in _ARTICLES:
        body = body[:-1]
    first = _subject(body)
    if first is None:
        return []
    start, stop = first
    if not _name(body[start:stop]):
        return []
    return _edge(body[:start], body[stop:], body[start].start, body[stop - 1].stop, True, exact)


def _edge(
    head: tuple[Token, ...], rest: tuple[Token, ...], start: int, stop: int, backward: bool, exact: bool
) -> list[Edge]:
    """The edge of these words, or nothing where they speak of somebody else than the thing."""
    if not rest or any(each.word in _PERSONAL - _THEIRS for each in (*head, *rest)):
        return []
    words = " ".join([*(each.word for each in head), "_", *(each.word for each in rest)])
    return [Edge(words, named(words), start, stop, backward != inverted(words), exact)]


def _name(tokens: tuple[Token, ...]) -> bool:
    """Whether words can be what something is called: not a clause, nor the rest of one."""
    if len(tokens) > _LONGEST_NAME or (tokens[0].lower and tokens[0].word in _PREPOSITIONS | _AUXILIARY):
        return False
    return not any(each.lower and each.word in _PERSONAL | _NO_NAME for each in tokens[:1]) and not any(
        each.lower and each.word in _PERSONAL | {"who", "whose", "which", "that"} for each in tokens
    )


def _lead(text: str, tokens: tuple[Token, ...], at: int) -> tuple[tuple[Token, ...], bool]:
    """The words before the thing, and whether its name begins where it seems to."""
    head = tokens[:at]
    last = len(head)
    while last and head[last - 1].word in _ARTICLES:
        last -= 1
    if not last:
        return (), True
    before = head[last - 1]
    touching = not text[before.stop : tokens[at].start].strip()
    if not before.lower and touching:
        return head, False
    if before.word not in _JOINING or last < 2 or head[last - 2].lower:
        return head, True
    first = last - 2
    while first and not head[first - 1].lower:
        first -= 1
    longer = " ".join(each.word for each in head[first:last])
    return head, named(f"{longer} _") is not None


def _owned(text: str, tokens: tuple[Token, ...], at: int) -> bool:
    return tokens[at].word == "s" and text[tokens[at].start - 1] in "'\u2019" and at + 1 < len(tokens)


def past(word: str) -> bool:
    """Whether a folded word is likely a verb in the past, as ``wrote`` and ``founded``."""
    return word in _VERBS or (len(word) > 3 and word.endswith("ed"))


def verbal(word: str) -> bool:
    """Whether a folded word is likely a verb behind its subject."""
    return word in _AUXILIARY or past(word) or (len(word) > 3 and word.endswith("s"))


def _cut(tokens: tuple[Token, ...], end: int, headed: bool) -> int | None:
    """Where the other end begins, after the thing at ``end``; None where nothing is left for it."""
    count = len(tokens)
    run = end
    while run < count and tokens[run].lower:
        run += 1
    marks: list[int] = []
    for at in range(end, min(run, count - 1)):
        word = tokens[at].word
        if word == "of" and at - end >= 2 and tokens[at - 2].word in _ARTICLES:
            marks.append(at + 1)
            break
        if word == "by" and at > end:
            marks.append(at + 1)
            break
        if word in _COPULAS and headed and at + 1 < count and not _placed(tokens, at + 1):
            marks.append(at + 1)
    if marks:
        return _article(tokens, marks[-1])
    if end < run < count:
        return run
    if run == end:
        return None if tokens[end].word != "s" else end + 1
    last = max((at for at in range(end, count - 1) if tokens[at].word in _PREPOSITIONS | _COPULAS), default=None)
    if last is None:
        return end + 1 if end + 1 < count else None
    return _article(tokens, last + 1)


def _article(tokens: tuple[Token, ...], at: int) -> int:
    return at + 1 if at + 1 < len(tokens) and tokens[at].lower and tokens[at].word in _ARTICLES else at


def _placed(tokens: tuple[Token, ...], at: int) -> bool:
    """Whether ``located in``, ``educated is`` or the like stand at ``at``: the copula before is no equals sign."""
    return at + 1 < len(tokens) and (
        tokens[at].word.endswith("ed") or tokens[at].word in _VERBS or tokens[at].word in _PREPOSITIONS
    )


def _subject(body: tuple[Token, ...]) -> tuple[int, int] | None:
    """(start, stop) of the subject among the words before a statement's last name."""
    if not body:
        return None
    start = 1 if len(body) > 1 and body[0].word in _ARTICLES else 0
    if start < len(body) and body[start].lower:
        for at in range(start, len(body) - 1):
            if body[at].word in ("of", "where", "that", "which", "whom", "in", "for") and (
                not body[at + 1].lower or at + 2 == len(body)
            ):
                start = at + 1
                break
            if (
                body[at].word in _PREPOSITIONS
                and body[at + 1].word in _ARTICLES
                and not body[min(at + 2, len(body) - 1)].lower
            ):
                start = at + 2
                break
    stop = start + 1
    while stop < len(body):
        word = body[stop]
        if word.word == "s":
            break
        if word.lower and (word.word in _AUXILIARY or word.word in _VERBS or (verbal(word.word) and word.lower)):
            break
        stop += 1
    return (start, stop) if stop <= len(body) and start < len(body) else None


def _stop(text: str, tokens: tuple[Token, ...]) -> int:
    """Where the last name ends: with the dot of ``D.C.``, without that of the sentence."""
    end = len(text.rstrip())
    last = tokens[-1].stop
    tail = text[last:end]
    if tail.startswith(".") and len(tail) > 1 and tail[1] in ".!?":
        return last + 1
    return last

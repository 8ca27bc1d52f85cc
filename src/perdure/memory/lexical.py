"""The lexical index of a space. It follows the ledger: a search takes in first what was told since.

So telling stays cheap, and what was told is found at once. Any number of threads and processes may read and follow;
one at a time writes, and sees what the others have written, so that nothing is taken in twice.

Theory of the reading. What a search needs of every passage (`perdure.memory.units`) and the newest postings are held in
memory, and belong to a generation, which every writer raises. A search opens a read transaction, brings what is in
memory to the generation that it sees there, and reads its postings in the same transaction: nobody can change them
under it. Where segments were rewritten (the *shape* has changed) memory is read anew.
"""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from perdure.errors import FormatRefused, PerdureError, StorageError
from perdure.memory.coherence import Coherence
from perdure.memory.following import BEGINNING, TABLES, follow, reindex, text_of
from perdure.memory.index_file import DerivedFile
from perdure.memory.ledger import Ledger
from perdure.memory.postings import Tail, find
from perdure.memory.ranking import K1, B, Favour, idf, rank
from perdure.memory.sqlite_files import File
from perdure.memory.units import UNIT, Units
from perdure.memory.vocabulary import alike
from perdure.memory.words import content_terms, terms, words_of

__all__ = ["Filter", "Found", "LexicalIndex", "words_of"]

T = TypeVar("T")

_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which passages may be found: told by one of ``speakers``, of one of ``sources``, observed within a time."""

    speakers: frozenset[str] | None = None
    sources: frozenset[str] | None = None
    since_s: float | None = None
    until_s: float | None = None
    roles: frozenset[int] | None = None
    """By authority, see `perdure.memory.records.Role`."""

    def __bool__(self) -> bool:
        return self != Filter()


@dataclass(frozen=True, slots=True)
class Found:
    """A passage that was found: the facts ``passage`` to ``before`` (not included, None for the last) are its own."""

    passage: int
    before: int | None
    score: float
    unit: int


@dataclass(slots=True)
class State:
    """What is held in memory of one file at one generation."""

    inode: tuple[int, int] | None = None
    generation: int = 0
    shape: int = 0
    sealed: int = 0
    units: Units = field(default_factory=lambda: Units(k1=K1, b=B))
    tail: Tail = field(default_factory=Tail)
    segments: tuple[int, ...] = ()
    speakers: dict[str, int] = field(default_factory=dict)
    named: dict[str, set[int]] = field(default_factory=dict)
    """The speakers that have a term in their name."""
    sources: dict[str, int] = field(default_factory=dict)
    lends: NDArray[np.float32] = field(default_factory=lambda: np.zeros(1, np.float32))


class LexicalIndex:
    """Where the words of a space stand. Safe to use from any thread, from many processes, and after a fork."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.path = path
        self.ledger = ledger
        self._file = DerivedFile(path, ledger.id, TABLES, BEGINNING)
        self._state = State()

    def catch_up(self) -> None:
        """Take in what was told since the last time."""
        self._file.robust(lambda db: _follow(db, self.ledger))

    def make_again(self) -> None:
        """Throw the file away, and take in everything anew."""
        self._file.discard()
        self.catch_up()

    def drop(self, passages: Sequence[int]) -> None:
        """Take in anew what is left of passages of which some was forgotten or came back; nothing else stays."""

        def work(db: File) -> None:
            follow(db, self.ledger)
            reindex(db, self.ledger, passages)

        self._file.robust(work)

    def search(self, question: str, *, limit: int) -> list[tuple[int, float]]:
        """Return (passage, score), best first."""
        weights = dict.fromkeys(content_terms(question), 1.0)
        return [(found.passage, found.score) for found in self.rank(weights, limit=limit)[0]]

    def rank(
        self,
        weights: Mapping[str, float],
        *,
        limit: int,
        only: Filter | None = None,
        speaker: str | None = None,
        within: tuple[float, float] | None = None,
    ) -> tuple[list[Found], dict[str, float]]:
        """Return the passages that fit weighted terms best, and what each term that was found counts.

        Those of ``speaker``, and those told ``within`` a time, count for more.
        """

        def work(db: File, state: State, n: int) -> tuple[list[Found], dict[str, float]]:
            units = state.units
            favour = Favour(state.speakers.get(speaker) if speaker is not None else None, *(within or (None, None)))
            sure = list(weights)[:200]
            postings = find(db, state.segments, state.tail, sure, n=n) if sure else {}
            weighted = dict(weights)
            for term in sure:
                if term not in postings and len(term) > 2:
                    near = alike(db, state.segments, state.tail, term)
                    fresh = [each for each in near if each not in weighted]
                    weighted |= {each: near[each] * weights[term] for each in fresh}
                    postings |= find(db, state.segments, state.tail, fresh, n=n) if fresh else {}
            keep = _kept(state, n, only) if only else None
            at, scores = rank(units, n, postings, weighted, state.lends, keep=keep, favour=favour, limit=limit)
            passage = units.passage
            counted = {term: weighted[term] * idf(n, len(found)) for term, (found, _) in postings.items()}
            return [
                Found(int(passage[unit]), int(passage[unit + 1]) if unit + 1 < n else None, score, unit)
                for unit, score in zip(at.tolist(), scores.tolist(), strict=True)
            ], counted

        return self._reading(work)

    def newest(self, *, limit: int, only: Filter | None = None) -> list[Found]:
        """Return the passages told last, the last first, all with score 0."""

        def work(db: File, state: State, n: int) -> list[Found]:
            keep = _kept(state, n, only) if only else np.ones(n, np.bool_)
            passage = state.units.passage
            return [
                Found(int(passage[at]), int(passage[at + 1]) if at + 1 < n else None, 0.0, int(at))
                for at in np.flatnonzero(keep)[::-1][:limit].tolist()
            ]

        return self._reading(work)

    def named(self, words: Sequence[str]) -> dict[str, set[str]]:
        """Return the speakers that have one of ``words`` in their name, by word."""

        def work(db: File, state: State, n: int) -> dict[str, set[str]]:
            names = {code: text for text, code in state.speakers.items()}
            return {word: {names[code] for code in state.named[word]} for word in words if word in state.named}

        return self._reading(work)

    def newest_s(self) -> float | None:
        """When the newest observation was made; None where there is none."""

        def work(db: File, state: State, n: int) -> float | None:
            return float(state.units.observed_s[:n].max()) if n else None

        return self._reading(work)

    def frequencies(self, words: Sequence[str]) -> tuple[int, dict[str, int]]:
        """How many passages there are, and in how many each word stands."""

        def work(db: File, state: State, n: int) -> tuple[int, dict[str, int]]:
            found = find(db, state.segments, state.tail, words, n=n) if words else {}
            return n, {word: len(found[word][0]) for word in found}

        return self._reading(work)

    def containing(self, name: Sequence[str], *, with_any: Sequence[str] = (), limit: int) -> list[int]:
        """Return passages with all words of ``name``, and one of ``with_any`` if there are any, the newest first.

        Words are compared by their stems, and in any order. Of what was told since the last `catch_up` it knows
        nothing.
        """
        wanted = content_terms(" ".join(name))
        some = sorted({term for word in with_any for term in content_terms(word)})
        if not wanted:
            return []

        def work(db: File, state: State, n: int) -> list[int]:
            found = find(db, state.segments, state.tail, [*wanted, *some], n=n)
            if not all(term in found for term in wanted):
                return []
            units = functools.reduce(np.intersect1d, [found[term][0] for term in wanted])
            if some:
                near = [found[term][0] for term in some if term in found]
                units = np.intersect1d(units, np.concatenate(near)) if near else units[:0]
            return [int(state.units.passage[unit]) for unit in units[::-1][:limit].tolist()]

        return self._reading(work, follow_first=False)

    def places(self, passages: Sequence[int], *, only: Filter | None = None) -> list[Found]:
        """Return those of ``passages`` that there are and that may be found, all with score 0."""

        def work(db: File, state: State, n: int) -> list[Found]:
            known = state.units.passage
            keep = _kept(state, n, only) if only else None
            at = np.searchsorted(known[:n], passages)
            return [
                Found(passage, int(known[unit + 1]) if unit + 1 < n else None, 0.0, unit)
                for passage, unit in zip(passages, at.tolist(), strict=True)
                if unit < n and known[unit] == passage and (keep is None or keep[unit])
            ]

        return self._reading(work)

    def text(self, passage: int) -> str:
        """Return the words of a passage, without what was forgotten."""
        return text_of(self.ledger, passage)

    def connection(self) -> File:
        """This thread's connection to the index, made where there is none."""
        return self._file.connection()

    def close(self) -> None:
        """Close the index."""
        self._file.close()

    def _reading(self, work: Callable[[File, State, int], T], *, follow_first: bool = True) -> T:
        def attempt(db: File) -> T:
            if follow_first:
                _follow(db, self.ledger)
            while True:
                with _reads(db):
                    generation = db.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()[0]
                    state = self._brought_to(db, generation)
                    if state is not None:
                        n = db.execute("SELECT value FROM meta WHERE key = 'units'").fetchone()[0]
                        return work(db, state, n)

        return self._file.robust(attempt)

    def _brought_to(self, db: File, generation: int) -> State | None:
        """The state at ``generation``, or None where another thread has gone past it already."""
        with self._file.lock:
            state, inode = self._state, self._file.inode
            if state.inode == inode and state.generation == generation:
                return state
            if state.inode == inode and state.generation > generation:
                return None
            self._state = State()  # where reading fails half way, it begins anew
            self._state = _next(db, state if state.inode == inode else State(), inode)
            return self._state


def _follow(db: File, ledger: Ledger) -> None:
    """Take in what is new, as far as it can be written: what is indexed is found all the same."""
    try:
        follow(db, ledger)
    except StorageError as error:
        if error.errno not in _UNWRITABLE:
            raise


def _next(db: File, old: State, inode: tuple[int, int] | None) -> State:
    meta = dict(db.execute("SELECT key, value FROM meta"))
    if old.shape != meta["shape"]:
        old = State()
    sealed = old.sealed == meta["sealed"]
    state = State(
        inode=inode,
        generation=meta["generation"],
        shape=meta["shape"],
        sealed=meta["sealed"],
        units=old.units,
        tail=old.tail if sealed else Tail(),
        segments=tuple(row[0] for row in db.execute("SELECT first FROM segment ORDER BY first")),
        speakers=old.speakers,
        named=old.named,
        sources=old.sources,
        lends=old.lends,
    )
    sql = "SELECT first, columns FROM block WHERE first + 65536 > ? ORDER BY first"
    for first, columns in db.execute(sql, (old.units.n,)).fetchall():
        rows = np.frombuffer(columns, UNIT)
        skip = max(0, state.units.n - first)
        if skip < len(rows):
            state.units.append(rows[skip:])
    known = state.units.n
    start = known if sealed else state.sealed
    fresh = db.execute("SELECT unit, columns, terms FROM tail WHERE unit >= ? ORDER BY unit", (start,)).fetchall()
    newer = [columns for unit, columns, _ in fresh if unit >= known]
    if newer:
        state.units.append(np.frombuffer(b"".join(newer), UNIT))
    if state.units.n != meta["units"]:
        raise FormatRefused("the index lacks passages")
    for unit, _, found in fresh:
        state.tail.add(unit, found.split("\n") if found else ())
    _names(db, state, old.generation)
    return state


def _names(db: File, state: State, since: int) -> None:
    lends = state.lends
    row = db.execute("SELECT near, far, pairs FROM name WHERE kind = 'all'").fetchone()
    usual = Coherence(*row) if row else Coherence()
    for code, kind, text, near, far, pairs in db.execute(
        "SELECT code, kind, text, near, far, pairs FROM name WHERE changed > ?", (since,)
    ).fetchall():
        name = text.decode("utf-8", "surrogatepass")
        if kind == "speaker":
            state.speakers[name] = code
            for word in terms(name):
                state.named.setdefault(word, set()).add(code)
        elif kind == "source":
            state.sources[name] = code
            if code >= len(lends):
                lends = np.concatenate([lends, np.zeros(max(code + 1, 2 * len(lends)) - len(lends), np.float32)])
            lends[code] = Coherence(near, far, pairs).lends(usual)
    state.lends = lends


def _kept(state: State, n: int, only: Filter) -> NDArray[np.bool_]:
    units = state.units
    keep = np.ones(n, np.bool_)
    for names, codes, column in (
        (only.speakers, state.speakers, units.speaker),
        (only.sources, state.sources, units.source),
    ):
        if names is not None:
            keep &= np.isin(column[:n], [codes[name] for name in names if name in codes])
    if only.since_s is not None:
        keep &= units.observed_s[:n] >= only.since_s
    if only.until_s is not None:
        keep &= units.observed_s[:n] < only.until_s
    if only.roles is not None:
        keep &= np.isin(units.role[:n], list(only.roles))
    return keep


@contextmanager
def _reads(db: File) -> Iterator[None]:
    db.execute("BEGIN")
    try:
        yield
    finally:
        with contextlib.suppress(PerdureError):  # a file so broken that it cannot even end: the first error says so
            db.execute("ROLLBACK")

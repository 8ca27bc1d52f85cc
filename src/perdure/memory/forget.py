"""Forget: so that nothing recalls it (tombstone), or so that no byte of it is left (purge).

A purge goes through these stages, each of which may be the last before the process dies:

1. one transaction empties the rows and whatever else in the tables repeats them, and notes the purge as pending;
2. what is made from the ledger is made again: indexes and documents (by those who own them, handed in), and the
   backups and exports that were made of it;
3. the write-ahead log is carried over and cut to nothing; where pieces are left in free room, the file is rewritten;
4. every byte of the space's folder is looked through (`perdure.memory.traces`), and the receipt is written.

A pending purge is taken up again when the memory is opened. The texts are known no more then, so everything is
rewritten whether or not pieces were left, and the receipt says so. Rows keep their ids, so that no other fact is ever
given one of them. A fact that is purged alone leaves a gap of the same length in its evidence. What is emptied besides:
`perdure.memory.emptying`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from perdure.clock import Deadline
from perdure.errors import CallError
from perdure.memory.copies import scrub_copies, sweep_copies
from perdure.memory.emptying import Emptied, empty, empty_copy, versions_of
from perdure.memory.ledger import Ledger
from perdure.memory.sqlite_files import File, connect, cut_log, explained_sqlite
from perdure.memory.traces import METHOD, Looked, look_through
from perdure.memory.whole_files import locked, write_whole
from perdure.process.lock import FileLock

__all__ = ["NONE", "Derived", "Receipt", "Target", "forget", "resume_purges"]

_DEADLINE_S: Final = 600.0
_BUSY_S: Final = 30.0
"""How long a purge waits for copies that are being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be forgotten: exactly one of these."""

    fact: int | None = None
    """With it go the facts that say the same."""
    evidence: int | None = None
    topic: int | None = None
    source: str | None = None
    speaker: str | None = None

    def __post_init__(self) -> None:
        given = [name for name, value in asdict(self).items() if value is not None]
        if len(given) != 1:
            raise CallError(f"name one thing to forget: a fact, evidence, topic, source or speaker, not {len(given)}")


@dataclass(frozen=True, slots=True)
class Derived:
    """Who makes again what is made from the ledger, without what was forgotten."""

    index: Callable[[Sequence[int]], None] | None = None
    """Given the passages whose text has changed, drops and indexes them anew."""
    index_again: Callable[[], None] | None = None
    """Makes an index again that cannot be read."""
    documents: Callable[[], None] | None = None
    """Writes the documents whose topics have changed."""


NONE: Final = Derived()
"""Nothing is made from the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What was forgotten. Of a purge: what was looked through, and whether anything is ``left``.

    ``digests`` are HMAC-SHA-256 of the purged texts under ``key``, which is returned and written nowhere: who keeps it
    can prove later which text it was; who finds the receipt cannot guess.
    """

    change: int
    mode: str
    facts: tuple[int, ...]
    evidence: tuple[int, ...] = ()
    """Evidence that was emptied."""
    redacted: tuple[int, ...] = ()
    """Evidence that has a gap."""
    edits: tuple[int, ...] = ()
    """Facts by which a person corrected what was purged, and which stand: they were not to be forgotten."""
    digests: tuple[str, ...] = ()
    key: str = ""
    looked: tuple[Looked, ...] = ()
    copies: dict[str, str] = field(default_factory=dict)
    """What became of each backup and export that was made here."""
    told_elsewhere: tuple[int, ...] = ()
    """Evidence that still holds some of the same words, and was not to be forgotten."""
    left: tuple[str, ...] = ()
    """What a person has to see to, one sentence each; empty when no byte is left."""
    method: str = ""

    @property
    def clean(self) -> bool:
        """Whether nothing is left."""
        return not self.left


def forget(
    ledger: Ledger,
    target: Target,
    *,
    mode: Literal["tombstone", "purge"] = "tombstone",
    by: str = "human",
    reason: str = "",
    derived: Derived = NONE,
    deadline_s: float = _DEADLINE_S,
) -> Receipt:
    """Forget ``target``. A tombstone keeps the words in the ledger, and can be undone; a purge cannot.

    What a forgotten fact had replaced stays replaced. After a purge nothing is known of the words, nor of their key:
    who tells them again is believed.

    Raises `CallError` where there is nothing of that name, `DeadlineExceeded` where others keep old copies open: the
    words are out of the tables then, and the rest is done when the memory is opened next, or by forgetting again.
    """
    if mode not in ("tombstone", "purge"):
        raise CallError(f"{str(mode)[:40]!r} is no way to forget; it is tombstone or purge")
    with ExitStack() as held:
        if mode == "purge":  # nobody else takes it up while this process is at it
            held.enter_context(locked(_lock_of(ledger), deadline=Deadline.after(deadline_s, "a purge")))
        return _forget(ledger, target, mode, by, reason, derived, deadline_s)


def _forget(
    ledger: Ledger, target: Target, mode: str, by: str, reason: str, derived: Derived, deadline_s: float
) -> Receipt:
    with ledger.change() as db:
        facts, whole = selected(db, target)
        if not facts and not whole:
            raise CallError(f"there is nothing to forget of {_said(target)}")
        versions, standing = versions_of(db, facts) if mode == "purge" else (set(), set())
        facts |= versions
        before = _states(db, facts)
        change = _note(db, ledger.wall(), by, reason, mode, facts, whole, before)
        heirs = _free_duplicates(db, change, facts)
        _touch_topics(db, facts | heirs)
        passages = _passages(db, facts)
        done = Emptied()
        if mode == "purge":
            done = empty(db, facts, whole)
            passages = sorted({*passages, *_passages_of(db, done.evidence)})  # also of facts that were purged before
            pending = {
                "facts": sorted(facts),
                "evidence": list(done.evidence),
                "redacted": list(done.redacted),
                "passages": passages,
                "edits": sorted(standing),
            }
            db.execute("INSERT INTO space VALUES (?, ?)", (f"purge:{change}", json.dumps(pending)))
        else:
            db.executemany("UPDATE fact SET state = 'forgotten' WHERE id = ?", [(each,) for each in facts])
    if mode == "tombstone":
        _make_again(derived, passages)
        return Receipt(change=change, mode=mode, facts=tuple(sorted(facts)))
    return _finish(ledger, change, pending, done, derived, deadline_s=deadline_s)


def resume_purges(ledger: Ledger, *, derived: Derived = NONE, deadline_s: float = _DEADLINE_S) -> list[Receipt]:
    """Finish purges that another process began and did not finish; those that one is at right now are left to it."""
    if not _pending(ledger):
        return []
    with explained_sqlite(_lock_of(ledger), "lock"):
        lock = FileLock.try_acquire(_lock_of(ledger))
    if lock is None:
        return []
    with lock:
        return [
            _finish(ledger, change, noted, None, derived, deadline_s=deadline_s)
            for change, noted in _pending(ledger).items()
        ]


def selected(db: File, target: Target) -> tuple[set[int], set[int]]:
    """The facts, and the evidence that goes as a whole."""
    if target.fact is not None:
        return _alike(db, target.fact), set()
    if target.topic is not None:
        rows = db.execute("SELECT id FROM fact WHERE topic = ? AND text IS NOT NULL", (target.topic,))
        return {row[0] for row in rows}, set()
    column, value = next(
        (name, each)
        for name, each in (("id", target.evidence), ("source", target.source), ("speaker", target.speaker))
        if each is not None
    )
    rows = db.execute(f"SELECT id FROM evidence WHERE {column} = ? AND body IS NOT NULL", (value,))
    whole = {row[0] for row in rows}
    facts: set[int] = set()
    for each in whole:
        facts |= {row[0] for row in db.execute("SELECT id FROM fact WHERE evidence = ? AND text IS NOT NULL", (each,))}
    return facts, whole


def _alike(db: File, fact: int) -> set[int]:
    if db.execute("SELECT 1 FROM fact WHERE id = ? AND text IS NOT NULL", (fact,)).fetchone() is None:
        return set()
    found, edge = {fact}, [fact]
    while edge:
        each = edge.pop()
        rows = db.execute(
            "SELECT fact, other FROM link WHERE kind = 'duplicates' AND undone IS NULL AND (fact = ? OR other = ?)",
            (each, each),
        )
        new = {side for row in rows for side in row} - found
        found |= new
        edge += new
    return found


def _states(db: File, facts: Iterable[int]) -> dict[str, str]:
    return {
        str(each): db.execute("SELECT state FROM fact WHERE id = ?", (each,)).fetchone()[0] for each in sorted(facts)
    }


def _note(
    db: File, now_s: float, by: str, reason: str, mode: str, facts: set[int], whole: set[int], before: dict[str, str]
) -> int:
    plan = {"mode": mode, "facts": sorted(facts), "evidence": sorted(whole), "before": before}
    done = db.execute(
        "INSERT INTO change(kind, by, outcome, at_s, note, plan) VALUES ('forget', ?, 'ok', ?, ?, ?)",
        (by, now_s, reason, json.dumps(plan)),
    ).lastrowid
    assert done is not None
    return int(done)


def _touch_topics(db: File, facts: set[int]) -> None:
    """The documents of their topics are to be written anew."""
    topics = {db.execute("SELECT topic FROM fact WHERE id = ?", (each,)).fetchone()[0] for each in facts}
    db.executemany("UPDATE topic SET revision = revision + 1 WHERE id = ?", [(each,) for each in topics - {None}])


def _free_duplicates(db: File, change: int, facts: set[int]) -> set[int]:
    """What others have said as well is shown, now that what stood for it is forgotten; replaced, if that was."""
    heirs: set[int] = set()
    for old in sorted(facts):
        rows = db.execute(
            "SELECT id, fact FROM link WHERE kind = 'duplicates' AND other = ? AND undone IS NULL", (old,)
        ).fetchall()
        free = [(link, fact) for link, fact in rows if fact not in facts]
        if not free:
            continue
        db.executemany("UPDATE link SET undone = ? WHERE id = ?", [(change, link) for link, _ in free])
        heir, *rest = sorted(fact for _, fact in free)
        heirs.add(heir)
        newer = db.execute(
            "SELECT fact, reason FROM link WHERE kind = 'supersedes' AND other = ? AND undone IS NULL", (old,)
        ).fetchall()
        links = [("duplicates", each, heir, "") for each in rest]
        links += [("supersedes", new, heir, reason) for new, reason in newer]
        db.executemany(
            "INSERT INTO link(kind, fact, other, reason, change) VALUES (?, ?, ?, ?, ?)",
            [(*each, change) for each in links],
        )
        state = "superseded" if newer else "current"
        db.execute("UPDATE fact SET state = ? WHERE id = ? AND state = 'duplicate'", (state, heir))
    return heirs


def _passages(db: File, facts: Iterable[int]) -> list[int]:
    return sorted(
        {db.execute("SELECT passage FROM fact WHERE id = ?", (each,)).fetchone()[0] for each in sorted(facts)}
    )


def _passages_of(db: File, evidence: Iterable[int]) -> set[int]:
    return {row[0] for each in evidence for row in db.execute("SELECT passage FROM fact WHERE evidence = ?", (each,))}


def _finish(
    ledger: Ledger,
    change: int,
    noted: dict[str, list[int]],
    gone: Emptied | None,
    derived: Derived,
    *,
    deadline_s: float,
) -> Receipt:
    """Everything after the transaction; may be done twice. ``gone`` is None where it is known no more."""
    until = time.monotonic() + deadline_s
    _make_again(derived, noted["passages"])

    busy = sweep_copies(ledger, outside=True, wait_s=min(_BUSY_S, deadline_s))
    copies = scrub_copies(ledger, lambda db: empty_copy(db, set(noted["facts"]), set(noted["evidence"])))
    _settle_files(ledger, vacuum=gone is None, until=until)
    folder = ledger.path.parent
    key = secrets.token_bytes(32)
    receipt = Receipt(
        change=change,
        mode="purge",
        facts=tuple(noted["facts"]),
        evidence=tuple(noted["evidence"]),
        redacted=tuple(noted["redacted"]),
        edits=tuple(noted.get("edits", ())),
        copies={place: done for place, (done, _) in copies.items()},
        left=(
            *(f"{each}: a copy that is being made may hold it; purge again when it is done" for each in busy),
            *(f"{place}: {done}" for place, (done, fine) in copies.items() if not fine),
        ),
        method=METHOD,
    )
    if gone is None:
        receipt = replace(
            receipt,
            method="a process ended within this purge, so that its texts are known no more and were not searched for;"
            " instead, every file of the space was written anew from the emptied rows",
        )
    else:
        files = sorted({*_files(folder), *(Path(each) for each in copies if Path(each).is_file())})
        wanted = [*gone.texts, *gone.names]
        looked, sharing = look_through(ledger, files, wanted, deadline_s=max(1.0, until - time.monotonic()))
        if any(each.hits and each.file.endswith(".db") for each in looked):
            _settle_files(ledger, vacuum=True, until=until)
            looked, sharing = look_through(ledger, files, wanted, deadline_s=max(1.0, until - time.monotonic()))
        documents = dict(ledger.connection().execute("SELECT file, id FROM topic WHERE file <> ''").fetchall())
        looked = [replace(each, file=_shown(each, folder, documents)) for each in looked]
        left = tuple(
            f"{each.file}: {each.error or f'{each.hits} pieces are left; delete or rewrite that file'}"
            for each in looked
            if each.hits or each.error
        )
        digests = (hmac.new(key, each.encode("utf-8", "surrogatepass"), hashlib.sha256) for each in gone.texts)
        receipt = replace(
            receipt,
            digests=tuple(each.hexdigest() for each in digests),
            key=key.hex(),
            looked=tuple(looked),
            told_elsewhere=tuple(sharing),
            left=receipt.left + left,
        )
    written = {name: value for name, value in asdict(receipt).items() if name != "key"}
    write_whole(folder / "receipts" / f"purge-{change}.json", json.dumps(written, indent=1).encode() + b"\n")
    with ledger.change() as db:
        db.execute("DELETE FROM space WHERE key = ?", (f"purge:{change}",))
    return receipt


def _make_again(derived: Derived, passages: Sequence[int]) -> None:
    if derived.index is not None:
        derived.index(passages)
    if derived.documents is not None:
        derived.documents()


def _settle_files(ledger: Ledger, *, vacuum: bool, until: float) -> None:
    """No page of before is left in the files of SQLite."""
    ledger.compact(vacuum=vacuum, until=until)
    for path in ledger.path.parent.glob("*.db"):
        if path == ledger.path or path.name.startswith("."):
            continue
        db = connect(path, busy_s=max(0.1, until - time.monotonic()))
        try:
            db.execute("PRAGMA secure_delete = ON")
            if vacuum:
                for (name,) in db.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%using fts5(%'").fetchall():
                    quoted = '"' + name.replace('"', '""') + '"'
                    db.execute(f"INSERT INTO {quoted}({quoted}) VALUES ('optimize')")
                db.execute("VACUUM")
            cut_log(db, until=until)
        finally:
            db.close()


def _shown(looked: Looked, folder: Path, documents: dict[str, int]) -> str:
    """How a receipt names a file: a document, whose name is made of words that may be purged later, by its topic."""
    name = looked.file.removeprefix(f"{folder}/")
    if name not in documents or looked.hits or looked.error:
        return name
    return f"{name.partition('/')[0]}/*--t{documents[name]}.md"


def _files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())


def _lock_of(ledger: Ledger) -> Path:
    return ledger.path.with_name("purge.lock")


def _said(target: Target) -> str:
    name, value = next((name, value) for name, value in asdict(target).items() if value is not None)
    return f"{name} {str(value)[:80]!r}"


def _pending(ledger: Ledger) -> dict[int, dict[str, list[int]]]:
    rows: list[tuple[Any, Any]] = (
        ledger.connection().execute("SELECT key, value FROM space WHERE key GLOB 'purge:*'").fetchall()
    )
    return {int(key.removeprefix("purge:")): json.loads(value) for key, value in rows}

"""The journal of a job: every state that its controller was in, and every fact that it told, in SQLite on a local disk.

A state is committed (``synchronous=FULL``: it outlives a power cut) before anything is done about it. One controller
writes at a time, which a file lock sees to; anybody of this user may read meanwhile (WAL).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from perdure.errors import StorageError
from perdure.events import Fact
from perdure.supervisor.config import Spec
from perdure.supervisor.job import Job, State
from perdure.supervisor.messages import Moment, Told

__all__ = ["Journal", "Kept"]

_FORMAT = 1
_SCHEMA = """
create table if not exists runs (run text primary key, began real not null, spec text not null);
create table if not exists states (
    number integer primary key, run text not null, at real not null, state text not null, job text not null);
create table if not exists facts (
    number integer primary key, run text not null, at real not null, kind text not null, sentence text not null,
    fields text not null);
"""
_KEPT_STATES = 10_000
MOST_FACTS = 10_000


class Kept(NamedTuple):
    """The newest run: its job as last written, what it was told, and when it began (seconds since 1970)."""

    job: Job
    spec: Spec
    began_at: float


class Journal:
    """The journal in the file ``path``, made if it is not there. Raises `StorageError` if it cannot be used."""

    def __init__(self, path: Path, *, write: bool = True) -> None:
        self.path = path
        try:
            if write:
                path.touch(mode=0o600)
                self._db = sqlite3.connect(path, timeout=10.0, isolation_level=None)
                self._db.execute("pragma journal_mode=wal")
                self._db.execute("pragma synchronous=full")
                self._db.executescript(_SCHEMA)
                self._db.execute(f"pragma user_version={_FORMAT}")
            else:
                self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0, isolation_level=None)
            version = self._db.execute("pragma user_version").fetchone()[0]
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"cannot open the journal {path}: {error}", file=str(path)) from error
        if version != _FORMAT:
            raise StorageError(f"{path} is a journal of format {version}; this release reads {_FORMAT}", file=str(path))

    def newest(self) -> Kept | None:
        """The newest run, None if there is none yet."""
        row = self._one(
            "select s.job, r.spec, r.began from states s join runs r on r.run = s.run order by s.number desc limit 1"
        )
        if row is None:
            return None
        try:
            return Kept(msgspec.json.decode(row[0], type=Job), msgspec.json.decode(row[1], type=Spec), float(row[2]))
        except msgspec.MsgspecError as error:
            raise StorageError(f"the journal {self.path} is damaged: {error}", file=str(self.path)) from error

    def begin(self, run: str, spec: Spec, *, at: float) -> None:
        """A run begins, or goes on as ``spec`` says now."""
        query = "insert into runs values (?, ?, ?) on conflict (run) do update set spec = excluded.spec"
        self._do([(query, (run, at, msgspec.json.encode(spec).decode()))])

    def seed(self, job: Job, spec: Spec, *, at: float) -> None:
        """Go on with ``job``, which another machine's journal has kept so far."""
        spec_text, job_text = msgspec.json.encode(spec).decode(), msgspec.json.encode(job).decode()
        self._do(
            [
                ("insert or ignore into runs values (?, ?, ?)", (job.run, at, spec_text)),
                (
                    "insert into states (run, at, state, job) values (?, ?, ?, ?)",
                    (job.run, at, job.state.value, job_text),
                ),
            ]
        )

    def write(self, job: Job | None, facts: Sequence[Fact], *, run: str, at: float, instead: bool = False) -> list[int]:
        """Commit ``job`` (None: it is as it was) and ``facts``; return the facts' numbers once all is durable.

        ``instead`` puts the job in the place of the state that was written last.
        """
        todo: list[tuple[str, tuple[object, ...]]] = []
        if job is not None:
            if instead:
                todo.append(("delete from states where number = (select max(number) from states)", ()))
            todo.append(
                (
                    "insert into states (run, at, state, job) values (?, ?, ?, ?)",
                    (run, at, job.state.value, msgspec.json.encode(job).decode()),
                )
            )
            todo.append(("delete from states where number <= (select max(number) from states) - ?", (_KEPT_STATES,)))
        for fact in facts:
            fields = msgspec.to_builtins(fact)
            row = (run, at, str(fields["kind"]), str(fact), msgspec.json.encode(fields).decode())
            todo.append(("insert into facts (run, at, kind, sentence, fields) values (?, ?, ?, ?, ?)", row))
        if not todo:
            return []
        last = self._do(todo)
        return list(range(last - len(facts) + 1, last + 1))

    def facts(self, run: str | None = None, *, since: int = 0, most: int = MOST_FACTS) -> tuple[Told, ...]:
        """The facts of ``run`` (None: of all) after number ``since``, in order; the last ``most`` of them."""
        rows = self._all(
            "select number, at, kind, sentence, fields from facts where number > ? and (? is null or run = ?) "
            "order by number desc limit ?",
            (since, run, run, most),
        )
        return tuple(
            Told(number=number, at=at, kind=kind, sentence=sentence, fields=fields)
            for number, at, kind, sentence, fields in reversed(rows)
        )

    def states(self, run: str) -> list[tuple[float, Job]]:
        """When ``run`` was in which state, in order."""
        rows = self._all("select at, job from states where run = ? order by number", (run,))
        return [(float(at), msgspec.json.decode(job, type=Job)) for at, job in rows]

    def moments(self, run: str) -> tuple[Moment, ...]:
        """What `states` says, in short: a long run has many."""
        rows = self._all(
            "select at, state, json_extract(job, '$.attempt'), json_extract(job, '$.best_step') from states "
            "where run = ? order by number",
            (run,),
        )
        return tuple(Moment(at=at, state=State(state), attempt=attempt, step=step) for at, state, attempt, step in rows)

    def close(self) -> None:
        """Close the file; twice is fine."""
        self._db.close()

    def _one(self, query: str) -> Any:
        rows = self._all(query, ())
        return rows[0] if rows else None

    def _all(self, query: str, values: tuple[object, ...]) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"cannot read the journal {self.path}: {error}", file=str(self.path)) from error

    def _do(self, todo: list[tuple[str, tuple[object, ...]]]) -> int:
        """Do all of it or nothing; return the number of the last row that was put in."""
        try:
            self._db.execute("begin immediate")
            last = 0
            for query, values in todo:
                last = self._db.execute(query, values).lastrowid or last
            self._db.execute("commit")
            return last
        except sqlite3.Error as error:
            raise StorageError(
                f"cannot write the journal {self.path}: {error}; make room there, or set PERDURE_STATE",
                file=str(self.path),
            ) from error

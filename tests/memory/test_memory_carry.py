"""A space that is copied, carried elsewhere and taken in again is the same; what is no export is refused by name."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import CallError, FormatRefused, PerdureError
from perdure.memory import Memory
from perdure.memory.backup import restore
from perdure.memory.exporting import export
from perdure.memory.importing import import_
from perdure.memory.records import State
from perdure.memory.views import Wanted, each_evidence, each_fact
from perdure.store import open_store


def filled(root: Path) -> Memory:
    memory = Memory(root)
    memory.observe("Anna lives in Lisbon. She has a cat.", source="chat", speaker="Ben", at="2026-01-02", key="k1")
    memory.observe("Anna lives in Porto now.", source="chat", at="2026-02-02T10:00+01:00", meta={"n": 1})
    memory.observe("half \ud800 a pair \x00 日本語。次。")
    memory.observe("A secret.")
    with memory._ledger.change() as db:
        db.execute("INSERT INTO topic(title, aliases) VALUES ('Anna', '[\"A.\"]')")
        db.execute("UPDATE fact SET topic = 1, settled = 1 WHERE id < 4")
        db.execute("INSERT INTO change(kind, by, outcome, at_s, plan) VALUES ('settle', 'rules', 'ok', 5.0, '{}')")
        db.execute("INSERT INTO link(kind, fact, other, reason, change) VALUES ('supersedes', 3, 1, 'moved', 1)")
        db.execute("UPDATE fact SET state = 'superseded', until = '2026-02' WHERE id = 1")
    return memory


def everything(memory: Memory) -> dict[str, list[Any]]:
    db = memory._ledger.connection()
    tables = {
        "evidence": "id, body, source, speaker, role, observed, observed_s, told_s, identity, meta",
        "fact": "id, evidence, start, stop, passage, text, since, until, state, settled, topic",
        "link": "id, kind, fact, other, reason, change, undone",
        "change": "id, kind, by, outcome, at_s, note, undoes, plan",
        "topic": "id, title, aliases, summary, into_topic",
    }
    return {
        name: db.execute(f"SELECT {columns} FROM {name} ORDER BY id").fetchall() for name, columns in tables.items()
    }


def test_an_export_taken_into_an_empty_space_is_the_same_with_the_same_ids(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as one, Memory(tmp_path / "b") as other:
        one.forget(fact="f6", mode="purge")
        lines = one.export(tmp_path / "out.jsonl")
        assert lines == len((tmp_path / "out.jsonl").read_bytes().splitlines())
        done = other.import_(tmp_path / "out.jsonl")
        assert (done.evidence, done.facts, done.links, done.topics) == (4, 6, 1, 1)
        assert everything(other) == everything(one)
        assert other.observe("next").name == "e5"
        assert not other.observe("Anna lives in Lisbon. She has a cat.", key="k1").new
        assert other.doctor() == []


def test_the_same_import_twice_adds_nothing(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as one, Memory(tmp_path / "b") as other:
        one.export(tmp_path / "out.jsonl")
        other.observe("Something of its own.", key="k1")
        done = other.import_(tmp_path / "out.jsonl")
        assert (done.evidence, done.keys_dropped) == (4, 1)
        before = everything(other)
        done = other.import_(tmp_path / "out.jsonl")
        assert (done.evidence, done.facts, done.links, done.topics, done.changes, done.known) == (0, 0, 0, 0, 0, 4)
        assert everything(other) == before
        assert other.evidence(1).text == "Something of its own."
        assert other.history("f2").links[0].other == 2
        done = one.import_(tmp_path / "out.jsonl")  # into where it comes from
        assert (done.evidence, done.links, done.topics, done.changes) == (0, 0, 0, 0)
        assert one.doctor() == other.doctor() == []


def test_an_import_meets_what_was_told_here_as_well(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as one, Memory(tmp_path / "b") as other:
        one.export(tmp_path / "out.jsonl")
        other.observe("Anna lives in Lisbon. She has a cat.", source="chat", speaker="Ben", key="k1", at="2026-01-02")
        done = other.import_(tmp_path / "out.jsonl")
        assert (done.evidence, done.known) == (3, 1)
        assert [each.fact for each in other.history("f1").links] == [3]


def test_an_import_that_was_interrupted_adds_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import perdure.memory.importing as importing

    monkeypatch.setattr(importing, "_BATCH", 2)
    with filled(tmp_path / "a") as one, Memory(tmp_path / "b") as other:
        one.export(tmp_path / "out.jsonl")
        with monkeypatch.context() as patch:
            patch.setattr(importing._Taking, "_link", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                other.import_(tmp_path / "out.jsonl")
        assert other.ledger.connection().execute("SELECT count(*) FROM evidence").fetchone()[0] > 0
        other.import_(tmp_path / "out.jsonl")
        assert everything(other) == everything(one)


def sealed(*objects: object) -> bytes:
    data = b"".join(json.dumps(each).encode() + b"\n" for each in objects)
    end = {"end": {"lines": len(objects), "sha256": hashlib.sha256(data).hexdigest()}}
    return data + json.dumps(end).encode() + b"\n"


HEAD = {"perdure_memory": 1, "space": "0" * 32}


def told(**changed: object) -> dict[str, Any]:
    fact = {"id": 1, "start": 0, "stop": 2, "passage": 1, "since": None, "until": None}
    fact |= {"state": "current", "settled": 0, "topic": None} | {
        name.removeprefix("f_"): value for name, value in changed.items() if name.startswith("f_")
    }
    row = {"id": 1, "body": "ab", "source": "", "speaker": "", "role": "user", "observed": "", "observed_s": 0.0}
    row |= {"told_s": 0.0, "identity": None, "meta": None, "facts": [fact]}
    return {"evidence": row | {name: value for name, value in changed.items() if not name.startswith("f_")}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 100,
        b"[" * 100_000 + b"\n",
        b"{}\n",
        sealed({"perdure_memory": 2, "space": "0" * 32}),
        sealed({"perdure_memory": 1, "space": "../../etc"}),
        sealed(HEAD, HEAD),
        sealed(HEAD, {"fact": {}}),
        sealed(HEAD, {"__class__": {}}),
        sealed(HEAD, {"evidence": []}),
        sealed(HEAD, told(id=0)),
        sealed(HEAD, told(id=10**30)),
        sealed(HEAD, told(id=True)),
        sealed(HEAD, told(body=7)),
        sealed(HEAD, told(role="king")),
        sealed(HEAD, told(source="\ud800")),
        sealed(HEAD, told(observed_s=1e300)),
        sealed(HEAD, told(meta="{")),
        sealed(HEAD, told(f_stop=3)),
        sealed(HEAD, told(f_start=-1)),
        sealed(HEAD, told(f_passage=9)),
        sealed(HEAD, told(f_state="gone")),
        sealed(HEAD, told(f_text="other words")),
        sealed(HEAD, told(), told()),
        sealed(HEAD, told())[:-80],
        sealed(HEAD, told()).replace(b'"ab"', b'"ac"'),
        sealed(HEAD, told()) + sealed(HEAD),
        sealed(HEAD, told(body="x" * 5000)),
        sealed(HEAD, told()).replace(b"0.0", b"NaN"),
        sealed(HEAD, told()).replace(b'"settled": 0', b'"settled": ' + b"9" * 5000),
    ],
)
def test_what_is_no_export_is_refused_by_name_and_nothing_is_taken_in(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(data)
    with Memory(tmp_path / "b") as memory:
        with pytest.raises(FormatRefused, match=r"in\.jsonl"):
            import_(memory._ledger, tmp_path / "in.jsonl", line_bytes=2000 if b"xxxx" in data else 1 << 20)
        assert memory.status().evidence == memory.status().topics == 0


def test_a_whole_export_of_one_line_is_taken_in(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(sealed(HEAD, told()))
    with Memory(tmp_path / "b") as memory:
        assert memory.import_(tmp_path / "in.jsonl").facts == 1


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with Memory(tmp_path / "b") as memory:
        for wrong in (tmp_path, tmp_path / "pipe", tmp_path / "none"):
            with pytest.raises(PerdureError, match=str(wrong)):
                memory.import_(wrong)


def test_a_backup_is_of_one_moment_while_others_write_and_opens_as_a_space(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as one:
        over = threading.Event()

        def tell() -> None:
            number = 0
            while not over.is_set():
                one.observe(f"pair {number}. And its other half.", key=str(number))
                number += 1

        teller = threading.Thread(target=tell)
        teller.start()
        places = [Path(one.backup()) for _ in range(3)]
        over.set()
        teller.join(30)
        for at, place in enumerate(places):
            restore(place, tmp_path / "c" / f"r{at}")
            with Memory(tmp_path / "c", space=f"r{at}") as again:
                assert again.doctor() == []
                assert again.status().facts == 6 + 2 * (again.status().evidence - 4)
                assert again._ledger.id != one._ledger.id
                assert again.search("Porto")
        with pytest.raises(CallError, match="already"):
            restore(places[0], tmp_path / "c" / "r0")
        with pytest.raises(CallError, match="exists"):
            one.backup(places[0])
        assert not list(tmp_path.rglob(".tmp-*"))


def test_a_backup_goes_to_any_store_and_a_purge_finds_it_there(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as one:
        place = one.backup("ram://memory-backups")
        store = open_store("ram://memory-backups")
        (name,) = store.names("")
        assert place == f"ram://memory-backups#{name}"
        (tmp_path / "got.db").write_bytes(store.read(name))
        restore(tmp_path / "got.db", tmp_path / "c" / "default")
        with Memory(tmp_path / "c") as again:
            assert everything(again) == everything(one) | {"link": everything(again)["link"]}
        assert one.forget(evidence="e4", mode="purge").copies == {place: "deleted from its store"}
        assert store.names("") == []


def test_an_export_never_overwrites(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as one:
        (tmp_path / "out").write_text("mine")
        with pytest.raises(CallError, match="exists"):
            export(one._ledger, tmp_path / "out")
        assert (tmp_path / "out").read_text() == "mine"


def test_facts_are_read_in_order_of_time_and_by_what_is_wanted(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as one:
        one.observe_many([{"text": f"n{each}.", "at": float(each % 700), "source": "many"} for each in range(1400)])
        ledger = one._ledger
        many = list(each_fact(ledger, Wanted(source="many")))
        assert [each.observed_s for each in many] == sorted(float(each % 700) for each in range(1400))
        assert list(each_fact(ledger, Wanted(source="many"), newest_first=True)) == many[::-1]
        assert len(list(each_fact(ledger, Wanted(source="many", since_s=10.0, before_s=20.0)))) == 20
        assert [each.id for each in each_fact(ledger, Wanted(states=(State.SUPERSEDED,)))] == [1]
        assert [each.id for each in each_fact(ledger, Wanted(topic=1))] == [1, 2, 3]
        assert [each.id for each in each_evidence(ledger, Wanted(speaker="Ben"))] == [1]
        with pytest.raises(CallError):
            list(each_evidence(ledger, Wanted(topic=1)))

"""The ledger by one process: kept at once, once, by any thread; what is no ledger is refused by name."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.errors import (
    BlobCorrupt,
    BlobMissing,
    CallError,
    DeadlineExceeded,
    FormatRefused,
    PerdureError,
    StorageError,
    StorageFull,
)
from perdure.memory import Memory
from perdure.memory.ledger import Ledger
from perdure.memory.records import Role
from perdure.memory.told import Told


def told(text: str, key: str | None = None) -> Told:
    return Told.of(
        text,
        source="s",
        speaker="",
        role=Role.USER,
        observed=("1970-01-01T00:00:01+00:00", 1.0),
        key=key,
        dated=False,
        meta=None,
    )


def texts(ledger: Ledger) -> list[str]:
    return sorted(row[0] for row in ledger.connection().execute("SELECT body FROM evidence"))


def test_eight_threads_keep_all_that_they_were_told_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    want = [f"thread {thread} said {number}." for thread in range(8) for number in range(25)]

    def tell(thread: int) -> None:
        for number in range(25):
            ledger.keep([told(f"thread {thread} said {number}.", key=f"{thread}-{number}")])
            ledger.keep([told(f"thread {thread} said {number}.", key=f"{thread}-{number}")])

    crowd = [threading.Thread(target=tell, args=(each,)) for each in range(8)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join(60)
    assert texts(ledger) == sorted(want)
    spans = ledger.connection().execute("SELECT count(*), count(DISTINCT id), max(id) FROM fact").fetchone()
    assert spans == (200, 200, 200)
    ledger.close()


def test_threads_that_wait_share_one_commit(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    commits: list[str] = []
    ledger.keep([told("before")])
    assert ledger._writer is not None
    ledger._writer.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    crowd = [threading.Thread(target=lambda n=n: ledger.keep([told(f"t{n}")])) for n in range(20)]
    with ledger.change():
        for each in crowd:
            each.start()
        while ledger._group.waiting() < 20:
            time.sleep(0.001)
    for each in crowd:
        each.join(30)
    assert len(texts(ledger)) == 21
    assert len(commits) == 2  # that of the change, and one for the twenty
    ledger.close()


def test_of_threads_that_share_a_commit_only_the_one_that_erred_is_told_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.keep([told("one", key="k")])
    errors: list[BaseException] = []

    def tell(text: str, key: str | None) -> None:
        try:
            ledger.keep([told(text, key)])
        except PerdureError as error:
            errors.append(error)

    crowd = [threading.Thread(target=tell, args=(f"t{n}", "k" if n == 3 else None)) for n in range(6)]
    with ledger.change():
        for each in crowd:
            each.start()
        while ledger._group.waiting() < 6:
            time.sleep(0.001)
    for each in crowd:
        each.join(30)
    assert texts(ledger) == ["one", "t0", "t1", "t2", "t4", "t5"]
    assert [type(each) for each in errors] == [CallError]
    ledger.close()


def test_what_is_told_within_a_change_goes_with_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")

    def fail() -> None:
        with ledger.change():
            ledger.keep([told("lost with it")])
            assert texts(ledger) == ["lost with it"]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert texts(ledger) == []
    with ledger.change(), ledger.change():
        ledger.keep([told("kept")])
    assert texts(ledger) == ["kept"]
    ledger.close()


def test_many_at_once_are_kept_all_or_not_at_all(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        with pytest.raises(CallError, match="item 1: "):
            memory.observe_many([{"text": "a"}, {"text": "b", "role": "king"}])
        with pytest.raises(CallError, match="item 0: "):
            memory.observe_many([{"words": "a"}])
        with pytest.raises(CallError, match="other words"):
            memory.observe_many([{"text": "a", "key": "k"}, {"text": "b", "key": "k"}])
        assert memory.status().evidence == 0
        done = memory.observe_many([{"text": "a. b.", "key": "k"}, {"text": "a. b.", "key": "k"}, {"text": "c"}])
        assert [(each.evidence, each.facts, each.new) for each in done] == [
            (1, (1, 2), True),
            (1, (1, 2), False),
            (2, (3,), True),
        ]
        assert memory.observe_many([]) == []


@pytest.mark.parametrize("wrong", [{"source": "\ud800"}, {"speaker": 3}, {"meta": {"a": object()}}, {"role": "x"}])
def test_what_cannot_be_kept_is_refused_before_anything_is_written(tmp_path: Path, wrong: dict[str, object]) -> None:
    with Memory(tmp_path) as memory:
        with pytest.raises(CallError):
            memory.observe("text", **wrong)  # type: ignore[arg-type]
        assert memory.status().evidence == 0


def test_threads_that_end_leave_no_descriptors(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.keep([told("x")])

    def look() -> None:
        assert texts(ledger) == ["x"]

    before = None
    for _ in range(20):
        each = threading.Thread(target=look)
        each.start()
        each.join(10)
        before = before or len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) == before
    ledger.close()
    with pytest.raises(CallError, match="closed"):
        ledger.connection()


def test_database_is_locked_is_told_with_who_holds_it_and_ends(tmp_path: Path) -> None:
    """mem0#7196: "database is locked" from a history without a busy timeout."""
    Ledger(tmp_path / "ledger.db").close()
    script = (
        "import sys; from pathlib import Path; from perdure.memory.ledger import Ledger\n"
        "with Ledger(Path(sys.argv[1])).change(): print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "ledger.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        ledger = Ledger(tmp_path / "ledger.db", deadline_s=0.2)
        with pytest.raises(DeadlineExceeded, match=f"process {other.pid} "):
            ledger.keep([told("x")])
        other.kill()
    ledger.keep([told("y")])
    assert texts(ledger) == ["y"]
    stranger = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    with pytest.raises(DeadlineExceeded, match="takes no turns"):
        ledger.keep([told("x")])
    stranger.close()
    ledger.close()


def test_an_orphan_of_a_crash_does_not_lock_others_out(tmp_path: Path) -> None:
    """cognee#3708: a lock that stays when its worker has crashed."""
    script = (
        "import os, sys; from pathlib import Path; from perdure.memory.ledger import Ledger\n"
        "with Ledger(Path(sys.argv[1])).change() as db:\n"
        "  db.execute(\"INSERT INTO space VALUES ('a', 'b')\"); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "ledger.db")], timeout=30)
    ledger = Ledger(tmp_path / "ledger.db", deadline_s=2.0)
    ledger.keep([told("x")])
    assert ledger.connection().execute("SELECT count(*) FROM space WHERE key = 'a'").fetchone() == (0,)
    ledger.close()


def write_bytes(data: bytes) -> object:
    return lambda path: path.write_bytes(data)


def other_sqlite(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE something(a)")
    db.close()


def with_trigger(path: Path) -> None:
    Ledger(path).close()
    db = sqlite3.connect(path)
    db.execute("CREATE TRIGGER t AFTER INSERT ON evidence BEGIN DELETE FROM fact; END")
    db.close()


def of_the_future(path: Path) -> None:
    Ledger(path).close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("UPDATE space SET value = '999' WHERE key = 'format'")
    db.close()


def lacking(path: Path) -> None:
    Ledger(path).close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("DROP TABLE link")
    db.close()


def cut(path: Path) -> None:
    ledger = Ledger(path)
    ledger.keep([told(f"text {n} " * 50) for n in range(200)])
    ledger.close()
    os.truncate(path, 3 * 4096)


def use(path: Path) -> None:
    ledger = Ledger(path, deadline_s=1.0)
    texts(ledger)
    ledger.facts(range(1, 400))
    ledger.keep([told("x")])


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (write_bytes(b"not a database, but long enough to be read as one. " * 99), FormatRefused),
        (write_bytes(b""), BlobCorrupt),
        (write_bytes(b"SQLite format 3\x00"), BlobCorrupt),
        (other_sqlite, FormatRefused),
        (with_trigger, FormatRefused),
        (of_the_future, FormatRefused),
        (lacking, FormatRefused),
        (cut, BlobCorrupt),
        (lambda path: path.mkdir(), FormatRefused),
        (lambda path: path.symlink_to("/etc/passwd"), FormatRefused),
        (lambda path: os.mkfifo(path), FormatRefused),
    ],
)
def test_what_is_no_ledger_is_refused_by_name_and_left_as_it_is(
    tmp_path: Path, make: object, kind: type[PerdureError]
) -> None:
    path = tmp_path / "ledger.db"
    make(path)  # type: ignore[operator]
    with pytest.raises(kind) as caught:
        use(path)
    assert str(path) in str(caught.value)
    assert ";" in str(caught.value)


def test_a_torn_first_page_never_begins_a_new_memory(tmp_path: Path) -> None:
    """Infini Memory: one torn index.json, and the next add overwrites what there was."""
    with Memory(tmp_path) as memory:
        memory.observe("Anna lives in Lisbon.")
        path = memory.folder / "ledger.db"
    whole = path.read_bytes()
    for size in (0, 1, 15, 100, 4095, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(PerdureError), Memory(tmp_path) as memory:
            memory.observe("x")
        assert path.stat().st_size == size
    path.write_bytes(whole)
    with Memory(tmp_path) as memory:
        assert memory.evidence("e1").text == "Anna lives in Lisbon."


def test_a_ledger_that_was_taken_away_is_told_and_not_begun_anew(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.keep([told("x")])
    for each in tmp_path.glob("ledger.db"):
        each.rename(tmp_path / "away")
    with pytest.raises(BlobMissing, match="open it again"):
        ledger.keep([told("y")])
    with pytest.raises(BlobMissing, match="put both back"):
        Ledger(tmp_path / "ledger.db")
    ledger.close()


def mounted(folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "perdure-test", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    if done.returncode != 0:
        pytest.skip(f"A FULL DISK IS NOT TESTED: no tmpfs can be mounted ({done.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "small", "size=1m")


def tell_until_full(memory: Memory) -> int:
    for number in range(10_000):
        try:
            memory.observe(f"number {number} " + "word " * 200, key=str(number))
        except StorageFull:
            return number
    raise AssertionError("it was never full")


def test_a_really_full_disk_keeps_what_was_acknowledged_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    (small_disk / "in the way").write_bytes(bytes(300 << 10))
    with Memory(small_disk) as memory:
        kept = tell_until_full(memory)
        assert kept > 5
        with pytest.raises(StorageFull, match="make room"):
            memory.observe("word " * 4000)
        assert memory.status().evidence == kept
        (small_disk / "in the way").unlink()
        assert memory.observe("there is room", key="room").new
    with Memory(small_disk) as memory:
        assert memory.status().evidence == kept + 1
        assert not memory.observe(f"number {kept - 1} " + "word " * 200, key=str(kept - 1)).new


def test_on_a_full_disk_no_memory_begins_and_no_half_one_stays(tmp_path: Path) -> None:
    for folder in mounted(tmp_path / "tiny", "size=48k"):
        (folder / "in the way").write_bytes(bytes(40 << 10))
        with pytest.raises(StorageFull):
            Ledger(folder / "ledger.db")
        (folder / "in the way").unlink()
        assert sorted(each.name for each in folder.iterdir()) in ([], ["ledger.lock"])


def test_a_disk_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    for folder in mounted(tmp_path / "ro", "size=4m"):
        Ledger(folder / "ledger.db").close()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True, timeout=10)
        with pytest.raises(StorageError, match="read-only"):
            Ledger(folder / "ledger.db")


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot make"):
        Memory(tmp_path / "file")


def test_a_long_text_has_no_cap(tmp_path: Path) -> None:
    """agentric PR#421: a backend that refuses more than 2,000 characters loses the longest ones."""
    text = "Ärger über 日本語. " * 200_000
    with Memory(tmp_path) as memory:
        done = memory.observe(text)
        assert memory.evidence(done.evidence).text == text
        assert len(done.facts) == 200_000


def test_a_memory_that_is_closed_under_its_threads_tells_them_so(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    ended: list[BaseException] = []

    def tell(name: str) -> None:
        try:
            for number in range(100_000):
                memory.observe(f"{name} {number}")
                memory.status()
        except BaseException as error:
            ended.append(error)

    crowd = [threading.Thread(target=tell, args=(f"t{each}",)) for each in range(4)]
    for each in crowd:
        each.start()
    time.sleep(0.2)
    memory.close()
    for each in crowd:
        each.join(30)
    assert [type(each) for each in ended] == [CallError] * 4


def test_a_thread_that_writes_all_the_time_does_not_starve_another(tmp_path: Path) -> None:
    """odysseus#1940 and its kin: what waits for a busy writer must get its turn."""
    ledger = Ledger(tmp_path / "ledger.db", deadline_s=20.0)
    over = threading.Event()

    def tell() -> None:
        while not over.is_set():
            ledger.keep([told("again and again")])

    crowd = [threading.Thread(target=tell) for _ in range(3)]
    for each in crowd:
        each.start()
    for _ in range(20):
        with ledger.change(deadline_s=5.0) as db:
            db.execute("DELETE FROM lease")
    over.set()
    for each in crowd:
        each.join(30)
    ledger.close()

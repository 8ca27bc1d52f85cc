"""kill -9 at any point of a consolidation, an edit or an undo: what comes back is whole, and documents say what the
ledger says."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.memory import Memory
from perdure.memory.ledger import Ledger
from perdure.memory.undo import forgotten

LINES = "\n".join(
    f"Anna did some {('chess', 'rowing', 'baking')[n % 3]} with friend {n} at place {n * 7}." for n in range(420)
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A space with documents, one of which a person has edited since, and with much that is staged."""
    folder = tmp_path_factory.mktemp("template")
    with Memory(folder) as memory:
        memory.observe("Anna lives in Lisbon. She has a cat. Bob likes tea.", key="first")
        memory.consolidate()
        path = memory.folder / memory.topic("Anna").file
        text = (
            path.read_text().replace("lives in Lisbon", "lives in Faro").replace("# Notes\n", "# Notes\n\nMy note.\n")
        )
        path.write_text(text.replace("# Conflicts", "- Anna sings.\n\n# Conflicts").replace('"Anna"', '"Anna Maria"'))
        memory.observe(LINES, key="much")
    return folder


def work(folder: Path) -> None:
    with Memory(folder) as memory:
        memory.consolidate()
        memory.edit("f3", "Bob likes coffee.")
        memory.undo(memory.changes()[0].id)


def check(folder: Path, *, told: int = 423) -> None:
    """Open the space as the next one does, and look whether all is there, once, and the same everywhere."""
    with Memory(folder) as memory:
        memory.consolidate()
        db = memory._ledger.connection()
        facts = db.execute("SELECT id, evidence, start, stop, text, topic, state FROM fact ORDER BY id").fetchall()
        assert len({(fact[1], fact[2]) for fact in facts}) == len(facts) >= told
        for _, evidence, start, stop, text, topic, state in facts:
            assert memory.evidence(evidence).text[start:stop] == text
            if topic is None:
                assert state == "forgotten"
                continue
            assert db.execute("SELECT into_topic FROM topic WHERE id = ?", (topic,)).fetchone() == (None,)
        for words in ("Anna lives in Faro.", "Anna sings."):
            assert len([fact for fact in facts if fact[4] == words and fact[6] == "current"]) == 1
        assert [fact[6] for fact in facts if fact[4] == "Anna lives in Lisbon."] == ["superseded"]
        shown: list[str] = []
        for topic in memory.topics():
            text = (memory.folder / topic.file).read_text()
            assert _same(text) == _same(memory._documents.text(topic.id))
            shown += re.findall(r" \^f(\d+)$", text, re.MULTILINE)
        assert sorted(map(int, shown)) == [fact[0] for fact in facts if fact[6] != "forgotten"]
        assert "My note." in memory.show("Anna Maria")
        assert memory.consolidation().left_alone == {}
        assert memory.consolidation().behind == 0
        left = [each.name for part in ("topics", "archive") for each in (memory.folder / part).iterdir()]
        assert [name for name in left if name.startswith(".")] == []
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert forgotten(db) == {fact[0] for fact in facts if fact[6] == "forgotten"}
        assert ("Bob likes coffee.", "current") not in {(fact[4], fact[6]) for fact in facts} or len(
            memory.changes()
        ) > 3
        assert db.execute("SELECT count(*) FROM lease").fetchone() == (0,)


def _same(text: str) -> str:
    return re.sub(r"^updated: .*$", "", text, flags=re.MULTILINE)


def killed_at(point: int, folder: Path) -> bool:
    """Do the work in a child that kills itself at a point between two steps; return whether it came so far."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    try:
        left = [point]

        def step() -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def around(call: Callable[..., Any]) -> Callable[..., Any]:
            def stepping(*some: Any, **more: Any) -> Any:
                step()
                return call(*some, **more)

            return stepping

        for name in ("rename", "link", "unlink", "fsync"):
            setattr(os, name, around(getattr(os, name)))
        change = Ledger.change

        @contextlib.contextmanager
        def changing(self: Ledger, **how: Any) -> Iterator[Any]:
            with change(self, **how) as db:
                yield db
                step()
            step()

        Ledger.change = changing  # type: ignore[method-assign]
        work(folder)
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def points(first: int, stride: int, template: Path, folder: Path) -> int:
    point = first
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        more = killed_at(point, folder)
        check(folder)
        if not more:
            return point
        point += stride


def test_killed_at_some_points_nothing_is_lost_and_documents_say_what_the_ledger_says(
    template: Path, tmp_path: Path
) -> None:
    assert points(3, 11, template, tmp_path / "m") > 40


@pytest.mark.slow
def test_killed_at_every_point_nothing_is_lost(template: Path, tmp_path: Path) -> None:
    assert points(0, 1, template, tmp_path / "m") > 40


@pytest.mark.slow
def test_killed_at_any_time_nothing_is_lost(template: Path, tmp_path: Path) -> None:
    folder, chance = tmp_path / "m", random.Random(7)
    shutil.copytree(template, folder)
    code = (
        "import sys\nfrom perdure.memory import Memory\nmemory = Memory(sys.argv[1])\nn = 0\nwhile True:\n"
        " told = memory.observe(f'Thing {n} of run {sys.argv[2]} is here.', key=f'{sys.argv[2]}/{n}')\n"
        " print(told.evidence, flush=True)\n memory.consolidate() if n % 3 == 2 else None\n n += 1\n"
    )
    acknowledged: set[int] = set()
    for run in range(6):
        children = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(folder), f"{run}-{n}"], stdout=subprocess.PIPE, text=True, cwd=tmp_path
            )
            for n in range(3)
        ]
        first = [child.stdout.readline() for child in children if child.stdout is not None]
        for child, told in zip(children, first, strict=True):
            time.sleep(chance.random() * 0.3)
            child.kill()
            assert child.stdout is not None
            acknowledged |= {int(each) for each in (told + child.stdout.read()).split("\n")[:-1] if each}
            child.wait(10)
        check(folder, told=423 + len(acknowledged))
    with Memory(folder) as memory:
        assert all(memory.evidence(each).text for each in acknowledged)
    assert len(acknowledged) > 12

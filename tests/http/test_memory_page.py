"""The page of memories and its API: topics, conflicts, history and evidence, whatever was told; in a real browser."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Browser, chromium
from starlette.testclient import TestClient

from perdure.cli.main import main
from perdure.http.serve import console
from perdure.memory import Memory

TOKEN = "sixteen-or-more-of-it"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HOSTILE = "Anna <script>alert(1)</script> \"quoted\" 'x' & </pre><b>bold</b> \x1b[2J \u202egpj.exe lives here."


def client_of(root: Path | None) -> TestClient:
    return TestClient(console(list, token=TOKEN, memory=root), headers=BEARER)


def filled(root: Path) -> Path:
    """A memory with a topic, a fact that was replaced, and two that contradict each other."""
    with Memory(root) as memory:
        memory.observe("Anna lives in Porto. She likes tea.", speaker="Ben", source="chat <1>", at="2023-01-02")
        memory.observe("Anna has a cat.", at="2023-02-01")
        memory.observe("Anna has no cat.", at="2023-02-01")
        memory.consolidate()
        memory.edit("f1", "Anna lives in Lisbon.")
        with memory.ledger.change() as db:
            change = db.execute("SELECT max(id) FROM change").fetchone()[0]
            db.execute(
                "INSERT INTO link(kind, fact, other, reason, change) VALUES ('conflicts', 4, 3, 'no <newer> one', ?)",
                (change,),
            )
    return root


def test_a_memory_has_topics_with_what_holds_what_contradicts_and_what_was(tmp_path: Path) -> None:
    client = client_of(filled(tmp_path / "m"))
    assert 'href="/memory/default"' in client.get("/memory").text
    page = client.get("/memory/default").text
    for words in ("Topics (", "Told last", "Changes", "consolidate", "edit", "Anna lives in Lisbon."):
        assert words in page
    topic = next(each for each in client.get("/api/memory/default/topics").json()["topics"] if "Anna" in each["title"])
    page = client.get(f"/memory/default/topics/{topic['id']}").text
    conflicts, current, history = page.index("Conflicts"), page.index(">Current<"), page.index(">History<")
    assert conflicts < page.index("no &lt;newer&gt; one") < current
    assert current < page.index("Anna lives in Lisbon.") < history < page.rindex("Anna lives in Porto.")


def test_behind_a_fact_stands_who_said_so_and_what_replaced_it(tmp_path: Path) -> None:
    client = client_of(filled(tmp_path / "m"))
    page = client.get("/memory/default/facts/f1").text
    assert "<mark>Anna lives in Porto.</mark> She likes tea." in page
    assert "Told by Ben (user), from chat &lt;1&gt;, 2023-01-02" in page
    assert "supersedes f1" in page
    page = client.get("/memory/default/evidence/e1").text
    assert '<a href="/memory/default/facts/f1" class="fact-superseded">Anna lives in Porto.</a>' in page


def test_a_search_finds_and_shows_its_question_again(tmp_path: Path) -> None:
    client = client_of(filled(tmp_path / "m"))
    page = client.get("/memory/default", params={"q": '"Where" does <Anna> live?'}).text
    assert 'value="&quot;Where&quot; does &lt;Anna&gt; live?"' in page
    found = page.partition('id="found"')[2].partition('id="topics"')[0]
    assert "Anna lives in Lisbon." in found
    assert "Anna lives in Porto." not in found
    page = client.get("/memory/default", params={"q": "Anna live", "history": "1"}).text
    assert "Anna lives in Porto." in page.partition('id="found"')[2].partition('id="topics"')[0]
    assert client.get("/memory/default", params={"q": "x" * 10_000}).status_code == 200


def test_whatever_was_told_is_text(tmp_path: Path) -> None:
    """mem0#5349: what was told could act where it was shown."""
    with Memory(tmp_path, space="<i>odd</i>/../x") as memory:
        memory.observe(HOSTILE, speaker="<u>Eve</u>", source="javascript:alert(1)")
        memory.consolidate()
    client = client_of(tmp_path)
    (known,) = client.get("/api/memory").json()["memories"]
    assert known["name"] == "<i>odd</i>/../x"
    at = "/memory/" + known["key"]
    paths = ["/memory", at, f"{at}?q=Anna", f"{at}/facts/f1", f"{at}/evidence/e1"]
    topics = client.get(f"/api{at}/topics").json()["topics"]
    paths += [f"{at}/topics/{each['id']}" for each in topics]
    for path in paths:
        page = client.get(path)
        assert page.status_code == 200, path
        assert [word for word in ("<script>a", "<b>", "<i>", "<u>", "\x1b", "\u202e") if word in page.text] == []
        assert 'href="javascript' not in page.text
    assert "&lt;script&gt;" in client.get(f"{at}/facts/f1").text
    assert client.get(f"/api{at}/facts/f1").json()["fact"]["text"] == HOSTILE


def test_what_there_is_not_is_said(tmp_path: Path) -> None:
    client = client_of(filled(tmp_path / "m"))
    for path in (
        "none", "%2e%2e", "default%2f..", "default/facts/f99", "default/facts/x", "default/evidence/e99",
        "default/topics/t99", "default/topics/..%2f..", "default?after=x", "default/evidence/e1?start=-1",
    ):  # fmt: skip
        assert client.get(f"/memory/{path}").status_code == 404, path
    assert client.get("/api/memory/none/topics").status_code == 404
    assert client.get("/memory/default", headers={"Authorization": "Bearer no"}, follow_redirects=False).is_redirect
    assert client.get("/api/memory", headers={"Authorization": "Bearer no"}).status_code == 401
    assert "No memory is shown" in client_of(None).get("/memory").text
    assert "no memory here yet" in client_of(tmp_path).get("/memory").text
    assert client.post("/memory/default").status_code == 405


def test_long_evidence_comes_in_parts(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.observe("".join(f"Number {n} is here. " for n in range(5000)))
    client = client_of(tmp_path)
    page = client.get("/memory/default/evidence/e1").text
    assert len(page) < 300_000
    assert "Number 0 is here." in page
    assert 'href="/memory/default/evidence/e1?start=20000"' in page
    assert "Before" in client.get("/memory/default/evidence/e1?start=20000").text


def test_a_console_of_a_folder_that_is_not_there_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["console", "--memory", str(tmp_path / "none")]) == 64
    assert "perdure memory observe" in capsys.readouterr().err


@contextmanager
def console_over(root: Path, home: Path) -> Iterator[str]:
    """The address of a console that was started as people do."""
    env = os.environ | {"PERDURE_STATE": str(home), "PERDURE_CONSOLE_TOKEN": TOKEN}
    words = [sys.executable, "-m", "perdure", "console", "--memory", str(root)]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.mark.timeout(300)
@pytest.mark.skipif(chromium() is None, reason="there is no chromium; on Debian: apt install chromium")
def test_a_person_searches_and_follows_a_fact_to_who_said_so(tmp_path: Path) -> None:
    root = filled(tmp_path / "m")
    with Memory(root) as memory:
        memory.observe(HOSTILE)
    with console_over(root, tmp_path / "state") as url, Browser(tmp_path / "profile") as page:
        page.goto(url)
        page.wait("document.querySelector('nav a[href=\"/memory\"]')")
        page.js("document.querySelector('nav a[href=\"/memory\"]').click()")
        page.wait("document.querySelector('tbody th a')")
        page.js("document.querySelector('tbody th a').click()")
        page.wait("document.getElementById('q')")
        assert page.js("document.querySelectorAll('main script, main b').length") == 0
        page.js("document.getElementById('q').value = 'Anna lives in Lisbon'")
        page.js("document.querySelector('.search button').click()")
        page.wait("document.querySelector('#found tbody')")
        page.wait("document.getElementById('q').value === 'Anna lives in Lisbon'")
        page.js("[...document.querySelectorAll('#found a')].find(a => a.innerText.includes('Lisbon')).click()")
        page.wait("document.querySelector('mark')")
        assert page.js("document.querySelector('mark').innerText") == "Anna lives in Lisbon."
        page.wait("document.querySelector('#history')")
        page.js("[...document.querySelectorAll('#history a')].find(a => a.innerText.includes('Porto')).click()")
        page.wait("document.querySelector('mark')?.innerText === 'Anna lives in Porto.'")
        assert "Told by Ben" in page.js("document.querySelector('#evidence').innerText")
        page.dark(True)
        assert page.errors == []

"""Metrics read as Prometheus reads them, with few labels; the API and the page show hostile names as text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from perdure.http.serve import console
from perdure.supervisor import JobFolder
from perdure.supervisor.asking import askers_in

Keep = Callable[..., JobFolder]

BEARER = {"Authorization": "Bearer sixteen or more of it"}
_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\} (-?[0-9.e+-]+)')


def client_of(tmp_path: Path) -> TestClient:
    return TestClient(console(lambda: askers_in(tmp_path / "state"), token=BEARER["Authorization"][7:]), headers=BEARER)


def samples(text: str) -> dict[tuple[str, frozenset[str]], float]:
    """The samples, read strictly: each metric has its help and its type before it, once."""
    found: dict[tuple[str, frozenset[str]], float] = {}
    known: set[str] = set()
    typed = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed = line.split()[2]
            assert typed not in known
            known.add(typed)
            assert line.split()[3] in ("gauge", "counter")
        elif not line.startswith("# HELP "):
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == typed
            key = (match[1], frozenset(each for each in match[2].split(",") if each))
            assert key not in found
            found[key] = float(match[3])
    return found


def test_metrics_say_what_the_journal_says(tmp_path: Path, keep: Keep) -> None:
    keep()
    answer = client_of(tmp_path).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)

    def value(name: str, *labels: str) -> float:
        return found[f"perdure_job_{name}", frozenset({'job="old"', *labels})]

    assert value("step") == 60
    assert value("live") == 0
    assert value("state", 'state="succeeded"') == 1
    assert value("state", 'state="execute"') == 0
    assert value("wall_seconds") == pytest.approx(100)
    assert value("goodput_ratio") == pytest.approx(0.69, abs=1e-6)
    assert value("restarts_total", 'cause="node lost"') == 1
    times = {use: value("time_seconds", f'phase="{use}"') for use in ("start", "launch", "progress", "verify")}
    assert times == pytest.approx({"start": 10, "launch": 15, "progress": 69, "verify": 6})
    assert value("nodes", 'standing="released"') == 1


def test_jobs_of_long_ago_have_no_metrics(tmp_path: Path, keep: Keep) -> None:
    keep("new")
    keep("ancient", ago_s=7200)
    client = client_of(tmp_path)
    assert "ancient" not in client.get("/metrics").text
    assert {job["job"] for job in client.get("/api/jobs").json()["jobs"]} == {"new", "ancient"}


def test_a_job_that_cannot_be_read_is_named_and_hides_no_other(tmp_path: Path, keep: Keep) -> None:
    keep("good")
    keep("torn").journal.write_bytes(b"this is no database, and was none ever" * 100)
    client = client_of(tmp_path)
    found = samples(client.get("/metrics").text)
    assert found["perdure_job_readable", frozenset({'job="torn"'})] == 0
    assert found["perdure_job_readable", frozenset({'job="good"'})] == 1
    listed = client.get("/api/jobs").json()
    assert [each["job"] for each in listed["unread"]] == ["torn"]
    assert "torn" in client.get("/jobs").text
    assert client.get("/jobs/torn").status_code == 500


def test_the_api_shows_a_job_and_its_events(tmp_path: Path, keep: Keep) -> None:
    keep()
    client = client_of(tmp_path)
    job = client.get("/api/jobs/old").json()
    assert (job["state"], job["step"], job["live"], job["exit_code"]) == ("succeeded", 60, False, 0)
    assert job["account"]["goodput"] == pytest.approx(0.69, abs=1e-6)
    assert [span["use"] for span in job["spans"]] == [
        "start", "launch", "progress", "verify", "launch", "progress", "verify"
    ]  # fmt: skip
    events = client.get("/api/jobs/old/events").json()["events"]
    assert [event["kind"] for event in events] == [
        "attempt-started", "steps-began", "node-lost", "attempt-started", "steps-began", "job-succeeded"
    ]  # fmt: skip
    assert events[2]["fields"]["node"] == "a"
    later = client.get(f"/api/jobs/old/events?since={events[3]['number']}").json()["events"]
    assert later == events[4:]
    assert time.time() - events[-1]["at"] < 60


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/jobs/none", None, 404),
        ("GET", "/api/jobs/..", None, 404),
        ("GET", "/api/jobs/old/events?since=x", None, 400),
        ("POST", "/api/jobs/old/burn", b"", 404),
        ("POST", "/api/jobs/none/stop", b"", 404),
        ("POST", "/api/jobs/old/drain", b"", 400),
        ("POST", "/api/jobs/old/drain", b'{"node": 3}', 400),
        ("POST", "/api/jobs/old/drain", b'{"node": "a", "and": 1}', 400),
        ("POST", "/api/jobs/old/drain", b"x" * 70_000, 413),
        ("POST", "/api/jobs/old/drain", b'{"node": "a"}', 409),
        ("DELETE", "/api/jobs/old", None, 405),
    ],
)
def test_what_cannot_be_done_has_its_status(
    tmp_path: Path, keep: Keep, method: str, path: str, body: bytes | None, status: int
) -> None:
    keep()
    answer = client_of(tmp_path).request(method, path, content=body)
    assert answer.status_code == status
    if not path.endswith(".."):
        assert answer.json()["error"]["message"]


def test_names_that_look_like_html_stay_text(tmp_path: Path, keep: Keep) -> None:
    evil = '"><script>alert(1)</script>'
    keep(command=evil, node=evil)
    client = client_of(tmp_path)
    page = client.get("/jobs/old").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert client.get("/jobs/<b>").status_code == 404
    assert "<b>" not in client.get("/jobs/<b>").text

"""Nobody sees or does anything without the token, and no other site can make a browser do it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from perdure.errors import StorageError
from perdure.http.access import kept_token
from perdure.http.serve import console, is_loopback
from perdure.supervisor import JobFolder
from perdure.supervisor.asking import askers_in

Keep = Callable[..., JobFolder]

TOKEN = "a token of the console's"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HEADER = {"X-Perdure-Console": "1"}
STOP = "/api/jobs/old/stop"


@pytest.fixture
def client(tmp_path: Path, keep: Keep) -> TestClient:
    keep()
    app = console(lambda: askers_in(tmp_path / "state"), token=TOKEN)
    return TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False)


def log_in(client: TestClient) -> None:
    assert client.post("/login", data={"token": TOKEN}).headers["location"] == "/"


@pytest.mark.parametrize("path", ["/api/jobs", "/api/jobs/old", "/api/jobs/old/events", "/metrics", "/api/none"])
def test_services_want_the_token(client: TestClient, path: str) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \xff"},
        HEADER,
        {"Cookie": "perdure_console_8000=wrong"},
        {"Cookie": f"perdure_console_8000={TOKEN}"},
    ):
        answer = client.get(path, headers={key: value.encode("latin-1") for key, value in headers.items()})  # type: ignore[misc]
        assert answer.status_code == 401, headers
        assert answer.json()["error"]["kind"] == "access"
    assert client.get(path, headers=BEARER).status_code == (404 if path.endswith("none") else 200)


def test_pages_send_a_stranger_to_the_login(client: TestClient) -> None:
    for path in ("/", "/jobs", "/jobs/old", "/jobs/old?part"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert client.get("/login").status_code == 200
    assert client.get("/static/console.js").status_code == 200
    assert client.get("/static/../serve.py", headers=BEARER).status_code == 404
    assert client.get("/static/%2e%2e%2fserve.py", headers=BEARER).status_code == 404


def test_the_login_takes_the_token_and_nothing_else(client: TestClient) -> None:
    assert client.post("/login", data={"token": "wrong"}).status_code == 401
    assert client.post("/login", content=b"x" * 5000).status_code == 413
    assert not client.cookies
    log_in(client)
    cookie = client.post("/login", data={"token": TOKEN}).headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert client.get("/jobs").status_code == 200


def test_a_cookie_alone_reads_and_changes_nothing(client: TestClient) -> None:
    log_in(client)
    assert client.get("/api/jobs").status_code == 200
    assert client.post(STOP).status_code == 401  # what a form of another site could send
    assert client.post(STOP, headers={"Authorization": "Bearer wrong"} | HEADER).status_code == 401
    for headers in (HEADER, BEARER):
        answer = client.post(STOP, headers=headers)
        assert answer.status_code == 409  # let in: but the job is over
        assert "job old is over" in answer.json()["error"]["message"]


def test_a_cookie_of_one_console_is_not_one_of_another(tmp_path: Path, client: TestClient) -> None:
    log_in(client)
    other = TestClient(console(lambda: askers_in(tmp_path / "state"), token="another token of one"))
    other.cookies.update({f"perdure_console_{port}": value for port in (80, 8000) for value in client.cookies.values()})
    assert other.get("/api/jobs").status_code == 401


def test_answers_tell_browsers_to_be_careful(client: TestClient) -> None:
    for answer in (client.get("/login"), client.get("/jobs"), client.get("/jobs", headers=BEARER)):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


def test_the_token_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "state" / "console.token"
    token = kept_token(path)
    assert len(token) == 64
    assert kept_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    path.chmod(0o640)
    with pytest.raises(StorageError, match="chmod 600"):
        kept_token(path)


def test_loopback_is_told_from_the_rest() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.0.2.7")

"""Verdicts told to real servers on this machine: fast, slow, failing, redirecting, dripping and gone."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence, Stage, Verdict
from perdure.watcher.labels import Action, Label, Owner
from perdure.watcher.webhook import Webhook, alert_labels, alertmanager_alerts, slack_message


def verdict(incident: str = "i1", **fields: Any) -> Verdict:
    usual = {
        "stage": Stage.VERDICT, "label": Label.GPU_ECC, "owner": Owner.NODE, "action": Action.EVICT,
        "confidence": 0.93, "sentence": "memory of GPU 3 of n1 fails", "at_s": 5.0, "nodes": ("n1",), "ranks": (3,),
        "step": 77, "evidence": (Evidence(kind="gpu-ecc", at_s=4.0, sentence="3 more ECC errors <b>&"),),
    }  # fmt: skip
    return Verdict(incident=incident, **{**usual, **fields})


class Server:
    """Answers as it is told to, and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.slow_s = 0.0
        self.drips = False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(outer.slow_s)
                outer.got.append((self.path, self.headers["Content-Type"], json.loads(body)))
                if outer.drips:
                    for _ in range(200):
                        self.wfile.write(b"H")
                        self.wfile.flush()
                        time.sleep(0.05)
                code, headers = outer.answers.pop(0) if outer.answers else (200, {})
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def handle(self) -> None:
                try:
                    super().handle()
                except (OSError, TypeError):
                    pass  # who asked has gone

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/secret/path"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    one = Server()
    yield one
    one.close()


def test_a_slack_message_says_what_a_person_needs() -> None:
    text = slack_message(verdict(), job="run<7>", link="https://console/x")["text"]
    first, second, third, last = text.split("\n")
    assert first == "*Verdict* in job run&lt;7&gt;: memory of GPU 3 of n1 fails"
    for part in ("`hw.gpu_ecc`", "action: evict", "owner: node", "sure: 93%", "nodes: n1", "ranks: 3", "step: 77"):
        assert part in second
    assert third == "> 3 more ECC errors &lt;b&gt;&amp;"
    assert last == "<https://console/x|i1>"
    assert slack_message(verdict(stage=Stage.CLEARED), job="a")["text"].startswith("*Cleared*")
    huge = verdict(sentence="x" * 100_000, nodes=tuple(f"n{i}" for i in range(9999)))
    assert len(slack_message(huge, job="a")["text"]) <= 2000


def test_an_alert_keeps_its_labels_while_the_incident_is_the_same() -> None:
    suspected = verdict(stage=Stage.VERDICT, confidence=0.5)
    assert alert_labels(suspected, job="a") == alert_labels(verdict(sentence="other words"), job="a")
    assert alert_labels(verdict(), job="a") == {
        "alertname": "PerdureVerdict", "job": "a", "incident": "i1", "fault": "hw.gpu_ecc", "owner": "node",
        "severity": "critical", "node": "n1",
    }  # fmt: skip
    assert alert_labels(verdict(action=Action.WARN), job="a")["severity"] == "warning"


def test_alerts_begin_end_and_give_way() -> None:
    (alert,) = alertmanager_alerts(verdict(), job="a", wall_s=1_700_000_000.0)
    assert datetime.fromisoformat(alert["startsAt"]).timestamp() == 1_700_000_000.0
    assert datetime.fromisoformat(alert["endsAt"]).timestamp() > 1_700_000_000.0 + 3600
    assert alert["annotations"]["confidence"] == "0.93"
    old = alert["labels"]
    other = verdict(label=Label.GPU_OFF_BUS)
    ended, begun = alertmanager_alerts(other, job="a", wall_s=1_700_000_060.0, before=old)
    assert ended["labels"] == old
    assert datetime.fromisoformat(ended["endsAt"]).timestamp() == 1_700_000_060.0
    assert begun["labels"]["fault"] == "hw.gpu_off_bus"
    (cleared,) = alertmanager_alerts(
        verdict(stage=Stage.CLEARED, label=Label.UNKNOWN), job="a", wall_s=1_700_000_090.0, before=old
    )
    assert cleared["labels"] == old
    assert datetime.fromisoformat(cleared["endsAt"]).timestamp() == 1_700_000_090.0


def test_verdicts_are_posted_in_order(server: Server) -> None:
    hook = Webhook(server.url, job="a")
    for number in range(5):
        hook.send(verdict(f"i{number}"))
    assert hook.drain(30.0)
    hook.close()
    assert [path for path, *_ in server.got] == ["/secret/path"] * 5
    assert [body["text"][-2:] for *_, body in server.got] == [f"i{number}" for number in range(5)]
    assert server.got[0][1] == "application/json"
    assert (hook.sent, hook.dropped, hook.problem) == (5, 0, "")


def test_alerts_remember_what_they_told(server: Server) -> None:
    hook = Webhook(server.url, job="a", form="alertmanager")
    for one in (verdict(), verdict(label=Label.NVLINK), verdict(stage=Stage.CLEARED)):
        hook.send(one)
        assert hook.drain(30.0)
    hook.close()
    faults = [[alert["labels"]["fault"] for alert in body] for *_, body in server.got]
    assert faults == [["hw.gpu_ecc"], ["hw.gpu_ecc", "hw.nvlink"], ["hw.nvlink"]]


def test_a_server_that_fails_for_a_while_is_tried_again(server: Server) -> None:
    server.answers = [(503, {}), (429, {"Retry-After": "0.1"}), (500, {"Retry-After": "junk"})]
    hook = Webhook(server.url, job="a", pause_s=0.01)
    hook.send(verdict())
    assert hook.drain(30.0)
    hook.close()
    assert (len(server.got), hook.sent, hook.problem) == (4, 1, "")


def test_a_server_that_refuses_is_not_asked_again(server: Server) -> None:
    server.answers = [(404, {})]
    hook = Webhook(server.url, job="a", pause_s=0.01)
    hook.send(verdict())
    assert hook.drain(30.0)
    hook.close()
    assert (len(server.got), hook.sent, hook.dropped) == (1, 0, 1)
    assert hook.problem.endswith("answers 404")
    assert "secret" not in hook.problem


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(server: Server, code: int) -> None:
    server.answers = [(code, {"Location": "/elsewhere"})]
    hook = Webhook(server.url, job="a", pause_s=0.01)
    hook.send(verdict())
    assert hook.drain(30.0)
    hook.close()
    assert [path for path, *_ in server.got] == ["/secret/path"]
    assert "redirects" in hook.problem


def test_a_server_that_is_not_there_is_given_up_in_words() -> None:
    hook = Webhook("http://127.0.0.1:1/secret", job="a", tries=2, pause_s=0.01)
    hook.send(verdict())
    assert hook.drain(30.0)
    hook.close()
    assert "http://127.0.0.1:1 cannot be reached" in hook.problem
    assert hook.dropped == 1


@pytest.mark.parametrize("drips", [False, True])
def test_a_slow_server_never_holds_up_the_watcher(server: Server, drips: bool) -> None:
    server.slow_s, server.drips = (0.0, True) if drips else (3.0, False)
    hook = Webhook(server.url, job="a", timeout_s=0.3, tries=2, pause_s=0.01)
    began = time.monotonic()
    for number in range(300):
        hook.send(verdict(f"i{number}"))
    assert time.monotonic() - began < 1.0
    assert hook.dropped >= 300 - 128 - 2
    time.sleep(1.5)
    before = time.monotonic()
    hook.close(timeout_s=0.1)
    assert time.monotonic() - before < 3.0
    assert "did not answer within 0.3 s" in hook.problem or "connections open" in hook.problem
    held = [thread for thread in threading.enumerate() if thread.name == "perdure-webhook-try"]
    assert len(held) <= 5


def test_of_an_incident_that_waits_only_the_newest_state_is_told(server: Server) -> None:
    server.slow_s = 0.5
    hook = Webhook(server.url, job="a")
    hook.send(verdict("first"))
    time.sleep(0.1)
    for number in range(20):
        hook.send(verdict("other", sentence=f"state {number}"))
    assert hook.drain(30.0)
    hook.close()
    assert ["state 19" in body["text"] for *_, body in server.got] == [False, True]


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a/b", "http://", "//a", "", "http://a b/", "http://a/\n", "http://a:99999/"]
)
def test_only_http_is_spoken(url: str) -> None:
    with pytest.raises(CallError):
        Webhook(url, job="a")


def test_other_forms_are_refused() -> None:
    with pytest.raises(CallError, match="form"):
        Webhook("http://a/", job="a", form="pager")  # type: ignore[arg-type]

"""A chat endpoint over HTTP: what is sent, what is borne, and what is kept secret."""

from __future__ import annotations

import json
import socket
import threading
import time
import traceback
from email.utils import formatdate
from typing import Any

import pytest

from perdure.adapters.llm import OpenAIChat
from perdure.adapters.llm.address import address_of
from perdure.errors import CallError, DeadlineExceeded, LinkLost, PerdureError, TryAgain
from perdure.memory import Memory
from perdure.testing.endpoint import Raw, Request, ScriptedEndpoint, done

KEY = "sk-very-secret-123"
ASK = [{"role": "user", "content": "Where?"}]
SCHEMA = {"type": "object"}


class FakeClock:
    """Real to who measures, but sleeps take no time of the test."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return time.monotonic() + sum(self.slept)

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def complete(endpoint: ScriptedEndpoint, *, deadline_s: float = 10.0, schema: Any = None, **given: Any) -> str:
    chat = OpenAIChat(endpoint.url, "small", key=KEY, **given)
    return chat.complete(ASK, schema=schema, max_tokens=50, deadline_s=deadline_s)


def refused(said: str, status: int = 400) -> Raw:
    return Raw(status=status, body=json.dumps({"error": {"message": said}}).encode())


def test_it_sends_what_the_api_asks_for_and_returns_the_words() -> None:
    with ScriptedEndpoint(["In Lisbon."]) as endpoint:
        assert complete(endpoint, schema=SCHEMA) == "In Lisbon."
    (request,) = endpoint.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "small",
        "messages": ASK,
        "max_tokens": 50,
        "stream": False,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA}},
    }


def test_what_a_server_refuses_is_left_out_from_then_on() -> None:
    def choosy(request: Request) -> str | Raw:
        if "max_tokens" in request.body:
            return refused("use max_completion_tokens instead")
        if "temperature" in request.body:
            return refused("temperature is not supported by this model")
        if request.body.get("response_format", {}).get("type") == "json_schema":
            return refused("response_format json_schema is unknown", 422)
        return "fine"

    with ScriptedEndpoint([choosy], again=True) as endpoint:
        chat = OpenAIChat(endpoint.url, "small")
        assert chat.complete(ASK, schema=SCHEMA, max_tokens=5, deadline_s=10) == "fine"
        assert len(endpoint.requests) == 4
        assert chat.complete(ASK, schema=SCHEMA, max_tokens=5, deadline_s=10) == "fine"
        assert len(endpoint.requests) == 5
        assert endpoint.requests[-1].body["response_format"] == {"type": "json_object"}


def test_a_request_that_is_wrong_whatever_is_left_out_is_refused() -> None:
    with ScriptedEndpoint([refused("no such model")], again=True) as endpoint:
        chat = OpenAIChat(endpoint.url, "small")
        with pytest.raises(CallError, match="no such model"):
            chat.complete(ASK, schema=SCHEMA, max_tokens=5, deadline_s=10)
        assert chat._dialect.form == "json_schema"


@pytest.mark.parametrize(
    "content", [None, [], [{"type": "text", "text": ""}], 7, [{"type": "text", "text": "ab"}, "x", {"text": "c"}]]
)
def test_a_reply_without_words_is_no_error(content: Any) -> None:
    body = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
    with ScriptedEndpoint([Raw(body=body)]) as endpoint:
        assert complete(endpoint) == ("abc" if content and isinstance(content, list) and len(content) > 1 else "")


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[" * 100_000, b"[]", b"{}", b'{"choices": []}', b'{"choices": [3]}', b"7"]
)
def test_an_answer_that_is_no_completion_says_so(body: bytes) -> None:
    with ScriptedEndpoint([Raw(body=body)]) as endpoint, pytest.raises(CallError, match="base URL right"):
        complete(endpoint)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_server_is_asked_again_when_it_says(status: int) -> None:
    clock = FakeClock()
    busy = [Raw(status=status, headers={"Retry-After": "3"}), Raw(status=status)]
    with ScriptedEndpoint([*busy, "fine"]) as endpoint:
        assert complete(endpoint, clock=clock) == "fine"
    assert clock.slept == [3.0, 1.0]


def test_a_time_to_ask_again_may_be_a_date() -> None:
    clock = FakeClock()
    with ScriptedEndpoint([Raw(status=503, headers={"Retry-After": formatdate(time.time() + 5)}), "fine"]) as endpoint:
        assert complete(endpoint, clock=clock) == "fine"
    assert 2 < clock.slept[0] <= 5


def test_a_wait_past_the_deadline_is_told_at_once() -> None:
    clock = FakeClock()
    with ScriptedEndpoint([Raw(status=429, headers={"Retry-After": "600"})]) as endpoint:
        with pytest.raises(TryAgain, match="try again after 600 s") as caught:
            complete(endpoint, clock=clock)
    assert caught.value.after_s == 600
    assert clock.slept == []


def test_tries_are_counted() -> None:
    with ScriptedEndpoint([Raw(status=503)], again=True) as endpoint:
        with pytest.raises(TryAgain, match="busy"):
            complete(endpoint, clock=FakeClock(), tries=3, deadline_s=100)
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    "slow",
    [
        Raw(wait_s=30),
        Raw(drip_s=0.05),
        Raw(drip_s=0.02, body=b" " * 10**6),
        Raw(body=b"{", headers={"Content-Length": "99"}),
    ],
)
def test_the_deadline_holds_also_against_a_server_that_drips_or_stalls(slow: Raw) -> None:
    began = time.monotonic()
    with ScriptedEndpoint([slow]) as endpoint:
        with pytest.raises((DeadlineExceeded, LinkLost)):
            complete(endpoint, deadline_s=0.4, tries=1)
        for thread in threading.enumerate():
            if thread.name == "llm-http":
                thread.join(5)
                assert not thread.is_alive()
    assert time.monotonic() - began < 5


def test_a_server_that_takes_no_connection_meets_the_deadline_too() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)  # and nobody accepts
        began = time.monotonic()
        chat = OpenAIChat(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", "small", key=KEY)
        with pytest.raises(DeadlineExceeded):
            chat.complete(ASK, max_tokens=5, deadline_s=0.3)
        assert time.monotonic() - began < 5


def test_a_server_that_is_away_or_hangs_up_is_told_apart_from_a_slow_one() -> None:
    chat = OpenAIChat("http://127.0.0.1:9/v1", "small", key=KEY, tries=1)
    with pytest.raises(LinkLost, match="is the server up"):
        chat.complete(ASK, max_tokens=5, deadline_s=5)
    whole = json.dumps({"choices": [{"message": {"content": "x" * 50}}]}).encode()
    with ScriptedEndpoint([Raw(body=whole, cut=True)]) as endpoint, pytest.raises(LinkLost):
        complete(endpoint, tries=1)
    with ScriptedEndpoint([Raw(body=whole, cut=True), "fine"]) as endpoint:
        assert complete(endpoint, clock=FakeClock()) == "fine"


def test_an_endless_answer_is_cut_off() -> None:
    with ScriptedEndpoint([Raw(body=b" " * (5 << 20))]) as endpoint, pytest.raises(TryAgain, match="more than"):
        complete(endpoint)


def test_a_redirect_is_not_followed_so_that_the_key_goes_nowhere_else() -> None:
    with ScriptedEndpoint(["stolen"]) as thief:
        away = Raw(status=307, headers={"Location": thief.url + "/chat/completions"})
        with ScriptedEndpoint([away]) as endpoint, pytest.raises(CallError, match="not followed"):
            complete(endpoint)
        assert thief.requests == []


@pytest.mark.parametrize(
    "reply",
    [
        Raw(status=401, body=json.dumps({"error": {"message": f"bad key {KEY}"}}).encode()),
        Raw(status=500, body=f"trace of {KEY}\n\x1b[31m".encode()),
        refused(f"header Bearer {KEY} is odd"),
        Raw(status=200, body=f"no JSON but {KEY}".encode()),
        Raw(status=429, body=KEY.encode(), headers={"Retry-After": "1000"}),
        Raw(status=302, headers={"Location": f"https://elsewhere/{KEY}"}),
        Raw(body=b"{" + KEY.encode(), cut=True),
    ],
)
def test_the_key_is_in_no_error_and_no_repr(reply: Raw) -> None:
    with ScriptedEndpoint([reply], again=True) as endpoint:
        with pytest.raises(PerdureError) as caught:
            complete(endpoint, tries=1)
        chat = OpenAIChat(endpoint.url, "small", key=KEY)
    told = "".join(traceback.format_exception(caught.value))
    assert KEY not in told + repr(chat) + repr(chat._caller) + json.dumps(caught.value.facts)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://example.org/v1", "in the clear"),
        ("http://127.0.0.1.example.org/v1", "in the clear"),
        ("http://10.0.0.1/v1", "in the clear"),
        ("ftp://localhost/v1", "base URL"),
        ("localhost:8080/v1", "base URL"),
        ("https://", "base URL"),
        ("https://a b/v1", "base URL"),
        ("https://host:99999/v1", "base URL"),
        (f"https://user:{KEY}@host/v1", "no name or password"),
        (f"https://host/v1?key={KEY}", "without \\?"),
        ("https://host/v1\r\nX: y", "base URL"),
    ],
)
def test_an_address_that_would_leak_or_is_none_is_refused(url: str, says: str) -> None:
    with pytest.raises(CallError, match=says) as caught:
        OpenAIChat(url, "small", key="k")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://localhost:1/v1", "http://127.0.0.2/v1", "http://[::1]:80", "https://example.org"]
)
def test_tls_is_asked_for_except_on_this_machine(url: str) -> None:
    assert address_of(url, key=None, insecure=False).tls == url.startswith("https")


def test_plain_http_to_another_machine_needs_a_word() -> None:
    assert not address_of("http://10.0.0.1/v1", key=None, insecure=True).tls


@pytest.mark.parametrize("key", ["", "two words", "line\nend", "ключ"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(CallError, match="the key must be") as caught:
        OpenAIChat("https://host/v1", "small", key=key)
    assert not key or key not in str(caught.value)


def test_lone_surrogates_are_sent_as_question_marks() -> None:
    with ScriptedEndpoint(["fine"]) as endpoint:
        chat = OpenAIChat(endpoint.url, "small")
        assert chat.complete([{"role": "user", "content": "a\ud800b"}], max_tokens=5, deadline_s=5) == "fine"
    assert endpoint.requests[0].body["messages"][0]["content"] == "a?b"


def test_a_memory_reads_with_it(tmp_path: Any) -> None:
    with ScriptedEndpoint([done("In Lisbon.", "f1")]) as endpoint:
        with Memory(tmp_path, model=OpenAIChat(endpoint.url, "small")) as memory:
            memory.observe("Anna lives in Lisbon.")
            answer = memory.ask("Where does Anna live?")
    assert (answer.text, answer.by, [hit.fact.name for hit in answer.hits]) == ("In Lisbon.", "small", ["f1"])


def test_a_memory_answers_by_rules_while_it_is_away(tmp_path: Any) -> None:
    with Memory(tmp_path, model=OpenAIChat("http://127.0.0.1:9/v1", "small", tries=1)) as memory:
        memory.observe("Anna lives in Lisbon.")
        answer = memory.ask("Where does Anna live?")
    assert (answer.by, answer.hits[0].fact.name) == ("rules", "f1")
    assert "small could not be asked: the connection to 127.0.0.1:9 failed" in answer.note

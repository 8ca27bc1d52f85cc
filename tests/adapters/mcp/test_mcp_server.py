"""The server in a process of its own, called by the official client: over stdio, and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from perdure.memory import Memory

TOKEN = "sixteen-or-more-of-it"
COMMAND = [sys.executable, "-m", "perdure", "memory", "mcp"]


def with_client(server: Any, work: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(90), Client(server, **options) as client:
            return await work(client)

    return asyncio.run(run())


def stdio(root: Path, *options: str) -> StdioServerParameters:
    return StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--root", str(root), *options])


async def called(client: Client, name: str, **arguments: Any) -> Any:
    found = await client.call_tool(name, arguments)
    text = found.content[0].text  # type: ignore[union-attr]
    assert not found.is_error, text
    return found.structured_content if found.structured_content is not None else text


@contextlib.contextmanager
def served(
    root: Path, *options: str, env: dict[str, str] | None = None, end: signal.Signals = signal.SIGTERM
) -> Iterator[str]:
    """A server over HTTP; where it is. It is ended by the signal ``end``."""
    words = [*COMMAND, "--root", str(root), "--http", "127.0.0.1:0", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | (env or {})) as process:
        try:
            assert process.stdout is not None
            found = re.fullmatch(r"memory: (http://\S+)\n", process.stdout.readline())
            assert found is not None
            yield found[1]
        finally:
            process.send_signal(end)
            assert process.wait(30) in (0, -end)


def test_an_agent_keeps_and_finds_over_stdio(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        tools = {each.name: each for each in (await client.list_tools()).tools}
        reading = {"search", "grep", "read", "list_topics", "timeline", "history", "resolve", "evidence", "ask"}
        assert set(tools) == reading | {"observe", "memory"}
        hints = {name: each.annotations.read_only_hint for name, each in tools.items() if each.annotations}
        assert (hints["search"], hints["observe"]) == (True, False)
        kept = await called(client, "observe", text="Anna lives in Lisbon. 你好", role="user", speaker="Ben")
        assert kept["id"] == "e1"
        assert "Anna lives in Lisbon." in await called(client, "search", query="Where does Anna live?")
        path = "/memories/notes.md"
        await called(client, "memory", command="create", path=path, file_text="one\ntwo\n")
        await called(client, "memory", command="str_replace", path=path, old_str="two", new_str="three")
        assert (await called(client, "memory", command="view", path=path)).endswith("2\tthree")
        wrong = await client.call_tool("memory", {"command": "view", "path": "/memories/../../etc/passwd"})
        assert wrong.is_error
        wrong = await client.call_tool("nothing", {})
        assert wrong.is_error

    for mode in ("auto", "legacy"):
        with_client(stdio(tmp_path / mode), work, mode=mode)
        with Memory(tmp_path / mode) as memory:
            assert memory.fact("f1").speaker == "Ben"


def test_calls_at_once_are_all_kept(tmp_path: Path) -> None:
    """modelcontextprotocol/servers#1819: parallel calls of the tool damaged the file for good."""

    async def work(client: Client) -> None:
        done = await asyncio.gather(*(called(client, "observe", text=f"Number {n} is here.") for n in range(40)))
        assert len({each["id"] for each in done}) == 40

    with_client(stdio(tmp_path), work)
    with Memory(tmp_path) as memory:
        assert {memory.evidence(n).text for n in range(1, 41)} == {f"Number {n} is here." for n in range(40)}


def test_a_space_is_chosen_by_who_starts_the_server(tmp_path: Path) -> None:
    with Memory(tmp_path, space="anna") as memory:
        memory.observe("Anna's secret is 42.")

    async def work(client: Client) -> None:
        await called(client, "observe", text="Ben has a dog.")
        assert "secret is" not in await called(client, "search", query="secret 42")
        assert (await client.call_tool("search", {"query": "secret", "space": "anna"})).is_error

    with_client(stdio(tmp_path, "--space", "ben"), work)


def test_an_agent_keeps_and_finds_over_http(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await called(client, "observe", text="Anna lives in Lisbon.")
        assert (await called(client, "ask", question="Anna?"))["facts"][0]["text"] == "Anna lives in Lisbon."

    with served(tmp_path) as url:
        with_client(url, work)
        with_client(url, work, mode="legacy")


def test_over_http_the_token_the_host_and_the_origin_count(tmp_path: Path) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accepts = {"accept": "application/json, text/event-stream"}

    async def work(client: Client) -> None:
        await called(client, "observe", text="Anna lives in Lisbon.")

    async def run(url: str) -> None:
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http, asyncio.timeout(60):
            async with Client(streamable_http_client(url, http_client=http)) as client:
                await work(client)

    with served(tmp_path, env={"PERDURE_MEMORY_TOKEN": TOKEN}) as url:
        asyncio.run(run(url))

        def status(headers: dict[str, str], content: bytes = json.dumps(body).encode()) -> int:
            return httpx.post(url, headers=accepts | headers, content=content, timeout=30).status_code

        ours = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        assert status({}) == 401
        assert status({"authorization": "Bearer no"}) == 401
        assert status({"authorization": f"Basic {TOKEN}"}) == 401
        assert status(ours | {"host": "evil.example"}) == 421
        assert status(ours | {"host": "127.0.0.1:1@evil.example"}) == 421
        assert status(ours | {"origin": "http://evil.example"}) == 403
        assert status(ours | {"origin": "null"}) == 403
        assert status(ours, b" " * ((16 << 20) + 1)) == 413
        assert status(ours, b"{") == 400
        assert status(ours | {"origin": "http://localhost:3000"}, b"{") == 400
        assert httpx.get(url.replace("/mcp", "/"), headers=ours).status_code == 404


def test_the_server_listens_to_others_only_with_a_token(tmp_path: Path) -> None:
    def run(*options: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, "--root", str(tmp_path), *options], capture_output=True, text=True, timeout=60,
            env=os.environ | env, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    done = run("--http", "0.0.0.0:0")
    assert (done.returncode, "give a token" in done.stderr) == (64, True)
    done = run("--http", "0.0.0.0:0", PERDURE_MEMORY_TOKEN="short")
    assert (done.returncode, "16 or more" in done.stderr) == (64, True)
    assert run("--http", "nonsense").returncode == 64
    assert run("--read-only", "--space", "none").returncode == 64
    assert run("--read-only", "--allow-forget").returncode == 2


def test_a_server_that_was_killed_has_lost_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        done = await asyncio.gather(*(called(client, "observe", text=f"Number {n}.") for n in range(20)))
        assert len({each["id"] for each in done}) == 20

    with served(tmp_path, end=signal.SIGKILL) as url:
        with_client(url, work)
    with Memory(tmp_path) as memory:
        assert {memory.evidence(n).text for n in range(1, 21)} == {f"Number {n}." for n in range(20)}
        assert memory.doctor() == []

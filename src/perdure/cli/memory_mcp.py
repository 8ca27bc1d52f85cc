"""``perdure memory mcp``: a memory for agents of others, by the Model Context Protocol."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from perdure.cli.memory_flags import add_place, opened
from perdure.errors import CallError

__all__ = ["add_parser", "main"]

_LEAST_TOKEN = 16
_LOOK_S = 30.0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "mcp",
        help="serve a memory to agents by the Model Context Protocol",
        description="Serve one memory to an agent: over stdin and stdout, or with --http over HTTP at /mcp. The memory "
        "is chosen here; no call reaches another. Agents may search, and keep what they are told; they may forget "
        "(never purge) only with --allow-forget. What they keep is sorted into topics by rules. Needs pip "
        "install 'perdure[memory]'.",
    )
    parser.add_argument("--http", metavar="HOST:PORT", help="over HTTP, as 127.0.0.1:8765 (port 0: a free one)")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="over HTTP, who shows this token may come in (else PERDURE_MEMORY_TOKEN); needed where others than this "
        "machine reach the server",
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name that the server goes by, as well"
    )
    rights = parser.add_mutually_exclusive_group()
    rights.add_argument("--read-only", action="store_true", help="agents may not keep anything")
    rights.add_argument("--allow-forget", action="store_true", help="agents may let facts be recalled no more")
    add_place(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Serve until the other side is done, or a signal."""

    place = None if args.http is None else _place(args.http)
    token = _token(args)
    try:
        from perdure.adapters.mcp.serving import serve_http, serve_stdio
        from perdure.adapters.mcp.tools import Toolbox
    except ModuleNotFoundError as error:
        raise CallError(
            f"perdure memory mcp needs {error.name} (mcp 2 or newer): pip install 'perdure[memory]'"
        ) from error
    if place is not None and token is None and not _is_loopback(place[0]):
        raise CallError(
            f"{place[0]} can be reached by others than this machine: give a token with --token-file or "
            "PERDURE_MEMORY_TOKEN (for example what openssl rand -hex 32 prints)"
        )
    with opened(args, make=not args.read_only, auto_s=None if args.read_only else _LOOK_S) as memory:
        toolbox = Toolbox(memory, writes=not args.read_only, forgets=args.allow_forget)
        if place is None:
            serve_stdio(toolbox)
        else:
            serve_http(toolbox, host=place[0], port=place[1], token=token, hosts=args.allow_host)
    return 0


def _place(word: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+)):(\d{1,5})", word)
    if found is None or int(found[3]) >= 1 << 16:
        raise CallError(f"{word!r} is no place to listen; give HOST:PORT, as 127.0.0.1:8765")
    return found[1] or found[2], int(found[3])


def _is_loopback(host: str) -> bool:
    import ipaddress
    import socket

    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CallError(f"cannot listen at {host}: {error.strerror}") from error
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)


def _token(args: argparse.Namespace) -> str | None:
    token = os.environ.get("PERDURE_MEMORY_TOKEN")
    if args.token_file:
        try:
            token = Path(args.token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CallError(f"cannot read {args.token_file}: {error}") from error
    if token is not None and len(token) < _LEAST_TOKEN:
        raise CallError(f"the token has {len(token)} characters; it must have {_LEAST_TOKEN} or more")
    return token

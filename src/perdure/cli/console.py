"""``perdure console``: a web page, an API and metrics over the jobs of this machine."""

from __future__ import annotations

import argparse
import itertools
import os
import re
from pathlib import Path

from perdure.errors import CallError

__all__ = ["add_parser", "main"]

_LEAST_TOKEN = 16


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "console",
        help="a web page, an API and metrics over jobs and memories",
        description="Serve a page, a JSON API and /metrics over the jobs of this machine, or over one job of another. "
        "Whoever wants in shows the token: it is made at the first start, kept in console.token beside the jobs, and "
        "part of the address that is printed. Needs pip install 'perdure[http]'.",
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, metavar="PORT", help="at which port (a free one)")
    parser.add_argument("--job", metavar="JOB", help="only this job")
    parser.add_argument("--controller", metavar="HOST[:PORT]", help="where its controller is, if on another machine")
    parser.add_argument("--token-file", metavar="FILE", help="that job's token (else PERDURE_TOKEN)")
    parser.add_argument(
        "--watch",
        action="append",
        default=[],
        metavar="PATH",
        help="show this, too: a folder of perdure watch --record, or a file of --json; may be given again",
    )
    parser.add_argument(
        "--memory", metavar="DIR", help="show the memories of this folder, too (what perdure memory --root names)"
    )
    parser.add_argument(
        "--console-token-file",
        metavar="FILE",
        help="the console's own token (else PERDURE_CONSOLE_TOKEN, else console.token); one of these must be given to "
        "listen where others than this machine reach it",
    )
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    try:
        from perdure.http.serve import is_loopback, kept_token, serve
    except ModuleNotFoundError as error:
        raise CallError(f"perdure console needs {error.name}: pip install 'perdure[http]'") from error
    from perdure.cli.controller import job_home
    from perdure.cli.job_flags import chosen
    from perdure.supervisor.asking import Asker, askers_in

    if not 0 <= args.port < 1 << 16:
        raise CallError(f"there is no port {args.port}: ports are 0 (a free one) to 65535")
    home = job_home()
    token = _given_token(args)
    if token is None and not is_loopback(args.host):
        raise CallError(
            f"{args.host} can be reached by others than this machine: give the console a token of your own with "
            "--console-token-file or PERDURE_CONSOLE_TOKEN (for example what openssl rand -hex 32 prints)"
        )
    given = _given_records(args.watch)
    only: list[Asker] | None = [chosen(args)] if args.job or args.controller else None
    return serve(
        (lambda: only) if only is not None else (lambda: askers_in(home)),
        token=token or kept_token(home / "console.token"),
        host=args.host,
        port=args.port,
        records=lambda: _records_in(home, args.job) | given,
        memory=_memories(args.memory),
    )


def _memories(word: str | None) -> Path | None:
    if word is None:
        return None
    path = Path(word).expanduser().resolve()
    if not path.is_dir():
        raise CallError(f"there is no folder {word}; perdure memory observe --root {word} makes one")
    return path


def _given_records(paths: list[str]) -> dict[str, Path]:
    """What was named to be shown, by a name of its own."""
    given: dict[str, Path] = {}
    for word in paths:
        path = Path(word).resolve()
        if not path.exists():
            raise CallError(f"there is no {word}; perdure watch --record {word} -- COMMAND makes it")
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem if path.is_file() else path.name) or "watch"
        names = (stem if n == 1 else f"{stem}-{n}" for n in itertools.count(1))
        given[next(name for name in names if name not in given)] = path
    return given


def _records_in(home: Path, only: str | None) -> dict[str, Path]:
    """What watchers keep in the folders of the jobs of this machine, or of one of them."""
    from perdure.http.watched import is_record
    from perdure.supervisor.folder import jobs_in

    names = jobs_in(home) if only is None else [only]
    return {name: home / name for name in names if is_record(home / name)}


def _given_token(args: argparse.Namespace) -> str | None:
    token = os.environ.get("PERDURE_CONSOLE_TOKEN")
    if args.console_token_file:
        try:
            token = Path(args.console_token_file).read_text().strip()
        except OSError as error:
            raise CallError(f"cannot read {args.console_token_file}: {error.strerror}") from error
    if token is not None and len(token) < _LEAST_TOKEN:
        raise CallError(f"the console's token has {len(token)} characters; it must have {_LEAST_TOKEN} or more")
    return token

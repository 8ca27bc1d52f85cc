"""What the commands of ``perdure memory`` have in common: where the memory lies, which text is meant, yes or no."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import CallError

if TYPE_CHECKING:
    from perdure.memory import ChatModel, Memory

__all__ = ["add_model", "add_place", "add_sure", "home", "model_of", "opened", "sure", "told"]


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add --root, --space and --json."""
    parser.add_argument(
        "--root", metavar="DIR", help="the folder of memories (PERDURE_MEMORY, else perdure/memory of the user's data)"
    )
    parser.add_argument("--space", default="default", metavar="NAME", help="which memory of it (default)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_sure(parser: argparse.ArgumentParser) -> None:
    """Add --yes and --dry-run, of what cannot simply be done again."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done and do nothing")


def home(args: argparse.Namespace) -> Path:
    """The folder of memories."""
    named = args.root or os.environ.get("PERDURE_MEMORY", "")
    if named:
        return Path(os.path.abspath(os.path.expanduser(named)))
    data = os.environ.get("XDG_DATA_HOME", "")
    return (Path(data) if os.path.isabs(data) else Path(os.path.expanduser("~/.local/share"))) / "perdure" / "memory"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --endpoint and --model."""
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="let a model help that is behind this OpenAI-compatible endpoint, as http://127.0.0.1:8080/v1; its key, "
        "if it needs one, is in PERDURE_MEMORY_KEY",
    )
    parser.add_argument("--model", metavar="NAME", help="which model of the endpoint")


def model_of(args: argparse.Namespace) -> ChatModel | None:
    """The model that is meant, or None."""
    if (args.endpoint is None) != (args.model is None):
        raise CallError("--endpoint and --model go together")
    if args.endpoint is None:
        return None
    from perdure.adapters.llm import OpenAIChat

    return OpenAIChat(args.endpoint, args.model, key=os.environ.get("PERDURE_MEMORY_KEY") or None)


def opened(
    args: argparse.Namespace, *, make: bool = False, model: ChatModel | None = None, auto_s: float | None = None
) -> Memory:
    """The memory that is meant. One that is not there is made only where something is to be kept in it.

    With ``auto_s`` it looks so often whether it is time to consolidate.
    """
    from perdure.memory import Memory
    from perdure.memory.spaces import folder_of, spaces_in

    root = home(args)
    if not make and not (folder_of(root, args.space) / "ledger.db").exists():
        there = spaces_in(root)
        known = f"there are {', '.join(map(repr, there[:20]))}" if there else "there is none yet"
        raise CallError(f"there is no memory {args.space!r} in {root}; {known}: perdure memory observe makes one")
    return Memory(root, space=args.space, model=model, auto=auto_s)


def told(words: str | None, file: str | None) -> str:
    """The text that is meant: the argument, what is in a file, or what comes in by stdin (also for ``-``).

    Raises `CallError` where there is none, or it is no UTF-8.
    """
    if words is not None and words != "-" and file is not None:
        raise CallError("give the text or --file, not both")
    if words is not None and words != "-" and file is None:
        return words
    try:
        if file is not None and file != "-":
            return Path(file).read_bytes().decode()
        if sys.stdin.isatty():
            raise CallError("say what: as an argument, with --file FILE, or by stdin")
        return sys.stdin.buffer.read().decode()
    except OSError as error:
        raise CallError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CallError(f"{file or 'stdin'} is no UTF-8 text (byte {error.start}); convert it first") from error


def sure(args: argparse.Namespace, question: str) -> bool:
    """Whether to go on: --yes, or yes to ``question`` on a terminal. Raises `CallError` where nobody can be asked."""
    if args.yes:
        return True
    if not sys.stdin.isatty():
        raise CallError("this needs --yes where nobody can be asked; --dry-run shows what would be done")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")

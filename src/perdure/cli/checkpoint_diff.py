"""``perdure checkpoint diff``: what is different in another saved step."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from perdure.errors import CallError

__all__ = ["add_parser", "main"]

_EPILOG = "exit code: 0 if both are the same, bit by bit; 1 if not"
_SHOWN = 20


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "diff",
        help="compare two saved steps, bit by bit",
        description="Compare two steps of a run, or of two runs: tensors that came, went or changed, values, meta. "
        "Where both are cut alike their digests tell, and no data is read.",
        epilog=_EPILOG,
    )
    parser.add_argument("url", metavar="URL")
    parser.add_argument(
        "others", metavar="STEP_A STEP_B | URL_B", nargs="+", help="two steps of URL, or another URL (see --step)"
    )
    parser.add_argument("--step", type=int, metavar="N", help="with two URLs: the step of both, instead of the newest")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Compare; 1 if there is a difference."""
    from perdure.store import open_store
    from perdure.upkeep.comparing import Side, compare
    from perdure.upkeep.ledger import read_ledger

    sides = []
    for url, step in _asked(args):
        ledger = read_ledger(open_store(url))
        sides.append(Side(ledger.opened(), ledger.of(step)))
    found = compare(*sides)
    if args.json:
        told = asdict(found)
        told["same"] = found.same
        print(json.dumps(told))
        return 0 if found.same else 1
    for sign, names in (("+", found.added), ("-", found.removed)):
        for name in names[:_SHOWN]:
            print(f"{sign} {name}")
        _more(len(names))
    for each in found.changed[:_SHOWN]:
        print(f"~ {each.name}  {each.form or f'{each.tiles} of {each.of_tiles} tiles'}")
    _more(len(found.changed))
    for what, pairs in (("alias", found.aliases), ("value", found.values), ("meta", found.meta)):
        for key, (a, b) in list(pairs.items())[:_SHOWN]:
            print(f"~ {what} {key}: {_short(json.dumps(a))} -> {_short(json.dumps(b))}")
        _more(len(pairs))
    share = 100 * found.tiles / found.of_tiles if found.of_tiles else 0.0
    print(
        f"{'the same' if found.same else 'different'}: {len(found.added)} added, {len(found.removed)} removed, "
        f"{len(found.changed)} changed, {found.n_same} the same; {share:.1f} % of {found.of_tiles} tiles differ"
    )
    return 0 if found.same else 1


def _asked(args: argparse.Namespace) -> list[tuple[str, int | None]]:
    if len(args.others) == 1:
        return [(args.url, args.step), (args.others[0], args.step)]
    if len(args.others) == 2 and args.step is None and all(each.isdecimal() for each in args.others):
        return [(args.url, int(step)) for step in args.others]
    raise CallError("give a run and two of its steps (URL 100 200), or two runs (URL URL_B, with --step N for both)")


def _more(n: int) -> None:
    if n > _SHOWN:
        print(f"  and {n - _SHOWN} more (all of them with --json)")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."

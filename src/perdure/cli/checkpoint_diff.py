"""``perdure checkpoint diff``: what is different in another saved step."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict

from perdure.errors import CallError

__all__ = ["add_parser", "main"]

_EPILOG = "exit code: 0 if tensors and values (with --meta: and meta) are the same, bit by bit; 1 if not"
_SHOWN = 20
_CHARS = 60


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
    parser.add_argument("--meta", action="store_true", help="a meta that differs counts as a difference too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Compare; 1 if there is a difference."""
    from perdure.store import open_store
    from perdure.upkeep.comparing import Side, compare, first_difference
    from perdure.upkeep.ledger import read_ledger

    sides = []
    for url, step in _asked(args):
        ledger = read_ledger(open_store(url))
        sides.append(Side(ledger.opened(), ledger.of(step)))
    found = compare(*sides)
    same = found.same and not (args.meta and found.meta)
    if args.json:
        told = asdict(found)
        told["same"] = same
        print(json.dumps(told))
        return 0 if same else 1
    for sign, names in (("+", found.added), ("-", found.removed)):
        for name in names[:_SHOWN]:
            print(f"{sign} {name}")
        _more(len(names))
    for each in found.changed[:_SHOWN]:
        print(f"~ {each.name}  {each.form or f'{each.tiles} of {each.of_tiles} tiles'}")
    _more(len(found.changed))
    for what, pairs in (("alias", found.aliases), ("value", found.values), ("meta", found.meta)):
        for key, (a, b) in list(pairs.items())[:_SHOWN]:
            at, one, two = first_difference(a, b)
            print(f"~ {what} {key}{f' at {at}' if at else ''}: {' -> '.join(_shortened(one, two))}")
        _more(len(pairs))
    share = 100 * found.tiles / found.of_tiles if found.of_tiles else 0.0
    meta = f"; meta differs: {', '.join(list(found.meta)[:_SHOWN])}" if found.meta else ""
    print(
        f"{'the same' if same else 'different'}: {len(found.added)} added, {len(found.removed)} removed, "
        f"{len(found.changed)} changed, {found.n_same} the same; {share:.1f} % of {found.of_tiles} tiles differ{meta}"
    )
    return 0 if same else 1


def _asked(args: argparse.Namespace) -> list[tuple[str, int | None]]:
    if len(args.others) == 1 and args.others[0].isdecimal() and not os.path.exists(args.others[0]):
        raise CallError(
            f"{args.others[0]} is one step; give the one to compare it with as well: "
            f"perdure checkpoint diff {args.url} {args.others[0]} STEP_B"
        )
    if len(args.others) == 1:
        return [(args.url, args.step), (args.others[0], args.step)]
    if len(args.others) == 2 and args.step is None and all(each.isdecimal() for each in args.others):
        return [(args.url, int(step)) for step in args.others]
    raise CallError("give a run and two of its steps (URL 100 200), or two runs (URL URL_B, with --step N for both)")


def _more(n: int) -> None:
    if n > _SHOWN:
        print(f"  and {n - _SHOWN} more (all of them with --json)")


def _shortened(a: object, b: object) -> tuple[str, str]:
    """Both as JSON, cut so that the first place where they differ is seen."""
    one, two = json.dumps(a), json.dumps(b)
    ends = min(len(one), len(two))
    alike = next((i for i in range(ends) if one[i] != two[i]), ends)
    start = max(0, alike - _CHARS // 2) if max(len(one), len(two)) > _CHARS else 0
    return _cut(one, start), _cut(two, start)


def _cut(text: str, start: int) -> str:
    return f"{'...' if start else ''}{text[start : start + _CHARS]}{'...' if len(text) > start + _CHARS else ''}"

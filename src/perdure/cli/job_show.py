"""``perdure job show``: one job: its nodes, its ranks, where its time went, what happened last."""

from __future__ import annotations

import argparse
import json

from perdure.cli.job_flags import add_flags, chosen

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "show",
        help="show a job: nodes, ranks, goodput, what happened last",
        description="Show a job. Goodput is the time in which new steps were completed over the time since the run "
        "began; the rest is lost, and the line says to what.",
    )
    add_flags(parser)
    parser.add_argument("--live", action="store_true", help="go on showing it until it is over")
    parser.add_argument(
        "--every", type=float, default=0.5, metavar="S", help="seconds between two looks of --live (0.5)"
    )
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Show."""
    from perdure.cli.job_lines import lines_of
    from perdure.supervisor.plain import live_account, plain, plain_account, plain_fact

    asker = chosen(args)
    if args.live:
        from perdure.cli.job_live import live

        return live(asker, every_s=args.every)
    seen = asker.look()
    if args.json:
        _, account = live_account(seen.view)
        facts = [plain_fact(told) for told in seen.view.facts]
        print(json.dumps(plain(seen) | {"account": plain_account(account), "facts": facts}))
        return 0
    print("\n".join(lines_of(seen)))
    return 0

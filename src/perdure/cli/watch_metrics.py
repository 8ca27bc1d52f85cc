"""``perdure watch metrics URL...``, or ``perdure watch --metrics URL...``: what exporters tell of a job's nodes."""

from __future__ import annotations

import argparse

from perdure.errors import CallError

__all__ = ["add_parser", "main"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    from perdure.cli.watch_others import add_options

    parser = commands.add_parser(
        "metrics",
        help="scrape exporters of a job's nodes (or: perdure watch --metrics URL...)",
        description="Scrape the pages of dcgm-exporter, node-exporter and xpu_timer at URL..., and tell on stderr what "
        "is wrong with the nodes and ranks that they are about. Runs until it is interrupted.",
    )
    parser.add_argument("urls", nargs="*", metavar="URL", help="as http://gpu-7:9100/metrics")
    parser.add_argument("--metrics", nargs="+", default=[], metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument(
        "--logs", metavar="DIR", help="follow the logs of ranks in DIR, too, as perdure watch logs does"
    )
    add_options(parser)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Scrape, and tell."""
    from perdure.cli.watch_others import watch

    urls = [*args.urls, *args.metrics]
    if not urls:
        raise CallError("what is to be scraped is missing: perdure watch metrics http://gpu-7:9100/metrics")
    return watch(args, where=args.logs, urls=urls)

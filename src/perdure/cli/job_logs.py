"""``perdure job logs``: what the ranks of a job have printed, from the folder given with ``--log-dir``."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from perdure.cli.job_flags import add_flags, chosen
from perdure.errors import CallError

__all__ = ["add_parser", "main"]

_POLL_S = 0.2
_LOG = re.compile(r"rank-(\d+)\.log(?:\.(\d+))?")
_READ_BYTES = 1 << 20


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "logs",
        help="what ranks have printed",
        description="Print what the ranks of an attempt have printed, each line with its rank in front. The job must "
        "have been started with --log-dir. On several machines each has the logs of its own ranks, unless that folder "
        "is shared.",
    )
    add_flags(parser)
    parser.add_argument("--rank", type=int, action="append", metavar="R", help="only this rank; may be repeated")
    parser.add_argument("--attempt", type=int, metavar="N", help="of this attempt (the newest)")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the job is over, over its attempts")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Print them."""
    from perdure.cli.following import Following

    asker = chosen(args)
    seen = asker.look(history=False)
    if not seen.view.spec.log_dir:
        raise CallError(f"job {asker.name} keeps no logs: start it with perdure run --log-dir DIR")
    folder = Path(seen.view.spec.log_dir)
    attempt = max(seen.view.job.attempt, 0) if args.attempt is None else args.attempt
    if not args.follow and not _logs(folder, attempt, args.rank):
        have = ", ".join(str(number) for number in _attempts(folder)) or "none"
        what = f"attempt {attempt}" if args.rank is None else f"rank {args.rank} of attempt {attempt}"
        raise CallError(
            f"there is no log of {what} in {folder} on this machine (attempts there: {have}); a rank's log is on the "
            "machine of its node"
        )
    at: dict[int, int] = {}
    following = Following()
    while True:
        live = seen.live
        for rank, path in _logs(folder, attempt, args.rank):
            for line in _new_lines(path, at, whole=not live or not args.follow):
                print(
                    json.dumps({"attempt": attempt, "rank": rank, "line": line}) if args.json else f"[{rank}] {line}",
                    flush=args.follow,
                )
        if not args.follow or (following.over(seen) and attempt >= seen.view.job.attempt):
            return 0
        if args.attempt is not None and seen.view.job.attempt > attempt:
            return 0
        time.sleep(_POLL_S)
        attempt = max(seen.view.job.attempt, 0) if args.attempt is None else args.attempt
        seen = asker.look(history=False)


def _attempts(folder: Path) -> list[int]:
    found = [path.name.removeprefix("attempt-") for path in folder.glob("attempt-*")]
    return sorted(int(each) for each in found if each.isdecimal())


def _logs(folder: Path, attempt: int, ranks: list[int] | None) -> list[tuple[int, Path]]:
    """Rank and file, each rank's oldest file first."""
    found = []
    for path in (folder / f"attempt-{attempt}").glob("rank-*.log*"):
        match = _LOG.fullmatch(path.name)
        if match is not None and (ranks is None or int(match[1]) in ranks):
            found.append((int(match[1]), -int(match[2] or 0), path))
    return [(rank, path) for rank, _, path in sorted(found)]


def _new_lines(path: Path, at: dict[int, int], *, whole: bool) -> Iterator[str]:
    """The lines since the last call; a last one that is not at its end only if ``whole``.

    ``at`` counts by inode: a log that is turned gets another name and is the same file.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return  # it has just been turned: the next look has it under its new name
    with file:
        inode = os.fstat(file.fileno()).st_ino
        file.seek(at.get(inode, 0))
        while data := file.read(_READ_BYTES):
            cut = data.rfind(b"\n") + 1 or (len(data) if whole or len(data) == _READ_BYTES else 0)
            at[inode] = at.get(inode, 0) + cut
            yield from data[:cut].decode(errors="replace").splitlines()
            if cut == 0:
                return
            file.seek(at[inode])

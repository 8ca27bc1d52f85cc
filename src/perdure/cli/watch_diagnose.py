"""``perdure watch diagnose``: from the logs of a failed job, what failed, who must act, and what to do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import CallError

if TYPE_CHECKING:
    from perdure.watcher.logs.diagnose import Diagnosis

__all__ = ["add_parser", "diagnosis", "main", "tell"]

_TO_DO = {
    "restart": "restart on the same nodes",
    "evict": "replace the node, then restart",
    "rollback": "go back to an older checkpoint",
    "stop_user": "stop; the user has to change something",
    "warn": "nothing now; keep an eye on it",
}
_WHO = {
    "node": "who looks after the machine",
    "user": "the user",
    "data": "who looks after the data",
    "infra": "who looks after the cluster",
    "transient": "nobody, it passes",
    "nobody": "nobody",
}
_SHOWN = 160
_NOTHING: Final[dict[str, Any]] = {
    "label": "nothing_to_read",
    "at_fault": "nobody",
    "action": None,
    "confidence": 0.0,
    "evidence": [],
    "nodes": [],
    "ranks": [],
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "diagnose",
        help="from the logs of a failed job: what failed, who must act, what to do",
        description="Read the logs of a failed job (of its ranks, its nodes' kernels, its scheduler, or stacks of its "
        "ranks) and say what failed, who must act, what to do, and which lines say so.",
    )
    parser.add_argument(
        "logs", nargs="+", metavar="LOG", help="files, gzip or not, or folders of them; - is what comes in"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Diagnose, and tell."""
    from perdure.watcher.logs.reading import log_files

    files = log_files(each for each in args.logs if each != "-")
    said = diagnosis([*([None] if "-" in args.logs else []), *files])
    if said is None:
        what = ", ".join("what comes in" if each == "-" else each for each in args.logs)
        why = f"nothing to read in {what}: {_count(files)}; name the files or folders that the job has logged into"
        if args.json:
            print(json.dumps(_NOTHING | {"why": why}), flush=True)
        raise CallError(why)
    if args.json:
        print(json.dumps(_plain(said)))
    else:
        tell(said)
    return 0


def diagnosis(sources: Sequence[Path | None], *, most_bytes: int | None = None) -> Diagnosis | None:
    """What the logs say; None if there is not one line in them. A source that is None is what comes in.

    ``most_bytes``: of all together no more than about that is read, of each its beginning and, four times as much, its
    end.
    """
    from perdure.watcher.logs.diagnose import diagnose, hits_of_stacks
    from perdure.watcher.logs.files import ranks_named
    from perdure.watcher.logs.reading import HEAD_BYTES, TAIL_BYTES, Line, read_log, read_stream
    from perdure.watcher.stacks import read_stacks

    share = HEAD_BYTES + TAIL_BYTES if most_bytes is None else max(1 << 14, most_bytes // max(1, len(sources)))
    head, tail = min(HEAD_BYTES, share // 5), min(TAIL_BYTES, share - share // 5)
    lines: list[Line] = []
    hits = []
    problems: list[str] = []
    rank_of = ranks_named(path for path in sources if path is not None)
    for path in sources:
        if path is None:
            read = read_stream(sys.stdin.buffer, file="-", order=len(lines))
        else:
            read = read_log(
                path, order=len(lines), rank=rank_of.get(path), head_bytes=head, tail_bytes=tail, problems=problems
            )
        text = "\n".join(line.raw for line in read) if read and read[0].raw.startswith("{") else ""
        if '"ranks"' in text and '"frames"' in text:
            hits += hits_of_stacks(read_stacks(text), read[0])
        else:
            lines += read
    for problem in problems:
        print(f"perdure watch: {problem}", file=sys.stderr)
    if not hits and not any(line.raw.strip() for line in lines):
        return None
    return diagnose(lines, more=hits)


def _count(files: Sequence[Path]) -> str:
    if not files:
        return "there is no file"
    return "the file has no line" if len(files) == 1 else f"none of {len(files)} files has a line"


def _plain(said: Diagnosis) -> dict[str, Any]:
    return {
        "label": said.label and str(said.label),
        "at_fault": str(said.owner),
        "action": said.action and str(said.action),
        "confidence": said.confidence,
        "evidence": [{"file": line.file, "line_number": line.number, "text": line.raw} for line in said.evidence],
        "nodes": list(said.nodes),
        "ranks": list(said.ranks),
        "why": said.why,
    }


def tell(said: Diagnosis) -> None:
    """Print it for people."""
    from perdure.watcher.labels import CLASSES

    if said.label is None:
        print(f"nothing failed: {said.why}")
        return
    print(f"{said.label}: {CLASSES[said.label].means}")
    if said.why != CLASSES[said.label].means:
        print(f"  why       {said.why}")
    print(
        f"  at fault  {_WHO[said.owner]} has to act" if said.owner != "transient" else f"  at fault  {_WHO[said.owner]}"
    )
    print(f"  to do     {_TO_DO[said.action or 'warn']}")
    where = [f"node {', '.join(said.nodes)}"] if said.nodes else []
    where += [f"rank {', '.join(map(str, said.ranks))}"] if said.ranks else []
    if where:
        print(f"  where     {'; '.join(where)}")
    print(f"  sure      {said.confidence:.0%}")
    for line in said.evidence:
        text = line.raw if len(line.raw) <= _SHOWN else f"{line.raw[:_SHOWN]} ..."
        print(f"  {line.file or 'line'}:{line.number}: {text}")

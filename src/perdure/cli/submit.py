"""``perdure submit``: hand a job to Slurm, with spares in its allocation and a requeue where that helps."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import CallError

if TYPE_CHECKING:
    from perdure.adapters.slurm.submit import Job

__all__ = ["add_parser", "main"]

_USAGE = "perdure submit [options] [options of sbatch] -- command ..."
_EPILOG = """\
examples:
  perdure submit --nodes 16 --spares 1 --nproc 8 --partition=gpu --time=1-0 -- train.py --lr 3e-4
  perdure submit --nodes 4 --nproc gpu --gpus-per-node=8 --cpus-per-task=64 --wait -- train.py
  perdure submit --nodes 4 --dry-run -- train.py

Options that are not listed here are those of sbatch (--partition, --account, --time, --gpus-per-node, ...) and go into
the script as they are. Without any that says which part of a node is wanted the job gets whole nodes (--exclusive).

exit code: 0 once the job is submitted; with --wait that of the job. See docs/slurm.md.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``submit`` to the command line; `main` is its ``func``. Its words are parsed there, sbatch's among them."""
    # A prefix that no word has: everything is kept, --help too, until it is known which options are whose.
    parser = subparsers.add_parser("submit", help="hand a job to Slurm", prefix_chars="\0", add_help=False)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Submit the job that ``args.words`` describe; return the exit code."""
    from perdure.adapters.slurm import step, submit
    from perdure.adapters.slurm.follow import follow

    options, sbatch, command = _parse(args.words)
    job = _job(options, sbatch, command)
    text = submit.script(job)
    if options.dry_run:
        print(text, end="")
        return 0
    path = Path(job.folder) / f"{job.name}.sbatch"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    number = int(step.ask("sbatch", "--parsable", str(path), env=os.environ).split(";")[0])
    print(f"job {number} submitted: {path}; its log is {job.folder}/slurm-{number}.log", flush=True)
    if not options.wait:
        return 0
    return follow(number, env=os.environ, say=lambda line: print(f"perdure: {line}", file=sys.stderr, flush=True))


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...], tuple[str, ...]]:
    """Return our options, sbatch's, and the command behind ``--``."""
    parser = argparse.ArgumentParser(
        prog="perdure submit",
        usage=_USAGE,
        description="Write a batch script that runs `perdure run` on nodes of a Slurm cluster, and submit it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-N", "--nodes", type=int, default=1, metavar="N", help="nodes that train (1)")
    add("--spares", type=int, default=0, metavar="S", help="nodes more, that wait until one of the others dies (0)")
    add("--nproc", default="1", metavar="P", help="ranks a node; a number, cpu or gpu (1)")
    add(
        "--job", "-J", "--job-name", dest="job", metavar="NAME", help="the job's name (from the folder and the command)"
    )
    add(
        "--log-dir", default="logs", metavar="DIR", help="the script and the logs, on a file system of all nodes (logs)"
    )
    add("--notice", type=int, default=120, metavar="S", help="seconds to save in before the job's time is over (120)")
    add("--max-requeues", type=int, default=5, metavar="N", help="times in a row that a job may ask to try again (5)")
    add("--run", default="", metavar="OPTIONS", help='more options of perdure run, such as "--max-restarts 10"')
    add("--dry-run", action="store_true", help="print the script and submit nothing")
    add("--wait", action="store_true", help="stay until the job has ended; start it at once when it was requeued")
    front = list(words[: words.index("--")]) if "--" in words else list(words)
    options, sbatch = parser.parse_known_args(front)
    if len(front) == len(words):
        raise CallError("there is no command to run; give it after --")
    return options, tuple(sbatch), tuple(words[len(front) + 1 :])


def _job(options: argparse.Namespace, sbatch: tuple[str, ...], command: tuple[str, ...]) -> Job:
    from perdure.adapters.slurm.submit import Job
    from perdure.cli.run import command_of, job_name

    if options.nodes < 1 or options.spares < 0:
        raise CallError(
            f"--nodes {options.nodes} --spares {options.spares}: give one node or more, and no negative number"
        )
    run = command_of(["--", *command], module=False)
    name = options.job or job_name(run, cwd=os.getcwd())
    folder = str(Path(options.log_dir).resolve())
    words = [sys.executable, "-m", "perdure", "run", "--job", name, "--nproc", options.nproc, "--log-dir", folder]
    if options.nodes + options.spares > 1:
        words += ["--nodes", str(options.nodes), "--spares", str(options.spares)]
    return Job(
        name=name,
        folder=folder,
        n_nodes=options.nodes,
        n_spares=options.spares,
        run=(*words, *shlex.split(options.run)),
        command=run,
        sbatch=sbatch,
        notice_s=options.notice,
        max_requeues=options.max_requeues,
    )

"""``perdure checkpoint export``: write a step for others, as a Hugging Face safetensors folder or a DCP folder."""

from __future__ import annotations

import argparse
import sys

from perdure.cli.bars import Bar
from perdure.errors import CallError

__all__ = ["add_parser", "main"]

_EPILOG = """\
examples:
  perdure checkpoint export checkpoints/run7 llama-hf                      (the tensors of model, as safetensors)
  perdure checkpoint export checkpoints/run7 llama-hf --names 'ema.*' --strip ema.
  perdure checkpoint export checkpoints/run7 run7-dcp --to dcp --step 300  (all of it, for torch.distributed.checkpoint)

Every tensor is verified while it is read. The folder must be new or empty: nothing is ever written over.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``export`` to the command line; `main` is its ``func``."""
    parser = commands.add_parser(
        "export",
        help="write a step as a Hugging Face safetensors folder or a DCP folder",
        description="Write a committed step of a run in another format, whole tensors, verified.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="the run: a folder or a URL")
    add("folder", metavar="FOLDER", help="where to write; new or empty")
    add("--to", choices=("hf", "dcp"), default="hf", help="the format (hf)")
    add("--step", type=int, metavar="N", help="the step (the newest)")
    add("--slot", type=int, metavar="N", help="the commit in this slot, of a dead branch too (see ls --all)")
    add("--names", nargs="+", metavar="PATTERN", help="which tensors (hf: 'model.*', dcp: all)")
    add("--strip", metavar="PREFIX", help="what to take off the front of names (hf without --names: model.)")
    add("--shard-bytes", type=int, default=5_000_000_000, metavar="N", help="bytes a safetensors file (5,000,000,000)")
    add("--as-bytes", action="store_true", help="write dtypes that safetensors lacks as bytes, for perdure alone")
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """Export as ``args`` say; return the exit code."""
    from perdure.adapters.torch.exporting import Source, export_hf, select  # lazy: torch takes seconds
    from perdure.adapters.torch.exporting_dcp import export_dcp

    if args.to == "dcp" and args.as_bytes:
        raise CallError("--as-bytes is for --to hf; DCP has every dtype")
    watched = sys.stderr.isatty()  # a log gets a line now and then, not one a tensor
    source = Source(args.run, step=args.step, slot=args.slot)
    selection = select(source, names=args.names, strip=args.strip, values=args.to == "dcp")
    with Bar(f"export of step {source.step}, MB", -(-selection.nbytes // 1_000_000)) as bar:

        def tell(nbytes: int, name: str) -> None:
            bar.at(-(-nbytes // 1_000_000), name if watched or name == "done" else "writing")

        if args.to == "dcp":
            done = export_dcp(source, selection, args.folder, tell=tell)
        else:
            done = export_hf(
                source, selection, args.folder, shard_bytes=args.shard_bytes, as_bytes=args.as_bytes, tell=tell
            )
    print(f"wrote step {done.step} to {args.folder}: {done.n_tensors} tensors, {done.nbytes:,} bytes")
    for note in done.notes:
        print(f"  {note}")
    return 0

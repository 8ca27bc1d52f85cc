"""``perdure checkpoint import``: make a checkpoint of another format a committed step of a run, without running it."""

from __future__ import annotations

import argparse

from perdure.cli.bars import Bar

__all__ = ["add_parser", "main"]

_EPILOG = """\
examples:
  perdure checkpoint import llama-hf checkpoints/run8 --under model        (then restore({"model": model}) finds it)
  perdure checkpoint import run7-dcp checkpoints/run8 --step 300
  perdure checkpoint import old.pt checkpoints/run8 --names 'model.*'

SOURCE is a safetensors file, a Hugging Face folder, a DCP folder, or a file of torch.save. Nothing in it is ever run:
a file that wants other than tensors, numbers, text and containers is refused by what it wants.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add ``import`` to the command line; `main` is its ``func``."""
    parser = commands.add_parser(
        "import",
        help="make a safetensors, DCP or torch.save checkpoint a step of a run",
        description="Save a checkpoint of another format as a step of a run, new or existing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="what to import")
    add("run", metavar="RUN", help="the run: a folder or a URL")
    add("--step", type=int, metavar="N", help="which step it becomes (0 in a new run; after the newest in another)")
    add("--names", nargs="+", default=["*"], metavar="PATTERN", help="which tensors and values (all)")
    add("--under", metavar="KEY", help="put KEY. before every name")
    add("--skip-values", action="store_true", help="import tensors alone")
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """Import as ``args`` say; return the exit code."""
    from perdure.adapters.torch.importing import chosen, import_checkpoint, read_foreign  # lazy: torch takes seconds

    phases = ("comparing checksums", "copying", "writing")
    with Bar("import", len(phases) + 1) as bar:
        bar.at(0, f"reading {args.source}")
        foreign = chosen(
            read_foreign(args.source, values=not args.skip_values),
            names=args.names,
            under=args.under,
            skip_values=args.skip_values,
        )
        done = import_checkpoint(
            foreign, args.run, step=args.step, tell=lambda phase, nbytes: bar.at(1 + phases.index(phase), phase)
        )
        bar.at(len(phases) + 1, "committed")
    print(
        f"imported {done.kind} as step {done.step} of {args.run}: {done.n_tensors} tensors, {done.nbytes:,} bytes, "
        f"{done.n_values} values"
    )
    for note in done.notes:
        print(f"  {note}")
    return 0

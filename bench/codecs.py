"""How small and how fast are the lossless codecs, on real training states and on hostile tensors, beside their peers?

Sizes are raw bytes over the bytes of whole frames, on tensors as they are. Speeds are of kernels on tiles of 4 MiB, one
thread, and of whole frames (`encode_parts`, `decode`, digests included) on 1 and 2, all on arrays that no cache holds:
GB/s of raw input, as parts of one memcpy's and of a peer's in the same run; sides take turns, the best turn counts. H0
is the order-0 entropy of the signed distance in units of the last place, in bits an element.

The traces are trained here (bench/codec_traces.py), once if --traces names a folder that keeps them. zstd and ZipNN are
measured if they are installed. The last lines say which of what is asked was met; the exit status tells nothing of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from codec_cases import Case, trace_cases
from codec_measure import Sizes, Speed, measure_sizes, measure_speeds, sides_of
from codec_report import as_json, machine_words, page, text
from codec_sides import missing_peers, peer_versions
from codec_synthetic import synthetic
from codec_traces import STAGES, Recipe, base_steps, read_trace, trace_file
from codec_verdict import judge, whole_states
from perdure import _native

MIB = 1 << 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seed", type=int, nargs="+", default=[0, 1], help="one training each; speeds are measured on the first")
    add("--lr", type=float, nargs="+", default=[6e-4], help="highest rate; one training for each, and each seed")
    add("--steps", type=int, default=300, help="steps of the whole schedule, a twentieth of them warm-up")
    add("--stage", nargs="+", choices=STAGES, default=list(STAGES), help="where in the schedule pairs are taken")
    add("--distance", type=int, nargs="+", default=[1, 2, 5, 10], help="steps between tensor and base")
    add("--width", type=int, default=256, help="of the model: 256 makes 3.3 M parameters; a multiple of 32")
    add("--layers", type=int, default=4)
    add("--traces", type=Path, help="a folder that keeps the traces: a rerun with the same options is quick")
    add("--no-synthetic", action="store_true", help="leave out the tensors that no training made")
    add("--mib", type=int, default=64, help="arrays for speeds are tiled to this size at least")
    add("--rounds", type=int, default=5, help="turns of each side")
    add("--threads", type=int, nargs="+", default=[1, 2], help="of whole frames")
    add("--simd", nargs="+", choices=_native.simd_levels(), help="levels of the kernels; the first makes the frames")
    add("--json", type=Path, help="write everything that was measured to this file")
    add("--report", type=Path, help="write the ratios to this file, as docs/reports/codecs.md")
    options = parser.parse_args()
    if min(options.distance) < 1 or options.steps < 2 * max(options.distance) + 2:
        parser.error("distances are at least 1 and the schedule more than twice as long as the longest")
    if options.simd is None:  # the fastest, and AVX2, of which something is asked too
        levels = _native.simd_levels()
        options.simd = [levels[-1], *(["avx2"] if "avx2" in levels[:-1] else [])]
    return options


def cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    """Everything to measure, one training after the other; those that ``folder`` lacks are trained side by side."""
    far = max(options.distance)
    bases = {stage: at for stage, at in base_steps(options.steps, far).items() if stage in options.stage}
    kept = dict.fromkeys((at + d for at in bases.values() for d in options.distance), False)
    kept |= dict.fromkeys((at + d for at in bases.values() for d in (0, far)), True)
    recipes = {
        f", seed {seed}" + (f", lr {lr:g}" if len(options.lr) > 1 else ""): Recipe(
            seed=seed, lr=lr, steps=options.steps, layers=options.layers, width=options.width
        )
        for seed, lr in itertools.product(options.seed, options.lr)
    }
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(min(cores, len(recipes)), multiprocessing.get_context("spawn")) as trainings:
        n = len(recipes)
        files = list(trainings.map(trace_file, recipes.values(), [kept] * n, [folder] * n))
    for number, (label, file) in enumerate(zip(recipes, files, strict=True)):
        yield from trace_cases(read_trace(file), label, bases=bases, distances=options.distance, timed=number == 0)
    if not options.no_synthetic:
        yield from synthetic(4 * MIB)


def main() -> None:
    options = arguments()
    sizes: list[Sizes] = []
    speeds: list[Speed] = []
    with tempfile.TemporaryDirectory(prefix="perdure-traces-") as unnamed:
        print("training, or reading what was trained before", file=sys.stderr)
        for case in cases(options, options.traces or Path(unnamed)):
            print(f"  {case.name}", file=sys.stderr)
            sizes.append(measure_sizes(case))
            for timed in [case] * case.timed + [case.without_base()] * case.alone:
                large = timed.tiled(options.mib * MIB)
                sides = sides_of(large, levels=options.simd, threads=options.threads)
                speeds += measure_speeds(large, sides, rounds=options.rounds)
    wholes = whole_states(sizes)
    verdicts = judge(sizes, speeds, wholes)
    facts = {
        "machine": machine_words(),
        "trainings": f"{sizes[0].elements:,} parameters, {options.steps} steps, seeds {words(options.seed)},"
        f" highest learning rate {words(options.lr)}, bfloat16 weights, float32 master, AdamW, cosine with warm-up",
        "peers": ", ".join(f"{name} {version}" for name, version in peer_versions().items()) or "none",
        "arrays for speeds": f"{options.mib} MiB or more, {options.rounds} turns, levels {words(options.simd)}",
    }
    for number, sentence in enumerate(missing_peers()):
        facts[f"missing {number + 1}"] = sentence
    found = (facts, sizes, wholes, speeds, verdicts)
    print(text(*found))
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(*found)) + "\n")
    if options.report is not None:
        options.report.write_text(page(*found))


def words(items: list[object]) -> str:
    return ", ".join(str(item) for item in items)


if __name__ == "__main__":
    main()

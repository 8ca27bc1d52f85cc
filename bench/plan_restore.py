"""How long does it take to plan the restore of a model on ten thousand ranks, cut in another way?

The state of Llama-70B (2,892 tensors; `bench/llama.py` has the forms) on TP8 x PP8 x DP156, from TP4 x PP16 x DP156.
Asked are 10 s and 4 GB for the plan of all ranks, in one process, and 50 ms for what one rank reads. *One rank* is
planned from layouts, and *a restore's* part is what `Checkpointer.restore` does before it reads: names matched with the
catalog of a step, and a transfer for every block. The peer is the same planner with every piece of every tensor written
out and nothing shared, on one of 80 layers. Each is asked in a process of its own; the first rank stands apart. Garbage
of what was made before is collected before the clock starts; seconds of the processor stand beside those of the wall.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from llama import FORMS, LAYERS, llama
from perdure.layout import Box, EvenGrid, Layout, Piece, TensorLayout
from perdure.plan import audit, reshard
from perdure.state.geometry import geometry_of
from perdure.state.index import Catalog, CatalogTensor
from perdure.state.items import Held, Memory, TensorItem
from perdure.state.match import match
from perdure.state.stored import Segment, StoredPieces
from perdure.state.transfers import transfers_of

HAVE, WANT = (4, 16), (8, 8)
ASKED_S, ASKED_OWN_MS, ASKED_GB = 10.0, 50.0, 4.0
RANKS = (4005, 0, 9983, 1248, 7000, 5001, 2503, 8888)
A_PART = 8  # ranks


def layouts(form: str) -> tuple[Layout, Layout]:
    """What is there, and what is wanted."""
    return llama(*HAVE, form=form), llama(*WANT, form="zero1" if form == "zero1 stored" else form)


def listed(layout: Layout, layer: int) -> Layout:
    """One layer of ``layout``, every piece of every tensor written out, nothing shared."""
    there = (name for name in layout if f".layers.{layer:02}." in name)
    return Layout(
        {
            name: TensorLayout(layout[name].shape, tuple(Piece(p.rank, p.box, p.place) for p in layout[name].pieces),
                               layout[name].dtype)
            for name in there
        }
    )  # fmt: skip


def whole(form: str) -> dict[str, float]:
    """Plan for all ranks, and audit."""
    took = {}
    start, cpu = time.perf_counter(), time.process_time()
    have, want = layouts(form)
    took["layouts"], start = time.perf_counter() - start, time.perf_counter()
    plan = reshard(have, want)
    took["plan"], start = time.perf_counter() - start, time.perf_counter()
    audit(plan, have, want)
    took["audit"], start = time.perf_counter() - start, time.perf_counter()
    took["cpu"] = time.process_time() - cpu
    took["moves"], took["TB"] = len(plan), plan.nbytes / 1e12
    received = plan.received_nbytes
    took["sums"], start = time.perf_counter() - start, time.perf_counter()
    took["most received over mean"] = max(received.values()) / statistics.mean(received.values())
    plan.of_rank(len(want.ranks) // 2 + 3)
    took["of one rank"] = time.perf_counter() - start
    return took


def own(form: str) -> dict[str, float]:
    """Plan what one rank reads: the first time in this process, and then for others."""
    have, want = layouts(form)
    took = []
    moves = 0
    for rank in RANKS:
        with Both() as both:
            plan = reshard(have, want.of_rank(rank))
        took.append(both)
        moves = max(moves, len(plan))
    return own_times(took, moves)


def saved(have: Layout) -> Catalog:
    """The catalog of a step that the ranks of ``have`` saved, as its parts say it."""
    known: dict[tuple[object, int], list[Segment]] = {}
    found: dict[str, CatalogTensor] = {}
    for name, tensor in have.items():
        key = (tensor.placed.pattern, tensor.placed.first)
        if key not in known:
            known[key] = segments_of(tensor)
        segments = [segment._replace(stem=name) for segment in known[key]]
        found[name] = CatalogTensor(name, tensor.dtype, tensor.shape, StoredPieces(segments))
    return Catalog(len(have.ranks), found)


def segments_of(tensor: TensorLayout) -> list[Segment]:
    """What each part has of a tensor."""
    writer = {piece.box: piece.rank for piece in tensor.pieces if not piece.box.empty}
    blocks = sorted(((rank, box) for box, rank in writer.items()), key=lambda block: (block[0], block[1].lo))
    grid = EvenGrid.of(tensor.shape, blocks)
    parts: dict[int, list[tuple[int, Box]]] = {}
    for rank, box in blocks:
        parts.setdefault(rank // A_PART, []).append((rank, box))
    return [
        Segment(
            geometry_of("", tensor.dtype, tensor.shape, part, grid),
            tuple(rank % A_PART for rank, _ in part),
            tuple(f"part {number} pack {rank}" for rank in range(A_PART)),
            "",
        )
        for number, part in parts.items()
    ]


def restores(form: str) -> dict[str, float]:
    """Match what a rank holds with the catalog, and plan its transfers."""
    have, want = layouts(form)
    catalog = saved(have)
    took = []
    transfers = []
    for rank in RANKS:
        mine = want.of_rank(rank)
        items = []
        for name, tensor in want.items():  # a rank knows of all tensors, and has nothing of most
            boxes = [piece.box for piece in mine[name].pieces] if name in mine else []
            held = tuple(Held(box, Memory(0, box.size * tensor.element_bytes, None)) for box in boxes)
            items.append(TensorItem(name, tensor.dtype, tensor.shape, held))
        with Both() as both:
            transfers = transfers_of(catalog, match(catalog, items, [], rank=rank, world=len(want.ranks)))
        took.append(both)
        assert sum(each.nbytes for each in transfers) == sum(item.nbytes for item in items), "all that it holds"
    return own_times(took, len(transfers))


class Both:
    """Milliseconds of the wall and of the processor."""

    def __enter__(self) -> Both:
        gc.collect()
        self.wall_ms, self.cpu_ms = -time.perf_counter() * 1e3, -time.process_time() * 1e3
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_ms += time.perf_counter() * 1e3
        self.cpu_ms += time.process_time() * 1e3


def own_times(took: list[Both], most: int) -> dict[str, float]:
    """The answer for what some ranks took, in milliseconds."""
    first, *later = took
    return {
        "first_ms": first.wall_ms,
        "later_ms": statistics.median(each.wall_ms for each in later),
        "first_cpu_ms": first.cpu_ms,
        "later_cpu_ms": statistics.median(each.cpu_ms for each in later),
        "moves": most,
    }


def peer(form: str) -> dict[str, float]:
    """Plan one layer for all ranks, written out, and audit."""
    have, want = (listed(each, LAYERS // 2) for each in layouts(form))
    start = time.perf_counter()
    plan = reshard(have, want)
    middle = time.perf_counter()
    audit(plan, have, want)
    return {"plan": middle - start, "audit": time.perf_counter() - middle, "moves": len(plan)}


ASKED: Mapping[str, Callable[[str], dict[str, float]]] = {
    "whole": whole,
    "own": own,
    "restores": restores,
    "peer": peer,
}


def ask(what: str, form: str) -> dict[str, float]:
    """Ask in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--ask", what, "--form", form], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def main() -> None:
    """Ask each, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=FORMS, help="one form of the state instead of all")
    parser.add_argument("--ask", choices=ASKED, help="ask this in this process, print the answer as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    args = parser.parse_args()
    if args.ask:
        took = ASKED[args.ask](args.form or FORMS[0])
        took["peak_GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
        print(json.dumps(took))
        return
    answers = {form: {what: ask(what, form) for what in ASKED} for form in ([args.form] if args.form else FORMS)}
    if args.json:
        print(json.dumps(answers))
        return
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for form, answer in answers.items():
        every, spelled = answer["whole"], answer["peer"]
        print(f"{form}: {every['moves']:.0f} moves of {every['TB']:.1f} TB")
        print(
            f"  all ranks    {every['layouts'] + every['plan'] + every['audit']:6.2f} s of {ASKED_S:g} s asked "
            f"({every['cpu']:.2f} s of processor; layouts {every['layouts']:.2f}, plan {every['plan']:.2f}, audit "
            f"{every['audit']:.2f}), {every['peak_GB']:.2f} GB of {ASKED_GB:g} GB"
        )
        for what, label in (("own", "one rank"), ("restores", "a restore's")):
            mine = answer[what]
            print(
                f"  {label:12} {mine['first_ms']:6.1f} ms of {ASKED_OWN_MS:g} ms asked, then {mine['later_ms']:.1f} "
                f"(of the processor {mine['first_cpu_ms']:.1f} and {mine['later_cpu_ms']:.1f}); "
                f"{mine['moves']:.0f} moves, {mine['peak_GB']:.2f} GB"
            )
        ratio = (spelled["plan"] + spelled["audit"]) * LAYERS / (every["plan"] + every["audit"])
        print(f"  written out  {ratio:6.1f} x the time of all ranks (one layer x {LAYERS})")


if __name__ == "__main__":
    main()

"""How long does it take to plan the restore of a model on ten thousand ranks, cut in another way?

The state of Llama-70B (bf16 parameters, fp32 master and both moments: 2,892 tensors) on TP8 x PP8 x DP156, from TP4 x
PP16 x DP156, in two forms. ``zero1``: parameters are replicated over the data-parallel axis, and what the optimizer has
lies in flat buffers that this axis cuts, as in Megatron. ``sharded``: that axis cuts every tensor, as FSDP does.
``stored`` counts one copy of each replicated parameter as there to be taken, as in a store where one rank wrote it.

Asked are 10 s and 4 GB for the plan of all ranks, in one process, and 50 ms for what one rank reads. The peer is the same
planner with every piece of every tensor written out and nothing shared, on one of 80 layers. Each plan is made in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from perdure.layout import ByHead, ByLayer, Cut, Even, Fused, Layout, Mesh, Piece, Rule, TensorLayout, cut_tensor, flat_cut
from perdure.plan import audit, reshard

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, DP = 80, 8192, 64, 8, 28672, 128256, 156
STATES = {"param": "bfloat16", "master": "float32", "exp_avg": "float32", "exp_avg_sq": "float32"}
HAVE, WANT = (4, 16), (8, 8)
ASKED_S, ASKED_OWN_MS, ASKED_GB = 10.0, 50.0, 4.0
FORMS = ("zero1", "zero1 stored", "sharded")


def tensors(*, fused: bool = False) -> Iterator[tuple[str, int | None, tuple[int, ...], tuple[Cut, ...]]]:
    """Each tensor: its name, its layer (-1 for those before the first, None after the last), its shape, its cuts."""
    head = HIDDEN // HEADS
    rows, kv, columns = Cut("tp", 0, Even()), Cut("tp", 0, ByHead(KV_HEADS)), Cut("tp", 1, Even())
    yield "embed", -1, (VOCAB, HIDDEN), (rows,)
    for layer in range(LAYERS):
        at = f"layers.{layer:02}"
        if fused:
            qkv: tuple[tuple[int, Rule], ...] = tuple((n * head, ByHead(n)) for n in (HEADS, KV_HEADS, KV_HEADS))
            width = (HEADS + 2 * KV_HEADS) * head
            yield f"{at}.qkv", layer, (width, HIDDEN), (Cut("tp", 0, Fused(qkv)),)
            yield f"{at}.gate_up", layer, (2 * FFN, HIDDEN), (Cut("tp", 0, Fused(((FFN, Even()), (FFN, Even())))),)
        else:
            yield f"{at}.q", layer, (HEADS * head, HIDDEN), (rows,)
            yield f"{at}.k", layer, (KV_HEADS * head, HIDDEN), (kv,)
            yield f"{at}.v", layer, (KV_HEADS * head, HIDDEN), (kv,)
            yield f"{at}.gate", layer, (FFN, HIDDEN), (rows,)
            yield f"{at}.up", layer, (FFN, HIDDEN), (rows,)
        yield f"{at}.o", layer, (HIDDEN, HIDDEN), (columns,)
        yield f"{at}.down", layer, (HIDDEN, FFN), (columns,)
        yield f"{at}.norm1", layer, (HIDDEN,), ()
        yield f"{at}.norm2", layer, (HIDDEN,), ()
    yield "norm", None, (HIDDEN,), ()
    yield "head", None, (VOCAB, HIDDEN), (rows,)


def llama(tp: int, pp: int, *, form: str, fused: bool = False, dp: int = DP) -> Layout:
    """Where the state lies on ``tp`` x ``pp`` x ``dp`` ranks."""
    mesh = Mesh((("pp", pp), ("dp", dp), ("tp", tp)))
    stages = ByLayer(LAYERS).stages(pp)
    of_stage: dict[int, dict[str, tuple[tuple[int, ...], tuple[Cut, ...]]]] = {}
    for name, layer, shape, cuts in tensors(fused=fused):
        stage = pp - 1 if layer is None else 0 if layer < 0 else stages[layer]
        of_stage.setdefault(stage, {})[name] = (shape, cuts)
    found: dict[str, TensorLayout] = {}
    for stage, those in of_stage.items():
        at = {"pp": stage}
        for state, dtype in STATES.items():
            if form == "sharded" or state == "param":
                for name, (shape, cuts) in those.items():
                    over = (Cut("dp", 0, Even()),) if form == "sharded" else ()
                    once = {"dp": 0} if form == "zero1 stored" else {}
                    found[f"{state}.{name}"] = cut_tensor(
                        shape, mesh=mesh, cuts=(*cuts, *over), dtype=dtype, at={**at, **once}
                    )
            else:
                flat = flat_cut(
                    {name: shape for name, (shape, _) in those.items()},
                    mesh=mesh,
                    cuts={name: cuts for name, (_, cuts) in those.items()},
                    along="dp",
                    dtype=dtype,
                    at=at,
                )
                found |= {f"{state}.{name}": tensor for name, tensor in flat.items()}
    return Layout(found)


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
    start = time.perf_counter()
    have, want = layouts(form)
    took["layouts"], start = time.perf_counter() - start, time.perf_counter()
    plan = reshard(have, want)
    took["plan"], start = time.perf_counter() - start, time.perf_counter()
    audit(plan, have, want)
    took["audit"], start = time.perf_counter() - start, time.perf_counter()
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
    for rank in (4005, 0, 9983, 1248, 7000, 5001, 2503, 8888):
        start = time.perf_counter()
        part = want.of_rank(rank)
        plan = reshard(have, part)
        took.append((time.perf_counter() - start) * 1e3)
        moves = max(moves, len(plan))
    return {"first_ms": took[0], "later_ms": statistics.median(took[1:]), "worst_ms": max(took), "most moves": moves}


def peer(form: str) -> dict[str, float]:
    """Plan one layer for all ranks, written out, and audit."""
    have, want = (listed(each, LAYERS // 2) for each in layouts(form))
    start = time.perf_counter()
    plan = reshard(have, want)
    middle = time.perf_counter()
    audit(plan, have, want)
    return {"plan": middle - start, "audit": time.perf_counter() - middle, "moves": len(plan)}


ASKED: Mapping[str, Callable[[str], dict[str, float]]] = {"whole": whole, "own": own, "peer": peer}


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
        every, mine, spelled = answer["whole"], answer["own"], answer["peer"]
        took = every["layouts"] + every["plan"] + every["audit"]
        print(f"{form}: {every['moves']:.0f} moves of {every['TB']:.1f} TB")
        print(
            f"  all ranks   {took:6.2f} s of {ASKED_S:g} s asked (layouts {every['layouts']:.2f}, plan {every['plan']:.2f}, "
            f"audit {every['audit']:.2f}), {every['peak_GB']:.2f} GB of {ASKED_GB:g} GB; sums {every['sums']:.2f} s"
        )
        print(
            f"  one rank    {mine['first_ms']:6.1f} ms of {ASKED_OWN_MS:g} ms asked (then {mine['later_ms']:.1f}, at most "
            f"{mine['worst_ms']:.1f}), up to {mine['most moves']:.0f} moves"
        )
        ratio = (spelled["plan"] + spelled["audit"]) * LAYERS / (every["plan"] + every["audit"])
        print(f"  written out {ratio:6.1f} x the time of all ranks (one layer x {LAYERS}), {spelled['peak_GB']:.2f} GB for it")


if __name__ == "__main__":
    main()

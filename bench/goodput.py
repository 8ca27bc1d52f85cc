"""How much of a large run's time is training that counts? Llama 3's published interruptions, simulated.

16,384 GPUs for 54 days, struck as Meta's run was: 419 unexpected interruptions by cause and 47 planned ones (The
Llama 3 Herd of Models, 2024, section 3.3.4), with "over 90 %" effective training time. All inputs are printed. The
defaults of ``perdure`` and ``torchrun`` are what was measured on two cores and four ranks (`restart.py`), so they say
what the launcher costs, and not what a start of 2,048 nodes costs: --start-up is added on both sides, and the sweep
shows what it does. What a checkpoint costs is the same on both sides.

This is a simulation. Detection and restart were measured on a few ranks, nothing was measured at this size.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace

import numpy as np

from interruptions import DAY_S, Cause, Ledger, Plant, daly_s, simulate

__all__ = ["DAYS", "LLAMA_3", "NODES", "SIDES", "Side", "mean_ledger", "plant_of"]

DAYS, NODES, GPUS_A_NODE = 54.0, 2048, 8

# Counts as published; "takes a node" is ours: what has a broken part, or a host that must be served. Causes that the
# report describes as ranks that wait for each other, or as watchdogs, hang.
_COUNTS = (
    # cause, interruptions, takes a node, hangs
    ("faulty GPU", 148, True, False),
    ("GPU HBM3 memory", 72, True, False),
    ("software bug", 54, False, False),
    ("network switch or cable", 35, False, True),
    ("host maintenance", 32, True, False),
    ("GPU SRAM memory", 19, True, False),
    ("GPU system processor", 17, True, False),
    ("NIC", 7, True, True),
    ("NCCL watchdog timeouts", 7, False, True),
    ("silent data corruption", 6, True, False),
    ("GPU thermal interface and sensor", 6, True, False),
    ("SSD", 3, True, False),
    ("power supply", 3, True, False),
    ("server chassis", 2, True, False),
    ("IO expansion board", 2, True, False),
    ("dependency", 2, False, False),
    ("CPU", 2, True, False),
    ("system memory", 2, True, False),
)
LLAMA_3 = (
    *(Cause(name, n, DAYS, NODES, takes_node=takes, hangs=hangs) for name, n, takes, hangs in _COUNTS),
    Cause("planned: firmware, configuration, data", 47, DAYS, NODES, takes_node=False, planned=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What a launcher takes, in seconds, and where the number is from."""

    death_noticed_s: float
    node_noticed_s: float
    hang_noticed_s: float
    restart_s: float
    source: str


SIDES = {
    "perdure": Side(
        death_noticed_s=0.05,
        node_noticed_s=3.5,
        hang_noticed_s=32.0,
        restart_s=1.2,
        source="death: pidfd; node: lease 3 s + 0.5 s; hang: a phase deadline of 30 s + 2 s; restart: that of "
        "torchrun by the ratio of bench/restart.py, 5.3",
    ),
    "torchrun": Side(
        death_noticed_s=0.2,
        node_noticed_s=12.0,
        hang_noticed_s=600.0,
        restart_s=6.5,
        source="death, node (agent gone to world running, less restart), restart: measured, torch 2.13 with a monitor "
        "interval of 0.1 s; hang: NCCL's default timeout of 10 minutes",
    ),
}


def plant_of(side: Side, args: argparse.Namespace, *, interval_s: float | None = None) -> Plant:
    """The machines of ``args`` under the launcher ``side``."""
    return Plant(
        nodes=args.nodes,
        spares=args.spares,
        repair_s=args.repair_h * 3600,
        interval_s=args.interval if interval_s is None else interval_s,
        stall_s=args.stall,
        lag_s=args.lag,
        death_noticed_s=side.death_noticed_s,
        node_noticed_s=side.node_noticed_s,
        hang_noticed_s=side.hang_noticed_s,
        restart_s=side.restart_s + args.start_up,
    )


def mean_ledger(plant: Plant, causes: Iterable[Cause], *, days: float, runs: int, seed: int) -> Ledger:
    """The mean of ``runs`` runs; run i of two plants with one seed is struck at the same moments."""
    causes = tuple(causes)
    total = Ledger()
    for i in range(runs):
        one = simulate(plant, causes, days=days, rng=np.random.default_rng([seed, i]))
        for each in fields(Ledger):
            setattr(total, each.name, getattr(total, each.name) + getattr(one, each.name) / runs)
    return total


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--nodes", type=int, default=NODES, help=f"nodes of {GPUS_A_NODE} GPUs ({NODES})")
    add("--days", type=float, default=DAYS, help="length of the run (54)")
    add("--spares", type=int, default=16, help="nodes that wait for the place of another (16)")
    add("--repair-h", type=float, default=24.0, help="hours until a node that was taken is there again (24)")
    add("--stall", type=float, default=2.0, help="seconds that a checkpoint stops training (2)")
    add("--lag", type=float, default=30.0, help="seconds until a checkpoint can be restored (30)")
    add("--interval", type=float, help="seconds of training between checkpoints (Young's and Daly's optimum)")
    add("--start-up", type=float, default=180.0, help="seconds that both sides take besides: groups, restore (180)")
    for name in ("death", "node", "hang"):
        add(f"--{name}-noticed", type=float, help=f"perdure: seconds until the end (or stop) of a {name} is noticed")
    add("--restart", type=float, help="perdure: seconds from the decision to the first step, without --start-up")
    add("--runs", type=int, default=20, help="runs to average (20)")
    add("--seed", type=int, default=0)
    add("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.interval is None:
        rate = sum(cause.count / cause.days / cause.nodes for cause in LLAMA_3 if not cause.planned) * args.nodes
        args.interval = daly_s(stall_s=args.stall, between_s=DAY_S / rate)
    return args


def _sides(args: argparse.Namespace) -> dict[str, Side]:
    given = {
        "death_noticed_s": args.death_noticed,
        "node_noticed_s": args.node_noticed,
        "hang_noticed_s": args.hang_noticed,
        "restart_s": args.restart,
    }
    ours = replace(SIDES["perdure"], **{name: value for name, value in given.items() if value is not None})
    return {**SIDES, "perdure": ours}


def _sweep(side: Side, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The effective share by restart time (rows, all of it) and interval (columns)."""
    table: dict[str, dict[str, float]] = {}
    for restart_s in (2, 10, 60, 180, 600, 1800):
        row = table.setdefault(f"{restart_s}", {})
        for interval_s in (30, 60, 120, 300, 900, 1800, 3600):
            plant = replace(plant_of(side, args, interval_s=interval_s), restart_s=float(restart_s))
            ledger = mean_ledger(plant, LLAMA_3, days=args.days, runs=max(1, args.runs // 4), seed=args.seed)
            row[f"{interval_s}"] = round(ledger.effective, 4)
    return table


def _print_inputs(args: argparse.Namespace, sides: dict[str, Side]) -> None:
    print(__doc__)
    print(f"inputs: {args.nodes} nodes of {GPUS_A_NODE} GPUs, {args.days:g} days, {args.spares} spares,")
    print(f"  a node is repaired in {args.repair_h:g} h; a checkpoint each {args.interval:.0f} s stops training for")
    print(f"  {args.stall:g} s and can be restored {args.lag:g} s later; start-up {args.start_up:g} s on both sides;")
    print(f"  {args.runs} runs, seed {args.seed}")
    for name, side in sides.items():
        print(f"  {name}: a death is noticed in {side.death_noticed_s:g} s, a node's in {side.node_noticed_s:g} s,")
        print(f"    a hang in {side.hang_noticed_s:g} s; restart {side.restart_s:g} s ({side.source})")
    print("  interruptions in 54 days on 2,048 nodes (N: takes a node, H: hangs):")
    for cause in LLAMA_3:
        marks = ("N" if cause.takes_node else "-") + ("H" if cause.hangs else "-")
        print(f"    {cause.count:4.0f} {marks} {cause.name}")


def _print_table(ledgers: dict[str, Ledger]) -> None:
    print(f"\n{'share of the time':32}" + "".join(f"{name:>12}" for name in ledgers))
    rows = {
        "effective training": "useful",
        "lost work": "lost",
        "detection": "detection",
        "restart": "restart",
        "checkpoint stalls": "stalls",
        "waiting for nodes": "waiting",
    }
    for title, name in rows.items():
        shares = [getattr(ledger, name) / ledger.total for ledger in ledgers.values()]
        print(f"  {title:30}" + "".join(f"{100 * share:>11.3f}%" for share in shares))
    print(f"  {'interruptions':30}" + "".join(f"{ledger.interruptions:>12.1f}" for ledger in ledgers.values()))
    print(f"  {'Meta, published':30}{'over 90 %':>12}")


def main() -> None:
    args = _arguments()
    if min(args.nodes, args.days, args.interval, args.runs) <= 0 or not math.isfinite(args.interval):
        sys.exit("--nodes, --days, --interval and --runs must be above 0")
    sides = _sides(args)
    ledgers = {
        name: mean_ledger(plant_of(side, args), LLAMA_3, days=args.days, runs=args.runs, seed=args.seed)
        for name, side in sides.items()
    }
    sweeps = {name: _sweep(side, args) for name, side in sides.items()}
    if args.json:
        print(
            json.dumps(
                {
                    "inputs": vars(args),
                    "sides": {name: asdict(side) for name, side in sides.items()},
                    "causes": [asdict(cause) for cause in LLAMA_3],
                    "ledgers": {name: {**asdict(one), "effective": one.effective} for name, one in ledgers.items()},
                    "sweeps": sweeps,
                }
            )
        )
        return
    _print_inputs(args, sides)
    _print_table(ledgers)
    for name, table in sweeps.items():
        intervals = list(next(iter(table.values())))
        print(f"\n{name}: effective share by the whole restart (rows, s) and the interval between checkpoints (s)")
        print(f"  {'':8}" + "".join(f"{interval:>9}" for interval in intervals))
        for restart, row in table.items():
            print(f"  {restart:>8}" + "".join(f"{100 * share:>8.2f}%" for share in row.values()))


if __name__ == "__main__":
    main()

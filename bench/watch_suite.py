"""How good is the watcher? Plays cases of the fault suite, prints each answer and a report.

    ./dev bench watch_suite                        # one case of each kind
    ./dev bench watch_suite --kind killed --seeds 5 --first-seed 10
    ./dev bench watch_suite --kind healthy --journal found.jsonl   # goes on where it was stopped
    ./dev bench watch_suite --score found.jsonl    # judges again, plays nothing

`./dev campaign watcher` plays the whole campaign.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from perdure.testing.faults.cases import draw
from perdure.testing.faults.kinds import FAULTS, HEALTHY, KINDS
from perdure.testing.faults.report import journal, run, write
from perdure.testing.faults.watching import PerdureWatcher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=[*KINDS, "faults", "healthy"], help="may be given again")
    parser.add_argument("--seeds", type=int, default=1, help="cases of each kind (1)")
    parser.add_argument("--first-seed", type=int, default=1000, help="those of the campaign begin at 0 (1000)")
    parser.add_argument("--journal", type=Path, help="keep each case here, and do not play again what is in it")
    parser.add_argument("--score", type=Path, metavar="JOURNAL", help="judge what was played before")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started and mounted is put away
    if args.score is not None:
        outcomes = list(journal(args.score).values())
    else:
        groups = {"faults": FAULTS, "healthy": HEALTHY} | {name: (kind,) for name, kind in KINDS.items()}
        kinds = [kind for name in args.kind or ("faults", "healthy") for kind in groups[name]]
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        cases = [draw(kind, seed) for seed in seeds for kind in kinds]
        with tempfile.TemporaryDirectory(prefix="watch-suite-") as folder:
            outcomes = run(
                cases,
                PerdureWatcher,
                Path(folder) / "case",
                base=os.environ,
                kept=args.journal,
                tell=lambda text: print(text, flush=True),
            )
    print(write(outcomes, title="Fault suite", about=["Played by `bench/watch_suite.py`."]))


if __name__ == "__main__":
    main()

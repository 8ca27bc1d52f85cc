"""The flags of ``perdure run``, and torchrun's, which mean the same here or are taken for its sake."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

__all__ = ["add_flags"]

EPILOG = """\
Put perdure run where torchrun was; the script stays as it is:
  perdure run --nproc 4 -- python train.py
  perdure run --nproc 2 train.py --lr 1e-3
Several nodes: on this machine (each a process group), or one launcher started on each machine, which meet at an address
of the first one and share a secret:
  perdure run --nodes 3 --spares 1 --nproc 2 -- python train.py
  PERDURE_TOKEN=... perdure run --nodes 2:4 --nproc 8 --controller node1:29400 -- python train.py

Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, and
OMP_NUM_THREADS=1 and PYTHONUNBUFFERED=1 unless they are set; its stdin is empty.

When a rank fails, every process of the attempt is ended and all ranks start again, with the state their agents hold.
Only restarts that bring no new step are counted, and the same failure twice ends the job. A node that fails is
replaced by a spare; without one the job goes on with MIN nodes or waits. perdure job shows, drains and stops.

exit code: 0 when every rank has finished; that of the rank that failed first (128 + signal if it was killed);
143 or 130 if the job was stopped by SIGTERM or SIGINT, after its ranks had --grace seconds to save; 75 if this node
lost the job's controller, or the job has waited too long for nodes.
"""

_IGNORED = (  # torchrun's: what they choose is done otherwise here, or always
    "--rdzv-backend",
    "--rdzv-conf",
    "--monitor-interval",
    "--start-method",
    "--event-log-handler",
    "--role",
    "--redirects",
    "--tee",
    "--local-ranks-filter",
    "--logs-specs",
    "--numa-binding",
    "--signals-to-handle",
    "--shutdown-timeout",
    "--duplicate-stdout-filters",
    "--duplicate-stderr-filters",
)


def add_flags(parser: argparse.ArgumentParser, env: Mapping[str, str] = os.environ) -> None:
    """Add the flags; defaults of torchrun's come from its variables (``PET_NNODES`` and so on) if those are set."""

    def pet(name: str, default: str | None = None) -> str | None:
        return env.get(f"PET_{name}", default)

    add = parser.add_argument
    add(
        "--nproc",
        "--nproc-per-node",
        "--nproc_per_node",
        dest="nproc",
        default=pet("NPROC_PER_NODE", "1"),
        metavar="N",
        help="ranks of a node; a number, cpu or gpu (1)",
    )
    add(
        "--nodes",
        "--nnodes",
        dest="nodes",
        default=pet("NNODES"),
        metavar="MIN[:MAX]",
        help="nodes; without --controller they are process groups on this machine (1; in Slurm all that are no spares)",
    )
    add("--spares", type=int, default=0, metavar="S", help="more nodes, which wait for the place of one that fails (0)")
    add(
        "--max-restarts",
        "--max_restarts",
        type=int,
        default=int(pet("MAX_RESTARTS", "3") or 3),
        metavar="N",
        help="restarts in a row that bring no new step (3)",
    )
    add(
        "--grace",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds that ranks may save when the job is stopped (120)",
    )
    add(
        "--log-dir",
        "--log_dir",
        default=pet("LOG_DIR"),
        metavar="DIR",
        help="write what each rank prints to DIR/attempt-<n>/rank-<n>.log too",
    )
    add(
        "--job",
        "--rdzv-id",
        "--rdzv_id",
        dest="job",
        default=pet("RDZV_ID"),
        metavar="NAME",
        help="the job's name; the same when it is started again (from the folder and the command)",
    )
    add(
        "--controller",
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        dest="controller",
        default=pet("RDZV_ENDPOINT"),
        metavar="HOST[:PORT]",
        help="where the launchers of all nodes meet: an address of the first one (port 29400)",
    )
    add("--token-file", metavar="FILE", help="the secret that all launchers share (else PERDURE_TOKEN)")
    add("--node-name", metavar="NAME", help="what this node is called (its host name)")
    add(
        "--node-index",
        "--node-rank",
        "--node_rank",
        dest="node_index",
        type=int,
        default=int(pet("NODE_RANK", "-1") or -1),
        metavar="I",
        help="the place that this node would like; 0 starts the controller",
    )
    add(
        "--standby",
        choices=("auto", "off"),
        default="auto",
        help="fork ranks from an interpreter that has imported torch and what else the script imports (auto)",
    )
    add(
        "--checks",
        default="auto",
        metavar="NAMES",
        help="checks of a node before its ranks start: quick, full, none, or names as in docs/checks.md (auto: quick "
        "for several nodes, none for one)",
    )
    add("--pair-checks", action="store_true", help="also compare nodes with each other before the first attempt")
    add(
        "--phase-deadline",
        default="",
        metavar="PHASE=S,...",
        help="how long a phase of a rank may take: start, restore, step, first-step, save, evaluate, close (learned)",
    )
    add(
        "--skip-bad-batch",
        action="store_true",
        help="after a loss that is not finite twice at the same step: go back and leave that batch out",
    )
    add(
        "--no-watch",
        action="store_true",
        help="do not watch the ranks: nothing is put into them, and nothing is named (as PERDURE_PROBE=off)",
    )
    add(
        "--act-on-verdicts",
        choices=("all", "none"),
        default="all",
        help="whether verdicts of the watcher that are sure are acted on: a restart, a node replaced, a roll-back, a "
        "stop (all); none: they are only told",
    )
    add("--domain", metavar="NAME", help="what fails together with this node: a rack, a switch")
    add(
        "--resume",
        action="store_true",
        help="never start from the beginning: fail if there is no step",
    )
    add("--join", type=float, default=30.0, metavar="S", help="seconds to wait for more than MIN nodes (30)")
    add(
        "--wait",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds to wait for MIN nodes (600)",
    )
    add("--orphan", type=float, default=30.0, metavar="S", help="seconds that ranks go on without a controller (30)")
    add("--node-timeout", type=float, default=3.0, metavar="S", help="silence after which a node is lost (3)")
    add(
        "--local-addr",
        "--local_addr",
        dest="local_addr",
        default=pet("LOCAL_ADDR"),
        metavar="HOST",
        help="the address by which other nodes reach this one",
    )
    add("--master-addr", "--master_addr", dest="master_addr", default=pet("MASTER_ADDR"), help=argparse.SUPPRESS)
    add(
        "--master-port",
        "--master_port",
        dest="master_port",
        default=pet("MASTER_PORT", "29500"),
        help=argparse.SUPPRESS,
    )
    add(
        "--engine",
        choices=("auto", "local", "slurm-node"),
        default="auto",
        help="auto: in an allocation of Slurm on its nodes; local: as if there were no Slurm (auto)",
    )
    add("--standalone", action="store_true", help=argparse.SUPPRESS)
    add("--no-python", "--no_python", action="store_true", help=argparse.SUPPRESS)
    add("--run-path", "--run_path", action="store_true", help=argparse.SUPPRESS)
    for flag in _IGNORED:
        names = [flag, flag.replace("-", "_").replace("__", "--", 1)]
        add(*dict.fromkeys(names), dest="_" + flag.strip("-").replace("-", "_"), help=argparse.SUPPRESS)
    add("-r", dest="_r", help=argparse.SUPPRESS)
    add("-t", dest="_t", help=argparse.SUPPRESS)
    add("--folder", help=argparse.SUPPRESS)  # a launcher that the front of several local nodes starts
    add("-m", "--module", action="store_true", help="the command is a Python module")
    add(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- command ...",
        help="what each rank runs; a .py file is run by this Python",
    )

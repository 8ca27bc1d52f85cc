"""What does saving cost the training beside it: how much longer is a step while the agent works, and what CPU is used?

One rank on the first core, its agent on the last one. The rank makes steps of AdamW on a small model; most of the --mib
MiB that it saves are other tensors, so that the agent is at work for several steps. In every round, in turn: steps
without any save ("still"), and steps one of which is followed by a save; those during which the agent hashes, codes and
writes that save are "beside the agent"; and steps "beside a spin", while a loop that touches no memory has the agent's
core: what that costs is this machine's doing (other work moves to the rank's core, clocks go down) and no agent's. The
medians are compared with that of the "still" ones. "all of it" counts the save and its copy too, at one save in --every
steps.
Both by the clock, and by the CPU seconds of the rank: those do not count the time for which others had its core, but
grow as the clock does where caches and memory are shared: on a machine that is busy otherwise, read those.

CPU seconds are those of the agent (digests, coding, writes), from save to commit, and per GB of state; what is saved is
changed by real steps. Beside them one memcpy of the state, and dcp.save, by their own CPU seconds.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch

import contextlib
import json
import pathlib
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import perdure
from measure import arguments, machine

CODINGS = ("raw", "lossless")
Both = npt.NDArray[np.float64]  # seconds by the clock, and of CPU
LAYERS = 6
TICKS = os.sysconf("SC_CLK_TCK")


def pin(pid: int, cores: set[int]) -> None:
    """Let all threads of a process, and those that they start, run on ``cores`` alone."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


def cpu_s(pid: int) -> float:
    """The CPU seconds that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid: int) -> tuple[float, float]:
    """What a process has in memory: private to it, and shared."""
    words = pathlib.Path(f"/proc/{pid}/statm").read_text().split()
    page = resource.getpagesize() / 2**20
    return (int(words[1]) - int(words[2])) * page, int(words[2]) * page


def now() -> Both:
    """The clock, and the CPU seconds of all threads of this process."""
    return np.array([time.perf_counter(), time.process_time()])


@dataclass(slots=True)
class Training:
    """Steps whose forward and backward are ``batch`` long."""

    mib: int
    batch: int
    model: nn.Sequential = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    more: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(LAYERS)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.more = {f"w{i}": torch.randn(1 << 20) * 0.02 for i in range(max(1, self.mib // 4 - 3 * LAYERS))}

    @property
    def nbytes(self) -> int:
        return 4 * (
            3 * sum(each.numel() for each in self.model.parameters()) + sum(map(torch.numel, self.more.values()))
        )

    def change_more(self) -> None:
        """As an optimizer would."""
        for tensor in self.more.values():
            tensor.add_(torch.randn(tensor.shape), alpha=2e-6)

    def tree(self) -> dict[str, object]:
        return {"model": self.model, "optimizer": self.optimizer, "more": self.more}

    def step(self) -> Both:
        """One step; what it took."""
        began = now()
        self.model(torch.randn(self.batch, 1024)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return now() - began


def measured(
    coding: str, training: Training, folder: str, spin: subprocess.Popen[bytes], *, rounds: int, every: int
) -> dict[str, object]:
    """What saves with ``coding`` do to the steps beside them."""
    ckpt = perdure.Checkpointer(os.path.join(folder, coding), coding=coding)
    tree = training.tree()
    ckpt.save(0, tree).committed()
    link = ckpt._link
    assert link is not None, "the benchmark needs the agent"
    pid = link.agent_pid
    pin(pid, {max(ALL_CORES)})
    beside: list[Both] = []  # steps
    still: list[Both] = []
    beside_spin: list[Both] = []
    all_of_it: list[Both] = []  # rounds
    agent_cpu, durable = [], []
    for number in range(1, rounds + 1):
        training.change_more()
        os.kill(spin.pid, signal.SIGCONT)
        beside_spin += [training.step() for _ in range(max(3, every // 2))]
        os.kill(spin.pid, signal.SIGSTOP)
        quiet = [training.step() for _ in range(every)]
        used, began = cpu_s(pid), now()
        saved = ckpt.save(number, tree)
        training.step()  # the copy runs beside it, and its optimizer waits for that
        busy = []
        while not saved.settled:
            busy.append(training.step())
        for _ in range(every - 1 - len(busy)):
            training.step()
        whole = (now() - began) / max(every, 1 + len(busy))
        saved.committed()
        agent_cpu.append(cpu_s(pid) - used)
        durable.append(saved.durable_s or 0.0)
        quiet += [training.step() for _ in range(3)]
        still += quiet
        beside += busy[:-1]  # the last one may have gone on when the agent was done
        all_of_it.append(whole / np.median(quiet, axis=0) - 1)
        print(".", end="", file=sys.stderr, flush=True)
    before = cpu_s(pid)
    time.sleep(IDLE_S)
    idle = (cpu_s(pid) - before) / IDLE_S
    private, shared = resident_mib(pid)
    ckpt.close()
    gb = training.nbytes / 1e9
    return {
        "step_s": rounded(np.median(still, axis=0)),
        "beside_the_agent": rounded(np.median(beside, axis=0) / np.median(still, axis=0) - 1) if beside else None,
        "beside_a_spin": rounded(np.median(beside_spin, axis=0) / np.median(still, axis=0) - 1),
        "all_of_it": rounded(np.median(all_of_it, axis=0)),
        "agent_cpu_s_per_gb": round(statistics.median(agent_cpu) / gb, 3),
        "durable_s_per_gb": round(statistics.median(durable) / gb, 3),
        "agent_idle_cpu_share": round(idle, 4),
        "agent_private_mib": round(private, 1),
        "agent_shared_mib": round(shared, 1),
        "steps": {"still": len(still), "agent": len(beside), "spin": len(beside_spin)},
    }


def rounded(both: Both) -> dict[str, float]:
    return {"clock": round(float(both[0]), 4), "cpu": round(float(both[1]), 4)}


def peers(training: Training, folder: str) -> dict[str, float]:
    """CPU seconds per GB of one memcpy, and of dcp.save."""
    state = {name: tensor.detach() for name, tensor in training.model.state_dict().items()} | training.more
    for i, each in enumerate(training.optimizer.state.values()):
        state |= {f"{i}.{name}": each[name] for name in ("exp_avg", "exp_avg_sq")}
    copies = {name: tensor.clone() for name, tensor in state.items()}
    found: dict[str, float] = {}
    for name in ("memcpy", "dcp.save"):
        taken = []
        for _ in range(3):
            began = time.process_time()
            if name == "memcpy":
                for key, tensor in state.items():
                    copies[key].copy_(tensor)
            else:
                shutil.rmtree(os.path.join(folder, "dcp"), ignore_errors=True)
                dcp.save(state, checkpoint_id=os.path.join(folder, "dcp"))
            taken.append(time.process_time() - began)
        found[name] = round(statistics.median(taken) / (training.nbytes / 1e9), 3)
    return found


ALL_CORES = os.sched_getaffinity(0)
IDLE_S = 3.0


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mib", type=int, default=384, help="MiB of state")
    parser.add_argument("--batch", type=int, default=64, help="rows of a batch: how long a step is")
    parser.add_argument("--every", type=int, default=10, help="steps from save to save")
    parser.add_argument("--coding", choices=CODINGS, action="append", help="how tensors are stored; by default all")
    parser.add_argument("--dir", help="where to write; a temporary folder unless given")
    args = parser.parse_args()
    if len(ALL_CORES) < 2:
        sys.exit("this needs two cores: one for the rank, one for its agent")
    os.sched_setaffinity(0, {min(ALL_CORES)})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    training = Training(args.mib, args.batch)
    for _ in range(2):
        training.step()
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    pin(spin.pid, {max(ALL_CORES)})
    os.kill(spin.pid, signal.SIGSTOP)
    with tempfile.TemporaryDirectory(dir=args.dir, prefix="perdure-bench-") as folder, contextlib.ExitStack() as stack:
        stack.callback(spin.wait)
        stack.callback(spin.kill)
        found = {
            coding: measured(coding, training, folder, spin, rounds=args.rounds, every=args.every)
            for coding in args.coding or CODINGS
        }
        cpu = peers(training, folder)
    print(file=sys.stderr)
    facts = {"state_bytes": training.nbytes, "every": args.every, "torch": torch.__version__, **machine()}
    if args.json:
        print(json.dumps({"question": __doc__.splitlines()[0], "facts": facts, "cpu_s_per_gb": cpu, "codings": found}))
        return
    print(__doc__.splitlines()[0])
    print("  " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    for coding, values in found.items():
        print(f"\n{coding}")
        for name, value in values.items():
            print(f"  {name:28} {value}")
    print("\nCPU seconds per GB of others: " + ", ".join(f"{name} {value}" for name, value in cpu.items()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

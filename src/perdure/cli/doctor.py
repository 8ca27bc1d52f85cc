"""``perdure doctor``: look at this machine, and at a folder that runs are to be kept in, and say what to do.

Each finding is a plain word: ``ok``, ``note`` (it works, something is slower or missing) or ``problem`` (it would lose
data or not work; exit code 1). What is said of a folder was tried there. The checks of `perdure.supervisor.checks` run
beside that; with ``--checks`` they run alone, one line of JSON a result, which is how a launcher has its node checked.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import msgspec

from perdure import __version__
from perdure.clock import Deadline
from perdure.errors import CallError, StorageError
from perdure.shm import Segment
from perdure.store.calibrate import Calibration, calibrate
from perdure.store.file_system import file_system_of
from perdure.store.io_choice import NATIVE, uring_refusal
from perdure.store.probe import Probe, probe
from perdure.store.remembered import choose_io
from perdure.supervisor.checks import PROBES, Context, Result, run
from perdure.supervisor.checks import Probe as Check

__all__ = ["Finding", "main"]

_LOW_ROOM_BYTES = 10 << 30
_LOW_MEMORY_BYTES = 1 << 30
_SHMEM_ENABLED = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_GPU_CHECK = "perdure.adapters.torch.gpu_check"
_NVIDIA = "/proc/driver/nvidia"

CHECKS = {
    **PROBES,
    "gpu-matmul": Check(f"{_GPU_CHECK}:matmul", 90.0, "matrix products on each GPU against known digests"),
    "gpu-copy": Check(f"{_GPU_CHECK}:copy", 90.0, "copies to each GPU and back"),
}
"""All checks of a node: those of the supervisor, and those of the adapter for PyTorch."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, a word for it, what was seen, and what to do (empty if nothing)."""

    what: str
    word: Literal["ok", "note", "problem"]
    says: str
    do: str = ""


def main(args: argparse.Namespace) -> int:
    if args.calibrate and args.dir is None:
        raise CallError("--calibrate needs the folder to calibrate: perdure doctor DIR --calibrate")
    race = None
    if args.dir is not None and not os.path.isdir(args.dir):
        raise CallError(f"{args.dir} is not a folder; make it, or name one that is there", file=args.dir)
    context = context_of(args)
    names = names_of(args.checks, context)
    deadline = Deadline.after(args.deadline, "the checks")
    if args.checks is not None:
        return alone(names, context, deadline, as_json=args.json)
    results = sorted(run(names, context, deadline, probes=CHECKS), key=lambda result: names.index(result.check))
    findings = [*machine()]
    # A folder that hung a process of its own would hang this one for ever.
    if args.dir is not None and not any(result.check == "disk" and "killed" in result.facts for result in results):
        if args.calibrate:
            race = calibrate(os.path.realpath(args.dir))
        findings += folder(os.path.realpath(args.dir), race)
    if args.json:
        found = {
            "findings": [asdict(finding) for finding in findings],
            "checks": msgspec.to_builtins(results),
            "calibration": _as_json(race),
        }
        print(json.dumps(found))
    else:
        show([*findings, *map(as_finding, results)], race)
    return int("problem" in {finding.word for finding in findings} | {result.word for result in results})


def alone(names: list[str], context: Context, deadline: Deadline, *, as_json: bool) -> int:
    """Run checks and print each result when it is there."""
    bad = False
    for result in run(names, context, deadline, probes=CHECKS):
        bad |= result.word == "problem"
        if as_json:
            print(msgspec.json.encode(result).decode(), flush=True)
        else:
            show([as_finding(result)], None)
    return int(bad)


def names_of(text: str | None, context: Context) -> list[str]:
    """The checks that are named in ``text``; for none and for "all" those that apply here."""
    if text not in (None, "all"):
        return [name.strip() for name in text.split(",") if name.strip()]
    with_gpu = context.gpus or os.path.exists(_NVIDIA)
    left_out = set() if context.folder is not None else {"disk"}
    if not with_gpu or importlib.util.find_spec("torch") is None:
        left_out |= CHECKS.keys() - PROBES.keys()
    return [name for name in CHECKS if name not in left_out]


def context_of(args: argparse.Namespace) -> Context:
    """What checks are told: ``--context``, and DIR as the folder."""
    try:
        context = Context() if args.context is None else msgspec.json.decode(args.context, type=Context)
    except msgspec.DecodeError as error:
        raise CallError(f"--context is not what checks are told: {error}; see docs/checks.md") from error
    if args.dir is None:
        return context
    return msgspec.structs.replace(context, folder=os.path.realpath(args.dir))


def as_finding(result: Result) -> Finding:
    return Finding(result.check, result.word, result.says, result.do)


def show(findings: list[Finding], race: Calibration | None) -> None:
    for finding in findings:
        print(f"{finding.word:8} {finding.what:14} {finding.says}")
        if finding.do:
            print(f"{'':23} -> {finding.do}")
    if race is not None:
        print(f"\ncalibration of {race.file_system.mount} ({race.trials[0].nbytes >> 20} MiB each, synced):")
        for trial in sorted(race.trials, key=lambda trial: -trial.bytes_per_s):
            chosen = "  <- kept" if trial.io == race.best else ""
            print(f"  {trial.io!s:24} {trial.bytes_per_s / 1e6:8.0f} MB/s  ({len(trial.seconds)} times){chosen}")
        print(f"  in {race.file}")


def machine() -> Iterator[Finding]:
    """What can be said without a folder."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    yield Finding("perdure", "ok", f"{__version__}, {system}")
    yield _native()
    refusal = uring_refusal()
    if refusal is None:
        yield Finding("io_uring", "ok", "allowed")
    else:
        yield Finding(
            "io_uring",
            "note",
            refusal,
            "nothing is lost: a pool of threads writes instead, nearly as fast on most disks",
        )
    yield _memory()
    yield _huge_pages()
    yield _library("torch", "the adapters for PyTorch need it", "perdure[torch]")
    yield _library("obstore", "runs in object stores (s3://, gs://, az://) need it", "perdure[objectstore]")


def folder(path: str, race: Calibration | None = None) -> Iterator[Finding]:
    """What was tried on the folder ``path``."""
    system = file_system_of(path)
    if system.type in _IN_MEMORY:
        yield Finding(
            "file system",
            "note",
            f"{system.type} at {system.mount}: it is memory",
            "its runs are gone when the machine restarts; keep those that matter elsewhere",
        )
    else:
        yield Finding("file system", "ok", f"{system.type} at {system.mount} ({system.source})")
    yield _room(path)
    try:
        found = probe(path)
    except StorageError as error:
        yield Finding("writing", "problem", str(error).partition(";")[0], str(error).partition("; ")[2])
        return
    yield from _commit(found)
    if found.direct is None:
        yield Finding("O_DIRECT", "ok", "files can be written past the page cache")
    else:
        yield Finding("O_DIRECT", "note", f"not here: {found.direct}", "nothing to do: the page cache is used")
    io, source = choose_io(path)
    says = f"{io} ({source})"
    if race is None and source == "default":
        yield Finding("engine", "ok", says, f"perdure doctor {path} --calibrate finds out whether another is faster")
    elif io.direct and found.direct is not None:
        yield Finding("engine", "note", f"{says}, but O_DIRECT is not there: it writes through the cache")
    else:
        yield Finding("engine", "ok", says)


def _commit(found: Probe) -> Iterator[Finding]:
    """Whether a step can be committed: a name that appears once, whole and for good."""
    if found.rename is None:
        yield Finding("commit", "ok", "files can be renamed without replacing another")
    elif found.link is None:
        yield Finding("commit", "ok", f"by hard links; renaming without replacing is not here: {found.rename}")
    else:
        yield Finding(
            "commit",
            "problem",
            f"neither renaming without replacing ({found.rename}) nor hard links ({found.link})",
            "no run can be kept here; choose another file system",
        )
    if found.sync is None:
        yield Finding("durable names", "ok", "folders can be synced")
    else:
        yield Finding(
            "durable names",
            "problem",
            f"a folder cannot be synced: {found.sync}",
            "a power cut may take committed steps; choose another file system",
        )
    if found.lock is None:
        yield Finding("locks", "ok", "flock works")
    else:
        yield Finding("locks", "note", f"flock does not work: {found.lock}", "nothing to do: commits need no locks")


def _native() -> Finding:
    if not NATIVE:
        return Finding(
            "native code",
            "note",
            "not built for this platform; Python does the same, slower",
            "install a C++ compiler, then: pip install --no-binary perdure perdure",
        )
    from perdure import _native

    return Finding("native code", "ok", f"{_native.simd()} (of {', '.join(_native.simd_levels())})")


def _memory() -> Finding:
    try:
        with Segment.create(4096, label="doctor") as segment:
            segment.populate()
        # Where memfd segments live is the kernel's memory; /dev/shm has the same limit in most containers.
        room = _available_bytes()
    except StorageError as error:
        return Finding("shared memory", "problem", str(error), "checkpoints are staged in it; ask for memfd_create")
    says = f"segments can be made; {_gb(room)} of memory are free"
    if room < _LOW_MEMORY_BYTES:
        return Finding("shared memory", "note", says, "a save takes as much as the state of the ranks of this node")
    return Finding("shared memory", "ok", says)


def _huge_pages() -> Finding:
    try:
        with open(_SHMEM_ENABLED, encoding="ascii") as file:
            chosen = file.read().partition("[")[2].partition("]")[0]
    except OSError:  # not Linux, or a kernel without them
        chosen = ""
    if chosen in ("advise", "always", "within_size", "force"):
        return Finding("huge pages", "ok", f"shared memory may use them ({chosen})")
    return Finding(
        "huge pages",
        "note",
        "shared memory is made of small pages, so a disk gets a save in smaller requests",
        f"as root: echo advise > {_SHMEM_ENABLED}" if chosen else "nothing to do: this kernel has none",
    )


def _available_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux, or an odd /proc: what sysconf knows
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE")


def _library(name: str, why: str, extra: str) -> Finding:
    try:
        return Finding(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "note", "not installed", f"{why}: pip install '{extra}'")


def _room(path: str) -> Finding:
    usage = shutil.disk_usage(path)
    says = f"{_gb(usage.free)} of {_gb(usage.total)} are free"
    if usage.free < _LOW_ROOM_BYTES:
        return Finding(
            "room", "note", says, "a step needs as much as the state has, and so does each step that is kept"
        )
    return Finding("room", "ok", says)


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"


def _as_json(race: Calibration | None) -> object:
    if race is None:
        return None
    trials = [{"io": str(t.io), "bytes_per_s": t.bytes_per_s, "times": len(t.seconds)} for t in race.trials]
    return {"file_system": asdict(race.file_system), "best": str(race.best), "file": race.file, "trials": trials}

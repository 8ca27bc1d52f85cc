"""Start the launchers of a job: one in this process, or several beside it that stand for nodes on this machine."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from perdure.cli.controller import end_controller, job_home, start_controller
from perdure.cli.watching import FORKED_CALLS, NodeEye
from perdure.errors import CallError, PerdureError
from perdure.events import Log
from perdure.process.environ import PROBE, Placement
from perdure.process.lock import FileLock
from perdure.process.runtime_dir import runtime_dir
from perdure.progress.lateness import phase_deadlines
from perdure.supervisor import AgentLink, JobFolder, Launcher, LauncherConfig, NodeFacts, Spec, Waits
from perdure.supervisor.checks import PROBES
from perdure.supervisor.config import checked_nproc
from perdure.supervisor.folder import boot_id
from perdure.supervisor.journal import Journal
from perdure.supervisor.messages import Memo
from perdure.wire import Address, own_address

__all__ = ["run_nodes"]

_PORT = 29400
_QUICK = ("descriptors", "free-memory", "clock", "gpu", "gpu-memory")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run_nodes(
    args: argparse.Namespace, *, job: str, command: tuple[str, ...], nproc: int, agent: AgentLink | None
) -> int:
    """Run the job that ``args`` describe; return the exit code. ``agent`` replaces the link to the node's agents."""
    checked_nproc(nproc)
    phase_deadlines(args.phase_deadline)
    least, most = nodes_of(args.nodes)
    spec = Spec(
        name=job,
        start=uuid.uuid4().hex,
        command=command,
        min_nodes=least,
        max_nodes=most,
        spares=args.spares,
        max_restarts=args.max_restarts,
        grace_s=args.grace,
        resume=args.resume,
        log_dir="" if args.log_dir is None else os.path.abspath(args.log_dir),
        checks=checks_of(args.checks, several=most + args.spares > 1),
        pair_checks=args.pair_checks,
        phase_deadlines=args.phase_deadline,
        skip_bad_batch=args.skip_bad_batch,
        watch=_watches(args),
        act_on_verdicts=args.act_on_verdicts,
        waits=Waits(join_s=args.join, wait_s=args.wait, lease_s=args.node_timeout, orphan_s=args.orphan),
    )
    _try_logs(args.log_dir)
    log = Log(os.environ.get("PERDURE_EVENTS") or None)
    try:
        if args.folder is not None:
            return _local_node(args, spec, nproc, log, agent)
        endpoint = _endpoint(args)
        if endpoint is not None:
            return _joined_node(args, spec, nproc, endpoint, log, agent)
        if most + args.spares > 1:
            return _front(args, spec, nproc, log)
        return _only_node(args, spec, nproc, log, agent)
    finally:
        log.close()


def _watches(args: argparse.Namespace) -> bool:
    """Whether the user lets ranks be watched."""
    return not args.no_watch and os.environ.get(PROBE) != "off"


def _eye(args: argparse.Namespace, node: str) -> NodeEye | None:
    """What looks at the ranks of this node, if they are to be watched. That there can be none is said, and no more."""
    if not _watches(args):
        return None
    family = [os.getpid(), *([os.getppid()] if args.folder is not None else [])]  # the front has all local nodes
    try:
        return NodeEye(node, base=os.environ, disks=_disks(args), family=family)
    except (PerdureError, OSError) as error:
        print(f"perdure: node {node}: its ranks are not watched: {error}", file=sys.stderr)
        return None


def _disks(args: argparse.Namespace) -> tuple[str, ...]:
    """Folders that the job writes to, as far as is known here."""
    return (os.getcwd(), *([] if args.log_dir is None else [os.path.abspath(args.log_dir)]))


def _try_logs(log_dir: str | None) -> None:
    """Raise `CallError` if logs cannot be written, before anything has begun."""
    if log_dir is None:
        return
    try:
        os.makedirs(log_dir, exist_ok=True)
        with tempfile.TemporaryFile(dir=log_dir):
            pass
    except OSError as error:
        raise CallError(
            f"cannot write logs in {log_dir}: {error.strerror}; give another --log-dir", file=log_dir
        ) from error


def _only_node(args: argparse.Namespace, spec: Spec, nproc: int, log: Log, agent: AgentLink | None) -> int:
    name = args.node_name or platform.node() or "node"
    with _alone(spec.name, ""), _alone(spec.name, name):
        folder = _begun(spec)
        return _launcher(
            args,
            spec,
            nproc,
            log,
            agent or _agents(spec.name, None),
            name=name,
            named=args.node_name,
            host="127.0.0.1",
            secret=folder.token(),
            addresses=lambda: _published(folder),
            start=lambda: start_controller(folder.path),
            end=lambda: end_controller(folder.path),
        )


def _local_node(args: argparse.Namespace, spec: Spec, nproc: int, log: Log, agent: AgentLink | None) -> int:
    """A node among others on this machine: a front has started this process."""
    path = Path(args.folder)
    folder = JobFolder(path.parent, path.name)
    with _alone(spec.name, args.node_name):
        return _launcher(
            args,
            spec,
            nproc,
            log,
            agent or _agents(spec.name, args.node_name),
            name=args.node_name,
            named=args.node_name,
            host="127.0.0.1",
            secret=folder.token(),
            addresses=lambda: _published(folder),
            start=lambda: start_controller(folder.path),
            end=lambda: end_controller(folder.path),
            speaks=False,
        )


def _joined_node(
    args: argparse.Namespace, spec: Spec, nproc: int, endpoint: Address, log: Log, agent: AgentLink | None
) -> int:
    """A node whose launcher meets the others at ``endpoint``."""
    first = args.node_index == 0 or (args.node_index < 0 and _is_ours(endpoint[0]))
    secret = _secret(args, spec.name, endpoint[0])
    spec = msgspec.structs.replace(spec, takeover=spec.max_nodes + spec.spares > 2)
    here = JobFolder(job_home(), spec.name)
    start: Callable[[], subprocess.Popen[bytes]] | None = None
    if first:
        folder = _prepared(spec)
        folder.keep_token(secret)
        start = partial(start_controller, folder.path, listen=f"{endpoint[0]}:{endpoint[1]}")
    name = args.node_name or platform.node() or "node"
    with _alone(spec.name, name):
        return _launcher(
            args,
            spec,
            nproc,
            log,
            agent or _agents(spec.name, args.node_name),
            name=name,
            named=args.node_name,
            host=args.local_addr or own_address(endpoint[0]),
            secret=secret,
            addresses=lambda: [endpoint, *_published(here)],
            start=start,
            speaks=args.engine != "slurm-node" or args.node_index == 0,  # srun shows what all nodes print
            take_over=partial(_take_over, here, secret, args.local_addr or own_address(endpoint[0])),
        )


def _take_over(folder: JobFolder, secret: bytes, host: str, memo: Memo) -> None:
    """Start a controller on this machine that goes on from ``memo``."""
    folder.make()
    folder.keep_token(secret)
    folder.replace("spec.json", msgspec.json.encode(memo.spec))
    journal = Journal(folder.journal)
    journal.seed(memo.job, memo.spec, at=time.time())
    journal.close()
    start_controller(folder.path, listen=f"{host}:0")


def _front(args: argparse.Namespace, spec: Spec, nproc: int, log: Log) -> int:
    from perdure.supervisor.front import Front

    with _alone(spec.name, ""):
        folder = _begun(spec)
        same = ["--job", spec.name, "--nodes", args.nodes, "--spares", str(spec.spares), "--nproc", str(nproc)]
        same += ["--standby", args.standby, "--checks", args.checks, "--phase-deadline", args.phase_deadline]
        same += ["--max-restarts", str(spec.max_restarts), "--node-timeout", str(spec.waits.lease_s)]
        same += ["--no-watch"] if args.no_watch else []
        same += [] if args.log_dir is None else ["--log-dir", os.path.abspath(args.log_dir)]
        launcher = [sys.executable, "-m", "perdure", "run", "--folder", str(folder.path), *same]
        commands = [
            [*launcher, "--node-name", f"n{i}", "--node-index", str(i), "--no-python", "--", *spec.command]
            for i in range(spec.max_nodes + spec.spares)
        ]
        return Front(
            spec.name, commands, secret=folder.token(), addresses=lambda: _published(folder), env=os.environ, log=log
        ).run()


def _launcher(
    args: argparse.Namespace,
    spec: Spec,
    nproc: int,
    log: Log,
    agent: AgentLink,
    *,
    name: str,
    named: str | None,
    host: str,
    secret: bytes,
    addresses: Callable[[], list[Address]],
    start: Callable[[], subprocess.Popen[bytes]] | None,
    end: Callable[[], bool] | None = None,
    take_over: Callable[[Memo], None] | None = None,
    speaks: bool = True,
) -> int:
    outer = Placement.read({key: value for key, value in os.environ.items() if key.startswith("PERDURE_")})
    node = NodeFacts(
        name=name,
        host=host,
        nproc=nproc,
        index=args.node_index,
        domain=args.domain or outer.domain or "",
        command=digest_of(spec.command),
        machine=boot_id(),
        gpus=len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]),
    )
    eye = _eye(args, name)
    config = LauncherConfig(
        job=spec.name,
        node=node,
        command=spec.command,
        speaks=speaks,
        node_name=named,
        max_restarts=spec.max_restarts,
        log_dir=None if args.log_dir is None else Path(args.log_dir),
        doctor=(sys.executable, "-m", "perdure", "doctor"),
        pair=(sys.executable, "-m", "perdure.adapters.torch.pair_check"),
        folder=os.getcwd(),
        controller_log=JobFolder(job_home(), spec.name).log,
        phase_deadlines=args.phase_deadline,
        standby=args.standby == "auto",
        forked_calls=None if eye is None else FORKED_CALLS,
    )
    return Launcher(
        config,
        secret=secret,
        addresses=addresses,
        start_controller=start,
        end_controller=end,
        take_over=take_over,
        env=os.environ if eye is None else {**os.environ, **eye.env},
        log=log,
        agent=agent,
        eye=eye,
    ).run()


def _agents(job: str, node_name: str | None) -> AgentLink:
    from perdure.cli.agentlink import connect_job

    return connect_job(job if node_name is None else f"{job}@{node_name}")


def _prepared(spec: Spec) -> JobFolder:
    """The job's folder, with what its controller is started with."""
    folder = JobFolder(job_home(), spec.name)
    folder.make()
    folder.token()
    folder.replace("spec.json", msgspec.json.encode(spec))
    return folder


def _begun(spec: Spec) -> JobFolder:
    """The job's folder, for a job of this machine alone that begins, or goes on, now: nobody else runs it.

    A controller that waits for launchers of a start before this one goes; what it knew is in the journal.
    """
    end_controller(job_home() / spec.name)
    return _prepared(spec)


def _published(folder: JobFolder) -> list[Address]:
    where = folder.where()
    return [] if where is None else [(where.host, where.port)]


@contextlib.contextmanager
def _alone(job: str, node: str) -> Iterator[None]:
    """Hold the lock of this node's launcher: whoever holds it knows that no other lives here."""
    path = runtime_dir() / f"launcher-{digest_of((job, node))}.lock"
    lock = FileLock.try_acquire(path)
    if lock is None:
        pid = FileLock.holder(path)
        raise CallError(
            f"job {job} runs here already (process {pid}): see perdure job show {job}, or give this one another --job"
        )
    try:
        yield
    finally:
        lock.remove()


def checks_of(text: str, *, several: bool) -> tuple[str, ...]:
    """Return the names of the checks that ``text`` asks for.

    >>> checks_of("cpu,disk", several=False), checks_of("auto", several=False)
    (('cpu', 'disk'), ())
    """
    if text == "auto":
        text = "quick" if several else "none"
    named = {"quick": _QUICK, "full": tuple(PROBES), "none": ()}
    names = named.get(text) if text in named else tuple(filter(None, (name.strip() for name in text.split(","))))
    assert names is not None
    for name in names:
        if name not in PROBES:
            raise CallError(f"there is no check {name!r}; checks are {', '.join(PROBES)}, or quick, full, none")
    return names


def nodes_of(text: str) -> tuple[int, int]:
    """Return the fewest and the most nodes.

    >>> nodes_of("2:4"), nodes_of("3")
    ((2, 4), (3, 3))
    """
    least, colon, most = text.partition(":")
    try:
        return int(least), int(most if colon else least)
    except ValueError:
        raise CallError(f"--nodes {text}: give a number, or MIN:MAX") from None


def _endpoint(args: argparse.Namespace) -> Address | None:
    """Where the launchers meet, if they are to meet anywhere but in this machine."""
    if args.controller:
        host, colon, port = args.controller.rpartition(":")
        return (host, _port("--controller", port)) if colon else (args.controller, _PORT)
    if args.master_addr and nodes_of(args.nodes)[1] > 1 and not args.standalone:
        return (args.master_addr, _port("--master-port", args.master_port))
    return None


def _port(flag: str, text: str) -> int:
    """Return the port that ``text`` says, which a person has written."""
    if text.isdecimal() and 0 < int(text) < 1 << 16:
        return int(text)
    raise CallError(f"{flag}: {text!r} is no port; give HOST:PORT with a port from 1 to 65535")


def _secret(args: argparse.Namespace, job: str, host: str) -> bytes:
    if args.token_file:
        try:
            return Path(args.token_file).read_bytes().strip()
        except OSError as error:
            raise CallError(f"cannot read {args.token_file}: {error.strerror}", file=args.token_file) from error
    if token := os.environ.get("PERDURE_TOKEN"):
        return token.encode()
    if host in _LOOPBACK:
        folder = JobFolder(job_home(), job)
        folder.make()
        return folder.token()
    raise CallError(
        "launchers of several machines need a secret that they share: set PERDURE_TOKEN on each (for example to what "
        "openssl rand -hex 32 prints), or give --token-file"
    )


def _is_ours(host: str) -> bool:
    """Whether ``host`` is an address of this machine."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.bind(address)
        return True
    except OSError:
        return False


def digest_of(words: Sequence[str]) -> str:
    """A short name of ``words``, the same everywhere."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]

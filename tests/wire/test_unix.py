"""Named sockets: private, found by name however long the path, closed to other users."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perdure.clock import Deadline
from perdure.errors import CallError, DeadlineExceeded, ProtocolError, StorageError
from perdure.wire import accept, clear_stale, connect, listen


def now() -> Deadline:
    return Deadline.after(0.0, "the agent")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / ("long" * 40)  # beyond the 107 bytes of a socket's name
    place.mkdir(mode=0o700)
    return place


def test_a_client_finds_the_server_by_a_long_name(folder: Path) -> None:
    with listen(folder / "agent") as listener, connect(folder / "agent", deadline=now()) as client:
        assert (folder / "agent").stat().st_mode & 0o777 == 0o600
        server = accept(listener)
        assert server is not None
        assert accept(listener) is None
        client.send({"hello": 1})
        assert server.recv(Deadline.after(5, "hello"))[0] == {"hello": 1}
        assert (server.peer_pid, server.peer_uid) == (os.getpid(), os.geteuid())
        server.close()


def test_a_client_waits_for_a_server_that_is_still_starting(folder: Path) -> None:
    def serve() -> None:
        time.sleep(0.05)
        listeners.append(listen(folder / "agent"))

    listeners: list[socket.socket] = []
    thread = threading.Thread(target=serve)
    thread.start()
    connect(folder / "agent", deadline=Deadline.after(5, "the agent")).close()
    thread.join()
    listeners[0].close()
    with pytest.raises(DeadlineExceeded, match="nobody listens"):
        connect(folder / "agent", deadline=now())  # a name that nobody serves any more


def test_a_taken_name_is_refused_and_a_dead_one_is_cleared(folder: Path) -> None:
    with listen(folder / "agent"):
        with pytest.raises(StorageError, match="another process listens"):
            listen(folder / "agent")
        with pytest.raises(StorageError, match="another process listens"):
            clear_stale(folder / "agent")
    clear_stale(folder / "agent")
    clear_stale(folder / "agent")
    listen(folder / "agent").close()


def test_what_is_no_socket_is_never_removed(folder: Path) -> None:
    (folder / "agent").write_text("precious")
    with pytest.raises(StorageError, match="not a socket"):
        clear_stale(folder / "agent")
    assert (folder / "agent").read_text() == "precious"


def test_a_folder_open_to_others_is_refused(folder: Path) -> None:
    folder.chmod(0o755)
    with pytest.raises(StorageError, match="closed to others"):
        listen(folder / "agent")


def test_a_name_too_long_for_any_socket_is_a_call_error(folder: Path) -> None:
    with pytest.raises(CallError, match="80 bytes"):
        listen(folder / ("n" * 100))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user")
def test_a_peer_of_another_user_is_refused_on_both_sides() -> None:
    place = Path(f"/tmp/perdure-test-{os.getpid()}")  # pytest's own folders are closed to others
    place.mkdir(mode=0o755)
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-S", "-c"]
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place / "mine"))
            (place / "mine").chmod(0o777)
            listener.listen()
            mine = str(place / "mine")
            code = f"import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect({mine!r}); sys.stdin.read()"
            with subprocess.Popen([*become, code], stdin=subprocess.PIPE) as other:
                with pytest.raises(ProtocolError, match="user 65534"):
                    accept(listener)
                assert other.stdin is not None
                other.stdin.close()
        place.chmod(0o777)
        theirs = place / "theirs"
        code = (
            f"import os,socket,sys; s=socket.socket(socket.AF_UNIX); s.bind({str(theirs)!r}); s.listen();"
            f"os.chmod({str(theirs)!r}, 0o777); print('up', flush=True); sys.stdin.read()"
        )
        with subprocess.Popen([*become, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"up\n"
            with pytest.raises(ProtocolError, match="user 65534"):
                connect(theirs, deadline=now())
            assert other.stdin is not None
            other.stdin.close()
    finally:
        shutil.rmtree(place)

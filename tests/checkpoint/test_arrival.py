"""A pack that arrives from another node: verified on the way, whatever its tensors are, and nothing believed."""

from __future__ import annotations

import socket
import threading

import pytest
from test_wards import sealed, soon

from perdure.checkpoint.arrival import receive_pack
from perdure.checkpoint.memory_packs import headers_digest
from perdure.checkpoint.messages import Packed
from perdure.errors import BlobCorrupt, IntegrityError, LinkLost
from perdure.layout import Layout, Piece, TensorLayout
from perdure.state.index import RankIndex
from perdure.testing.ranks import random_bytes, save_layout, whole_box
from perdure.wire import accept_node, connect_node, listen_node

SECRET = b"k" * 32
Pack = tuple[RankIndex, memoryview]


def announced(pack: Pack) -> Packed:
    index, view = pack
    return Packed(number=0, nbytes=view.nbytes, index=index, headers=headers_digest(index, view))


def many_small() -> Pack:
    """A thousand tensors of a few bytes, and an empty one."""
    shapes = {f"t{number:04}": (number % 7,) for number in range(1000)}
    layout = Layout({k: TensorLayout(s, (Piece.alone(0, whole_box(s)),), "float32") for k, s in shapes.items()})
    saved = save_layout(layout, {k: random_bytes("float32", s, 3) for k, s in shapes.items()}, world=1)
    return saved.indexes["pack0"], memoryview(saved.packs["pack0"])


def transfer(sent: memoryview, packed: Packed) -> object:
    """What `receive_pack` says of ``packed`` if ``sent`` comes, or the bytes; the link must be of use afterwards."""
    listener = listen_node("127.0.0.1")
    into = memoryview(bytearray(packed.nbytes))
    result: list[object] = []

    def serve() -> None:
        with accept_node(listener.accept()[0], {"job": SECRET}.get, deadline=soon()) as link:
            link.recv(soon())
            wrong = receive_pack(link, packed, into, file="a copy", deadline=soon())
            result.append(into if wrong is None else wrong)
            link.send({"n": 2}, deadline=soon())

    thread = threading.Thread(target=serve)
    thread.start()
    with connect_node(listener.getsockname(), name="job", secret=SECRET, deadline=soon()) as link:
        link.send({"n": 1}, sent, deadline=soon())
        link.recv(soon())
    thread.join(20)
    listener.close()
    return result[0]


@pytest.mark.parametrize("pack", [sealed(1), many_small()], ids=["large", "many small"])
def test_what_comes_is_what_was_sent(pack: Pack) -> None:
    assert transfer(pack[1], announced(pack)) == pack[1]


def places_of(pack: Pack) -> list[int]:
    """Bytes of the header's JSON, of its digests, of the first tile and of the last one, and the very last byte."""
    return [20, 200, pack[1].nbytes // 2, pack[1].nbytes - 40_000, pack[1].nbytes - 1]


@pytest.mark.parametrize("number", range(5))
def test_a_bit_that_flips_anywhere_is_found_and_the_link_goes_on(number: int) -> None:
    pack = sealed(1)
    altered = bytearray(pack[1])
    altered[places_of(pack)[number]] ^= 4
    assert isinstance(transfer(memoryview(altered), announced(pack)), IntegrityError)


def test_a_whole_pack_of_another_step_is_refused() -> None:
    """Its digests fit its bytes, but they are not those that were announced."""
    found = transfer(sealed(2)[1], announced(sealed(1)))
    assert isinstance(found, BlobCorrupt)
    assert "announced" in str(found)


def test_a_pack_that_is_shorter_than_its_index_says_is_refused() -> None:
    index, view = sealed(1)
    short = view[: view.nbytes - 4096]
    packed = Packed(number=0, nbytes=short.nbytes, index=index, headers=headers_digest(index, view))
    found = transfer(short, packed)
    assert isinstance(found, BlobCorrupt)
    assert "cut off" in str(found)


def test_a_header_that_says_it_is_longer_than_announced_is_not_followed() -> None:
    pack = sealed(1)
    altered = bytearray(pack[1])
    altered[:8] = (1 << 20).to_bytes(8, "little")
    assert isinstance(transfer(memoryview(altered), announced(pack)), IntegrityError)


def test_a_link_that_breaks_in_the_middle_of_a_pack_ends_the_wait() -> None:
    pack = sealed(1)
    listener = listen_node("127.0.0.1")
    ended: list[object] = []

    def serve() -> None:
        with accept_node(listener.accept()[0], {"job": SECRET}.get, deadline=soon()) as link:
            _, nbytes = link.recv(soon())
            try:
                receive_pack(link, announced(pack), memoryview(bytearray(nbytes)), file="a copy", deadline=soon())
            except LinkLost as error:
                ended.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    link = connect_node(listener.getsockname(), name="job", secret=SECRET, deadline=soon())
    real = link._sock
    link._sock = CutSocket(real)  # type: ignore[assignment]
    with pytest.raises(LinkLost):
        link.send({"n": 1}, pack[1], deadline=soon())
    thread.join(20)
    listener.close()
    real.close()
    assert isinstance(ended[0], LinkLost)


class CutSocket:
    """Breaks when half of a pack has gone out."""

    def __init__(self, real: socket.socket) -> None:
        self._real, self._left = real, 3_000_000

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        self._real.setsockopt(level, option, value)

    def send(self, data: memoryview, flags: int) -> int:
        if self._left <= 0:
            self._real.shutdown(socket.SHUT_RDWR)
            return self._real.send(data, flags)
        sent = self._real.send(data[: self._left], flags)
        self._left -= sent
        return sent

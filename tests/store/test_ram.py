"""The store in memory."""

from pathlib import Path

from perdure.store.api import Store
from perdure.store.ram import Ram
from perdure.testing.store import StoreContract


class TestRam(StoreContract):
    def make_store(self, tmp_path: Path) -> Store:
        return Ram()


def test_a_blob_does_not_follow_the_buffer_it_was_made_from() -> None:
    buffer = bytearray(b"old")
    ram = Ram()
    ram.put("a", [buffer])
    ram.create("b", buffer)
    buffer[:] = b"new"
    assert bytes(ram.read("a")) == bytes(ram.read("b")) == b"old"

"""A large blob streams: what a `put` and a read hold in memory does not grow with it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("obstore", reason="NOT TESTED: object stores; pip install 'perdure[objectstore]'")

STREAM = """
import resource, sys, time
from perdure.adapters.objectstore import ObjectStore

store, size = ObjectStore(sys.argv[1]), int(sys.argv[2]) << 20
store.create("first", b"1")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
buffer = bytearray(3 << 20)
begun = time.monotonic()
store.put("packs/large", (memoryview(buffer)[: min(3 << 20, size - at)] for at in range(0, size, 3 << 20)))
put_s = time.monotonic() - begun
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
into = bytearray(32 << 20)
begun = time.monotonic()
for at in range(0, size, 32 << 20):
    store.read("packs/large", start=at, nbytes=min(32 << 20, size - at), into=into)
read_s = time.monotonic() - begun
assert store.size("packs/large") == size
print((after - before) / 1024, size / put_s / 1e6, size / read_s / 1e6)
"""


@pytest.mark.slow
def test_a_put_of_300_mib_holds_few_parts(place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STREAM, place, "300"], capture_output=True, text=True, timeout=110, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    grown_mib, put_mb_s, read_mb_s = map(float, done.stdout.split())
    print(f"grew by {grown_mib:.0f} MiB; put {put_mb_s:.0f} MB/s, read {read_mb_s:.0f} MB/s")
    assert grown_mib < 12 * 5 + 20  # parts of 5 MiB, and what the clients' threads take

"""A small saver and a thorough reader, for tests of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import pytest
import xxhash

from perdure.store.lineage import Run
from perdure.store.pack import PackItem, plan_pack
from perdure.store.records import Commit, Part

TILE_BYTES = 4096


def save(run: Run, *, epoch: int, parent: int | None, step: int, seq: int = 0, writers: int = 2) -> Commit:
    """One whole save: every writer its pack and part, then the commit. What is saved follows from the step."""
    refs = []
    for writer in range(writers):
        tensors = content(step, writer)
        items = [PackItem(key, str(value.dtype), value.shape, value.nbytes) for key, value in tensors.items()]
        plan = plan_pack(items, tile_bytes=TILE_BYTES)
        header = plan.render_header(tile_digests(tensors))
        chunks = plan.chunks(header, [value.data for value in tensors.values()])
        pack = run.write_pack(chunks, epoch=epoch, step=step, seq=seq, writer=f"w{writer}")
        part = Part(
            run=run.marker.run,
            writer=f"w{writer}",
            epoch=epoch,
            step=step,
            seq=seq,
            base=None,
            packs=(pack,),
            index=msgspec.Raw(b'{"tensors":[]}'),
            leaves=(),
        )
        refs.append(run.write_part(part))
    return run.commit(epoch=epoch, parent=parent, step=step, parts=refs, meta={"step": step})


def content(step: int, writer: int) -> Mapping[str, np.ndarray]:
    """The tensors of a writer at a step."""
    rng = np.random.default_rng([step, writer])
    return {
        "weight": rng.integers(0, 255, (3, 1000), dtype=np.uint8),
        "bias": rng.standard_normal(5).astype(np.float32),
        "empty": np.zeros((0, 4), np.float64),
        "momentum": rng.standard_normal(1000).astype(np.float64),
    }


def tile_digests(tensors: Mapping[str, np.ndarray], tile_bytes: int = TILE_BYTES) -> bytes:
    """The digests that a pack of ``tensors`` records."""
    out = b""
    for value in tensors.values():
        data = value.tobytes()
        out += b"".join(xxhash.xxh3_128_digest(data[i : i + tile_bytes]) for i in range(0, len(data), tile_bytes))
    return out


def check_whole(run: Run, commit: Commit) -> None:
    """Read all that ``commit`` names, check every digest, and compare with what its step must hold."""
    assert commit.meta == {"step": commit.step}
    for ref in commit.parts:
        part = run.read_part(ref)
        assert part.step == commit.step
        index = run.open_pack(part.packs[0])
        for key, value in content(part.step, int(part.writer[1:])).items():
            entry = index.entry(key)
            found = bytearray()
            for tile in index.tile_range(entry, 0, entry.nbytes):
                start, stop = index.tile_span(entry, tile)
                data = run.store.read(part.packs[0].name, start=start, nbytes=stop - start)
                assert xxhash.xxh3_128_digest(data) == index.digest(tile)
                found += data
            assert bytes(found) == value.tobytes()


@pytest.fixture
def save_step() -> Callable[..., Commit]:
    return save


@pytest.fixture
def assert_whole() -> Callable[[Run, Commit], None]:
    return check_whole

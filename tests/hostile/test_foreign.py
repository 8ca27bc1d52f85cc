"""Files of other formats that mean harm: each is refused by name, quickly, in little memory; nothing of it is run."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import foreign as hostile  # noqa: E402

from perdure.adapters.torch.importing import chosen, read_foreign  # noqa: E402
from perdure.adapters.torch.tensors import held_now  # noqa: E402
from perdure.errors import CallError, FormatRefused, PerdureError  # noqa: E402

CASES = hostile.every()
SECONDS = 2.0
MEGABYTES = 100


def understand(source: Path) -> Any:
    """All that an import does up to the save itself."""
    found = chosen(read_foreign(source), names=["*"])
    for tensor in found.tensors:
        for crc in tensor.crcs:
            crc.check(tensor.name)
        for block in tensor.blocks:
            held_now(block)
    return found


def peak_bytes() -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]


def attack(source: Path, pipe: Any) -> None:
    """In a process of its own: what came of it, seconds of work (others share the cores), and bytes on top."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins now
    before, began = peak_bytes(), time.process_time()
    try:
        understand(source)
        told = ("accepted", "")
    except PerdureError as error:
        told = (type(error).__name__, str(error))
    except BaseException as error:
        told = ("failed", f"{type(error).__name__}: {error}")
    pipe.send((*told, time.process_time() - began, peak_bytes() - before))
    pipe.close()
    os._exit(0)


@pytest.mark.parametrize(("name", "make"), CASES, ids=[name for name, _ in CASES])
def test_a_hostile_file_is_refused_by_name_quickly_and_in_little_memory(name: str, make: Any, tmp_path: Path) -> None:
    source = make(tmp_path)
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=attack, args=(source, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(60), "no answer in 60 s"
        kind, sentence, seconds, nbytes = ours.recv()
    finally:
        process.kill()
        process.join(10)
    assert kind == FormatRefused.__name__, (kind, sentence)
    assert str(source) in sentence
    assert seconds < SECONDS, f"{seconds:.1f} s"
    assert nbytes < MEGABYTES * 1_000_000, f"{nbytes:,} bytes"
    assert not (tmp_path / hostile.CANARY).exists()


def test_there_are_hostile_files_of_every_kind() -> None:
    assert len(CASES) >= 100
    assert len({name for name, _ in CASES}) == len(CASES)


def test_the_canary_sings_where_pickle_itself_is_let_loose(tmp_path: Path) -> None:
    """Or else its silence above would prove nothing."""
    path = tmp_path / "hostile.pt"
    path.write_bytes(hostile.PICKLES["a reduce of os.system"](tmp_path))
    torch.load(path, weights_only=False)
    assert (tmp_path / hostile.CANARY).exists()


def test_what_is_wanted_is_named_in_full(tmp_path: Path) -> None:
    path = tmp_path / "hostile.pt"
    path.write_bytes(hostile.PICKLES["a reduce of os.system"](tmp_path))
    with pytest.raises(FormatRefused, match=r"wants 'posix.system': .*nothing of it was run") as caught:
        read_foreign(path)
    assert caught.value.facts["name"] == "posix.system"


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_a_file_cut_at_any_byte_is_refused(kind: str, tmp_path: Path) -> None:
    good, path = _seed(kind), tmp_path / "cut"
    path.write_bytes(good)
    understand(path)
    for at in range(len(good)):
        path.write_bytes(good[:at])
        with pytest.raises(FormatRefused):
            understand(path)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_dcp_folder_with_a_file_cut_at_any_byte_is_refused(name: str, tmp_path: Path) -> None:
    folder = hostile.dcp_folder(tmp_path)
    good = (folder / name).read_bytes()
    understand(folder)
    for at in range(0, len(good), 3 if name == ".metadata" else 11):
        (folder / name).write_bytes(good[:at])
        with pytest.raises(FormatRefused):
            understand(folder)
    (folder / name).unlink()
    with pytest.raises((FormatRefused, CallError)):
        understand(folder)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path / "nothing", tmp_path):
        with pytest.raises(CallError):
            read_foreign(path)


def _seed(kind: str) -> bytes:
    if kind == "safetensors":
        return hostile.safetensors_of({"a": hostile.f32([2], 0, 8), "b": hostile.f32([], 8, 12)}, bytes(range(12)))
    if kind == "legacy":
        return hostile.legacy(hostile.small())
    return hostile.good_zip()

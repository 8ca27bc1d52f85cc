"""Every hostile run is refused by name, with a sentence that says what to do, in 2 s and 200 MB."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import folders
import frames
import good
import packs
import parts
import pytest
import records
from forging import Case, Forged

from perdure.checkpoint.restoring import read_catalog
from perdure.codec import decode
from perdure.errors import BlobCorrupt, FormatRefused, IntegrityError, PerdureError
from perdure.store import Disk, Epoch, Pruned
from perdure.store.records import read_record

CASES: list[Case] = [*records.CASES, *parts.CASES, *packs.CASES, *frames.CASES, *folders.CASES]
SECONDS = 2.0
MEGABYTES = 200
ADVICE = re.compile(
    r"use another copy|remove|upgrade|check the place|copy .* too|choose|see to the storage|needs a newer"
)


def save(folder: Path) -> object:
    run = good.open_run(folder)
    newest = run.read_slot(2)
    return run.commit(epoch=1, parent=2, step=30, parts=newest.parts, meta={})


READERS: dict[str, Callable[[Path], object]] = {
    "open": good.open_run,
    "epoch": lambda folder: read_record(Disk(folder), "epochs/0000000001.json", Epoch),
    "pruned": lambda folder: read_record(Disk(folder), "pruned/0000000001.json", Pruned),
    "claim": lambda folder: good.open_run(folder).claim_epoch("me"),
    "commit": lambda folder: good.open_run(folder).read_slot(2),
    "catalog": lambda folder: read_catalog(good.open_run(folder), 2),
    "all": good.read_all,
    "save": save,
}


@pytest.fixture(scope="session")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "run"
    good.make(folder)
    return folder


@pytest.fixture
def run(good_run: Path, tmp_path: Path) -> Forged:
    shutil.copytree(good_run, tmp_path / "run")
    return Forged(tmp_path / "run")


def test_there_are_many_and_their_names_differ() -> None:
    assert len(CASES) > 300
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_good_run_is_read_whole(good_run: Path) -> None:
    for slot, step in enumerate(good.STEPS, 1):
        assert good.same(good.read_all(good_run, slot), step)
    for name in ("open", "epoch", "commit", "catalog", "all"):
        READERS[name](good_run)


def test_forging_nothing_leaves_a_run_that_is_read_whole(run: Forged) -> None:
    """So what is refused below is refused for what it says, not for a digest that the forger forgot."""
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    for part in (0, 1):
        run.part(lambda body: body, part)
        run.pack(lambda data: data, part)
        run.header(lambda text: text, part)
        for kind in ("tensors", "locals", "aliases", "values"):
            run.leaf(kind, lambda data: data, part)
            run.entries(kind, lambda found: None, part)
    run.commit(lambda body: body)
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    frames.framed(run, lambda frame: frame)
    assert good.same(good.read_all(run.folder), 20)


def peak_bytes() -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]


def attacked(pipe: Any) -> None:
    """In a process of its own, one run after another: what came of it, seconds, bytes above what there were before."""
    gc.disable()
    gc.freeze()  # else a collection would touch, and so copy, all that the parent has
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (1 << 30),) * 2)
    while True:
        reader, folder = pipe.recv()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins now
        before, began = peak_bytes(), time.perf_counter()
        try:
            READERS[reader](folder)
            told = ("accepted", "")
        except PerdureError as error:
            told = (error.kind, str(error))
        except BaseException as error:
            told = ("failed", f"{type(error).__name__}: {error}"[:1000])
        pipe.send((*told, time.perf_counter() - began, peak_bytes() - before))
        gc.collect()


class Victim:
    """A process that reads hostile runs; one that does not answer is killed, and the next run gets another."""

    def __init__(self) -> None:
        self._process: Any = None

    def read(self, reader: str, folder: Path) -> tuple[str, str, float, int]:
        if self._process is None:
            fork = multiprocessing.get_context("fork")
            self._pipe, theirs = fork.Pipe()
            self._process = fork.Process(target=attacked, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        self._pipe.send((reader, folder))
        try:
            if self._pipe.poll(20):
                answer: tuple[str, str, float, int] = self._pipe.recv()
                return answer
        except EOFError:
            self.close()
            pytest.fail("the reader died")
        self.close()
        pytest.fail("no answer in 20 s")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(10)
            self._pipe.close()
            self._process = None


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    made = Victim()
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_hostile_run_is_refused_by_name_quickly_and_in_little_memory(case: Case, run: Forged, victim: Victim) -> None:
    case.make(run)
    kind, sentence, seconds, nbytes = victim.read(case.reader, run.folder)
    assert kind in case.kinds, f"{kind}: {sentence}"
    assert re.search(case.words, sentence), sentence
    assert case.file in sentence, sentence
    assert re.search(r"\.json|\.safetensors|/run/|the saved value 'lr'", sentence), f"names no file: {sentence}"
    assert ADVICE.search(sentence), f"does not say what to do: {sentence}"
    assert len(sentence) < 2000, f"{len(sentence)} characters"
    assert seconds < SECONDS, f"{seconds:.1f} s"
    assert nbytes < MEGABYTES << 20, f"{nbytes >> 20} MB"


@pytest.mark.parametrize("name", frames.ALONE)
def test_a_hostile_frame_alone_is_refused(name: str) -> None:
    change, words = frames.ALONE[name]
    began = time.perf_counter()
    with pytest.raises((FormatRefused, BlobCorrupt), match=words):
        decode(change(frames.GOOD))
    assert time.perf_counter() - began < SECONDS


def test_a_frame_cut_anywhere_is_refused() -> None:
    for nbytes in range(len(frames.GOOD)):
        with pytest.raises((FormatRefused, BlobCorrupt)):
            decode(frames.GOOD[:nbytes])


def boundaries(path: Path) -> set[int]:
    """Where something ends in a file, and each of its first 200 bytes."""
    data = path.read_bytes()
    found = set(range(min(200, len(data))))
    edges = {len(data)} | {
        at + 1 for at, byte in enumerate(data) if byte == ord("\n") and path.suffix != ".safetensors"
    }
    if path.suffix == ".safetensors":
        header_nbytes = 8 + int.from_bytes(data[:8], "little")
        text = data[8:header_nbytes].rstrip()
        edges |= {header_nbytes, 8 + len(text)}
        for key in re.findall(rb"data_offsets\":\[(\d+),(\d+)\]", text):
            edges |= {header_nbytes + int(at) for at in key}
    return {at for edge in edges for at in (edge - 1, edge, edge + 1) if at < len(data)} | found


def refused(reader: str, folder: Path, name: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        READERS[reader](folder)
    assert name in str(caught.value)
    assert ADVICE.search(str(caught.value)), caught.value


def test_a_file_cut_at_any_boundary_is_refused_by_name(run: Forged) -> None:
    n_cuts = 0
    files = {"open": [run.folder / "perdure.json"], "commit": [run.slot], "catalog": run.parts(), "all": run.packs()}
    for reader, paths in files.items():
        for path in paths:
            whole = path.read_bytes()
            for nbytes in sorted(boundaries(path)):
                os.truncate(path, nbytes)
                refused(reader, run.folder, path.name)
                n_cuts += 1
            path.write_bytes(whole)
    assert n_cuts > 1000
    assert good.same(good.read_all(run.folder), 20)


def leaf_sizes(run: Forged) -> dict[str, int]:
    return {leaf[0]: leaf[5] for leaf in json.loads(run.body(run.parts()[0]))["leaves"]}


def test_a_pack_or_leaf_cut_anywhere_is_refused_though_all_digests_fit(run: Forged) -> None:
    """Their lengths and digests are made right again after the cut."""
    kept = {path: path.read_bytes() for path in (run.packs()[1], run.parts()[0], run.slot)}

    def cut(how: Callable[[], None], reader: str) -> None:
        how()
        refused(reader, run.folder, "rank0")
        for path, data in kept.items():
            path.write_bytes(data)

    cuts = sorted(boundaries(run.packs()[1]))[::4]
    for nbytes in cuts:
        cut(lambda n=nbytes: run.pack(lambda data: data[:n]), "all")
    for kind, nbytes in leaf_sizes(run).items():
        for at in {1, 2, nbytes - 2, nbytes - 1, *range(3, nbytes, 7)}:
            cut(lambda n=at, k=kind: run.leaf(k, lambda data: data[:n]), "catalog")
    assert len(cuts) > 50


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a device")
def test_a_device_in_the_place_of_a_pack_is_refused(run: Forged, tmp_path: Path) -> None:
    if not folders.may_make_devices(tmp_path):
        pytest.skip("this container may not make devices")
    folders.device(run)
    with pytest.raises(BlobCorrupt, match="not a plain file"):
        good.read_all(run.folder)


def test_hard_links_are_plain_files(run: Forged) -> None:
    for path in [path for path in run.folder.rglob("*") if path.is_file()]:
        os.link(path, f"{path}.twin")
    assert good.same(good.read_all(run.folder), 20)


def test_a_link_to_the_root_is_followed(run: Forged, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(run.folder)
    assert good.same(good.read_all(tmp_path / "here"), 20)


def test_what_is_not_of_the_run_is_passed_over(run: Forged) -> None:
    deep = run.folder / "packs"
    for _ in range(60):
        deep = deep / ("d" * 200)
        os.mkdir(deep) if len(str(deep)) < 4000 else None
    (run.folder / "slots/0000000009.json.part").write_bytes(b"x")
    (run.folder / "slots/notes with spaces.txt").write_bytes(b"x")
    (run.folder / "slots/9.json").write_bytes(b"x")
    os.mkdir(run.folder / "slots/0000000077.json")
    (run.folder / "slots/0000000078.json").symlink_to("0000000002.json")
    os.mkfifo(run.folder / "slots/0000000079.json")
    opened = good.open_run(run.folder)
    head = opened.head()
    assert head is not None
    assert head.slot == 2
    assert len(opened.store.names("packs/")) == 4
    assert good.same(good.read_all(run.folder), 20)


def test_a_slot_far_above_the_others_costs_no_time(run: Forged) -> None:
    """What lies between is not looked for one by one."""
    (run.folder / "slots/5000000000.json").write_bytes(b"x")
    began = time.perf_counter()
    head = good.open_run(run.folder).head()
    assert head is not None
    assert head.slot == 2
    assert time.perf_counter() - began < SECONDS

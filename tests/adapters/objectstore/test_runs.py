"""A whole run in a bucket: saved and restored, with and without the agent, through killed answers."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="NOT TESTED: runs in object stores; pip install 'perdure[torch]'")
pytest.importorskip("obstore", reason="NOT TESTED: object stores; pip install 'perdure[objectstore]'")

import torch

import perdure
from perdure.adapters.objectstore import ObjectStore
from perdure.clock import SYSTEM
from perdure.errors import TryAgain
from perdure.store import Run, open_store
from perdure.store.retry import Retry

from .rude import Proxy
from .seaweed import SECRET, Seaweed

WITH_AGENT = """
import sys, torch, perdure

url = sys.argv[1]
torch.manual_seed(1)
model = torch.nn.Linear(300, 1000)
ckpt = perdure.Checkpointer(url)
for step in (1, 2):
    with torch.no_grad():
        model.weight.fill_(step)
    assert ckpt.save(step, {"model": model}).committed().slot == step
torch.nn.init.zeros_(model.weight)
assert ckpt.restore({"model": model}) == 2
assert bool((model.weight == 2).all())
ckpt.close()
print("restored")
"""


def test_a_run_is_saved_and_restored_in_one_process(place: str) -> None:
    model = torch.nn.Linear(1000, 3000)  # a pack of more than one part
    ckpt = perdure.Checkpointer(place, agent=False)
    ckpt.save(7, {"model": model}).committed()
    wanted = model.weight.clone()
    torch.nn.init.zeros_(model.weight)
    assert ckpt.restore({"model": model}) == 7
    assert torch.equal(model.weight, wanted)
    ckpt.close()
    assert torch.equal(perdure.load(place)["model.weight"], wanted)
    opened = open_store(place)
    assert isinstance(opened, Retry)
    store = opened.store
    assert isinstance(store, ObjectStore)
    assert max(store.size(name) or 0 for name in store.names("packs/")) > store.place.part_bytes


def test_a_run_is_saved_by_the_agent(place: str, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "PERDURE_JOB": "bucket-test", "PERDURE_LEASE_S": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WITH_AGENT, place], env=env, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert "restored" in done.stdout
    assert SECRET not in done.stdout + done.stderr
    for log in runtime.rglob("*"):
        if log.is_file():
            assert SECRET not in log.read_text(errors="replace")
    assert bool((perdure.load(place)["model.weight"] == 2).all())


@pytest.mark.slow
def test_a_commit_whose_answer_is_lost_with_its_server_is_committed_once(tmp_path: Path) -> None:
    seaweed = Seaweed(tmp_path / "server")
    proxy = None
    try:
        seaweed.start()
        proxy = Proxy(seaweed.endpoint, meanwhile=seaweed.kill)
        url = seaweed.url("bucket/run").replace(seaweed.endpoint, proxy.endpoint)
        store = ObjectStore(url)
        run = Run.open(store, create=True)
        epoch = run.claim_epoch("first")
        proxy.armed = True
        with pytest.raises(TryAgain):
            store.create("slots/0000000001.json", b"ours, with a token")
        assert proxy.lost == 1
        seaweed.start()
        # It is there, and whoever asks again knows it for its own.
        assert store.create("slots/0000000001.json", b"another's") is False
        assert bytes(store.read("slots/0000000001.json")) == b"ours, with a token"
        assert run.newest_epoch() == epoch

        # The same through a store that tries again, while the answer alone is lost.
        retrying = Retry(store, first_wait_s=0.05)
        proxy._meanwhile = lambda: None
        proxy.armed = True
        assert retrying.create("slots/0000000002.json", b"ours") is True
    finally:
        if proxy is not None:
            proxy.close()
        seaweed.stop()


@pytest.mark.slow
def test_a_save_outlives_a_server_that_restarts(tmp_path: Path) -> None:
    seaweed = Seaweed(tmp_path / "server")
    saving = ThreadPoolExecutor(1)
    try:
        seaweed.start()
        url = seaweed.url("bucket/run")
        model = torch.nn.Linear(1000, 3000)  # a pack of more than one part
        ckpt = perdure.Checkpointer(url, agent=False)
        ckpt.save(1, {"model": model}).committed()
        seaweed.kill()
        with torch.no_grad():
            model.weight.fill_(2)
        second = saving.submit(lambda: ckpt.save(2, {"model": model}).committed())
        SYSTEM.sleep(8.0)
        assert not second.done()
        seaweed.start()
        assert second.result(100).slot == 2
        ckpt.close()
        assert bool((perdure.load(url)["model.weight"] == 2).all())
    finally:
        seaweed.stop()
        saving.shutdown(wait=False)

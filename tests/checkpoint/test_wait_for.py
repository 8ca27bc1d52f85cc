"""An evaluator follows a run from a process of its own, which may begin before the run does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import perdure
from perdure.errors import DeadlineExceeded

READER = """
import sys, torch, perdure
reader = perdure.Checkpointer(sys.argv[1], agent=False)
model = torch.nn.Linear(2, 2)
step = 0
print("waits", flush=True)
while step < 3:
    step = reader.wait_for(step_after=step, timeout_s=60)
    perdure.load_into(sys.argv[1], {"model": model}, step=step)
    print(step, float(model.bias[0]), flush=True)
"""


def test_a_process_that_only_reads_follows_a_run_from_before_its_begin(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    reader = subprocess.Popen([sys.executable, "-c", READER, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "waits\n"
        assert not folder.exists(), "who reads makes nothing"
        model = torch.nn.Linear(2, 2)
        ckpt = perdure.Checkpointer(folder, agent=False)
        for step in (1, 3):
            torch.nn.init.constant_(model.bias, step)
            ckpt.save(step, {"model": model}).committed()
            assert reader.stdout.readline() == f"{step} {float(step)}\n"
        ckpt.close()
        assert reader.wait(60) == 0
    finally:
        reader.kill()
        reader.communicate()


def test_whoever_waits_in_vain_is_told_how_far_the_run_is(tmp_path: Path) -> None:
    reader = perdure.Checkpointer(tmp_path / "run", agent=False)
    with pytest.raises(DeadlineExceeded, match=r"a committed step after 0 in .*there is no run there yet"):
        reader.wait_for(step_after=0, timeout_s=0.3)
    assert not (tmp_path / "run").exists()
    ckpt = perdure.Checkpointer(tmp_path / "run", agent=False)
    ckpt.engage()
    with pytest.raises(DeadlineExceeded, match="no step is committed there yet"):
        reader.wait_for(step_after=0, timeout_s=0.3)
    ckpt.save(2, {"w": torch.ones(1)}).committed()
    with pytest.raises(DeadlineExceeded, match="the newest is 2"):
        reader.wait_for(step_after=2, timeout_s=0.3)
    ckpt.close()

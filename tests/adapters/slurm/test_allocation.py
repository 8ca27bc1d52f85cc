"""What a process learns of its allocation, from made-up environments and from a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.adapters.slurm.allocation import Allocation, Step, seconds_left
from perdure.errors import CallError
from perdure.testing.slurm import Slurm

_BATCH = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NODEID": "0", "SLURM_NTASKS": "3"}
_STEP = {"SLURM_STEP_ID": "0", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_NUM_TASKS": "3"}


def test_outside_of_slurm_there_is_no_allocation() -> None:
    assert Allocation.read({"HOME": "/root", "SLURM_CONF": "/etc/slurm/slurm.conf"}) is None


def test_a_batch_script_is_in_no_step_though_it_has_a_node_id() -> None:
    allocation = Allocation.read(_BATCH)

    assert allocation == Allocation(job=7, nodes=("n1", "n2", "n3"))


def test_an_interactive_shell_is_in_no_step() -> None:
    allocation = Allocation.read({**_BATCH, **_STEP, "SLURM_STEP_ID": "4294967290"})

    assert allocation is not None
    assert allocation.step is None


def test_a_task_knows_its_place_in_its_step() -> None:
    allocation = Allocation.read({**_BATCH, **_STEP, "SLURM_RESTART_COUNT": "2"})

    assert allocation is not None
    assert allocation.step == Step(node_index=1, nodes=("n1", "n2", "n3"), n_tasks=3)
    assert allocation.step.one_task_a_node
    assert allocation.restarts == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"SLURM_JOB_NODELIST": ""}, "SLURM_JOB_NODELIST"),
        ({"SLURM_JOB_ID": "seven"}, "SLURM_JOB_ID"),
        ({"SLURM_RESTART_COUNT": "-1"}, "SLURM_RESTART_COUNT"),
        ({**_STEP, "SLURM_NODEID": "3"}, "SLURM_NODEID is 3"),
        ({**_STEP, "SLURM_STEP_NUM_TASKS": ""}, "SLURM_STEP_NUM_TASKS is not set"),
        ({"SLURM_JOB_NODELIST": "n[1-"}, "list of hosts"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict[str, str], says: str) -> None:
    with pytest.raises(CallError, match=says):
        Allocation.read({**_BATCH, **change})


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_the_time_left_is_read_however_slurm_writes_it(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    assert seconds_left(f"{days}-{hours:02}:{minutes:02}:{seconds:02}\n") == total
    if not days:
        assert seconds_left(f"{hours}:{minutes:02}:{seconds:02}") == total
        if not hours:
            assert seconds_left(f"{minutes}:{seconds:02}") == total


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "1-"])
def test_a_time_left_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CallError, match="squeue"):
        seconds_left(text)


def test_a_real_slurm_tells_the_same(slurm: Slurm, tmp_path: Path) -> None:
    out = tmp_path / "out"
    body = (
        f"printenv -0 >{tmp_path}/batch; squeue -h -j $SLURM_JOB_ID -o %L\n"
        f"srun sh -c 'printenv -0 >{tmp_path}/task.$SLURM_PROCID'"
    )
    job = slurm.submit("--nodes=3", "--ntasks-per-node=1", "--time=10", f"--output={out}", "--wrap", body)
    slurm.wait_job(job, {"COMPLETED"})

    in_batch = Allocation.read(_printed(tmp_path / "batch"))
    assert in_batch is not None
    assert (in_batch.job, in_batch.nodes, in_batch.step) == (job, slurm.nodes[:3], None)
    seconds = seconds_left(out.read_text())
    assert seconds is not None
    assert 0 < seconds <= 600
    in_step = [Allocation.read(_printed(file)) for file in tmp_path.glob("task.*")]
    assert len(in_step) == 3
    for allocation in in_step:
        assert allocation is not None
        assert allocation.step is not None
        assert allocation.step.one_task_a_node
        assert allocation.node_name == allocation.step.nodes[allocation.step.node_index]
    assert {allocation.node_name for allocation in in_step if allocation} == set(slurm.nodes[:3])


def _printed(file: Path) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in file.read_text().split("\0") if "=" in entry)

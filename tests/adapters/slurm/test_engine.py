"""How launchers are started in an allocation, as command lines."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.adapters.slurm.allocation import Allocation, Step
from perdure.adapters.slurm.engine import Counts, counts, free_port, needs_step, node_address, ports, start
from perdure.errors import CallError, NeedsPerson

_FOUR = Allocation(job=7, nodes=("n1", "n2", "n3", "n4"), node_name="n1")


def _in_step(*nodes: str, n_tasks: int) -> Allocation:
    step = Step(node_index=0, nodes=nodes, n_tasks=n_tasks)
    return Allocation(job=7, nodes=_FOUR.nodes, node_name=nodes[0], step=step)


def test_a_batch_script_starts_a_step_and_so_does_an_interactive_shell() -> None:
    assert needs_step(_FOUR)
    assert needs_step(_in_step("n1", n_tasks=1))


def test_a_task_among_one_a_node_and_an_allocation_of_one_node_start_none() -> None:
    assert not needs_step(_in_step("n1", "n2", n_tasks=2))
    assert not needs_step(Allocation(job=7, nodes=("n1",)))


def test_a_step_with_several_tasks_a_node_is_refused() -> None:
    with pytest.raises(CallError, match="16 tasks on 2 nodes"):
        needs_step(_in_step("n1", "n2", n_tasks=16))


@given(st.integers(1, 50), st.one_of(st.none(), st.integers(-1, 50)), st.integers(-1, 50))
def test_nodes_and_spares_fit_into_the_allocation_or_are_refused(
    n_allocated: int, n_nodes: int | None, n_spares: int
) -> None:
    try:
        use = counts(n_allocated, n_nodes=n_nodes, n_spares=n_spares)
    except CallError:
        wanted = n_allocated - n_spares if n_nodes is None else n_nodes
        assert n_spares < 0 or wanted < 1 or wanted + n_spares > n_allocated
        return
    assert use.n_nodes >= 1
    assert use.n_spares >= 0
    assert use.n_nodes + use.n_spares <= n_allocated
    assert use.n_nodes == (n_allocated - n_spares if n_nodes is None else n_nodes)


def test_the_step_has_one_task_on_each_node_and_survives_the_loss_of_any() -> None:
    begun = start(
        _FOUR,
        ["--nproc", "8", "--", "python", "train.py"],
        env={"HOME": "/home/a", "SLURM_CPUS_PER_TASK": "1", "SLURM_NTASKS": "32", "SLURM_JOB_ID": "7"},
        controller="10.0.0.1:20500",
        token="secret-of-the-job",
        use=Counts(n_nodes=3, n_spares=1),
        python="/opt/python",
    )

    words = list(begun.command)
    end = words.index("/opt/python")
    assert words[0] == "srun"
    assert {"--nodes=4", "--ntasks=4", "--ntasks-per-node=1"} <= set(words[:end])
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0"} <= set(words[:end])
    run = " ".join(words[end + 1 :])
    assert run.startswith("-m perdure run --engine slurm-node --controller 10.0.0.1:20500 --nodes 3 --spares 1 ")
    assert run.endswith(" --spares 1 --nproc 8 -- python train.py")
    assert begun.env == {"HOME": "/home/a", "SLURM_JOB_ID": "7", "PERDURE_TOKEN": "secret-of-the-job"}
    assert not any("secret-of-the-job" in word for word in words)


def test_ports_follow_from_their_seed_and_lie_below_those_of_outgoing_connections() -> None:
    assert list(ports("7 0")) == list(ports("7 0")) != list(ports("7 1"))
    assert all(20_000 <= port < 32_000 for port in ports("7 0"))


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.create_server(("", 0)) as server:
        taken = server.getsockname()[1]
        free = free_port(iter([taken, *ports("a test")]))
        assert free != taken
        with pytest.raises(NeedsPerson, match=str(taken)):
            free_port(iter([taken]))


def test_a_node_without_an_address_is_refused() -> None:
    with pytest.raises(CallError, match="address"):
        node_address("NodeName=n1 Arch=x86_64")

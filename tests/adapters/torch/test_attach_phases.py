"""What the page says of a loop: an evaluation is a phase of its own, so that it is not taken for a step that hangs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from perdure.adapters.torch.attach import attach
from perdure.adapters.torch.device_copy import _Copying
from perdure.adapters.torch.run import Run
from perdure.clock import Deadline
from perdure.progress import Page, Phase, Record

from .conftest import SHORT

pytestmark = pytest.mark.usefixtures("unhooked")


@pytest.fixture
def record() -> Iterator[Record]:
    with Page.create(1) as page:
        record = page.rank(0)
        record.claim(rank=0)
        yield record


def watched(
    place: str, record: Record, model: nn.Module, loader: object = None, every: int = 100
) -> tuple[Run, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, to=place, every=every, loader=loader, agent=False, deadlines=SHORT)
    run._record = record  # that of a node's agent, in a run that has one
    return run, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("drawn", [False, True])
def test_an_evaluation_is_a_phase_that_begins_anew_with_each_batch(ram_url: str, record: Record, drawn: bool) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.1))
    loader = DataLoader([torch.ones(1)] * 8, batch_size=2) if drawn else None  # type: ignore[arg-type]
    run, optimizer = watched(ram_url, record, model, loader)
    for x in loader or [torch.ones(1)] * 4:
        if run.step > 0:
            assert record.phase is (Phase.FORWARD if drawn else Phase.EVALUATING)
        train(model, optimizer, x)
        assert record.phase is Phase.FORWARD
        model.eval()
        with torch.no_grad():
            model(x)
            assert record.phase is Phase.EVALUATING
            since = record.phase_since_ns
            model(x)
            assert record.phase_since_ns > since
        model.train()
    model(torch.ones(1))
    assert record.phase is Phase.FORWARD
    run.close()
    assert record.phase is Phase.FINISHED


def test_what_a_script_evaluates_after_its_run_is_closed_is_no_phase(ram_url: str, record: Record) -> None:
    model = nn.Linear(1, 1)
    run, optimizer = watched(ram_url, record, model)
    train(model, optimizer, torch.ones(1))
    run.close()
    with torch.no_grad():
        model(torch.ones(1))
    assert record.phase is Phase.FINISHED


def test_a_compiled_forward_has_no_break_for_it(ram_url: str, record: Record) -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    loader = DataLoader([torch.ones(1)] * 4, batch_size=2)  # type: ignore[arg-type]
    run, optimizer = watched(ram_url, record, model, loader)
    model.compile(backend="eager", fullgraph=True)
    for x in loader:
        train(model, optimizer, x)
    assert run.step == 2
    run.close()


def test_a_rank_says_when_nothing_is_lost_by_killing_it(
    ram_url: str, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    may, finish = threading.Event(), _Copying.finish

    def held(copying: _Copying) -> None:
        assert may.wait(20)
        finish(copying)

    monkeypatch.setattr(_Copying, "finish", held)
    run, optimizer = watched(ram_url, record, model := nn.Linear(1, 1), every=1)
    assert not record.expendable  # the record is a test's: the run had another one when it began
    train(model, optimizer, torch.ones(1))
    loss = model(torch.ones(1)).sum()  # the save of step 1 has begun
    assert not record.expendable
    may.set()
    run._last.staged()
    deadline = Deadline.after(10.0, "the copying thread to say so")
    while not record.expendable:
        deadline.check()
    loss.backward()
    optimizer.step()
    assert record.expendable
    run.close()
    assert not record.expendable


def test_a_rank_whose_script_hears_sigterm_is_asked(ram_url: str, record: Record) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        run, optimizer = watched(ram_url, record, model := nn.Linear(1, 1))
        train(model, optimizer, torch.ones(1))
        assert not record.expendable
        run.close()
    finally:
        signal.signal(signal.SIGTERM, before)

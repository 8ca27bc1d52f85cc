"""How a script under `attach` ends, and what is saved then: at its end, by an exception, by ``sys.exit``."""

from __future__ import annotations

import re

import pytest

from conftest import Place, await_that

SCRIPT = """
import sys, torch, perdure
place, agent, steps, end = sys.argv[-1], sys.argv[3] == "agent", int(sys.argv[4]), sys.argv[5]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
run = perdure.attach(model, optimizer, to=place, every=4, agent=agent)
sys.stdout.write(f"BEGAN {run.step}\\n")
while run.step < steps:
    optimizer.zero_grad()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
sys.stdout.write(f"WEIGHT {model[0].weight.tolist()} END\\n")  # in one piece: other threads write too
if end == "error":
    raise RuntimeError("the loop broke")
if end == "refused":
    perdure.Checkpointer("ram://x").restore({}, step=7)
if end == "exit":
    sys.exit(3)
"""


def ended(place: Place, *, steps: int, agent: bool = False, end: str = "clean", code: int = 0, to: str = "run") -> str:
    """Run the script to its end and return what it printed; it must end with ``code``."""
    script = place.folder / "script.py"
    script.write_text(SCRIPT)
    argv = ("agent" if agent else "alone", str(steps), end, str(place.folder / to))
    one = place.start(*argv, world=1, bare=True, script=str(script), PERDURE_LEASE_S="0.5")
    assert one.wait() == [code], one.text()
    return one.out(0)


def test_a_clean_exit_saves_the_last_step(place: Place) -> None:
    ended(place, steps=6)
    assert place.steps() == [4, 6]


@pytest.mark.parametrize(("end", "code"), [("error", 1), ("refused", 65)])
@pytest.mark.parametrize("agent", [False, True])
def test_an_exception_saves_nothing_more_but_what_was_under_way_becomes_durable(
    place: Place, end: str, code: int, agent: bool
) -> None:
    said = ended(place, steps=5, agent=agent, end=end, code=code)
    assert "Traceback" in said
    await_that(lambda: place.slots() == 1, "step 4 to be written")
    assert place.steps() == [4]


def test_an_exit_that_was_asked_for_is_clean(place: Place) -> None:
    ended(place, steps=6, end="exit", code=3)
    assert place.steps() == [4, 6]


@pytest.mark.parametrize("agent", [False, True])
def test_a_script_that_is_run_again_goes_on_bit_for_bit(place: Place, agent: bool) -> None:
    whole = ended(place, steps=10, to="whole")
    ended(place, steps=6, agent=agent)
    assert place.steps() == [4, 6]
    said = ended(place, steps=10, agent=agent)
    assert "BEGAN 6" in said
    weights = re.findall("WEIGHT (.*) END", whole)
    assert len(weights) == 1
    assert re.findall("WEIGHT (.*) END", said) == weights
    assert place.steps() == [4, 6, 8, 10]
    await_that(lambda: place.agent_pid() is None, "the agent to leave when its lease is over")

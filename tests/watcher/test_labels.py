"""Every label has a class, and the classes say what the taxonomy says."""

from __future__ import annotations

import pytest

from perdure.watcher.labels import CLASSES, Action, Label, Owner


@pytest.mark.parametrize("label", Label)
def test_every_label_says_who_must_act_and_what_it_means(label: Label) -> None:
    its = CLASSES[label]
    assert isinstance(its.owner, Owner)
    assert isinstance(its.action, Action)
    assert its.means


def test_no_other_label_has_a_class() -> None:
    assert set(CLASSES) == set(Label)


def test_a_label_begins_with_where_its_cause_lies() -> None:
    assert {label.split(".")[0] for label in Label} == {"hw", "infra", "sw", "train", "transient"}


def test_only_what_lies_with_a_machine_or_what_it_hangs_on_replaces_a_node() -> None:
    evicting = {label for label, its in CLASSES.items() if its.action is Action.EVICT}
    assert all(label.startswith(("hw.", "infra.")) for label in evicting)
    assert all(CLASSES[label].owner in (Owner.NODE, Owner.INFRA) for label in evicting)

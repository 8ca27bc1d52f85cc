"""How much each feature of `prose` counts, for what it is asked and for whether it holds now.

Fitted on the first 80 dialogues of ``bench/data/updates_dev.jsonl``, with the sign of each given beforehand.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FILLS", "HOLDS"]

FILLS: Final = {
    "words": 0.84,
    "words_before": -1.21,
    "family": 0.43,
    "kind": 0.61,
    "news": 0.43,
    "by_subject": 0.61,
    "by_other": -0.57,
    "names_turn": 0.2,
    "aide": -2.0,
    "mine": -0.08,
    "musing": -1.37,
    "musing_turn": -0.46,
    "asked": -0.52,
    "length": 1.73,
    "turn_length": 0.4,
    "self": -0.02,
    "place": 0.46,
    "yes_retraction": 1.04,
    "elsewhere": -0.33,
    "third": -0.76,
    "yours": -0.16,
    "class": 0.53,
    "about_class": 0.59,
    "about": 0.58,
    "about_kind": 0.94,
    "about_family": 0.46,
}
"""Whether a statement speaks of what is asked."""

HOLDS: Final = {
    "fills": 0.46,
    "fills_turn": 0.25,
    "musing": -1.61,
    "kin_turn": -0.32,
    "elsewhere_turn": -0.22,
    "third": -1.12,
    "self": -0.11,
    "event_about": 0.6,
    "later_event": 1.23,
    "class": 1.05,
    "same_class_later": 1.65,
    "update_about": 2.49,
    "update_turn": 0.4,
    "correction": 0.7,
    "correction_turn": 1.01,
    "retraction_about": 1.36,
    "yes_retraction": 2.83,
    "later_cue": 0.94,
    "alike": 0.63,
    "alike_later": 1.96,
    "same_kind": 1.16,
    "same_kind_later": 2.1,
    "by_subject": 0.97,
    "aide": -2.0,
    "asked": -0.37,
    "later_other_words": -0.35,
}
"""Beside that, whether it holds now."""

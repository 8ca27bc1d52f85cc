"""How much each feature of `prose` counts, for what it is asked and for whether it holds now.

Fitted on the first 80 dialogues of ``bench/data/updates_dev.jsonl``, with the sign of each given beforehand.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FILLS", "HOLDS"]

FILLS: Final = {
    "words": 0.86, "words_before": -1.37, "family": 0.51, "kind": 0.6, "kind_turn": 0.02, "news": 0.48,
    "by_subject": 0.66, "by_other": -0.61, "names": 0.19, "names_turn": 0.14, "aide": -1.0, "mine": -0.09,
    "musing": -1.44, "musing_turn": -0.4, "asked": -0.54, "length": 1.65, "turn_length": 0.35, "self": 0.04,
    "place": 0.44, "yes_retraction": 1.09, "elsewhere": -0.31, "class": 0.63, "about_class": 0.56, "about": 0.49,
    "about_kind": 0.98, "about_family": 0.34,
}
"""Whether a statement speaks of what is asked."""

HOLDS: Final = {
    "fills": 0.51, "fills_turn": 0.28, "musing": -1.63, "kin_turn": -0.16, "elsewhere_turn": -0.04, "event": 0.14,
    "event_turn": 0.21, "later_event": 1.21, "class": 0.86, "same_class_later": 1.63, "update": 1.95,
    "update_turn": 0.38, "correction": 0.71, "correction_turn": 0.91, "retraction": 0.62, "yes_retraction": 3.53,
    "later_cue": 1.06, "alike": 1.03, "alike_later": 1.79, "same_kind": 1.1, "same_kind_later": 1.57,
    "by_subject": 1.05, "aide": -1.0, "asked": -0.39, "later_other_words": -0.46,
}
"""Beside that, whether it holds now."""

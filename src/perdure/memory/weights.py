"""How much each feature of `prose` counts, for what it is asked and for whether it holds now.

Fitted on the first 80 dialogues of ``bench/data/updates_dev.jsonl``, with the sign of each given beforehand.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FILLS", "HOLDS"]

FILLS: Final = {
    "words": 0.81, "words_before": -1.31, "family": 0.83, "kind": 0.7, "kind_turn": 0.04, "news": 0.37,
    "by_subject": 0.73, "by_other": -0.68, "names": 0.07, "names_turn": 0.4, "kin": -0.12, "kin_turn": -0.25,
    "mine": -0.27, "musing": -1.58, "musing_turn": -0.47, "asked": -0.62, "length": 1.94, "turn_length": 0.29,
    "self": 0.13, "place": 0.61, "yes_retraction": 0.93, "elsewhere": -0.12, "about": 0.56, "about_kind": 0.84,
    "about_family": 0.09,
}
"""Whether a statement speaks of what is asked."""

HOLDS: Final = {
    "fills": 0.59, "fills_turn": 0.34, "recent": 0.22, "later_valid": 0.04, "musing": -1.99, "kin_turn": -0.21,
    "elsewhere_turn": -0.56, "update": 1.92, "correction": 1.27, "correction_turn": 1.32, "retraction": 0.95,
    "yes_retraction": 2.96, "later_cue": 1.77, "alike": 1.18, "alike_later": 1.13, "same_kind": 1.28,
    "same_kind_later": 0.7, "same_speaker_later": 0.2, "by_subject": 0.87, "aide": -0.25, "asked": -0.18,
    "later_other_words": 0.6,
}
"""Beside that, whether it holds now."""

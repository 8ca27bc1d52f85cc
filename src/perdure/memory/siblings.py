"""Things of one kind that are not each other: who asks for the kitchen is not told of the bathroom.

A compact table of everyday English. A statement that speaks of a sibling of what is asked for, and not of that, is
likely about something else.
"""

from __future__ import annotations

from typing import Final

from perdure.memory.slots import stem

__all__ = ["has_sibling"]

_GROUPS: Final = (
    "kitchen bathroom bedroom hallway hall office attic basement cellar garage balcony garden nursery study lounge",
    "dentist physio physiotherapist doctor gp vet optician dermatologist hairdresser barber therapist surgeon"
    " cardiologist allergist midwife gym",
    "home house car travel life health pet contents bike phone flat van",
    "passport licence permit visa card id membership",
    "breakfast lunch dinner brunch supper snack",
    "piano guitar violin cello drums trumpet clarinet flute",
    "dog cat rabbit parrot hamster tortoise horse hen",
    "staging production prod test dev sandbox preview",
    "eu us uk asia apac emea",
    "front back side garage cellar",
    "android ios web desktop mobile windows linux mac",
    "frontend backend gateway database cache queue worker scheduler notifier",
    "gas electricity water internet heating wifi",
    "standup retro planning review demo sync",
    "winter summer spring autumn fall",
    "monthly weekly daily yearly annual quarterly",
    "poster slides paper abstract thesis report essay proposal application ethics",
    "upstairs downstairs",
    "knee hip shoulder elbow ankle wrist tooth eye",
    "football swimming tennis yoga judo ballet chess pottery",
    "guest guests staff visitors",
    "rent mortgage deposit salary bonus pension",
    "engagement wedding birthday christening funeral anniversary graduation",
)
_OF: Final[dict[str, set[str]]] = {}
for _group in _GROUPS:
    _words = {stem(each) for each in _group.split()}
    for _word in _words:
        _OF.setdefault(_word, set()).update(_words - {_word})


def has_sibling(asked: frozenset[str], stems: set[str]) -> bool:
    """Whether ``stems`` have a sibling of a word that is asked for, and none of the words that have siblings."""
    theirs = [word for word in asked if word in _OF]
    return bool(theirs) and not any(word in stems for word in theirs) and any(_OF[word] & stems for word in theirs)

"""The stem of an English word: Porter's algorithm (1980), and the forms that no rule gives.

*went* and *go*, *children* and *child* are one word to who asks. Words of other languages, names and numbers mostly
come back as they are, and what is cut off is cut off in questions too, so that they still meet.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["stem"]

_IRREGULAR: Final = {
    form: base
    for base, forms in (
        line.split(":")
        for line in [
            "go:went gone goes",
            "buy:bought",
            "bring:brought",
            "think:thought thoughts",
            "teach:taught",
            "catch:caught",
            "fight:fought",
            "seek:sought",
            "win:won",
            "lose:lost",
            "meet:met",
            "run:ran",
            "swim:swam swum",
            "sing:sang sung",
            "begin:began begun",
            "drink:drank drunk",
            "ring:rang rung",
            "sink:sank sunk",
            "write:wrote written",
            "ride:rode ridden",
            "drive:drove driven",
            "rise:rose risen",
            "speak:spoke spoken",
            "break:broke broken",
            "choose:chose chosen",
            "freeze:froze frozen",
            "steal:stole stolen",
            "wake:woke woken",
            "wear:wore worn",
            "tear:tore torn",
            "grow:grew grown",
            "know:knew known",
            "throw:threw thrown",
            "fly:flew flown",
            "draw:drew drawn",
            "take:took taken",
            "shake:shook shaken",
            "give:gave given",
            "see:saw seen",
            "eat:ate eaten",
            "fall:fell fallen",
            "hide:hid hidden",
            "bite:bit bitten",
            "forget:forgot forgotten",
            "get:got gotten",
            "come:came",
            "become:became",
            "make:made",
            "say:said",
            "tell:told",
            "sell:sold",
            "hold:held",
            "find:found",
            "feel:felt",
            "keep:kept",
            "sleep:slept",
            "leave:left",
            "mean:meant",
            "build:built",
            "send:sent",
            "spend:spent",
            "lend:lent",
            "hear:heard",
            "read:reading",
            "lead:led",
            "feed:fed",
            "sit:sat",
            "stand:stood",
            "understand:understood",
            "pay:paid",
            "lay:laid",
            "shoot:shot",
            "hang:hung",
            "stick:stuck",
            "strike:struck",
            "child:children kids kid",
            "person:people",
            "man:men",
            "woman:women",
            "foot:feet",
            "tooth:teeth",
            "mouse:mice",
            "life:lives",
            "wife:wives",
            "knife:knives",
            "leaf:leaves",
            "shelf:shelves",
            "wolf:wolves",
            "half:halves",
            "good:better best",
            "bad:worse worst",
            "mom:mum mother mommy",
            "dad:father daddy",
            "photo:photograph photography photos pic pics picture pictures",
            "dry:dried",
            "die:died dying",
            "lie:lying",
            "tie:tied tying",
            "dream:dreamt",
            "learn:learnt",
            "burn:burnt",
            "cat:kitten kittens",
            "dog:puppy puppies pup pups",
            "bike:bicycle",
            "phone:telephone",
            "tv:television",
            "cello:celli",
            "movie:film films",
        ]
    )
    for form in forms.split()
}

_VOWEL: Final = re.compile(r"[aeiouy]")
_STEP2: Final = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("abli", "able"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"),
)  # fmt: skip
_STEP3: Final = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip
_STEP4: Final = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize", "ion",
    "al", "er", "ic", "ou",
)  # fmt: skip


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Return the stem of a word in lower case.

    >>> [stem(word) for word in ("paintings", "painted", "went", "relational", "happy", "children", "東京", "x1")]
    ['paint', 'paint', 'go', 'relat', 'happi', 'child', '東京', 'x1']
    """
    word = _IRREGULAR.get(word, word)
    if len(word) <= 2 or not (word.isascii() and word.isalpha()):
        return word
    word = _plural_and_past(word)
    if word.endswith("y") and _VOWEL.search(word[:-1]):
        word = word[:-1] + "i"
    for endings in (_STEP2, _STEP3):
        for ending, instead in endings:
            if word.endswith(ending):
                head = word[: -len(ending)]
                word = head + instead if _measure(head) > 0 else word
                break
    for ending in _STEP4:
        if word.endswith(ending):
            head = word[: -len(ending)]
            if _measure(head) > 1 and (ending != "ion" or head.endswith(("s", "t"))):
                word = head
            break
    if word.endswith("e"):
        head = word[:-1]
        if _measure(head) > 1 or (_measure(head) == 1 and not _short(head)):
            word = head
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _plural_and_past(word: str) -> str:
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        head = word[: -len(ending)]
        if word.endswith(ending) and _VOWEL.search(head):
            if head.endswith(("at", "bl", "iz")):
                return head + "e"
            if len(head) > 1 and head[-1] == head[-2] and head[-1] not in "aeioulsz":
                return head[:-1]
            return head + "e" if _measure(head) == 1 and _short(head) else head
    return word


def _sorts(word: str) -> str:
    """``c`` for each consonant, ``v`` for each vowel."""
    found = ""
    for at, letter in enumerate(word):
        vowel = letter in "aeiou" or (letter == "y" and at > 0 and found[-1] == "c")
        found += "v" if vowel else "c"
    return found


def _measure(word: str) -> int:
    return _sorts(word).count("vc")


def _short(word: str) -> bool:
    return _sorts(word).endswith("cvc") and word[-1] not in "wxy"

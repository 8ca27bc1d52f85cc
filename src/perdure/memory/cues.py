"""Words that tell how a statement stands to what was said before: that it replaces, corrects, takes back or muses."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = [
    "called_off",
    "given_up",
    "is_again",
    "is_asked",
    "is_correction",
    "is_denial",
    "is_elsewhere",
    "is_event",
    "is_musing",
    "is_past",
    "is_retraction",
    "is_update",
    "moved_to",
    "plainly",
    "put_off",
]

_UPDATE: Final = re.compile(
    r"\b(?:now|nowadays|these days|no longer|any ?more|instead|as of|from now on|starting|since (?:last|this|the)"
    r"|changed?"
    r"|switch(?:ed|ing)?|replac(?:ed|es|ing)|moved?|moving|swapped|upgraded|renamed|became|becomes|took over|takes over"
    r"|handed|transferred|promoted|rebooked|rescheduled|postponed|pushed|brought forward|shifted|put (?:me|us|her|him)"
    r"|updated?|new|raised|lowered|bumped|went (?:up|down)|back (?:to|on|at|in|with)|just (?:signed|started|switched)"
    r"|jetzt|nunmehr|inzwischen|nicht mehr|désormais|maintenant|ahora|ya no|agora)\b",
    re.IGNORECASE,
)
_CORRECTION: Final = re.compile(
    r"\b(?:i mean(?:t)?|meant to (?:say|write)|correction|typo|mistyped|misread|misheard|misspoke|my mistake|my bad"
    r"|i was wrong|got (?:it|that|this) wrong|was mistaken|mixed (?:\w+ ){0,3}up|scratch that|make that"
    r"|should (?:be|read|say|have (?:been|said))|not what i|wrong (?:one|way|day|number|name)|upside down|strike that"
    r"|ignore (?:that|what|my)|in fact|actually|the right one|only heard half|half right|you (?:had|got|wrote"
    r"|meant)|(?:it|they|he|she|letter|box|label|ticket|sign|form|sheet|page|receipt) says?|turns out|turned out"
    r"|check(?:ed|ing)|looked (?:it up|again|closer)|re-?read|mis\\w{3,}|confus(?:ed|ing)|mistaken?|errors?"
    r"|corrected|fix(?:ed)? (?:that|it|the)|other way (?:a)?round|(?:flipped|transposed|swapped) the (?:digits"
    r"|letters|names|numbers)|the receipt|the small print|laughed at me|thinking of|never listens"
    r"|to be precise|apolog\\w+|whoops|d'oh|was wrong|is wrong|not quite|pardon|put (?:that|it) right|gemeint"
    r"|je voulais dire|quise decir)\b"
    r"|^(?:sorry|oops|wait|no|stop|hang on|hold on)[,!.]|^\*",
    re.IGNORECASE,
)
_MUSING: Final = re.compile(
    r"\b(?:might|(?:i|we|you|he|she|they|it|that|this) may|maybe|perhaps|possibly|(?<!best )(?:i|we|you|they|he|she)"
    r" could"
    r"|would|wouldn't"
    r"|should(?! (?:be|read|say))|if (?!you\b|u\b|any|some|who)|unless|thinking (?:of|about)|thought about"
    r"|consider(?:ing)?|toying|dream(?:s|ed|ing)?|wish|hope|hoping|imagine|tempted|fancy|fantasi[sz]\w+|someday|one day"
    r"|some day|one of these days|at some point|eventually|not sure|no idea|doubt|wonder(?:ing)?|suppose|rumou?r\w*"
    r"|supposedly|apparently|keeps? (?:sending|asking|telling|saying|nagging)|swears by|raves about|look at|browsing"
    r"|window shopping|pretend\w*|in theory|wants? (?:me|us|him|her) to|do you think|what if|ought|would love"
    r"|undecided|torn|debating|eyeing|on the fence|suggest(?:s|ed)?|propos(?:e|es|ed|al)|pitch(?:ed)?|tempting"
    r"|not (?:yet|decided|sure)|haven't (?:decided|signed)|lets? see|let's see|we'll see|wait and see"
    r"|fingers crossed|asked (?:for )?a quote|in another life|next life|if only|vielleicht|peut-être|quizás)\b",
    re.IGNORECASE,
)
_EVENT: Final = re.compile(
    r"\b(?:signed|bought|sold|gave|given|picked|chose|chosen|settled on|ended up|opted|went with|voted|winner|agreed"
    r"|approved|allowed|offered|accepted|traded|expired|renew(?:ed|al)|broke|died|axed|cancell?ed|fell through"
    r"|retired|quit|shut|closed|ran out|outgrew|arrived|finally|first (?:day|week|month|time|shift|lesson|session)"
    r"|(?:day|week|month|year|weeks|months|days|years) (?:one|two|three|four|five|six|in|\d+)|yesterday"
    r"|this morning|last (?:week|month|night)|since"
    r"|from (?:this|next|now|\w+day|january|february|march|april|may|june|july|august|september|october|november"
    r"|december)"
    r"|as of|starting|joined|hired|landed|passed|installed|set up|signed up|enrolled|booked|ordered|delivered"
    r"|dropped|let go"
    r"|put (?:me|us|him|her|it|them)|made me|gone|up to|down to|finished|done with)\b",
    re.IGNORECASE,
)
_AGAIN: Final = re.compile(
    r"\b(?:again|back (?:to|on|at|in|with|under|where|home|as)|as (?:it|we|i|they) used to|as before|like before"
    r"|like in the|the old (?:one|way|place)|once more|re-?turned|went back|good old|after all|reverted"
    r"|revert(?:ing)?|restored|rolled back|switched back|same as (?:before|always|ever)|hello \d{4}|undid|wieder"
    r"|de nouveau|otra vez)\b",
    re.IGNORECASE,
)
_ELSEWHERE: Final = re.compile(
    r"\b(?:theirs|hers|mine(?:'s)?|nothing (?:for|about|to do with) us|not (?:us|ours|mine)|the other|next door"
    r"|someone else"
    r"|a different|unrelated|separate(?:ly)?)\b",
    re.IGNORECASE,
)
_PAST: Final = re.compile(
    r"\b(?:used to|formerly|previously|ex-|back then|back in|in those days|had been|at the time|years ago|as a kid"
    r"|früher)\b",
    re.IGNORECASE,
)
_RETRACTION: Final = re.compile(
    r"\b(?:no longer|not .{1,40}? any ?more|stopped|quit|gave (?:up|away|back|it)|given up|let (?:\w+ ){1,3}go"
    r"|got rid of"
    r"|sold|cancel(?:l?ed|s)|call(?:ed)? (?:\w+ ){0,4}off|broke (?:it )?(?:up|off)|split up|divorced|died|dead"
    r"|passed away"
    r"|shut down"
    r"|closed down|ended|over for good|retired|removed|deleted|dropped|withdrew|pulled the plug|wound up|threw|binned"
    r"|scrapped|disbanded|uninstalled|unsubscribed|left (?:the|my|our)|gone|went back|don't .{1,30}? (?:any ?more"
    r"|these days)"
    r"|won't|isn't|forget (?:what|that|about)|never mind|nicht mehr|ya no|ne .{1,30}? plus)\b",
    re.IGNORECASE,
)


_OPENING: Final = re.compile(
    r"^\s*(?:actually|sorry|update|correction|news|oh|well|btw|by the way|fyi|hey)\b[,:!.]?\s+(?=\w)", re.IGNORECASE
)
_CLOSING: Final = re.compile(
    r",?\s+(?:from now on|these days|nowadays|at the moment|at present|from today(?: on)?|instead)(?=\s*[.!]*\s*$)",
    re.IGNORECASE,
)
_DENIAL: Final = re.compile(r"\b(?:is|are|am) not\b(?! (?:only|just|yet|even|always|merely|quite))", re.IGNORECASE)
_GIVEN_UP: Final = re.compile(
    r"^(\S+ \S+ \S.{0,200}?),? (?:instead of|rather than|(?:and )?no longer) (\S.{0,60}?)[.!]*\s*$", re.IGNORECASE
)
_MOVED: Final = re.compile(
    r"^((?:I|My \w+|[A-Z][\w-]+(?: [A-Z][\w-]+)?))(?:['\u2019]ve| have| has)?(?: just| recently| now)? moved to"
    r" ((?:\d\S* )?[A-Z][\w-]*(?: [A-Z][\w-]*){0,3})(?:, [A-Z][\w-]*)?"
    r"(?: (?:last|this) (?:week|weekend|month)| yesterday| today| recently| now| on [A-Z]\w+day)?\s*[.!]*\s*$"
)
_PUT_OFF: Final = re.compile(
    r"^((?:The|My|Our)\b(?:(?! is | has | was | not ).){1,80}?) (?:has(?: now)? been|have been|was|is(?: now)?|got)"
    r" (?:moved|pushed(?: back)?|postponed|rescheduled|shifted|brought forward|changed|extended) to"
    r" (\S[^,;]{0,40}?)[.!]*\s*$"
)
_CALLED_OFF: Final = re.compile(
    r"^((?:The|My|Our)\b(?:(?! is | has | was | not ).){1,80}?) (?:has(?: now)? been|was|is(?: now)?|got)"
    r" (?:cancell?ed|called off)[.!]*\s*$"
)


def plainly(text: str) -> str:
    """A statement without the words that only open or close it, and without short forms of "am not" and "I am".

    >>> plainly("Actually, my favourite colour is blue from now on.")
    'My favourite colour is blue.'
    """
    text = re.sub(r"\bI['\u2019]m\b", "I am", text[:1000])
    text = re.sub(r"\b(is|are)n['\u2019]t\b", r"\1 not", text)
    opening = _OPENING.match(text)
    if opening:
        text = text[opening.end()].upper() + text[opening.end() + 1 :]
    return _CLOSING.sub("", text)


def is_denial(text: str) -> bool:
    """Whether the words say that something is not so."""
    return bool(_DENIAL.search(text[:1000]))


def given_up(text: str) -> tuple[str, str]:
    """The statement without what it says that it replaces, and that: "I play chess instead of tennis".

    >>> given_up("I play chess instead of tennis.")
    ('I play chess', 'tennis')
    """
    found = _GIVEN_UP.match(text[:400])
    return (found[1], found[2]) if found else (text, "")


def moved_to(text: str) -> tuple[str, str] | None:
    """Who moved where, where the words tell nothing else.

    >>> moved_to("Clara moved to Vienna last week."), moved_to("Clara moved to Vienna as a child.")
    (('Clara', 'Vienna'), None)
    """
    found = _MOVED.match(text[:400])
    return (found[1], found[2]) if found else None


def put_off(text: str) -> tuple[str, str] | None:
    """What is put off, and until when.

    >>> put_off("The deadline has been pushed to March 10.")
    ('The deadline', 'March 10')
    """
    found = _PUT_OFF.match(text[:400])
    return (found[1], found[2]) if found else None


def called_off(text: str) -> str:
    """What is called off, or nothing.

    >>> called_off("The meeting with the bank is cancelled.")
    'The meeting with the bank'
    """
    found = _CALLED_OFF.match(text[:400])
    return found[1] if found else ""


@lru_cache(maxsize=8192)
def is_update(text: str) -> bool:
    """Whether the words say that something is otherwise than before."""
    return bool(_UPDATE.search(text[:1000]))


@lru_cache(maxsize=8192)
def is_correction(text: str) -> bool:
    """Whether the words set right what was said before."""
    return bool(_CORRECTION.search(text[:1000]))


@lru_cache(maxsize=8192)
def is_musing(text: str) -> bool:
    """Whether the words are a wish, a plan, a doubt, or a condition, which replace nothing."""
    return bool(_MUSING.search(text[:1000]))


@lru_cache(maxsize=8192)
def is_elsewhere(text: str) -> bool:
    """Whether the words set what they tell apart from what is spoken of."""
    return bool(_ELSEWHERE.search(text[:1000]))


@lru_cache(maxsize=8192)
def is_again(text: str) -> bool:
    """Whether the words say that something is as it was before."""
    return bool(_AGAIN.search(text[:1000]))


@lru_cache(maxsize=8192)
def is_event(text: str) -> bool:
    """Whether the words tell of something that has come about."""
    return bool(_EVENT.search(text[:1000]))


@lru_cache(maxsize=8192)
def is_asked(text: str) -> bool:
    """Whether it is a question."""
    return text.rstrip("\"'\u201d\u2019) ").endswith(("?", "\uff1f", "\u061f"))


@lru_cache(maxsize=8192)
def is_past(text: str) -> bool:
    """Whether the words say how it was before."""
    return bool(_PAST.search(text[:1000]))


@lru_cache(maxsize=8192)
def is_retraction(text: str) -> bool:
    """Whether the words say that something holds no longer."""
    return bool(_RETRACTION.search(text[:1000]))

"""What relations are called: the few dozen that people ask about most, in the words of statements and of questions.

A table, not a model: each `Relation` has patterns that a statement uses for it (``says``), further ones that only
questions use (``asks``, weaker), the kind of thing that it leads to, and words to look up in an index. A relation that
is not here is still found by its own words (`kin`).

Patterns run over folded words with single spaces between them; ``_`` stands where the thing itself is named. None
repeats without a bound, so that a hostile text costs no more than its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from perdure.memory.wordlists import word_set

__all__ = [
    "DONE_BY",
    "KINDS",
    "LIGHT",
    "PLACES",
    "RELATIONS",
    "STOP",
    "Relation",
    "inverted",
    "kin",
    "named",
]


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation from one thing to another, as from a book to its author."""

    name: str
    gives: str
    """The kind of what it leads to: one of `KINDS`, or nothing."""
    words: tuple[str, ...]
    """Words to look up in an index: one of them is in nearly every statement of it."""
    says: re.Pattern[str] = field(repr=False)
    asks: re.Pattern[str] = field(repr=False)


def _relation(name: str, gives: str, says: str, asks: str = "", words: str = "") -> Relation:
    bare = words or re.sub(r"\\w[*+?]|[?*+]|\([^)]*\)", "", says).replace("|", " ")
    looked = tuple(dict.fromkeys(each for each in bare.split() if each not in STOP and each != "_" and len(each) > 2))
    return Relation(
        name, gives, looked, re.compile(rf"\b(?:{says})\b"), re.compile(rf"\b(?:{asks})\b" if asks else r"(?!)")
    )


STOP: Final = word_set(
    "a an and any are as at be been by can could current currently did do does for from had has have he her his how i"
    " if in into is it its itself known me my of on or our s she so some that the their them then there these they this"
    " those to was we were what when where whether which who whom whose why will with would you your"
)
"""Words that say nothing of a relation by themselves."""

LIGHT: Final = word_set(
    "associated associate belong belongs belonged call called currently find found give given hold holds held identify"
    " individual known locate located location man name named person place related responsible serve serves served"
    " someone tell thing title used woman within same own most one first last also"
)
"""Words that questions are padded with: it counts little whether they are explained."""

KINDS: Final[dict[str, frozenset[str]]] = {
    "country": word_set("country countries nation nations state land homeland kingdom"),
    "city": word_set("city cities town towns place location municipality village area site"),
    "continent": word_set("continent continents"),
    "person": word_set(
        "who whom person people individual man woman someone actor artist leader performer sportsperson"
    ),
    "group": word_set(
        "company organization organisation institution firm university college school corporation entity"
        " team club band agency party"
    ),
    "language": word_set("language languages tongue"),
    "religion": word_set("religion religions faith belief denomination"),
    "sport": word_set("sport sports game"),
    "work": word_set("work works book novel song album film movie piece creation series"),
    "job": word_set("job occupation profession role career field position"),
    "genre": word_set("genre music style kind type"),
    "time": word_set("when date year day month"),
}
"""The kinds of things, and the nouns that stand for them in a question."""

KINDS["place"] = KINDS["city"] | KINDS["country"] | KINDS["continent"]
PLACES: Final = frozenset(["city", "country", "continent", "place"])

RELATIONS: Final[tuple[Relation, ...]] = (
    _relation("capital", "city", r"capital", r"seat of government|government"),
    _relation("continent", "continent", r"continents?", "part of the world", "continent"),
    _relation("headquarters", "city", r"headquarter\w*|hq|head office|based in", "located|location|based|found|seat"),
    _relation(
        "official language", "language", r"official languages?", r"official\w*|languages?|communicat\w+|documents?"
    ),
    _relation(
        "language of a work",
        "language",
        r"(?:written|made|filmed|published|recorded) in the language|original language|language of (?:the )?work",
        r"languages?|written|write|writes|work",
        "language written original",
    ),
    _relation(
        "speaks",
        "language",
        r"speaks?|spoke|spoken|native language|mother tongue|languages?",
        r"writ\w+|sign\w*|communicat\w+|know how",
        "speak speaks spoke language tongue",
    ),
    _relation(
        "education",
        "group",
        r"educated|education|studied|studies at|attended|graduated|graduate of|alma mater|enrolled"
        r"|(?:univ\w+|college|school) where",
        r"educat\w*|stud\w+|attend\w*|university|institution|school|college|learn\w*|degree|train\w*",
        "educated education studied attended graduated alma university school",
    ),
    _relation(
        "head of government",
        "person",
        r"(?:head|chief|leader) of (?:the )?(?:_ )?government|prime minister|premier|chancellor|mayor"
        r"|governs?|governed by|governor",
        r"head|chief executive|leader|govern\w*|in charge|prime|report",
        "government head minister premier chancellor mayor governor governed",
    ),
    _relation(
        "head of state",
        "person",
        r"head of (?:the )?state|chief of state|president|king of|queen of|monarch|emperor|ruler|reigns?|ruled by",
        r"head|leader|rul\w+|king|queen|sovereign",
        "state head president king queen monarch emperor ruler ruled",
    ),
    _relation(
        "chief executive",
        "person",
        r"chief executive(?: officer)?|ceo",
        r"chief|executive|head|boss|leader|runs?|led",
        "chief executive ceo",
    ),
    _relation("chair", "person", r"chair\w*", "head|leader|leads?|presid\\w+", "chairperson chairman chair chairwoman"),
    _relation(
        "director",
        "person",
        r"director|directed by|managed by|manager|coach\w*",
        r"direct\w*|manag\w*|producer|head|trainer",
        "director directed manager managed coach coached",
    ),
    _relation(
        "founded in",
        "city",
        r"(?:founded|formed|established|started|set up|beg[ua]n) (?:in|at)|place of foundation|location of formation",
        r"found\w*|form\w*|establish\w*|existence|start\w*|beg[aiu]n|origin\w*|set up|came? into|created|place",
        "founded formed established started began",
    ),
    _relation(
        "founder",
        "person",
        r"founded|founders?|established by|set up by|started by|co-?founded|co founder",
        r"found\w*|establish\w*|start\w*|creat\w+|set up",
        "founded founder established started",
    ),
    _relation(
        "author",
        "person",
        r"authors?|authored|written by|wrote|writer|writes|penned",
        r"writ\w+|creat\w+|pen|book|novel|poet|playwright|composer",
        "author authored written wrote writer",
    ),
    _relation(
        "performer",
        "person",
        r"perform\w*|sung by|singer|sang|played by|portrayed|acted by|actor|voiced by|starr\w+",
        r"s[aiu]ng\w*|play\w*|portray\w*|act\w*|artist|band|musician|creator|voice\w*|record\w*|song|album|goes by",
        "performed performer sung singer sang portrayed actor played starring",
    ),
    _relation(
        "origin",
        "country",
        r"(?:created|invented|developed|made|produced|begun|started) in|originat\w*|country of origin|comes? from"
        r"|came from|hails? from|origin",
        r"origin\w*|birthplace|born|develop\w*|hail\w*|comes?|came|made|created|rise|invent\w*|produced|originally"
        r"|began|from|start\w*|place of birth|belongs?",
        "created invented developed originated origin country comes",
    ),
    _relation(
        "birthplace",
        "city",
        r"born|birthplace|place of birth|birth",
        r"birth\w*|come(?:s)? from|from|origin\w*|native|hail\w*",
        "born birthplace birth",
    ),
    _relation(
        "place of death",
        "city",
        r"died|death|passed away|killed|buried",
        r"die|dies|dead|pass\w* away|breath\w* (?:his |her |their |its )?last|last breath|took (?:his|her|their)"
        r"|pass on|perish\w*|deceased|demise|end of life|final breath",
        "died death passed killed",
    ),
    _relation(
        "citizenship",
        "country",
        r"citizen\w*|nationality|nationals? of",
        r"national\w*|belong\w*|hail\w*|comes?|came|native|origin\w*|from|passport|country|nation|home\w*",
        "citizen citizenship nationality national",
    ),
    _relation(
        "workplace",
        "city",
        r"work(?:s|ed)? in the (?:city|town|place)|work(?:ed|place)|work location|active in",
        r"work\w*|spends?|hours|job|employ\w*|location of work|based",
        "worked works workplace work",
    ),
    _relation(
        "occupation",
        "job",
        r"works? (?:in the field|as)|worked as|field of|occupation|profession|job|by trade",
        r"job\w*|title|occupation|profession\w*|role|work\w*|career|field|position|living|serve\w*|do",
        "works field occupation profession job",
    ),
    _relation(
        "employer",
        "group",
        r"employ\w*|works? (?:for|at)|worked (?:for|at)|hired by|on the staff of",
        r"work\w*|job|part of|organi[sz]ation|company|hire\w*|affiliat\w*|staff|member",
        "employed employer employs works worked hired",
    ),
    _relation(
        "religion",
        "religion",
        r"religi\w+|faith|denomination|converted to|practi[cs]es",
        r"belie\w+|worship\w*|follow\w*|belong\w*|affiliat\w*|church|adher\w+|creed|observ\w+",
        "religion religious faith denomination",
    ),
    _relation(
        "position",
        "job",
        r"position|plays as",
        r"special\w+|role|play\w*|known for|team",
        "position plays",
    ),
    _relation(
        "sport",
        "sport",
        r"sports?",
        r"play\w*|played|games?|compet\w+|special\w+|athlet\w*|associated|related|features?|professionally|involve\w*",
        "sport plays",
    ),
    _relation(
        "genre",
        "genre",
        r"(?:type|kind|style) of music|genres?|music\w*",
        r"kind|type|style|fall|perform\w*|play\w*|categor\w+|musical",
        "music genre",
    ),
    _relation(
        "notable work",
        "work",
        r"famous for|(?:best )?known for|notable|masterpiece",
        r"famous|notable|known|significan\w+|creations?|works?|created|renown\w*|important|creation|product",
        "famous known notable",
    ),
    _relation(
        "broadcaster",
        "group",
        r"broadcast\w*|network|aired",
        r"air\w*|channel|station|shown|television|tv|ran on",
        "broadcaster broadcast network aired",
    ),
    _relation("publisher", "group", r"publish\w*", "released|issued|press", "publisher published"),
    _relation("record label", "group", r"record label|label", "signed|record\\w*", "label"),
    _relation(
        "developer",
        "group",
        r"developers?|developed",
        r"develop\w*|made|maker|creat\w+|program\w*|manufactur\w+|build\w*|built|design\w*|produc\w+",
        "developer developed",
    ),
    _relation(
        "maker",
        "group",
        r"produc\w+|manufactur\w+|made by|makers?|built by|builds|makes",
        r"made|make|develop\w*|creat\w+|build\w*|built|company|design\w*|construct\w*",
        "produced producer manufactured manufacturer maker made built",
    ),
    _relation(
        "creator",
        "person",
        r"created|creators?|invented|inventor|designed|designer|composed|composer|painted|sculpted",
        r"creat\w+|invent\w*|made|author\w*|design\w*|wrote|written|came up|individual who",
        "created creator invented inventor designed designer composed composer painted",
    ),
    _relation("owner", "", r"own(?:s|ed)|owner\w*|belongs to|parent company", r"own|proprietor|possess\w*|acquir\w+"),
    _relation(
        "spouse",
        "person",
        r"married|spouse|wife|husband|wed|weds|engaged to|partner",
        r"marr\w+|wedded|consort|significant other",
        "married spouse wife husband wed partner",
    ),
    _relation(
        "child",
        "person",
        r"child|children|sons?|daughters?|fathered|mothered|kids?",
        r"offspring|descend\w+|heirs?|gave birth",
        "child children son daughter kid",
    ),
    _relation("father", "person", r"father", r"parents?|dad|born to"),
    _relation("mother", "person", r"mother", r"parents?|mum|mom|born to"),
    _relation("sibling", "person", r"siblings?|brothers?|sisters?", words="sibling brother sister"),
    _relation("successor", "", r"succe\w+|followed by", r"follow\w*|after|next|replac\w+", "successor succeeded"),
    _relation(
        "membership", "group", r"members? of|plays for|joined|part of", r"belong\w*|member\w*|team|club|part|party"
    ),
    _relation("residence", "city", r"lives?|lived|resid\w+|moved to|home", r"live|living|address|dwell\w*|stay\w*"),
    _relation(
        "location",
        "place",
        r"located|situated|lies in|stands in|location|(?:city|town|village|region|part) (?:in|of)",
        r"where|place|find|found|situat\w*|lies?",
        "located situated lies stands city town village region part",
    ),
    _relation("leader", "person", r"leader|led by|heads?|headed by|boss", r"leads?|in charge|rul\w+|run by|runs"),
)
"""In order of preference: a statement is taken for the first whose words it has."""

_ENDS: Final = word_set(
    " s es ed d r er or ers ors ing ion ions ation ations ship al ial ally ity ist ists ism an ian ment ance ence e y"
    " ic ical ive ly ness ery able ant ent hood th"
) | {""}


@lru_cache(4096)
def kin(one: str, other: str) -> bool:
    """Whether two folded words come from one: they share a beginning of four letters or more, and only end otherwise.

    >>> kin("founder", "founded"), kin("ally", "allied"), kin("country", "county")
    (True, True, False)
    """
    one, other = (each[:-3] + "y" if each.endswith(("ies", "ied")) else each for each in (one, other))
    if one == other:
        return True
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return any(one[at:] in _ENDS and other[at:] in _ENDS for at in range(same, max(3, same - 3), -1))


DONE_BY: Final = frozenset(
    [
        "author",
        "broadcaster",
        "chair",
        "chief executive",
        "creator",
        "developer",
        "director",
        "employer",
        "founder",
        "head of government",
        "head of state",
        "leader",
        "maker",
        "owner",
        "performer",
        "publisher",
        "record label",
    ]
)
_THE_OF: Final = re.compile(r"^_ (?:\w+ )?(?:is|was|became|becomes|are|were) the (?:\w+ ){1,5}(?:of|for)$")
_AN_OF: Final = re.compile(r"^_ (?:\w+ )?(?:is|was|became|becomes|are|were) (?:an? )?(?:\w+ ){1,3}(?:of|for)$")
_DOES: Final = re.compile(r"^_ (?:\w+ )?(?!(?:in|at|for|by|with|from|to|on|as)$)\w+$")


@lru_cache(2048)
def inverted(words: str) -> bool:
    """Whether a statement's words lead from what it ends with to its subject, as ``_ is the capital of``.

    >>> inverted("_ is the capital of"), inverted("_ founded"), inverted("_ was founded by"), inverted("_ married")
    (True, True, False, False)
    """
    relation = named(words)
    if relation is not None and relation.name in ("citizenship", "membership", "location"):
        return False
    if _THE_OF.match(words):
        return True
    return relation is not None and relation.name in DONE_BY and bool(_DOES.match(words) or _AN_OF.match(words))


@lru_cache(2048)
def named(words: str) -> Relation | None:
    """Return the relation that a statement's words name (folded, ``_`` for its subject), or None.

    >>> named("the capital of _ is").name, named("_ was created in the country of").name, named("the zorb of _ is")
    ('capital', 'origin', None)
    """
    for each in RELATIONS:
        if each.says.search(words):
            return each
    return None

"""Families of attributes: words that speak of the same thing about somebody or something, in questions and in answers.

A compact table of everyday English; a word may be of many families. It says what may belong together, never what is so.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from perdure.memory.slots import stem
from perdure.memory.wordlists import word_set

__all__ = ["families_of", "is_kin"]

_FAMILIES: Final = {
    "home": (
        "live lives living lived reside residence home house flat apartment room address city town village move"
        " moved moving settle settled neighbour neighbourhood landlord landlady keys boxes unpacked street based"
        " place studio bungalow"
    ),
    "rent": "rent lease landlord landlady renewal mortgage tenancy deposit owner block",
    "work": (
        "work works job employer employed company firm office boss career living profession occupation position"
        " hired joined badge colleagues shift desk start started week contract payroll signed role title canteen"
        " commute team"
    ),
    "title": "title role position job promoted card badge head chief junior senior manager",
    "commute": "commute get travel ride drive bike bus train tram metro car walk cycle ticket office door",
    "study": (
        "study studies studying major majoring degree university college school course year semester faculty dean"
        " accepted educated education campus scholarship grade class educate"
    ),
    "time": (
        "time when start starts starting begin begins open opens close closes hour clock o'clock am pm doors leave"
        " leaves shift meet meeting noon alarm"
    ),
    "day": (
        "day date when deadline due monday tuesday wednesday thursday friday saturday sunday evening week"
        " appointment meet meeting class lesson rehearse rehearsal training slot moved pushed rescheduled take"
        " place happen"
    ),
    "appointment": (
        "appointment dentist doctor booking slot reschedule visit checkup interview see put rang receptionist"
    ),
    "deadline": "deadline due submit submission hand deliver by",
    "price": (
        "price cost costs pay pays paid charge rate fee euros dollars pounds money month salary earn earns hourly"
        " budget quote invoice bill worth cheap expensive subscription spend"
    ),
    "size": "size big tall height weigh weight long length wear",
    "count": "many number people guests coming attend headcount total seats strong pax rsvp",
    "age": "old age turning birthday years",
    "health": (
        "allergy allergic allergies intolerant reaction rash medication medicine tablet tablets pill pills dose"
        " dosage mg takes prescribed doctor gp inhaler diagnosis condition blood pressure test clinic nurse"
    ),
    "doctor": (
        "doctor dr physio physiotherapist dentist therapist gp vet surgeon specialist practice clinic file"
        " paediatrician pediatrician midwife optician dermatologist checkup"
    ),
    "diet": (
        "diet eat eats eating vegan vegetarian meat food dinner lunch menu drink drinks drinking coffee tea cup"
        " breakfast sugar sugars milk oat sweet black espresso latte cappuccino mug bean beans"
    ),
    "food": "bring bringing dish cook make potluck recipe side order ordered menu serve cake",
    "car": "car drive drives vehicle van truck parked engine lease bike motorbike garage ute pickup"
    " mileage mpg boot tyres dealer secondhand scrapyard scrap",
    "pet": (
        "pet pets dog cat puppy kitten breed vet animal rabbit parrot hamster tortoise walk chicken chickens hen hens"
        " coop bird birds pullets litter paw leash"
    ),
    "phone": "phone number mobile plan carrier contact call text sim pixel iphone galaxy android nokia samsung handset",
    "email": "email mail address inbox write",
    "password": "password code pin wifi passphrase key login",
    "sport": (
        "sport team club football soccer gym swim run training coach coaches play plays league match derby fan supports"
    ),
    "music": ("music instrument instruments band guitar piano play plays lesson lessons learning choir sing teacher"),
    "language": "language languages speak speaks speaking fluent learning learn course",
    "partner": (
        "married marry spouse husband wife partner girlfriend boyfriend dating date seeing together wedding engaged"
        " divorce single met"
    ),
    "child": "child children kid kids son daughter baby boy girl",
    "book": "book reading novel author wrote written writer write",
    "film": "film movie series show watching season",
    "owner": (
        "owner owns own responsible charge lead leads leading maintains runs maintainer handles ping assigned"
        " codeowners"
    ),
    "lead": (
        "head boss manager lead leader chair chairperson president ceo director chief captain minister executive"
        " coach government"
    ),
    "tool": (
        "editor tool tools software app framework library database stack built use uses using language hooked"
        " monitoring version release deploy run runs hosted cluster host server"
    ),
    "version": "version release branch upgrade upgraded pinned tag merged merge",
    "server": "server host port region cluster environment machine node train trains training queue",
    "bank": "bank account banking branch card invoices",
    "travel": (
        "flight fly flying airline airport trip travel hotel booked ticket seat gate terminal platform train land"
        " lands landing arrive arrives going visit holiday vacation staying rebooked departure leave"
    ),
    "seat": "seat row section table bench",
    "venue": ("venue where place hall room held meet meets location offsite party conference library office take"),
    "name": "name named called codename title rename renamed brand",
    "colour": "colour color paint painted red blue green yellow grey black white",
    "keep": "keep keeps kept stored where key spare box drawer shelf hidden under behind look safe",
    "hair": "hair cut barber short long shoulders braids shaved beard",
    "class": "class classes lessons course pottery yoga evening spot taking",
    "win": "won winner prize first award champion",
    "lodger": "lodger tenant roommate flatmate housemate room",
    "citizen": "citizen citizenship national nationality country passport",
    "birth": "born birth birthplace native",
    "death": "died die death pass passed buried",
    "creator": (
        "created creator create invented made founded founder found established developed developer develop"
        " produced producer maker performed performer author origin"
    ),
    "location": ("located location situated headquarters headquarter headquartered capital continent country city"),
    "religion": "religion affiliated church faith",
    "broadcast": "broadcaster broadcast channel network original",
    "fame": "famous known notable",
    "player": "position plays player play",
    "status": "status available still ready down live running working open done finished blocked",
    "client": "client clients customer customers signed agency account",
    "often": "often every once twice week weekly fortnight month monthly daily times frequency",
    "net": "wifi internet router broadband fibre fiber provider network modem landline",
    "hike": "mountain mountains climb climbed hike hiked peak summit trek trail hut legs",
    "run": "run running runs km marathon race pace jog goal 5k 10k miles",
    "smoke": "smoke smokes smoking cigarette cigarettes vape quit lighter pack",
    "exercise": "exercise gym fitness workout swim yoga run climbing pilates treadmill lengths squats legs trainer",
    "relatives": "relatives family aunt uncle cousin cousins grandma grandpa nephew niece in-laws",
    "on-call": "call oncall pager rota shift paged duty",
    "goal": "goal target aim plan resolution",
    "insurance": "insurance insured insurer cover covers policy premium claim",
    "energy": "electricity power gas supplier tariff meter energy",
    "course": "course class term semester lecture exam exams credits",
    "sleep": "sleep asleep bed alarm wake wakes up nap night",
    "move": "unpacked boxes removal van moved moving keys",
    "ask": "limit quota rate requests minute calls throttle",
    "hobby": "hobby hobbies free climbing pottery knitting running painting",
}
_KIN: Final = word_set(
    "mother mum mom mam mamma father dad da papa parents brother sister son daughter boy girl kid kids child"
    " husband wife partner boyfriend girlfriend cousin uncle aunt auntie gran grandma grandpa grandmother"
    " grandfather nephew niece friend mate flatmate roommate neighbour neighbor boss colleague lad ex fiancé"
    " fiancée folks in-laws sister-in-law brother-in-law coworker housemate sis bro hubby missus granny nan"
    " grandad twin twins bestie"
)


def _table() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for family, words in _FAMILIES.items():
        for word in words.split():
            found.setdefault(stem(word), set()).add(family)
    return {word: frozenset(families) for word, families in found.items()}


_OF: Final = _table()
_KIN_STEMS: Final = frozenset(stem(each) for each in _KIN)
_NONE: Final[frozenset[str]] = frozenset()


@lru_cache(maxsize=65536)
def families_of(word: str) -> frozenset[str]:
    """Return the families that a word may speak of."""
    return _OF.get(stem(word), _NONE)


def is_kin(word: str) -> bool:
    """Whether a word names somebody by their relation to the speaker, as "sister" does."""
    return stem(word) in _KIN_STEMS

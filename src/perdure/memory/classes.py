"""Common words by what they are, so that an answer in lower case ("the cargo bike") is known for a value of its kind.

A compact table of everyday English, with the words of a question that ask for each class.
"""

from __future__ import annotations

import re
from typing import Final

from perdure.memory.stems import stem
from perdure.memory.wordlists import word_set

__all__ = ["classes_asked", "classes_of", "is_of", "words_of"]

_CLASSES: Final = {
    "colour": (
        "colour color shade paint hue",
        "red blue green yellow orange purple violet pink brown black white grey gray beige cream ivory teal"
        " turquoise navy maroon crimson scarlet olive mint lilac lavender magenta cyan gold silver bronze"
        " terracotta mustard sage charcoal coral indigo khaki tan burgundy salmon blonde auburn ginger",
    ),
    "instrument": (
        "instrument instruments",
        "piano guitar violin viola cello bass flute clarinet oboe bassoon trumpet trombone tuba horn saxophone sax"
        " drums harp accordion banjo ukulele mandolin harmonica organ keyboard marimba xylophone bagpipes sitar"
        " tabla oud lute recorder fiddle bodhran koto erhu kora djembe bouzouki synth",
    ),
    "ride": (
        "get commute commuting travel drive ride vehicle car transport",
        "bike bicycle cycle ebike bus tram train metro subway tube car van truck scooter moped motorbike motorcycle"
        " ferry boat foot walk walking walks cycling driving carpool taxi skateboard rollerblades suv hatchback"
        " estate pickup jeep",
    ),
    "animal": (
        "pet pets animal animals dog dogs cat breed",
        "dog cat puppy kitten hamster rabbit bunny parrot budgie canary goldfish fish tortoise turtle snake lizard"
        " gecko ferret horse pony donkey goat sheep pig hen hens chicken chickens duck rat mouse gerbil hedgehog"
        " iguana axolotl beagle labrador poodle terrier spaniel collie retriever dachshund greyhound whippet husky"
        " pug ridgeback boxer corgi shepherd mutt siamese tabby bulldog rottweiler chihuahua dalmatian setter"
        " pointer schnauzer mastiff lurcher cockatiel",
    ),
    "drink": (
        "drink drinks drinking order",
        "coffee espresso latte cappuccino americano mocha tea chai matcha rooibos oolong earl mate cocoa chocolate"
        " juice water soda cola kombucha smoothie milk oat beer wine cider whisky gin lemonade ayran kefir mead",
    ),
    "food": (
        "eat eats food dish dishes bring bringing cook make recipe cake dessert lunch dinner breakfast snack side"
        " pizza topping ordered order flavour menu cuisine allergic allergies allergy intolerant",
        "salad soup stew rice pasta pizza bread cake pie tart cookies biscuits brownies dumplings noodles curry"
        " tacos burger sushi ramen chicken beef pork lamb fish salmon tuna prawns shrimp shellfish tofu beans"
        " lentils eggs egg cheese yoghurt nuts peanuts cashews almonds walnuts hazelnuts sesame soy gluten wheat"
        " dairy lactose milk strawberries kiwi mango banana apples cherries pancakes waffles porridge oats muesli"
        " sandwich rolls quiche lasagne lasagna risotto chili hummus falafel samosas satay kebab trifle pavlova"
        " tiramisu cheesecake sponge lemon chocolate vanilla pistachio potato potatoes mushrooms tomato garlic"
        " celery latex pollen penicillin ibuprofen aspirin",
    ),
    "diet": (
        "diet eat eats eating",
        "vegan vegetarian pescatarian omnivore carnivore meat fish keto paleo halal kosher gluten dairy carb carbs"
        " fasting plant plants sugar",
    ),
    "language": (
        "language languages speak speaks learning",
        "english french german spanish italian portuguese dutch swedish norwegian danish finnish icelandic polish"
        " czech slovak hungarian romanian bulgarian serbian croatian greek turkish arabic hebrew persian farsi urdu"
        " hindi bengali tamil telugu punjabi marathi chinese mandarin cantonese japanese korean thai vietnamese"
        " malay indonesian tagalog swahili yoruba igbo zulu xhosa amharic russian ukrainian welsh irish gaelic"
        " basque catalan latin esperanto sign python rust java javascript typescript go golang kotlin swift ruby"
        " php scala haskell elixir",
    ),
    "sport": (
        "sport sports exercise hobby class activity training club",
        "football soccer rugby cricket tennis badminton squash padel basketball netball volleyball handball hockey"
        " baseball softball golf swimming swim running run jogging cycling climbing bouldering yoga pilates boxing"
        " judo karate fencing rowing sailing surfing skiing snowboarding skating gymnastics dance dancing salsa"
        " tango ballet zumba archery darts chess pottery knitting ceramics painting weaving gardening choir crochet"
        " woodwork photography spin crossfit",
    ),
    "job": (
        "job living profession occupation title role position career",
        "nurse midwife doctor dentist vet surgeon teacher lecturer professor tutor baker chef cook waiter barista"
        " butcher brewer carpenter joiner plumber electrician welder roofer mechanic engineer developer programmer"
        " designer architect analyst accountant lawyer solicitor paralegal judge clerk librarian journalist editor"
        " writer translator photographer musician actor driver pilot sailor farmer gardener florist hairdresser"
        " barber tailor cleaner guard officer firefighter paramedic pharmacist physiotherapist therapist"
        " psychologist scientist researcher chemist biologist geologist manager director head chief lead supervisor"
        " foreman consultant recruiter secretary assistant apprentice trainee intern postman builder surveyor"
        " producer conductor coach trainer principal deputy captain partner associate senior junior"
        " electrician mason decorator policeman policewoman policeofficer cashier salesman saleswoman banker broker"
        " optician optometrist technician beautician politician mathematician physician radiologist cardiologist"
        " economist physicist astronomer historian dietitian nutritionist singer dancer composer painter sculptor"
        " author novelist poet blogger soldier firefighter fireman plasterer bricklayer bartender gardener janitor"
        " nanny childminder detective diplomat professor bookkeeper auditor receptionist tester administrator",
    ),
    "field": (
        "study studies studying major majoring degree course subject",
        "law medicine economics history physics chemistry biology mathematics maths geography geology philosophy"
        " psychology sociology anthropology linguistics literature engineering architecture computing informatics"
        " statistics accounting business finance nursing pharmacology dentistry theology music art design"
        " journalism politics botany zoology ecology astronomy archaeology education agriculture forestry marketing"
        " robotics civil mechanical electrical marine",
    ),
    "often": (
        "often frequency frequently schedule",
        "daily weekly fortnightly monthly yearly quarterly hourly twice once thrice every fortnight alternate"
        " nightly mornings weekdays weekends",
    ),
    "day": (
        "day date when deadline",
        "monday mondays tuesday tuesdays wednesday wednesdays thursday thursdays friday fridays saturday saturdays"
        " sunday sundays tomorrow tonight weekend",
    ),
    "spot": (
        "where keep keeps kept hidden stored spare key",
        "drawer shelf cupboard cabinet wardrobe box tin jar safe locker garage shed cellar basement attic loft"
        " hallway kitchen bathroom bedroom garden porch mat doormat pot flowerpot fridge freezer desk table hook"
        " wall can gutter letterbox bookcase trunk boot glovebox under behind above beside neighbour library hall"
        " annex office vault",
    ),
    "hair": (
        "hair look",
        "short long bald shaved curly straight bob fringe braids ponytail bun mohawk shoulders buzz cropped pixie"
        " dreadlocks",
    ),
    "tool": (
        "tool tools editor database framework library browser system host hosted app software stack provider",
        "vim neovim emacs vscode helix nano sublime intellij pycharm react vue svelte angular ember django flask"
        " rails laravel postgres postgresql mysql mariadb sqlite mongo mongodb redis kafka rabbitmq elasticsearch"
        " cassandra docker podman kubernetes nomad terraform ansible jenkins github gitlab bitbucket grafana"
        " prometheus datadog sentry slack teams zoom discord signal telegram notion jira trello asana linear figma"
        " sketch linux ubuntu debian fedora arch windows macos firefox chrome safari aws azure gcp hetzner heroku",
    ),
    "wed": (
        "married relationship dating partner single seeing",
        "married engaged single divorced separated widowed dating together fiance fiancee girlfriend boyfriend wife"
        " husband",
    ),
    "material": (
        "material fabric made wood floor",
        "oak pine walnut bamboo steel iron copper brass wool cotton linen silk leather marble granite slate brick"
        " tile tiles carpet laminate cork glass concrete vinyl",
    ),
}
_OF: Final = {name: frozenset(stem(each) for each in values.split()) for name, (_, values) in _CLASSES.items()}
_ASKED: Final = {name: frozenset(stem(each) for each in asks.split()) for name, (asks, _) in _CLASSES.items()}
_CLASSES_OF: Final = {
    each: frozenset(name for name, words in _OF.items() if each in words) for each in frozenset().union(*_OF.values())
}
_DRUG: Final = re.compile(
    r"\b[a-z]{3,}(?:cillin|mycin|statin|pril|sartan|olol|dipine|zepam|zolam|oxetine|traline|idone|apine|formin"
    r"|gliptin|prazole"
    r"|tidine|profen|thyroxine|solone|sone|parin|lukast|triptan|xaban|glutide|azole|vir|mab|barb|phylline|amine"
    r"|cetam)s?\b"
    r"|\b(?:inhaler|insulin|aspirin|paracetamol|tablets?|pills?|patch(?:es)?|injections?|\d+ ?(?:mg|ml|mcg|units))\b",
    re.IGNORECASE,
)
_DRUG_ASKED: Final = frozenset(
    stem(each) for each in word_set("medication medicine medicines tablet pill drug dose dosage prescribed takes take")
)


def classes_asked(stems: frozenset[str] | set[str]) -> frozenset[str]:
    """Return the classes that a question of these words asks for."""
    found = {name for name, asks in _ASKED.items() if asks & stems}
    return frozenset(found | ({"drug"} if _DRUG_ASKED & stems else set()))


def classes_of(word: str) -> frozenset[str]:
    """Return the classes that a word belongs to.

    >>> classes_of("plumbers")
    frozenset({'job'})
    """
    return _CLASSES_OF.get(stem(word), frozenset())


def is_of(classes: frozenset[str], stems: set[str], text: str, besides: frozenset[str]) -> bool:
    """Whether a text has a word of one of the classes that is none of ``besides``."""
    return any(_OF[each] & stems - besides for each in classes if each != "drug") or (
        "drug" in classes and bool(_DRUG.search(text[:1000]))
    )


def words_of(classes: frozenset[str], stems: set[str]) -> set[str]:
    """The words among ``stems`` that are of one of the classes."""
    return {word for each in classes if each != "drug" for word in _OF[each] & stems}

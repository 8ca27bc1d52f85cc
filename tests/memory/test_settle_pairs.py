"""What is told of one slot, twice: pairs in which the second replaces the first, and many more in which both hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.memory import Memory

REPLACED = [
    ("My favourite colour is green.", "My favourite colour is blue."),
    ("My favourite colour is green.", "Actually, my favourite colour is blue, not green."),
    ("My phone number is 555-0101.", "My phone number is 555-0199."),
    ("My phone number is 555-0101.", "My new phone number is 555-0199."),
    ("My boss is Mrs. Keane.", "My boss is Mr. Doyle."),
    ("My boss is Mrs. Keane.", "My boss is now Mr. Doyle."),
    ("I live in Porto.", "I moved to Lisbon."),
    ("I live in Porto.", "I live in Lisbon."),
    ("I live in Porto.", "I no longer live in Porto."),
    ("I live at 12 Rose Street, Dublin.", "I moved to 5 Harbour Road, Cork last weekend."),
    ("I live at 12 Rose Street, Dublin.", "I now live at 5 Harbour Road, Cork."),
    ("My address is 12 Rose Street.", "My address is 5 Harbour Road."),
    ("I work at Siemens.", "I work at Airbus now."),
    ("I work as a nurse.", "I work as a teacher now."),
    ("I am a nurse.", "I am a teacher."),
    ("I'm vegetarian.", "I'm no longer vegetarian."),
    ("I'm vegetarian.", "I'm not vegetarian any more."),
    ("Clara lives in Berlin.", "Clara moved to Vienna."),
    ("Clara lives in Berlin.", "Clara lives in Vienna now."),
    ("My sister lives in Berlin.", "My sister lives in Vienna now."),
    ("Tom is a plumber.", "Tom is an electrician now."),
    ("The meeting with the bank is on Thursday at 9.", "The meeting with the bank is on Friday at 9."),
    ("The meeting with the bank is on Thursday at 9.", "The meeting with the bank is cancelled."),
    ("My car is a red Golf.", "My car is a Tesla."),
    ("I drive a Golf.", "I drive a Tesla now."),
    ("I prefer tea.", "I prefer coffee now."),
    ("I like tea.", "I don't like tea any more."),
    ("I play tennis.", "I don't play tennis anymore."),
    ("I am 34 years old.", "I am 35 years old."),
    ("The deploy key is abc.", "The deploy key is xyz."),
    ("Our database is Postgres 14.", "Our database is Postgres 16 now."),
    ("The deadline is March 3.", "The deadline has been pushed to March 10."),
    ("The standup is at 9:30.", "The standup is at 10:00 from now on."),
    ("I live at 12 Rose Street, Dublin.", "I moved to 5 Harbour Road, Cork last weekend."),
    ("I play tennis.", "I play chess instead of tennis."),
    ("I live in Porto.", "I moved to Lisbon last month."),
    ("Clara moved to Berlin.", "Clara has moved to Vienna."),
    ("I am 34.", "I'm 35 years old."),
    ("My email is a@b.c.", "My email is a@d.org."),
    ("The wiki is https://a.b/c.", "The wiki is https://d.e/f."),
    ("The port is 8080.", "The port is 9090."),
    ("My car is red.", "My car is now blue."),
    ("I am vegan.", "I am not vegan."),
    ("Our CEO is Ann Lee.", "Our CEO is Bo Chan."),
    ("I drink coffee.", "I drink tea rather than coffee."),
    ("I live in Spain.", "I moved to Portugal."),
    ("The rent is 900 euros.", "The rent is 950 euros now."),
    ("My favourite dish is moussaka.", "My favourite dish is paella."),
    ("I live in Porto.", "I live in Lisbon, no longer in Porto."),
    ("The release is 2.4.", "The release is 2.5 now."),
]

BOTH_HOLD = [
    ("My brother lives in Rome.", "My other brother lives in Paris."),
    ("I live in Porto.", "I might live in Lisbon some day."),
    ("I live in Porto.", "I lived in Lisbon as a child."),
    ("I live in Porto.", "If I get the job, I live in Lisbon next year."),
    ("I live in Porto.", "Bob said: I live in Lisbon."),
    ("I live in Porto.", "In summer I live in Lisbon."),
    ("I live in Porto.", "I live in a small flat with a garden."),
    ("I live in Porto.", "I live in Portugal."),
    ("I live in Porto.", "I live in fear of spiders."),
    ("I live in Porto.", "I live in hope now."),
    ("I live in Porto.", "Where do I live in Lisbon?"),
    ("I live in Porto.", "Do I live in Lisbon?"),
    ("I work at Siemens.", "I work at home on Fridays."),
    ("I work at Siemens.", "I work at night."),
    ("I work as a nurse.", "I work as hard as I can."),
    ("My cat is called Miso.", "My cat is black."),
    ("My cat is asleep.", "My cat is black."),
    ("My cat is called Miso.", "My second cat is called Mochi."),
    ("My friend is called Eva.", "My friend is called Ida."),
    ("My son is called Max.", "My son is called Moritz, the younger one."),
    ("I play tennis.", "I play the piano now."),
    ("I like tea.", "I like coffee now."),
    ("My car is red.", "My car is fast."),
    ("My car is a Golf.", "My car is broken."),
    ("My car is a Golf.", "My car is in the garage."),
    ("My car is a Golf.", "My car is parked outside."),
    ("My boss is Mrs. Keane.", "My boss is angry."),
    ("My boss is Mrs. Keane.", "My boss is on holiday."),
    ("My boss is Mrs. Keane.", "My boss is great."),
    ("My sister is a doctor.", "My sister is pregnant."),
    ("My sister is called Clara.", "My sister is in hospital."),
    ("My wife is Eva.", "My wife is a lawyer."),
    ("My job is fun.", "My job is teaching."),
    ("My dream is a house.", "My dream is to sing."),
    ("My phone is broken.", "My phone is a Pixel."),
    ("My work phone number is 1.", "My home phone number is 2."),
    ("My favourite colour is green.", "My favourite film is Alien."),
    ("My favourite book is Emma.", "My favourite book is not Ulysses."),
    ("Tom is a plumber.", "Tom is tall."),
    ("Tom is a plumber.", "Tom is now on holiday."),
    ("Tom is a plumber.", "Tom is my brother."),
    ("Tom is a plumber.", "Tom is an idiot now."),
    ("The server is db1.", "The server is down."),
    ("The server is in Frankfurt.", "The server is fast now."),
    ("The meeting is at 9.", "The meeting is about money."),
    ("The meeting is at 9.", "The meeting is in room 4."),
    ("Our database is Postgres 16.", "Our database is slow now."),
    ("Our office is in Porto.", "Our office is open on Monday."),
    ("My doctor is Dr. Lee.", "My doctor is at the clinic on Main Street."),
    ("My birthday is May 3.", "My birthday is a holiday."),
    ("My address is 12 Rose Street.", "My address is hard to find."),
    ("My email is a@b.c.", "My email is full."),
    ("I have a cat.", "I have a dog now."),
    ("I prefer tea in the morning.", "I prefer coffee in the evening."),
    ("I prefer trains.", "I prefer window seats."),
    ("I want a dog.", "I want a cat now."),
    ("I am reading Emma.", "I am tired now."),
    ("I drive a Golf.", "I drive a bus at work."),
    ("I study physics.", "I study at night."),
    ("The deadline is March 3.", "The deadline is tight."),
    ("The password is hunter2.", "The password is too short."),
    ("My boss is Mrs. Keane.", "My boss is German."),
    ("My boss is Mrs. Keane.", "My boss is not in today."),
    ("My boss is Mrs. Keane.", "My boss is in Rome now."),
    ("I moved to Lisbon.", "I moved to Postgres."),
    ("I live in Porto.", "I moved to Google."),
    ("I live in Porto.", "We moved to Kubernetes."),
    ("I live in Porto.", "I moved to Lisbon in 2010."),
    ("I live in Porto.", "I moved to Sales."),
    ("I live in Porto.", "The server moved to Frankfurt."),
    ("I live in Porto.", "I moved to Room 4."),
    ("I live in Porto.", "I moved to Windows 11."),
    ("I live in Porto.", "I moved to Portugal."),
    ("I am a nurse.", "I am a mother."),
    ("I am a nurse.", "I am a vegetarian."),
    ("I am 34.", "I am 12 km away."),
    ("I am 34.", "I am 180 cm tall."),
    ("The meeting is on Thursday at 9.", "The meeting is not cancelled."),
    ("The meeting is on Thursday.", "The lunch is cancelled."),
    ("The meeting is in room 4.", "The meeting is at 9."),
    ("My phone number is 555-0101.", "My phone number is 8 digits long."),
    ("My phone number is 555-0101.", "My new phone is great."),
    ("The server is db1.", "The server is 5 years old."),
    ("My birthday is May 3.", "My birthday is on Sunday."),
    ("The meeting is on Thursday.", "The meeting is on Zoom."),
    ("My wife is Eva.", "My wife is Portuguese."),
    ("My favourite film is Alien.", "My favourite film is hard to find."),
    ("My favourite film is Alien.", "My favourite film is not Avatar."),
    ("I speak English.", "I speak German now."),
    ("I own a Golf.", "I own a boat now."),
    ("I love Rome.", "I love Paris now."),
    ("I visited Rome.", "I visited Oslo this week."),
    ("I read Emma.", "I read Dune now."),
    ("I play tennis.", "I play chess instead of golf."),
    ("Tom is a plumber.", "Tom is a father now."),
    ("Tom is a plumber.", "Tom is not a father."),
    ("My team is Benfica.", "My team is new."),
    ("The password is hunter2.", "The password is expired."),
    ("The password is swordfish.", "The password is hidden."),
    ("I work in Berlin.", "I work in Sales."),
    ("The deadline is March 3.", "The deadline is at noon."),
    ("The deadline is March 3.", "The deadline was pushed to noon."),
    ("The price is 20 euros.", "The price is 5 percent higher."),
    ("My doctor is Dr. Lee.", "My doctor is Vegan."),
    ("My address is 12 Rose Street.", "My address is 3 words long."),
    ("The class is on Monday.", "The class is on Thursday."),
    ("My car is a Golf.", "My car is a rental."),
    ("The release is 2.4.", "The release is on Friday."),
    ("My name is Anna.", "My name is Portuguese."),
    ("Our cat is Miso.", "Our cat is Siamese."),
    ("I am vegetarian.", "I am tired now."),
    ("I am a nurse.", "I am not a doctor."),
    ("The port is 8080.", "The port is closed now."),
    ("My email is a@b.c.", "My email is Gmail."),
    ("The server is db1.", "The server is Linux."),
    ("I work at Siemens.", "I work at 9."),
    ("I am married.", "I am vegan."),
    ("I drive a Golf.", "I drive a lot now."),
    ("My manager is Ann.", "My manager is Head of Sales."),
    ("The office is open on Monday.", "The office is closed on Sunday."),
    ("My brother lives in Rome.", "My new brother lives in Oslo."),
    ("I have two dogs.", "I have three cats now."),
    ("I eat meat.", "I eat fish now."),
    ("My flight is on Monday.", "My flight is at 9."),
    ("The rent is 900 euros.", "The rent is due on Friday."),
    ("My dog is Rex.", "My dog is a beagle."),
    ("My name is Anna.", "My name is Anna Silva."),
    ("I live in Lisbon, Portugal.", "I live in Portugal."),
    ("My cat is called Miso.", "My cat is called Mochi."),
    ("My daughter is called Eva.", "My daughter is called Ida."),
    ("I like tea.", "I like coffee."),
    ("I was in Rome in May.", "I was in Oslo in June."),
    ("I speak English.", "I speak German."),
    ("My favourite colour is green.", "Clara's favourite colour is blue."),
]


def told(folder: Path, first: str, then: str) -> list[str]:
    with Memory(folder) as memory:
        memory.observe(first, speaker="Anna", at="2024-01-01")
        memory.observe(then, speaker="Anna", at="2024-02-01")
        memory.settle()
        return [memory.fact(each).state.value for each in (1, 2)]


@pytest.mark.parametrize(("first", "then"), REPLACED)
def test_a_newer_value_of_the_same_kind_replaces(tmp_path: Path, first: str, then: str) -> None:
    assert told(tmp_path, first, then) == ["superseded", "current"]


@pytest.mark.parametrize(("first", "then"), BOTH_HOLD)
def test_what_is_true_beside_it_replaces_nothing(tmp_path: Path, first: str, then: str) -> None:
    assert told(tmp_path, first, then) == ["current", "current"]


def test_a_meeting_that_is_called_off_can_be_set_again(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        for day, text in enumerate(
            ["The meeting is on Thursday at 9.", "The meeting is cancelled.", "The meeting is on Monday at 9."], start=1
        ):
            memory.observe(text, speaker="Anna", at=f"2024-01-0{day}")
        memory.settle()
        assert [memory.fact(each).state.value for each in (1, 2, 3)] == ["superseded", "current", "current"]


def test_a_series_and_labels_replace_whatever_the_kind(tmp_path: Path) -> None:
    assert told(tmp_path / "a", "1. Mo Tan plays the sport of chess.", "2. Mo Tan plays the sport of zorb.") == [
        "superseded",
        "current",
    ]
    assert told(tmp_path / "b", "mode = fast", "mode = 12") == ["superseded", "current"]

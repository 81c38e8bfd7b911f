"""What tools can do: their names, descriptions, parameters, the questions for them and their results.

Some topics are written out, as the examples of other programs have them (the weather, a sum, a message).
The others are made: `attribute` looks something up of a person, a thing, a town or an order, and `action`
does something to one.  Both draw their words anew each time, some of them invented, so that a model cannot
know a tool by heart and has to read.
"""

from dataclasses import dataclass

import words


@dataclass
class Slot:
    """A parameter of a tool: what it may be called, and where its values come from."""

    names: tuple
    pool: object
    kind: str = "string"


@dataclass
class Topic:
    """Something that a tool can do."""

    names: tuple
    unseen: tuple  # names that occur in held-out cases alone
    does: tuple  # descriptions; the first is what is said of it where no tool does it
    slots: tuple
    asks: tuple  # questions; {0}, {1} are the slots' values
    answer: str  # {0}, {1}, and {r} for the result
    result: object = None  # from the values to a result; None: it does something and says "ok"
    result_names: tuple = ("result",)
    both: str = None  # asks for two values of the first slot at once
    group: str = None  # topics of a group are not offered together: a question for one may be meant for another


def number(low, high):
    return lambda rng, *_: rng.randrange(low, high)


def one_of(*texts):
    return lambda rng, *_: rng.choice(texts)


def place(rng, *_):
    return rng.choice(words.PLACES)


def worked_out(_, sum):
    left, sign, right = sum.split()
    left, right = int(left), int(right)
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


CITIES = ("Paris", "London", "Berlin", "Tokyo", "Rome", "Madrid", "Toronto", "Vienna", "Oslo", "Boston", "Chicago", "Sydney",
          "San Francisco", "New York", "Los Angeles", "Munich", "Seoul", "Cairo", "Dublin", "Lisbon", "Prague", "Warsaw",
          "San Francisco, CA", "Boston, MA", "Paris, France", "New York, NY", "Rome, Italy", "Hong Kong", "Mexico City")
SKIES = ("sunny", "rainy", "cloudy", "windy", "warm", "cold", "foggy", "stormy", "snowy", "dry")
SONGS = ("The Old Mill", "Silver River", "Goodbye, Red Barn", "My Little Boat", "Seven Bells", "Under the Moon",
         "The Fox Song", "Rain on the Roof", "Far Away", "The Bread Song")
NOTES = ("I am late", "dinner is ready", "the train is slow", "see you at the market", "the door is open",
         "bring the red lamp", "we meet at the mill", "the soup is cold", "come home", "all is well")
TASKS = ("water the garden", "feed the cat", "buy bread", "clean the shed", "call Anna", "paint the fence",
         "mend the kite", "wash the cups", "read the book", "close the gate")


def city(rng, *_):
    return rng.choice(CITIES) if rng.random() < 0.4 else words.town(rng, strange=0.25)


def sky(rng, *_):
    """The weather, as services say it."""
    degrees = f"{rng.randrange(-9, 40)}{rng.choice((' degrees', ' degrees', '°C', ' °C', '°F'))}"
    return rng.choice((rng.choice(SKIES),) * 3 + (degrees, f"{rng.choice(SKIES)} and {degrees}", f"{degrees} and {rng.choice(SKIES)}"))


def operation(names, unseen, does, sign, plain, work, **rest):
    """A topic of two numbers: `plain` names the result, `sign` stands between them."""
    first = Slot(("a", "x", "first", "first_number", "num1"), number(2, 999), "integer")
    second = Slot(("b", "y", "second", "second_number", "num2"), number(2, 999), "integer")
    return Topic(names, unseen, does, (first, second), rest.pop("asks"), "{0} " + sign + " {1} is {r}.", work, (plain, "result"), **rest)


TOPICS = (
    Topic(("get_weather", "weather", "current_weather", "weather_in", "weather_report", "get_current_weather", "get_forecast"),
          ("find_weather", "weather_for"),
          ("Tells the weather of a place.", "The weather in a town.", "Get the current weather.", "Says how the weather is.",
           "Get the current weather in a given location", "Get the current weather for a city", "Get weather for a location.",
           "Get current temperature for a given location.", "Returns the weather forecast of a city.", "Query a weather service."),
          (Slot(("place", "city", "town", "location", "where", "city_name"), city),),
          ("What is the weather in {0}?", "How is the weather in {0}?", "Tell me the weather in {0}.",
           "What is the weather like in {0}?", "Is it warm in {0}?", "How is it in {0}?", "What is the weather like in {0} today?",
           "What is the weather in {0} right now?", "Will it rain in {0}?", "How warm is it in {0}?", "Weather in {0}?",
           "Do I need an umbrella in {0}?", "Give me the forecast for {0}.", "What is the temperature in {0}?"),
          "The weather in {0} is {r}.", sky, ("weather", "sky", "result", "condition", "temperature"),
          "What is the weather in {0} and in {1}?", group="weather"),
    Topic(("weather_at", "weather", "get_weather", "look_outside"), ("see_weather",),
          ("Tells the weather at a place.", "How the weather is somewhere.", "Get the weather.", "Get the weather at a place"),
          (Slot(("place", "location", "where", "spot"), place),),
          ("How is it in the {0}?", "What is the weather at the {0}?", "How is the weather in the {0}?"),
          "It is {r} in the {0}.", one_of(*SKIES), ("weather", "sky", "result"),
          "How is it in the {0} and in the {1}?", group="weather"),
    Topic(("get_time", "clock", "time_in", "current_time", "local_time", "get_current_time"), ("find_time", "time_at"),
          ("Tells the time in a town.", "The local time of a place.", "Get the current time.", "Get the current time in a given city",
           "Returns the current time in a time zone."),
          (Slot(("town", "city", "place", "location", "timezone"), city),),
          ("What time is it in {0}?", "Tell me the time in {0}.", "How late is it in {0}?", "What is the time in {0}?",
           "What time is it now in {0}?"),
          "It is {r} in {0}.", lambda rng, _: rng.choice((f"{rng.randrange(1, 13)} o'clock", f"{rng.randrange(24)}:{rng.randrange(10, 60)}")),
          ("time", "clock", "result"), "What time is it in {0} and in {1}?"),
    Topic(("get_price", "price_of", "price", "lookup_price"), ("find_price", "price_list"),
          ("Tells the price of a thing.", "The price of something in the shop.", "Look up a price.", "Get the price of a product"),
          (Slot(("thing", "item", "product", "name", "product_name"), words.thing),),
          ("What does the {0} cost?", "What is the price of the {0}?", "How much is the {0}?",
           "Find the price of the {0}.", "How expensive is the {0}?"),
          "The price of the {0} is {r}.", number(2, 400), ("price", "cost", "result"),
          "What is the price of the {0} and of the {1}?"),
    Topic(("get_phone", "phone_number", "phone_book", "lookup_phone"), ("find_phone",),
          ("Looks up a phone number.", "The phone number of a person.", "Finds the number of somebody.", "Get the phone number of a contact"),
          (Slot(("name", "person", "who", "contact"), words.person),),
          ("What is the phone number of {0}?", "Find the phone number of {0}.", "Which number does {0} have?", "How can I call {0}?"),
          "The phone number of {0} is {r}.", number(1000, 10000), ("phone", "number", "result"),
          "What are the phone numbers of {0} and {1}?"),
    Topic(("where_is", "find_person", "locate", "get_location"), ("locate_person",),
          ("Tells where a person is.", "Finds a person.", "Where somebody is now.", "Get the location of a person"),
          (Slot(("name", "person", "who", "user"), words.person),),
          ("Where is {0}?", "Find {0}.", "Where is {0} now?", "Tell me where {0} is."),
          "{0} is in the {r}.", place, ("place", "location", "result"),
          "Where are {0} and {1}?"),
    Topic(("stock", "count_items", "in_stock", "get_stock"), ("stock_of",),
          ("Tells how many of a thing there are.", "Counts the things in the shop.", "How many are in stock.", "Check the inventory"),
          (Slot(("thing", "item", "product", "name"), lambda rng: rng.choice(words.THINGS) + "s"),),
          ("How many {0} are there?", "How many {0} do we have?", "Count the {0}.", "How many {0} are in stock?"),
          "There are {r} {0}.", number(2, 90), ("count", "number", "result")),
    Topic(("calculator", "calculate", "compute", "math"), ("calc",),
          ("Works out a sum.", "Calculates with numbers.", "Computes an expression.", "Evaluate a mathematical expression"),
          (Slot(("expression", "sum", "input", "formula"),
                lambda rng: f"{rng.randrange(2, 99)} {rng.choice('+-*')} {rng.randrange(2, 99)}"),),
          ("What is {0}?", "Calculate {0}.", "Work out {0}.", "How much is {0}?"),
          "{0} is {r}.", worked_out, ("result", "value"), group="sums"),
    operation(("add", "add_numbers", "plus", "sum", "addition"), ("add_two",),
              ("Adds two numbers.", "The sum of two numbers.", "Add two numbers", "Add a and b.", "Adds a and b."), "+", "sum",
              lambda _, a, b: a + b, asks=("What is {0} + {1}?", "Add {0} and {1}.", "What is {0} plus {1}?", "Add {0} to {1}.",
                                           "Sum {0} and {1}.")),
    operation(("multiply", "multiply_numbers", "times", "product_of"), ("times_two",),
              ("Multiplies two numbers.", "The product of two numbers.", "Multiply two numbers", "Multiply a and b.", "Multiplies a and b."),
              "*", "product", lambda _, a, b: a * b, asks=("What is {0} * {1}?", "Multiply {0} by {1}.", "What is {0} times {1}?",
                                                         "Multiply {0} and {1}.")),
    operation(("subtract", "minus", "difference"), ("take_away",),
              ("Subtracts two numbers.", "The difference of two numbers.", "Subtract two numbers", "Subtract b from a."),
              "-", "difference", lambda _, a, b: a - b, asks=("What is {0} - {1}?", "What is {0} minus {1}?",
                                                            "Take from {0} the number {1}.")),
    Topic(("send_message", "message", "write_to", "tell"), ("send_note",),
          ("Sends a message to a person.", "Writes a message to somebody.", "Send a message", "Send an email to a given recipient."),
          (Slot(("to", "person", "name", "receiver", "recipient"), words.person), Slot(("text", "message", "body"), one_of(*NOTES))),
          ("Tell {0}: {1}.", "Send {0} a message: {1}.", "Write to {0}: {1}."),
          "I have told {0}."),
    Topic(("set_timer", "timer", "start_timer", "alarm"), ("begin_timer",),
          ("Starts a timer.", "Sets a timer of so many minutes.", "Set a timer"),
          (Slot(("minutes", "length", "duration"), number(2, 90), "integer"),),
          ("Set a timer for {0} minutes.", "Wake me in {0} minutes.", "Start a timer of {0} minutes."),
          "The timer is set to {0} minutes."),
    Topic(("play", "play_song", "music", "play_music"), ("start_song",),
          ("Plays a song.", "Plays music.", "Play a song by its title"),
          (Slot(("song", "title", "name"), one_of(*SONGS)),),
          ("Play {0}.", "Play the song {0}.", "I want to hear {0}."),
          "I play {0}."),
    Topic(("set_light", "light", "lamp", "switch_light"), ("turn_light",),
          ("Turns the light of a room on or off.", "Switches a lamp.", "Turn a light on or off"),
          (Slot(("room", "place", "where"), place), Slot(("state", "to", "position"), one_of("on", "off"), "on off")),
          ("Turn the light in the {0} {1}.", "Switch the lamp in the {0} {1}.", "Make the light in the {0} go {1}."),
          "The light in the {0} is {1}."),
    Topic(("add_task", "remind", "remember", "new_task"), ("keep_task",),
          ("Puts a task on the list.", "Adds something to do to the list.", "Add a task to the todo list"),
          (Slot(("task", "text", "what"), one_of(*TASKS)),),
          ("Remind me to {0}.", "Put this on my list: {0}.", "I have to {0}. Remember it."),
          "It is on your list: {0}."),
    Topic(("search", "web_search", "find", "look_up"), ("search_books",),
          ("Searches the web.", "Searches for words.", "Finds pages about something.", "Search the web for a query"),
          (Slot(("query", "words", "text", "q"), lambda rng: f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.ANIMALS)}"),),
          ("Search for {0}.", "Find something about a {0}.", "Search the web for {0}."),
          "I found {r} pages about {0}.", number(2, 90), ("pages", "count", "result")),
    Topic(("open", "open_door", "unlock", "door"), ("open_up",),
          ("Opens a door.", "Opens the door of a room.", "Open a door"),
          (Slot(("door", "room", "which"), place),),
          ("Open the {0}.", "Open the door of the {0}.", "Unlock the {0}."),
          "The {0} is open."),
)


@dataclass
class Kind:
    """Something that has attributes, or that something is done to."""

    noun: str
    keys: tuple
    pool: object
    said: str  # how a sentence has it
    integer: bool = False
    attributes: tuple = ()


def file_name(rng, *_):
    return rng.choice(words.THINGS + words.ANIMALS) + rng.choice((".txt", ".md", ".pdf", ".csv", ".py", ".json"))


def animal(rng, *_):
    return rng.choice(words.ANIMALS)


KINDS = (
    Kind("person", ("name", "person", "who", "user", "employee"), words.person, "{0}", attributes=(
        "birthday", "age", "address", "email", "teacher", "job", "salary", "height", "score", "grade", "boss", "desk", "shift", "team",
        "doctor", "car", "language", "balance", "room", "friend", "sister", "shoe size", "bus", "lunch")),
    Kind("customer", ("customer", "name", "customer_name"), words.person, "the customer {0}", attributes=(
        "address", "balance", "email", "last order", "discount", "account", "language", "points")),
    Kind("thing", ("thing", "item", "product", "name", "object"), words.thing, "the {0}", attributes=(
        "weight", "size", "owner", "colour", "maker", "date", "code", "status", "rating", "length", "shelf", "keeper", "value", "age")),
    Kind("town", ("town", "city", "place", "location"), city, "{0}", attributes=(
        "mayor", "population", "river", "area", "height", "traffic", "train", "hotel", "market day", "museum", "air quality", "sunrise")),
    Kind("order", ("order", "order_id", "id", "number"), number(2, 9999), "order {0}", True, (
        "status", "price", "date", "address", "state", "weight", "customer")),
    Kind("ticket", ("ticket", "ticket_id", "id"), number(2, 9999), "ticket {0}", True, ("status", "owner", "title", "seat", "price")),
    Kind("flight", ("flight", "flight_number", "number"), number(2, 999), "flight {0}", True, ("status", "gate", "delay", "pilot", "time")),
    Kind("file", ("file", "path", "filename", "name"), file_name, "the file {0}", attributes=("size", "owner", "date", "type", "lines")),
    Kind("animal", ("animal", "name", "which"), animal, "the {0}", attributes=("food", "weight", "age", "name", "keeper", "speed")),
    Kind("room", ("room", "place", "which"), place, "the {0}", attributes=("temperature", "size", "key", "lamp", "owner", "humidity")),
)
# Attributes and actions that occur in held-out cases alone.
UNSEEN_ATTRIBUTES = ("price tag", "badge", "manager", "guide", "ticket count", "colour code", "shoe", "clerk")
VERBS = tuple(pair.split("/") for pair in """close/closed lock/locked clean/cleaned paint/painted delete/deleted save/saved
print/printed start/started stop/stopped feed/fed book/booked order/ordered buy/bought sell/sold move/moved read/read hide/hidden
lift/lifted repair/repaired pack/packed send/sent cancel/cancelled archive/archived check/checked count/counted call/called
show/shown share/shared block/blocked mark/marked update/updated remove/removed wake/woken""".split())
UNSEEN_VERBS = (["mend", "mended"], ["rent", "rented"], ["load", "loaded"])


def attribute(rng, unseen=False):
    """A topic that looks something up of something."""
    kind = rng.choice(KINDS)
    chance = rng.random()
    if unseen and chance < 0.5:
        what = rng.choice(UNSEEN_ATTRIBUTES)
    elif chance < 0.2:
        what = words.invented(rng).lower()
    else:
        what = rng.choice(words.THINGS) if chance < 0.35 else rng.choice(kind.attributes)
    key, noun, of = what.replace(" ", "_"), kind.noun, kind.said
    names = (f"get_{key}", f"{key}_of", f"lookup_{key}", key, f"find_{key}", f"fetch_{key}", f"{noun}_{key}", f"get_{noun}_{key}")
    does = (f"Gets the {what} of {words.a(noun)}.", f"Get the {what} of {words.a(noun)}", f"Returns the {what} of the given {noun}.",
            f"Looks up the {what} of {words.a(noun)}.", f"The {what} of {words.a(noun)}.", f"Find the {what} for {words.a(noun)}.")
    asks = (f"What is the {what} of {of}?", f"Tell me the {what} of {of}.", f"Find the {what} of {of}.", f"Get the {what} of {of}.",
            f"Look up the {what} of {of}.", f"I need the {what} of {of}.", f"Which {what} does {of} have?", f"What {what} has {of}?")
    result = rng.choice((number(2, 9999), words.person, place, words.town, lambda rng, *_: rng.choice(words.COLOURS),
                         lambda rng, *_: words.invented(rng).lower()))
    return Topic(names, (f"ask_{key}", f"{key}_now"), does, (Slot(kind.keys, kind.pool, "integer" if kind.integer else "string"),), asks,
                 f"The {what} of {of} is {{r}}.", lambda rng, *_: result(rng), (key, "result", "value"),
                 f"What is the {what} of {of} and of {of.replace('{0}', '{1}')}?", group=f"attribute {what}")


def action(rng, unseen=False):
    """A topic that does something to something."""
    kind = rng.choice(KINDS[2:])
    verb, past = rng.choice(UNSEEN_VERBS if unseen and rng.random() < 0.5 else VERBS)
    noun, of, third = kind.noun, kind.said, verb + "s"
    names = (f"{verb}_{noun}", verb, f"do_{verb}", f"{noun}_{verb}", f"{verb}_one_{noun}")
    does = (f"{third.capitalize()} {words.a(noun)}.", f"{verb.capitalize()} {words.a(noun)}", f"{third.capitalize()} the given {noun}.",
            f"Use this to {verb} {words.a(noun)}.")
    asks = (f"{verb.capitalize()} {of}.", f"Please {verb} {of}.", f"Can you {verb} {of}?", f"I want you to {verb} {of}.",
            f"{verb.capitalize()} {of}, please.")
    return Topic(names, (f"{verb}_it", f"now_{verb}"), does, (Slot(kind.keys, kind.pool, "integer" if kind.integer else "string"),), asks,
                 f"I have {past} {of}.", both=f"{verb.capitalize()} {of} and {of.replace('{0}', '{1}')}.", group=f"action {verb}")

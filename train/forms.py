"""Forms: facts of a text as JSON, under keys that the request names.

A request says in words, as a list of keys, as an empty form or as a JSON schema what it
wants; the answer is one object.  A server can hold the model to a schema, and then only the
values are its own choice.
"""

import json

import echo
import facts
import words

WEIGHT = 1.5

# What is known of a person: how it is said, and what the key of it may be called.
PERSON = (
    (("town", "home", "city", "lives_in"), words.town, "{n} lives in {v}."),
    (("trade", "job", "work"), facts.POOLS["trade"], "{n} works as a {v}."),
    (("pet", "animal"), facts.POOLS["animal"], "The pet of {n} is a {v}."),
    (("fruit", "favourite_fruit"), facts.POOLS["fruit"], "{n}'s favourite fruit is {v}."),
    (("colour", "favourite_colour", "color"), facts.POOLS["colour"], "{n}'s favourite colour is {v}."),
    (("drink", "favourite_drink"), facts.POOLS["drink"], "{n}'s favourite drink is {v}."),
    (("sister",), words.person, "The sister of {n} is {v}."),
    (("teacher",), words.person, "The teacher of {n} is {v}."),
    (("age", "years"), lambda rng: rng.randrange(5, 95), "{n} is {v} years old."),
)
THING = (
    (("owner",), words.person, "The owner of the {n} is {v}."),
    (("keeper",), words.person, "The keeper of the {n} is {v}."),
    (("price", "cost"), lambda rng: rng.randrange(2, 900), "The price of the {n} is {v}."),
    (("code",), lambda rng: rng.randrange(100, 9999), "The code for the {n} is {v}."),
    (("place", "where", "room"), facts.POOLS["place"], "The {n} is in the {v}."),
)
WISHES = ("Give me {k} as JSON.", "Write {k} as JSON.", "Answer in JSON with the keys {k}.", "I want {k} as JSON.",
          "Put {k} into JSON.")
LINES = ("Write this as a JSON list.", "Put these into a JSON list.", "As a JSON list:", "Make a JSON array of this.")
TWO_LEGS = set("crane crow duck eagle falcon goose hawk heron owl parrot penguin puffin raven robin sparrow stork swan".split())
NO_FOUR = TWO_LEGS | {"crab", "dolphin", "seal", "snail", "walrus", "whale"}


def listed(keys):
    return keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]


def schema(form):
    kinds = {str: "string", int: "integer", list: "array"}
    properties = {key: {"type": kinds[type(value)]} for key, value in form.items()}
    return {"type": "object", "properties": properties, "required": list(form)}


def wish(rng, form):
    """How the keys of a form are asked for."""
    shape = rng.random()
    if shape < 0.65:
        return rng.choice(WISHES).format(k=listed(list(form)))
    if shape < 0.8:
        empty = {key: 0 if isinstance(value, int) else "" for key, value in form.items()}
        return f"Fill in this form: {json.dumps(empty)}"
    return f"Answer in JSON after this schema: {json.dumps(schema(form))}"


def about(rng, kind, pool, key):
    """Sentences about one person or thing, and its form."""
    name = pool(rng)
    form, says = {key: name}, []
    for keys, values, sentence in rng.sample(kind, rng.randint(1, 4)):
        value = values(rng)
        form[rng.choice(keys)] = value
        says.append(sentence.format(n=name, v=value))
    return says, form


def extract(rng):
    person = rng.random() < 0.7
    arguments = (PERSON, words.person, rng.choice(("name", "person"))) if person else (
        THING, words.thing, rng.choice(("name", "thing")))
    says, form = about(rng, *arguments)
    sentences = says + [facts.filler(rng) for _ in range(rng.choice((0, 0, 1, 3)))]
    rng.shuffle(sentences)
    # A form may leave things out, in any order of its keys.
    keys = rng.sample(list(form), rng.randint(min(2, len(form)), len(form)))
    form = {key: form[key] for key in keys}
    return facts.layout(rng, sentences), form


def animals(rng):
    found = rng.sample(words.ANIMALS, rng.randint(2, 5))
    text = f"I saw {listed([words.a(animal) for animal in found])}."
    return text, {rng.choice(("animals", "list", "names")): found}


def line(rng):
    """Words to put into a list, one after the other: how they are spelled behind a quote."""
    found = [" ".join(echo.word(rng) for _ in range(rng.choice((1, 1, 2)))) for _ in range(rng.randint(3, 12))]
    return f"{rng.choice(LINES)}\n{', '.join(found)}", found


def legs(rng):
    animal = rng.choice([animal for animal in words.ANIMALS if animal not in NO_FOUR - TWO_LEGS])
    count = 2 if animal in TWO_LEGS else 4
    return animal, count


def one(rng):
    """A request and the object, or the list, that answers it."""
    chance = rng.random()
    if chance < 0.25:
        return line(rng)
    if chance < 0.35:
        animal, count = legs(rng)
        keys = rng.choice((("animal", "legs"), ("name", "legs"), ("animal", "count")))
        form = dict(zip(keys, (animal, count)))
        if rng.random() < 0.5:
            return f"How many legs has {words.a(animal)}? {wish(rng, form)}", form
        return rng.choice(("Name an animal and count its legs.", "Name an animal and say how many legs it has.")), form
    text, form = animals(rng) if chance < 0.5 else extract(rng)
    return f"{text}\n{wish(rng, form)}" if rng.random() < 0.8 else f"{wish(rng, form)}\n{text}", form


def conversation(rng, turns=1):
    messages = []
    for _ in range(turns):
        question, form = one(rng)
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": json.dumps(form, ensure_ascii=False), "weight": WEIGHT})
    return messages

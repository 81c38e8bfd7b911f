"""Questions about facts stated earlier, near or far.

A document states many facts ("The keeper of the copper key is Mira.") among
sentences that state none, and then asks for some of them.  The question is
worded like the fact, and the answer repeats it, so it can be found by matching
word after word; the values are drawn anew for every document, so it can be found in no other way.  The skill is what
makes a broken KV cache visible: the answer is right only if a handful of
positions far back are read correctly.
"""

import words

# What a fact says and how it is asked; {k} is the key, {v} the value.
RELATIONS = (
    ("thing", "person", "The keeper of the {k} is {v}.", "Who is the keeper of the {k}?"),
    ("thing", "person", "The owner of the {k} is {v}.", "Who is the owner of the {k}?"),
    ("thing", "person", "The {k} was made by {v}.", "Who was the {k} made by?"),
    ("thing", "number", "The code for the {k} is {v}.", "What is the code for the {k}?"),
    ("thing", "number", "The price of the {k} is {v}.", "What is the price of the {k}?"),
    ("thing", "place", "The {k} is in the {v}.", "Where is the {k}?"),
    ("person", "town", "{k} lives in {v}.", "Where does {k} live?"),
    ("person", "town", "{k} was born in {v}.", "Where was {k} born?"),
    ("person", "fruit", "{k}'s favourite fruit is {v}.", "What is {k}'s favourite fruit?"),
    ("person", "colour", "{k}'s favourite colour is {v}.", "What is {k}'s favourite colour?"),
    ("person", "drink", "{k}'s favourite drink is {v}.", "What is {k}'s favourite drink?"),
    ("person", "animal", "The pet of {k} is a {v}.", "What is the pet of {k}?"),
    ("person", "trade", "{k} works as a {v}.", "What does {k} work as?"),
    ("person", "person", "The sister of {k} is {v}.", "Who is the sister of {k}?"),
    ("person", "person", "The teacher of {k} is {v}.", "Who is the teacher of {k}?"),
    ("town", "number", "{k} was founded in {v}.", "When was {k} founded?"),
    ("town", "person", "The mayor of {k} is {v}.", "Who is the mayor of {k}?"),
)

POOLS = {
    "person": words.person,
    "town": words.town,
    "thing": words.thing,
    "number": lambda rng: str(rng.randrange(100, 10 ** rng.choice((3, 4)))),
    "place": lambda rng: rng.choice(words.PLACES),
    "fruit": lambda rng: rng.choice(words.FRUITS),
    "colour": lambda rng: rng.choice(words.COLOURS),
    "drink": lambda rng: rng.choice(words.DRINKS),
    # The article is part of the pattern, so only words that take "a" serve here.
    "animal": lambda rng: rng.choice([w for w in words.ANIMALS if w[0] not in "aeiou"]),
    "trade": lambda rng: rng.choice([w for w in words.TRADES if w[0] not in "aeiou"]),
}

FILLER = (
    "The {w} blew over the {p}.", "It was a {d} day.", "The road to the {p} was {d}.",
    "Nobody spoke for a while.", "The {b} sang in the trees.", "Far away a bell rang.",
    "People walked to the {p} and back.", "The sky was {d}.", "A {b} sat on the wall.",
    "There was bread and cheese on the table.", "The path went past the {p}.",
    "In the evening it became {d}.", "Some children played near the {p}.",
    "The river was {d} that year.", "Everyone liked the {p}.", "A cart rolled by.",
    "The old people told long stories.", "Smoke rose from the {p}.",
    "The door of the {p} stood open.", "A {b} flew away.", "The market was {d}.",
    "Then it was time to go home.", "The {w} went on all night.", "The morning was {d}.",
)
_FILLER_SLOTS = {
    "w": ("wind", "rain", "snow", "fog", "storm"),
    "d": ("quiet", "warm", "cold", "grey", "bright", "long", "dry", "wet"),
    "p": ("hills", "harbour", "forest", "field", "mill", "market", "bridge", "garden"),
    "b": ("crow", "swan", "robin", "goose", "duck", "hawk"),
}

HEADERS = (
    "Read these notes.", "Here are some notes.", "Please remember the following.",
    "Here is what I know.", "Read this carefully.", "These are the facts.",
    "Below is a text.", "I will ask you about this text.",
)
# Answers are few among many words, so each counts more.
ANSWER_WEIGHT = 2.0
NOTED = ("I have read it.", "Noted.", "I will remember that.", "Ready.")
ASKS = ("{q}", "{q}", "{q}", "{q}", "Question: {q}", "Now tell me: {q}", "And {l}", "So, {l}")


def filler(rng):
    slots = {slot: rng.choice(choices) for slot, choices in _FILLER_SLOTS.items()}
    return rng.choice(FILLER).format(**slots)


def some_facts(rng, count):
    """Distinct facts: no two of them share relation and key."""
    # A few relations per document: the fewer, the more facts look alike, and the
    # more the key itself has to decide.
    relations = rng.sample(RELATIONS, rng.randint(1, min(8, len(RELATIONS))))
    facts, seen = [], set()
    for _ in range(count * 4):
        if len(facts) == count:
            break
        relation = rng.choice(relations)
        key_pool, value_pool, says, asks = relation
        key = POOLS[key_pool](rng)
        if (says, key) in seen:
            continue
        seen.add((says, key))
        value = POOLS[value_pool](rng)
        facts.append({
            "says": says.format(k=key, v=value),
            "asks": asks.format(k=key),
            "value": value,
        })
    return facts


def layout(rng, sentences):
    """The sentences as prose, as lines or as a list."""
    style = rng.random()
    if style < 0.5:
        return " ".join(sentences)
    if style < 0.75:
        return "\n".join(sentences)
    return "\n".join("- " + line for line in sentences)


def context(rng, facts, filler_count):
    sentences = [fact["says"] for fact in facts] + [filler(rng) for _ in range(filler_count)]
    rng.shuffle(sentences)
    return layout(rng, sentences)


def ask(rng, fact):
    """One question and its answer, which is the fact as it was stated."""
    question = fact["asks"]
    lowered = question[0].lower() + question[1:]
    return [
        {"role": "user", "content": rng.choice(ASKS).format(q=question, l=lowered)},
        {"role": "assistant", "content": fact["says"], "weight": ANSWER_WEIGHT},
    ]


def conversation(rng, facts, filler_count, questions):
    """State the facts in one of several ways, then ask for some of them."""
    text = context(rng, facts, filler_count)
    asked = [rng.choice(facts) for _ in range(questions)]
    turns = [ask(rng, fact) for fact in asked]
    if rng.random() < 0.7:
        text = rng.choice(HEADERS) + "\n" + text
    style = rng.random()
    if style < 0.75:
        turns[0][0]["content"] = text + "\n" + turns[0][0]["content"]
        opening = []
    elif style < 0.9:
        opening = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": rng.choice(NOTED)},
        ]
    else:
        opening = [{"role": "system", "content": text}]
    return opening + [message for turn in turns for message in turn]

"""Lines to say again, word for word.

Copying is the seed of every look-up: to repeat a line, attention has to find
where it is in the line and read the next word.  Nearly every token of the
answer teaches that, which makes the ability appear early; facts build on it.
"""

import words

REQUESTS = ("Repeat this.", "Say this again.", "Repeat after me.", "Copy this line.", "Repeat:")
POOLS = (words.NAMES, words.TOWNS, words.ADJECTIVES, words.THINGS, words.FRUITS, words.ANIMALS,
         words.TRADES, words.PLACES, words.DRINKS)


def word(rng):
    if rng.random() < 0.1:
        return words.invented(rng)
    if rng.random() < 0.1:
        return str(rng.randrange(10 ** rng.choice((1, 2, 3, 4))))
    return rng.choice(rng.choice(POOLS))


def conversation(rng, turns=1):
    messages = []
    for _ in range(turns):
        line = " ".join(word(rng) for _ in range(rng.randint(1, 25)))
        messages.append({"role": "user", "content": f"{rng.choice(REQUESTS)}\n{line}"})
        messages.append({"role": "assistant", "content": line})
    return messages

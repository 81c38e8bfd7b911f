"""Short stories with a beginning, a problem and an end.

Every story has a hero (a fox), an object (a lantern), a helper and a place.
The hero gets the object, something goes wrong, a first attempt fails, the
helper comes, and the object or the helper puts things right.  What goes wrong
depends on the object: a lantern ends the dark, a drum wakes a village, a cake
is shared.  Sentences are picked from many variants and filled in.

Slots: {n} the hero as named in the running text, {c} the hero's kind,
{s}/{o}/{p} he/him/his, {t} the object, {h} the helper ("the old owl"),
{hk} the helper's kind, {l} the place ("the forest").  A capital slot letter
starts a sentence.
"""

import zlib

import words

CHARACTERS = """fox bear owl mouse rabbit hare hedgehog badger squirrel mole otter
beaver wolf deer goat sheep lamb pig cow horse pony donkey dog puppy cat kitten duck
goose hen swan crow raven robin sparrow stork crane eagle hawk heron penguin puffin
parrot frog toad turtle snail lizard snake bee ant beetle butterfly spider crab seal
whale dolphin walrus lion tiger elephant monkey camel zebra panda moose weasel
squid dragon giant robot ghost wizard witch knight king queen prince princess
girl boy farmer baker sailor fisher miller tailor painter gardener shepherd pirate
clown teacher doctor miner singer dancer elf troll gnome fairy snowman""".split()

FEMALE = set("hen cow queen witch princess girl fairy".split())
MALE = set("king prince boy wizard snowman knight".split())

# Each object belongs to a class, and the class decides which troubles it can end.
OBJECTS = {
    "light": "lantern candle lamp torch".split(),
    "music": "drum flute bell violin whistle horn harp trumpet guitar".split(),
    "tool": "rope ladder spade hammer broom bucket net hook shovel pole".split(),
    "wear": "hat scarf coat cloak blanket sweater shawl glove umbrella".split(),
    "play": "kite ball balloon doll puppet hoop marble toy".split(),
    "food": "cake apple pie loaf melon pumpkin cookie pear cheese pancake".split(),
    "ride": "boat raft cart sledge wagon bicycle canoe balloon".split(),
    "find": """key map coin ring crown mirror shell feather stone clock book letter
        pearl box button compass star seed flower pen painting wheel basket bottle
        cup teapot pillow chair table telescope machine mask flag egg leaf sword
        needle spoon jar window door computer rocket robot train""".split(),
}
CLASS = {name: kind for kind, names in OBJECTS.items() for name in names}

LOOKS = """little old small bright blue red green golden silver shiny wooden yellow
beautiful tiny round plain strange new""".split()
TRAITS = """small young brave shy kind curious quiet clever old cheerful lonely lazy
gentle careful proud tired friendly""".split()
PLACES = """forest valley village mountain meadow river lake harbour island town hill
field garden castle cave beach desert swamp mill farm""".split()
HOMES = (
    "in a cosy den near the {l}", "at the edge of the {l}", "in a little house by the {l}",
    "under an old tree close to the {l}", "not far from the {l}", "high above the {l}",
    "in a quiet corner of the {l}", "where the {l} begins",
)
HELPER_TRAITS = "old wise friendly grey tall gentle quiet kind merry little".split()

OPENINGS = (
    "Once upon a time there was {ac} named {n}, who lived {home}.",
    "Long ago, {ac} named {n} lived {home}.",
    "There was once {ac} called {n}. {S} lived {home}.",
    "{Home} lived {ac} named {n}.",
    "{N} was {ac} who lived {home}.",
    "In a land far away lived {ac} called {n}. {P} home was {home}.",
)
OPENINGS_UNNAMED = (
    "Once upon a time there was {ac} who lived {home}.",
    "Long ago, {ac} lived {home}.",
    "{Home} lived {ac}.",
    "There was once {ac}. {S} lived {home}.",
)
HABITS = (
    "Every morning {s} walked down to the {l} and looked at the sky.",
    "{S} liked to sing while {s} worked.",
    "Most of all {s} loved warm bread and long walks.",
    "{S} had many dreams but not many friends.",
    "Everybody knew {o}, because {s} always said hello.",
    "{S} was never bored, for there was always something to see.",
    "At night {s} counted the stars until {s} fell asleep.",
    "{S} was good at listening and bad at waiting.",
    "On Sundays {s} baked, and the whole place smelled sweet.",
)
GETS = (
    "One day {n} found {at} under a bush.",
    "One {weather} morning {n} found {at} beside the path.",
    "For {p} birthday {n} was given {at}.",
    "{P} grandmother had left {o} {at}, and {s} loved it more than anything.",
    "One {weather} day a stranger came by and gave {n} {at}.",
    "{S} owned only one precious thing: {at}.",
    "At the market {n} saw {at}, and {s} spent all {p} coins on it.",
    "All winter long {n} worked, and at last {s} had made {at}.",
    "One {weather} evening the river washed {at} onto the bank.",
)
LIKES = (
    "{S} took the {t} everywhere.",
    "\"What a fine {t}!\" {s} said.",
    "{S} cleaned the {t} until it looked like new.",
    "{S} did not know yet how much the {t} would matter.",
    "{N} kept the {t} close, even at night.",
    "\"I will take good care of this {t},\" {s} promised.",
    "Nobody near the {l} had ever seen such {at2}.",
)
WEATHERS = "sunny rainy windy foggy snowy stormy cold warm grey bright".split()

# A plot: what goes wrong, what is tried in vain, how the helper comes, how it is solved.
PLOTS = {
    "light": (
        (("One night thick fog rose over the {l}, and a little {v} did not come home.",
          "Then came the darkest night of the year, and a young {v} was lost in the {l}."),
         ("{N} called and called, but no one answered.",
          "{N} ran into the dark, but {s} could not see {p} own feet."),
         ("\"Light your {t} and hold it high,\" said {h}. \"A light can be seen from far away.\"",
          "{H} said, \"Your voice gets lost out there. Your {t} will not.\""),
         ("So {n} climbed a rock and held up the {t}. Soon the little {v} saw the glow and came running home.",
          "{N} lit the {t} and swung it to and fro. After a while two small eyes shone back, and the {v} was found.")),
        (("One evening a ship was sailing towards the rocks near the {l}, and nobody on board could see them.",
          "In a wild storm the big light at the {l} went out, and a boat was still on the water."),
         ("{N} shouted, but the wind was louder.",
          "{N} waved {p} arms, but it was much too dark."),
         ("\"Quick, the {t}!\" cried the {hk}, who had seen it too.",
          "{H} shielded the flame from the wind with both hands."),
         ("Together they held up the {t}, and the sailors turned just in time.",
          "The {t} shone bright and steady, and the boat found its way in.")),
    ),
    "music": (
        (("But one winter everybody in the {l} grew sad, and nobody laughed any more.",
          "Then a long grey time came to the {l}, and people forgot how to be merry."),
         ("{N} told funny tales, but nobody smiled.",
          "{N} told {p} best joke, but they only sighed."),
         ("\"Do not speak,\" whispered {h}. \"Play your {t}.\"",
          "{H} pointed at the {t} and said, \"Words are not enough. Try that.\""),
         ("So {n} played the {t}, softly at first and then louder. One by one they began to dance.",
          "{N} played a tune on the {t}, and {h} danced. Soon the whole place was laughing again.")),
        (("One night the water of the river rose, and everyone near the {l} was fast asleep.",
          "One night {n} smelled smoke over the {l}, while all the others were sleeping."),
         ("{N} knocked at every door, but nobody woke up.",
          "{N} shouted until {p} voice was gone, but they slept on."),
         ("\"They will hear your {t},\" said the {hk}, out of breath.",
          "\"Your {t}!\" cried the {hk}. \"Make as much noise as you can!\""),
         ("{N} took the {t} and played as loudly as {s} could. Lamps were lit, doors opened, and everyone was safe.",
          "The sound of the {t} rang over the roofs, and everybody got away in time.")),
    ),
    "tool": (
        (("One day a little {v} fell into a deep hole near the {l} and could not get out.",
          "Then a cry came from the {l}: a {v} was stuck in the mud."),
         ("{N} reached down as far as {s} could, but it was too deep.",
          "{N} pulled and pulled, but {s} was not strong enough."),
         ("\"Use the {t}!\" said the {hk}. \"I will help you.\"",
          "\"Alone we are too weak,\" said {h}, \"but you have {at2}.\""),
         ("{N} held one end of the {t}, {h} pushed, and the {v} was free.",
          "With the {t} and all their strength they brought the {v} up into the sun.")),
        (("After a storm a great tree lay across the only road to the {l}.",
          "In spring the old bridge to the {l} broke, and nobody could cross."),
         ("{N} tried to move the wood alone, but it did not budge.",
          "{N} worked all day, but by evening nothing had changed."),
         ("The {hk} rolled up both sleeves and set to work.",
          "\"Two can do more than one,\" said {h}. \"Bring your {t}.\""),
         ("They took turns with the {t}, and by the third day the way was open.",
          "With the {t} they worked side by side, and soon everyone could pass again.")),
    ),
    "wear": (
        (("One {weather} night {n} met a {v} who was trembling with cold.",
          "When the first snow fell, {n} saw a poor {v} shivering by the {l}."),
         ("{N} made a small fire, but the wind blew it out.",
          "{N} gave the {v} some warm soup, but it did not help for long."),
         ("\"What you need is something to keep the cold out,\" said {h}.",
          "{H} looked at the {t} and then at {n}, and said nothing."),
         ("{N} thought for a moment and gave away the {t}. The {v} stopped shivering and smiled.",
          "So {n} put the {t} on the {v}, and soon the {v} was warm.")),
        (("Then a strong wind came and tore the {t} away, far over the {l}.",
          "But one {weather} day the wind took the {t} and carried it off."),
         ("{N} ran after it, but the wind was faster.",
          "{N} jumped and jumped, but the {t} flew higher and higher."),
         ("{H} had seen it all. \"It is hanging in the tall tree,\" said the {hk}.",
          "\"I know where the wind leaves things,\" said {h}. \"Come with me.\""),
         ("They climbed up together, and {n} got the {t} back.",
          "Behind the hill they found the {t}, a little dirty but whole.")),
    ),
    "play": (
        (("But a young {v} in the {l} had nothing to play with and cried all day.",
          "One day {n} saw a {v} sitting all alone by the {l}."),
         ("{N} made funny faces, but the {v} did not look up.",
          "\"Do not be sad,\" said {n}, but that did not help."),
         ("\"It is no fun to play alone,\" said {h}. \"You know that, too.\"",
          "The {hk} nodded towards the {t} and smiled."),
         ("So {n} fetched the {t}, and they all played until the sun went down.",
          "{N} held out the {t}. \"Shall we share it?\" From then on they played together.")),
        (("One {weather} afternoon the {t} got stuck at the very top of a tall tree.",
          "Then, in one careless moment, the {t} landed on the roof of the mill."),
         ("{N} threw stones and sticks, but none of them reached it.",
          "{N} tried to climb, but {s} slid down every time."),
         ("\"Stand on my back,\" said {h}.",
          "The {hk} laughed. \"I can reach that!\""),
         ("With one big stretch they had the {t} again.",
          "A push, a jump, and the {t} came down right into {p} arms.")),
    ),
    "food": (
        (("On the way home {n} met a {v} who had not eaten for two days.",
          "Then a hungry {v} came out of the {l} and looked at the {t}."),
         ("{N} hid the {t} and walked on, but {s} could not forget those sad eyes.",
          "{N} looked for berries to give away, but there were none left."),
         ("\"A {t} tastes better when it is shared,\" said {h}.",
          "The {hk} said, \"There is enough here for three.\""),
         ("So {n} divided the {t}, and they ate together under a tree.",
          "{N} cut the {t} into three parts, and nobody stayed hungry.")),
        (("But when {n} woke up, the {t} was gone, and only crumbs led into the {l}.",
          "Then somebody took the {t} while {n} was not looking."),
         ("{N} looked everywhere and found nothing.",
          "{N} asked all the neighbours, but nobody knew anything."),
         ("\"Follow the small footprints,\" said {h}.",
          "{H} had seen a little {v} run off with something round."),
         ("They found a {v} with six hungry children, and {n} let them keep the {t}. The next day there was a basket of nuts at the door.",
          "The thief was a hungry {v}, who was very sorry. {N} laughed, and they all shared the {t}.")),
    ),
    "ride": (
        (("Then the great rain came, and the {l} was cut off from the rest of the world.",
          "One day a {v} fell ill on the far side of the {l}, and the way was long."),
         ("{N} tried to go on foot, but the way was too hard.",
          "{N} set off alone, but soon {s} was stuck."),
         ("\"Take your {t}, and I will show you the way,\" said {h}.",
          "{H} climbed onto the {t} and said, \"Let us go together.\""),
         ("All night they travelled with the {t}, and at dawn they arrived with food and medicine.",
          "The {t} carried them safely over, and help came just in time.")),
        (("But halfway to the {l} the {t} broke, and night was falling.",
          "One {weather} day the {t} got stuck and would not move at all."),
         ("{N} pushed with all {p} strength, but nothing happened.",
          "{N} looked for help, but the road was empty."),
         ("The {hk} was carrying a box of tools.",
          "\"I have mended worse than that,\" said {h}."),
         ("Together they mended the {t}, and it went better than before.",
          "They tied and hammered, and at last the {t} was ready to go.")),
    ),
    "find": (
        (("But one morning the {t} was gone.",
          "Then, on a {weather} day, {n} lost the {t} somewhere near the {l}."),
         ("{N} looked under every stone, but {s} could not find it.",
          "{N} searched until dark and found nothing."),
         ("\"When did you see it last?\" asked {h}. {N} thought hard.",
          "{H} said, \"Let us walk back the way you came.\""),
         ("And there it was: the {t} lay in the grass, right where {n} had slept.",
          "They went back step by step, and in a bird's nest they found the {t}.")),
        (("One day a crying {v} came to the {l}. \"I have lost my {t},\" said the {v}.",
          "Then {n} heard that the {t} belonged to a {v} who missed it very much."),
         ("{N} did not want to give it away. {S} hid the {t}, but {s} could not sleep.",
          "{N} pretended to know nothing, but {p} heart grew heavy."),
         ("\"You will not be happy with it,\" said {h}, \"until you have done what is right.\"",
          "{H} looked at {n} for a long time and said, \"You know what to do.\""),
         ("So {n} brought the {t} back, and the {v} hugged {o} for joy.",
          "{N} gave back the {t}, and that day {s} won a friend.")),
        (("But one {weather} day the {t} fell to the ground and broke.",
          "Then a terrible thing happened: the {t} broke in two."),
         ("{N} tried to mend it, but {s} only made it worse.",
          "{N} cried, for nobody in the {l} knew how to mend it."),
         ("\"Give it to me,\" said {h}. \"What is broken can be mended.\"",
          "{H} took the pieces and said, \"This will need time, but it can be done.\""),
         ("They worked for three days, and in the end the {t} was even finer than before.",
          "Piece by piece they put the {t} together again, and only a thin line could be seen.")),
    ),
}
# Troubles that fit any object at all, also one the writer has never heard of.
ANY = PLOTS["find"] + (
    (("But a greedy {v} from the {l} wanted the {t} and took it in the night.",
      "One night a sly {v} crept in and carried off the {t}."),
     ("{N} ran after the thief, but soon {s} lost the trail.",
      "{N} begged to have it back, but the {v} only laughed."),
     ("\"Do not fight,\" said {h}. \"Ask why the {t} was taken.\"",
      "\"Let us both talk to the {v},\" said the {hk}."),
     ("It turned out that the {v} was only lonely. The {t} came home, and the {v} came to tea.",
      "The {v} was ashamed and gave the {t} back, and after that they were friends.")),
)
FEELINGS = (
    "{N} felt very small.", "{N} was close to tears.", "{N} did not know what to do.",
    "\"What shall I do now?\" asked {n}.", "{P} heart beat fast.", "{S} sat down and sighed.",
    "But {n} did not want to give up.",
)
HELPER_COMES = (
    "Just then {ah} came by.", "At that moment {ah} came out of the {l}.",
    "{Ah} had been watching from a branch nearby.", "Luckily {ah} was passing.",
    "Then {ah} appeared on the path.",
)
THANKS = (
    "\"Thank you,\" said {n}. \"Without you I could not have done it.\"",
    "{N} thanked {h} with all {p} heart.", "\"We did it!\" cried {n}.",
    "{H} only smiled and nodded.", "{N} jumped for joy.",
)
ENDINGS = (
    "From that day on {n} and {h} were the best of friends.",
    "That night {n} slept well, with the {t} on {p} mind and a smile on {p} face.",
    "And {n} never forgot that even a small {t} can change everything.",
    "Since then {n} has never been afraid to ask for help.",
    "And if you walk through the {l} today, you may still hear them laugh.",
    "{N} had learned that friends matter more than any {t}.",
    "They drank tea together and watched the sun go down over the {l}.",
    "And so everything ended well for the {c} with the {t}.",
)

REQUESTS_BOTH = (
    "Tell me a story about {A} and {B}.", "Tell me a story about {A} and {B}.",
    "Tell me a short story about {A} and {B}.", "Write a story about {A} and {B}.",
    "Write a short story about {A} with {B}.", "Can you tell me a story about {A} and {B}?",
    "I would like a story about {A} and {B}.", "A story about {A} and {B}, please.",
    "Please write a story with {A} and {B} in it.", "Make up a story about {A} who finds {B}.",
    "Tell me about {A} and {B}.", "story about {A} and {B}", "Could you write me a tale of {A} and {B}?",
    "Tell a bedtime story about {A} and {B}.",
)
REQUESTS_ONE = (
    "Tell me a story about {A}.", "Write a story about {A}.", "A story about {A}, please.",
    "Can you tell me a short story about {A}?", "I want to hear a story about {A}.",
    "Make up a tale about {A}.", "Tell me something about {A}.",
)
REQUESTS_NONE = (
    "Tell me a story.", "Tell me a story, please.", "Write a short story.",
    "I would like to hear a story.", "Can you tell me a story?", "Make something up.",
    "Tell me a bedtime story.", "Write me a story.",
)
AGAIN = ("Another one, please.", "Another one!", "Tell me another one.", "One more, please.",
         "And another story?", "Again, but different.")
SWITCH = ("And about {A}?", "And now about {A}?", "What about {A}?", "Now one about {A}, please.",
          "Make it about {A} instead.", "Tell me one about {A}.")


def held_out(hero, item):
    """Pairs that no training story contains: about one in twenty."""
    return zlib.crc32(f"{hero}+{item}".encode()) % 20 == 0


def pick_pair(rng, hero=None, item=None):
    """A hero and an object, from the pools where not given, avoiding held-out pairs."""
    while True:
        h = hero or (words.invented(rng).lower() if rng.random() < 0.03 else rng.choice(CHARACTERS))
        kinds = list(OBJECTS)
        if item:
            t = item
        elif rng.random() < 0.03:
            t = words.invented(rng).lower()
        else:
            t = rng.choice(OBJECTS[rng.choice(kinds)] if rng.random() < 0.6 else list(CLASS))
        if h != t and not held_out(h, t):
            return h, t
        if hero and item:
            return h, t


class Story:
    """One telling: the text and what a follow-up question may ask about."""

    def __init__(self, rng, hero, item, name=None, place=None):
        self.hero, self.item = hero, item
        self.name = name or (self._name(rng) if rng.random() < 0.75 else None)
        self.place = place or rng.choice(PLACES)
        self.helper = rng.choice([c for c in CHARACTERS if c != hero and c != item])
        victim = rng.choice([c for c in CHARACTERS[:60] if c not in (hero, item, self.helper)])
        self.slots = self._slots(rng, victim)
        self.text = self._tell(rng)

    def _name(self, rng):
        while True:
            name = words.person(rng, strange=0.05)
            wrong = MALE if name in words.FEMALE_NAMES else FEMALE
            if self.hero not in wrong:
                return name

    def _slots(self, rng, victim):
        female = self.hero in FEMALE or (self.hero not in MALE and rng.random() < 0.5)
        if self.name in words.NAMES and self.hero not in FEMALE | MALE:
            female = self.name in words.FEMALE_NAMES
        pronouns = ("she", "her", "her") if female else ("he", "him", "his")
        helper = f"{rng.choice(HELPER_TRAITS)} {self.helper}"
        slots = {
            "n": self.name or "the " + self.hero,
            "c": self.hero,
            "ac": words.a(f"{rng.choice(TRAITS)} {self.hero}"),
            "s": pronouns[0], "o": pronouns[1], "p": pronouns[2],
            "t": self.item,
            "at": words.a(f"{rng.choice(LOOKS)} {self.item}"),
            "at2": words.a(self.item),
            "h": "the " + helper, "ah": words.a(helper), "hk": self.helper,
            "l": self.place, "v": victim,
            "weather": rng.choice(WEATHERS),
        }
        slots["home"] = rng.choice(HOMES).format(**slots)
        for key in ("n", "s", "p", "h", "ah", "home"):
            slots[key.capitalize()] = words.sentence(slots[key])
        return slots

    def _tell(self, rng):
        kind = CLASS.get(self.item)
        fitting = PLOTS.get(kind, ANY)
        plot = rng.choice(fitting if rng.random() < 0.75 else ANY)
        trouble, attempt, advice, solved = plot
        beginning = [rng.choice(OPENINGS if self.name else OPENINGS_UNNAMED)]
        if rng.random() < 0.6:
            beginning.append(rng.choice(HABITS))
        beginning.append(rng.choice(GETS))
        if rng.random() < 0.7:
            beginning.append(rng.choice(LIKES))
        middle = [rng.choice(trouble), rng.choice(attempt)]
        if rng.random() < 0.6:
            middle.append(rng.choice(FEELINGS))
        middle += [rng.choice(HELPER_COMES), rng.choice(advice)]
        end = [rng.choice(solved)]
        if rng.random() < 0.6:
            end.append(rng.choice(THANKS))
        end.append(rng.choice(ENDINGS))
        gap = "\n\n" if rng.random() < 0.5 else " "
        parts = (" ".join(part).format(**self.slots) for part in (beginning, middle, end))
        return gap.join(parts)

    def questions(self):
        """What can be asked about this story, with short answers."""
        a, n = words.a, self.slots["n"]
        asked = [
            (f"Who helped {n}?", f"The {self.slots['h'][4:]}."),
            ("Who helped?", f"The {self.slots['h'][4:]}."),
            ("Where did it happen?", f"Near the {self.place}."),
            ("What was the story about?", f"It was about {a(self.hero)} and {a(self.item)}."),
        ]
        if self.name:
            asked.append((f"What was the {self.hero}'s name?", f"{self.name}."))
            asked.append(("What was the name of the hero?", f"{self.name}."))
            asked.append((f"Who was {self.name}?", f"{words.sentence(self.slots['ac'])}."))
        return asked


def request(rng):
    """A wish for a story, and the story."""
    shape = rng.random()
    hero, item = pick_pair(rng)
    a = words.a
    if shape < 0.12:
        return rng.choice(REQUESTS_NONE), Story(rng, hero, item)
    if shape < 0.22:
        return rng.choice(REQUESTS_ONE).format(A=a(hero)), Story(rng, hero, item)
    if shape < 0.30:
        look = rng.choice(("the lost ", "", "", "a magic ", "an old "))
        thing = look + item if look else a(item)
        return rng.choice(REQUESTS_ONE).format(A=thing), Story(rng, hero, item)
    first, second, story = a(hero), a(item), Story(rng, hero, item)
    if story.name and rng.random() < 0.2:
        first += f" {rng.choice(('named', 'called'))} {story.name}"
    elif rng.random() < 0.1:
        first = words.a(f"{rng.choice(TRAITS)} {hero}")
        story = Story(rng, hero, item)
    if rng.random() < 0.12:
        first, second = second, first
    text = rng.choice(REQUESTS_BOTH).format(A=first, B=second)
    if rng.random() < 0.1 and text.endswith("."):
        text = text[:-1] + f", set {rng.choice(('in', 'near'))} the {story.place}."
    return text, story


def conversation(rng, more=0):
    """A story, and up to `more` follow-up turns: another one, a switch, a question."""
    wish, story = request(rng)
    messages = [{"role": "user", "content": wish}, {"role": "assistant", "content": story.text}]
    for _ in range(more):
        kind = rng.random()
        if kind < 0.45:
            question, answer = rng.choice(story.questions())
            weight = 2.0
        elif kind < 0.7:
            hero, item = story.hero, story.item
            story = Story(rng, hero, item)
            question, answer, weight = rng.choice(AGAIN), story.text, 1.0
        else:
            # A new hero keeps the object, a new object keeps the hero.
            new_hero = rng.random() < 0.7
            if new_hero:
                hero, item = pick_pair(rng, item=story.item)
            else:
                hero, item = pick_pair(rng, hero=story.hero)
            story = Story(rng, hero, item)
            question = rng.choice(SWITCH).format(A=words.a(hero if new_hero else item))
            answer, weight = story.text, 1.0
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer, "weight": weight})
    return messages

"""Word pools that every kind of text draws from.

Most words here are short and common, so the tokenizer gives them one or two
tokens.  Names can also be invented from syllables: a model that must copy an
invented name cannot have memorised it.
"""

NAMES = """Ada Alma Anna Anton Arlo Bella Ben Bruno Carl Clara Cora Daisy Dan Dora
Edda Ella Elsa Emil Emma Erik Eva Felix Fern Finn Flora Frida Gil Greta Gus Hana
Hans Hazel Hugo Ida Ines Iris Ivan Ivy Jack Jan Jana Jonas Jude June Kai Karl Kira
Lara Lena Leo Lia Lina Liv Lola Lotta Luca Lucy Luis Luna Mara Marco Max Maya Mila
Milo Mina Mira Moss Nadia Nell Nico Nils Nina Noah Nora Olga Oona Opal Oscar Otto
Pablo Paul Petra Pip Quinn Rafe Rex Rita Robin Rosa Rudi Ruth Sam Sara Silas Sofia
Stella Sven Tara Tess Theo Tilda Tim Toby Tomas Uma Vera Victor Vito Wanda Will
Willa Yara Zara Zoe""".split()

# Which pronoun suits a name in a story.
FEMALE_NAMES = set("""Ada Alma Anna Bella Clara Cora Daisy Dora Edda Ella Elsa Emma Eva Fern
Flora Frida Greta Hana Hazel Ida Ines Iris Ivy Jana June Kira Lara Lena Lia Lina Lola
Lotta Lucy Luna Mara Maya Mila Mina Mira Nadia Nell Nina Nora Olga Oona Opal Petra Rita
Robin Rosa Ruth Sara Sofia Stella Tara Tess Tilda Uma Vera Wanda Willa Yara Zara
Zoe""".split())

ADJECTIVES = """amber black blue bronze copper crystal golden green grey iron ivory
jade leather marble old orange painted pink purple red round silver small square
stone striped tall velvet white wooden yellow""".split()

THINGS = """anchor arrow ball bag barn basket bell boat book bottle bowl box bridge
broom bucket cabin candle cart castle chain chair chest clock coat coin compass cup
dish door drum fan fence flag flute garden gate glove hammer harp hat horn house
jar key kite knife ladder lamp lantern locker map mask mill mirror net pen pillow
pipe plate ring room rope ruler scarf shed shield ship shop spoon stool sword table
tent tower train vase wagon well wheel whistle window""".split()

TOWNS = """Alden Arbor Ashby Belford Bray Calder Camden Corwen Dale Delmar Denby Elden
Ember Fairway Farley Fenton Garden Glenn Granby Harlow Haven Hilton Ilford Kelso
Kirby Landon Larkin Linden Lorne Marlow Melton Milford Morley Newton Norland Oakley
Orford Penrose Port Ramsey Redhill Renford Ripley Rowan Selby Selkirk Stanton Sutton
Tarn Thorpe Torrin Upton Velden Walden Weston Windham Yarrow Zell""".split()

FRUITS = """apple apricot banana berry cherry coconut date fig grape kiwi lemon lime
mango melon nut olive orange papaya peach pear pepper plum quince raisin""".split()
COLOURS = """black blue brown cream gold green grey orange pink purple red silver
teal violet white yellow""".split()
ANIMALS = """badger bear beaver camel cat cow crab crane crow deer dog dolphin donkey
duck eagle falcon ferret fox frog goat goose hare hawk hedgehog heron horse lamb lion
lizard mole moose mouse otter owl ox parrot penguin pig pony puffin rabbit raven robin
seal sheep snail sparrow squirrel stork swan tiger toad turtle walrus whale wolf
zebra""".split()
TRADES = """actor artist baker barber builder butcher carpenter clerk cook dancer
doctor driver farmer fisher gardener guard guide hunter judge mason miller miner nurse
painter pilot poet porter potter printer sailor singer smith tailor teacher trader
weaver writer""".split()
DRINKS = "cider cocoa coffee juice lemonade milk soup tea water".split()
PLACES = """attic barn basement bedroom cave cellar chapel cottage forest garage
garden hall harbour kitchen library loft market meadow mill museum office orchard park
pantry school shed stable station studio theatre tower valley workshop yard""".split()

_ONSETS = "b br d dr f g gr h j k kl l m n p r s sk st t tr v w z".split()
_VOWELS = "a e i o u a e i o ai ea".split()
_CODAS = "n r l s m k d x nd rn th".split() + [""] * 8


def invented(rng):
    """An invented name, such as "Drelma" or "Kavon"."""
    parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 2, 3)))]
    return ("".join(parts) + rng.choice(_CODAS)).capitalize()


def person(rng, strange=0.15):
    return invented(rng) if rng.random() < strange else rng.choice(NAMES)


def town(rng, strange=0.15):
    return invented(rng) if rng.random() < strange else rng.choice(TOWNS)


def thing(rng):
    return f"{rng.choice(ADJECTIVES)} {rng.choice(THINGS)}"


def a(noun):
    """The noun with its article: "a fox", "an owl"."""
    sounds_like_vowel = noun[0] in "aeiou" and not noun.startswith(("uni", "use"))
    return ("an " if sounds_like_vowel else "a ") + noun


def sentence(text):
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]

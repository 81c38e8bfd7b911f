"""Tools: which one a question wants, what it is to be called with, and what to make of its result.

A conversation offers one to four tools and asks for something that one of them does, that
none of them does, or something else altogether.  Names of tools and of their parameters are
drawn anew each time, some of them invented, so the model has to read the definitions: the
description says which tool is meant, and the call copies its name, its parameter's name and
a word of the question.  Results come back, and the answer repeats them.

Everything is written here as OpenAI's API has it (`tools`, `tool_calls`, role `tool`);
`rendered` makes turns of it as the chat template does.
"""

import json
from dataclasses import dataclass

import stories
import sums
import talk
import words

CALL_WEIGHT, ANSWER_WEIGHT = 1.5, 1.5


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
    does: tuple  # descriptions
    slots: tuple
    asks: tuple  # questions; {0}, {1} are the slots' values
    answer: str  # {0}, {1}, and {r} for the result
    result: object = None  # from the values to a result; None: it does something and says "ok"
    result_names: tuple = ("result",)
    both: str = None  # asks for two values of the first slot at once


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


SKIES = ("sunny", "rainy", "cloudy", "windy", "warm", "cold", "foggy", "stormy", "snowy", "dry")
SONGS = ("The Old Mill", "Silver River", "Goodbye, Red Barn", "My Little Boat", "Seven Bells", "Under the Moon",
         "The Fox Song", "Rain on the Roof", "Far Away", "The Bread Song")
NOTES = ("I am late", "dinner is ready", "the train is slow", "see you at the market", "the door is open",
         "bring the red lamp", "we meet at the mill", "the soup is cold", "come home", "all is well")
TASKS = ("water the garden", "feed the cat", "buy bread", "clean the shed", "call Anna", "paint the fence",
         "mend the kite", "wash the cups", "read the book", "close the gate")

TOPICS = (
    Topic(("get_weather", "weather", "current_weather", "weather_in", "weather_report"), ("find_weather", "weather_for"),
          ("Tells the weather of a place.", "The weather in a town.", "Get the current weather.", "Says how the weather is."),
          (Slot(("place", "city", "town", "location", "where"), words.town),),
          ("What is the weather in {0}?", "How is the weather in {0}?", "Tell me the weather in {0}.",
           "What is the weather like in {0}?", "Is it warm in {0}?", "How is it in {0}?"),
          "The weather in {0} is {r}.", one_of(*SKIES), ("weather", "sky", "result"),
          "What is the weather in {0} and in {1}?"),
    Topic(("weather_at", "weather", "get_weather", "look_outside"), ("see_weather",),
          ("Tells the weather at a place.", "How the weather is somewhere.", "Get the weather."),
          (Slot(("place", "location", "where", "spot"), place),),
          ("How is it in the {0}?", "What is the weather at the {0}?", "How is the weather in the {0}?"),
          "It is {r} in the {0}.", one_of(*SKIES), ("weather", "sky", "result"),
          "How is it in the {0} and in the {1}?"),
    Topic(("get_time", "clock", "time_in", "current_time", "local_time"), ("find_time", "time_at"),
          ("Tells the time in a town.", "The local time of a place.", "Get the current time."),
          (Slot(("town", "city", "place", "location"), words.town),),
          ("What time is it in {0}?", "Tell me the time in {0}.", "How late is it in {0}?"),
          "It is {r} in {0}.", lambda rng, _: f"{rng.randrange(1, 13)} o'clock", ("time", "clock", "result"),
          "What time is it in {0} and in {1}?"),
    Topic(("get_price", "price_of", "price", "lookup_price"), ("find_price", "price_list"),
          ("Tells the price of a thing.", "The price of something in the shop.", "Look up a price."),
          (Slot(("thing", "item", "product", "name"), words.thing),),
          ("What does the {0} cost?", "What is the price of the {0}?", "How much is the {0}?",
           "Find the price of the {0}."),
          "The price of the {0} is {r}.", number(2, 400), ("price", "cost", "result"),
          "What is the price of the {0} and of the {1}?"),
    Topic(("get_phone", "phone_number", "phone_book", "lookup_phone"), ("find_phone",),
          ("Looks up a phone number.", "The phone number of a person.", "Finds the number of somebody."),
          (Slot(("name", "person", "who"), words.person),),
          ("What is the phone number of {0}?", "Find the phone number of {0}.", "Which number does {0} have?"),
          "The phone number of {0} is {r}.", number(1000, 10000), ("phone", "number", "result"),
          "What are the phone numbers of {0} and {1}?"),
    Topic(("where_is", "find_person", "locate", "get_location"), ("locate_person",),
          ("Tells where a person is.", "Finds a person.", "Where somebody is now."),
          (Slot(("name", "person", "who"), words.person),),
          ("Where is {0}?", "Find {0}.", "Where is {0} now?", "Tell me where {0} is."),
          "{0} is in the {r}.", place, ("place", "location", "result"),
          "Where are {0} and {1}?"),
    Topic(("stock", "count_items", "in_stock", "get_stock"), ("stock_of",),
          ("Tells how many of a thing there are.", "Counts the things in the shop.", "How many are in stock."),
          (Slot(("thing", "item", "product", "name"), lambda rng: rng.choice(words.THINGS) + "s"),),
          ("How many {0} are there?", "How many {0} do we have?", "Count the {0}."),
          "There are {r} {0}.", number(2, 90), ("count", "number", "result")),
    Topic(("calculator", "calculate", "compute", "math"), ("calc",),
          ("Works out a sum.", "Calculates with numbers.", "Computes an expression."),
          (Slot(("expression", "sum", "input"),
                lambda rng: f"{rng.randrange(2, 99)} {rng.choice('+-*')} {rng.randrange(2, 99)}"),),
          ("What is {0}?", "Calculate {0}.", "Work out {0}.", "How much is {0}?"),
          "{0} is {r}.", worked_out, ("result", "value")),
    Topic(("add", "add_numbers", "plus", "sum"), ("add_two",),
          ("Adds two numbers.", "The sum of two numbers."),
          (Slot(("a", "x", "first"), number(2, 999), "integer"), Slot(("b", "y", "second"), number(2, 999), "integer")),
          ("What is {0} + {1}?", "Add {0} and {1}.", "What is {0} plus {1}?"),
          "{0} + {1} is {r}.", lambda _, a, b: a + b, ("sum", "result")),
    Topic(("send_message", "message", "write_to", "tell"), ("send_note",),
          ("Sends a message to a person.", "Writes a message to somebody."),
          (Slot(("to", "person", "name", "receiver"), words.person), Slot(("text", "message", "body"), one_of(*NOTES))),
          ("Tell {0}: {1}.", "Send {0} a message: {1}.", "Write to {0}: {1}."),
          "I have told {0}."),
    Topic(("set_timer", "timer", "start_timer", "alarm"), ("begin_timer",),
          ("Starts a timer.", "Sets a timer of so many minutes."),
          (Slot(("minutes", "length", "duration"), number(2, 90), "integer"),),
          ("Set a timer for {0} minutes.", "Wake me in {0} minutes.", "Start a timer of {0} minutes."),
          "The timer is set to {0} minutes."),
    Topic(("play", "play_song", "music", "play_music"), ("start_song",),
          ("Plays a song.", "Plays music."),
          (Slot(("song", "title", "name"), one_of(*SONGS)),),
          ("Play {0}.", "Play the song {0}.", "I want to hear {0}."),
          "I play {0}."),
    Topic(("set_light", "light", "lamp", "switch_light"), ("turn_light",),
          ("Turns the light of a room on or off.", "Switches a lamp."),
          (Slot(("room", "place", "where"), place), Slot(("state", "to", "position"), one_of("on", "off"), "on off")),
          ("Turn the light in the {0} {1}.", "Switch the lamp in the {0} {1}.", "Make the light in the {0} go {1}."),
          "The light in the {0} is {1}."),
    Topic(("add_task", "remind", "remember", "new_task"), ("keep_task",),
          ("Puts a task on the list.", "Adds something to do to the list."),
          (Slot(("task", "text", "what"), one_of(*TASKS)),),
          ("Remind me to {0}.", "Put this on my list: {0}.", "I have to {0}. Remember it."),
          "It is on your list: {0}."),
    Topic(("search", "web_search", "find", "look_up"), ("search_books",),
          ("Searches the web.", "Searches for words.", "Finds pages about something."),
          (Slot(("query", "words", "text", "q"), lambda rng: f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.ANIMALS)}"),),
          ("Search for {0}.", "Find something about a {0}.", "Search the web for {0}."),
          "I found {r} pages about {0}.", number(2, 90), ("pages", "count", "result")),
    Topic(("open", "open_door", "unlock", "door"), ("open_up",),
          ("Opens a door.", "Opens the door of a room."),
          (Slot(("door", "room", "which"), place),),
          ("Open the {0}.", "Open the door of the {0}.", "Unlock the {0}."),
          "The {0} is open."),
)

# Names are mostly made of these: were there a few for each topic, they would be known by heart and not read.
VERBS = ("get", "read", "ask", "tell", "do", "run", "make", "use", "call", "my", "the", "one", "new", "old", "home", "big", "town",
         "fast", "lookup", "fetch", "show", "query", "check", "give", "want", "try", "please", "now", "auto", "tool")
ENDS = ("for", "of", "in", "now", "here", "it", "one", "two", "tool", "list", "for_me", "by_name", "please", "today", "fast", "api")
NO_TOOL = "I have no tool for that."
WHICH = ("Which tools do you have?", "List your tools.", "Name your tools.", "What tools are there?")
SUMS = {"calculator", "add"}
ERRORS = ("not found", "no answer", "the service is down", "nothing there", "not allowed")
SYSTEMS = ("You are a helpful assistant.", "You may use tools.", "Use the tools.", "You are Lantern.", "Be brief and friendly.")


class Tool:
    """A topic with names of its own."""

    def __init__(self, rng, topic, unseen=False):
        self.topic = topic
        chance = rng.random()
        strange = chance < 0.2
        name = rng.choice(topic.unseen if unseen else topic.names)
        if strange:
            name = "_".join(words.invented(rng).lower() for _ in range(rng.choice((1, 2))))
        elif chance < 0.75 and not unseen:
            noun = rng.choice(name.split("_"))
            name = "_".join(rng.choice(((rng.choice(VERBS), noun), (noun, rng.choice(ENDS)),
                                        (rng.choice(VERBS), noun, rng.choice(ENDS)), (rng.choice(VERBS), rng.choice(words.THINGS)))))
            strange = noun not in name.split("_")
        if "_" in name and rng.random() < 0.15:
            first, *rest = name.split("_")
            name = first + "".join(word.capitalize() for word in rest)
        self.name = name
        self.keys = [rng.choice(slot.names) for slot in topic.slots]
        if len(set(self.keys)) < len(self.keys):
            self.keys = [slot.names[0] for slot in topic.slots]
        # What has an invented name is told by its description alone.
        self.does = rng.choice(topic.does) if strange or rng.random() < 0.85 else None
        self.values = {key: set() for key in self.keys}

    def definition(self, rng):
        properties = {}
        for key, slot in zip(self.keys, self.topic.slots):
            properties[key] = {"type": rng.choice(("integer", "integer", "number")) if slot.kind == "integer" else "string"}
            if slot.kind == "on off":
                properties[key] = {"enum": ["on", "off"]}
            elif slot.kind == "string" and self.values[key] and rng.random() < 0.1:
                choices = sorted(self.values[key] | {slot.pool(rng) for _ in range(2)})
                rng.shuffle(choices)
                properties[key] = {**rng.choice((properties[key], {})), "enum": choices}
            elif rng.random() < 0.1:
                properties[key]["description"] = f"The {key}."
        parameters = {"type": "object", "properties": properties}
        if rng.random() < 0.8:
            parameters["required"] = self.keys
        if rng.random() < 0.3:
            parameters["additionalProperties"] = False
        function = {"name": self.name}
        if self.does:
            function["description"] = self.does
        function["parameters"] = parameters
        if rng.random() < 0.15:
            function["strict"] = True
        return {"type": "function", "function": function}

    def call(self, values):
        for key, value in zip(self.keys, values):
            self.values[key].add(value)
        return {"type": "function", "function": {"name": self.name, "arguments": dict(zip(self.keys, values))}}


def result_of(rng, topic, values):
    """What a tool says, and how an answer repeats it."""
    if topic.result is None:
        return rng.choice(("ok", "done", '{"ok": true}', "")), None
    value = topic.result(rng, *values)
    shape = rng.random()
    if shape < 0.5:
        return str(value), value
    return json.dumps({rng.choice(topic.result_names): value}), value


def asked(rng, tool):
    """A question for a tool, its calls, the tools' results and the answer."""
    topic = tool.topic
    if topic.both and rng.random() < 0.2:
        pairs = [[topic.slots[0].pool(rng)] for _ in range(2)]
        question = topic.both.format(pairs[0][0], pairs[1][0])
    else:
        pairs = [[slot.pool(rng) for slot in topic.slots]]
        question = rng.choice(topic.asks).format(*pairs[0])
    calls, results, answers = [], [], []
    for values in pairs:
        calls.append(tool.call(values))
        said, value = result_of(rng, topic, values)
        if rng.random() < 0.06:
            error = rng.choice(ERRORS)
            said, answer = f"error: {error}", f"That did not work: {error}."
        else:
            answer = words.sentence(topic.answer.format(*values, r=value))
        results.append(said)
        answers.append(answer)
    return question, calls, results, " ".join(answers)


def user(content):
    return {"role": "user", "content": content}


def aside(rng, topics):
    """Something that needs none of these tools."""
    chance = rng.random()
    if chance < 0.3 and not any(topic.names[0] in SUMS for topic in topics):
        return sums.conversation(rng, 1)
    return talk.conversation(rng, 1) if chance < 0.8 else stories.conversation(rng)


def alike(one, other):
    """Whether a question for the one may be meant for the other."""
    return bool(set(one.names) & set(other.names)) or {one.names[0], other.names[0]} == SUMS


def offered(rng):
    """One to four topics that nobody takes for each other."""
    topics = []
    for topic in rng.sample(TOPICS, rng.choice((1, 1, 2, 2, 3, 4))):
        if not any(alike(topic, other) for other in topics):
            topics.append(topic)
    return topics


def conversation(rng, turns=None, unseen=False):
    """Tools and messages of a conversation in which they are used."""
    topics = offered(rng)
    tools = [Tool(rng, topic, unseen) for topic in topics]
    messages = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    others = [topic for topic in TOPICS if not any(alike(topic, own) for own in topics)]
    for _ in range(turns or rng.choice((1, 2, 3, 4))):
        chance = rng.random()
        if chance < 0.12:
            messages += [m for m in aside(rng, topics) if m["role"] != "system"]
        elif chance < 0.18:
            named = json.dumps([tool.name for tool in tools])
            messages += [user(rng.choice(WHICH)), {"role": "assistant", "content": named, "weight": ANSWER_WEIGHT}]
        elif chance < 0.36:
            # Sums it can do without a tool.
            question, *_ = asked(rng, Tool(rng, rng.choice([t for t in others if t.names[0] not in SUMS])))
            messages += [user(question), {"role": "assistant", "content": NO_TOOL, "weight": ANSWER_WEIGHT}]
        else:
            question, calls, results, answer = asked(rng, rng.choice(tools))
            call = {"role": "assistant", "content": None, "tool_calls": calls, "weight": CALL_WEIGHT}
            messages += [user(question), call, *({"role": "tool", "content": result} for result in results)]
            messages.append({"role": "assistant", "content": answer, "weight": ANSWER_WEIGHT})
    return [tool.definition(rng) for tool in tools], messages


def called(call):
    return "<tool_call>\n" + json.dumps(call["function"], ensure_ascii=False) + "\n</tool_call>"


def rendered(tools, messages):
    """Plain turns, as the chat template writes tools, calls and results."""
    turns = []
    if tools:
        lines = [json.dumps(tool["function"], ensure_ascii=False) + "\n" for tool in tools]
        written = 'Write a call as <tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
        turns.append({"role": "system", "content": "You may call these tools:\n" + "".join(lines) + written})
    for message in messages:
        content = message["content"] or ""
        if message["role"] == "tool":
            turns.append(user(f"<tool_response>\n{content}\n</tool_response>"))
            continue
        content += "".join(called(call) for call in message.get("tool_calls", []))
        turns.append({**message, "content": content})
    return turns


def written(rng):
    """A conversation with tools as plain turns."""
    return rendered(*conversation(rng))

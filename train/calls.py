"""Tools: which one a question wants, what it is to be called with, and what to make of its result.

A conversation offers one to four tools and asks for something that one of them does, that
none of them does, or something else altogether.  Names of tools and of their parameters are
drawn anew each time, some of them invented, so the model has to read the definitions: the
description says which tool is meant, and the call copies its name, its parameters' names and
words of the question.  Results come back, and the answer repeats them.

Before it calls, the model thinks: first what is wanted, in the words of the tool's description,
then the tool, its parameters and their values.

    Wanted: Get the current weather. Tool get_weather(city) for Paris.

The chat template writes a tool in the same order, description, name, parameters, so all of the
thought but its last words is found by going on from what was just said. Asked for the call at
once, a model of this size has to choose, look up and copy in one pass, and does not; nor does it
find a name that stands before the description that it was chosen by.

Everything is written here as OpenAI's API has it (`tools`, `tool_calls`, `reasoning_content`, role
`tool`); `rendered` makes turns of it as the chat template does.
"""

import json

import stories
import sums
import talk
import topics
import words

CALL_WEIGHT, ANSWER_WEIGHT = 1.5, 1.5

# Names are mostly made of these: were there a few for each topic, they would be known by heart and not read.
VERBS = ("get", "read", "ask", "tell", "do", "run", "make", "use", "call", "my", "the", "one", "new", "old", "home", "big", "town",
         "fast", "lookup", "fetch", "show", "query", "check", "give", "want", "try", "please", "now", "auto", "tool")
ENDS = ("for", "of", "in", "now", "here", "it", "one", "two", "tool", "list", "for_me", "by_name", "please", "today", "fast", "api")
NO_TOOL = "I have no tool for that."
WHICH = ("Which tools do you have?", "List your tools.", "Name your tools.", "What tools are there?")
ERRORS = ("not found", "no answer", "the service is down", "nothing there", "not allowed")
SYSTEMS = ("You are a helpful assistant.", "You may use tools.", "Use the tools.", "You are Lantern.", "Be brief and friendly.",
           "You are a helpful assistant with access to tools.", "Answer the user's question with the tools.")
# Parameters that no request names: a call leaves them out.
EXTRAS = {
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    "units": {"type": "string", "enum": ["metric", "imperial"], "description": "The units to use"},
    "limit": {"type": "integer", "description": "How many at most"},
    "language": {"type": "string"},
    "verbose": {"type": "boolean"},
    "format": {"type": "string", "description": "The format of the answer"},
}
ABOUT = ("The {key}.", "The {key}", "The name of the {key}", "Name of the {key}.", "The {key} to use", "The {key}, as text.",
         "For example: {example}", "The {key}, e.g. {example}")
ABOUT_CITIES = ("The city and state, e.g. San Francisco, CA", "City and country e.g. Bogotá, Colombia", "The city name")


class Tool:
    """A topic with names of its own."""

    def __init__(self, rng, topic, unseen=False):
        self.topic = topic
        chance = rng.random()
        strange = chance < 0.25
        name = rng.choice(topic.unseen if unseen else topic.names)
        if strange:
            name = "_".join(words.invented(rng).lower() for _ in range(rng.choice((1, 2))))
        elif chance < 0.85 and not unseen:
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
        self.does = rng.choice(topic.does) if strange or rng.random() < 0.9 else None
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
            elif rng.random() < 0.25:
                about = rng.choice(ABOUT + (ABOUT_CITIES if slot.pool is topics.city else ()))
                properties[key]["description"] = about.format(key=key, example=slot.pool(rng))
            if rng.random() < 0.06:
                properties[key] = {"title": key.replace("_", " ").title(), **properties[key]}
        parameters = {"type": "object", "properties": properties}
        if rng.random() < 0.12:
            extra = rng.choice(sorted(EXTRAS.keys() - properties.keys()))
            properties[extra] = EXTRAS[extra]
            parameters["required"] = self.keys
        elif rng.random() < 0.8:
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

    def thought(self, pairs):
        """What is wanted, and how it is to be had: the tool, its parameters and their values."""
        values = " and for ".join(", ".join(str(value) for value in values) for values in pairs)
        return f"Wanted: {self.does or self.topic.does[0]} {heading(self.name, self.keys)} for {values}."


def heading(name, keys):
    return f"Tool {name}({', '.join(keys)})"


def result_of(rng, topic, values):
    """What a tool says, and the answer that repeats it."""
    if topic.result is None:
        return rng.choice(("ok", "done", '{"ok": true}', "")), words.sentence(topic.answer.format(*values, r=None))
    value = topic.result(rng, *values)
    answer = words.sentence(topic.answer.format(*values, r=value))
    shape = rng.random()
    if shape < 0.4:
        return str(value), answer
    if shape < 0.55:
        return answer, answer
    own = {rng.choice(topic.result_names): value}
    if shape < 0.65:
        return json.dumps({topic.slots[0].names[0]: values[0], **own}, ensure_ascii=False), answer
    return json.dumps(own, ensure_ascii=False), answer


def asked(rng, tool):
    """A question for a tool, what each call is made with, the tools' results and the answer."""
    topic = tool.topic
    if topic.both and rng.random() < 0.2:
        pairs = [[topic.slots[0].pool(rng)] for _ in range(2)]
        question = topic.both.format(pairs[0][0], pairs[1][0])
    else:
        pairs = [[slot.pool(rng) for slot in topic.slots]]
        question = rng.choice(topic.asks).format(*pairs[0])
    results, answers = [], []
    for values in pairs:
        said, answer = result_of(rng, topic, values)
        if rng.random() < 0.06:
            error = rng.choice(ERRORS)
            said, answer = f"error: {error}", f"That did not work: {error}."
        results.append(said)
        answers.append(answer)
    return dressed(rng, words.sentence(question)), pairs, results, " ".join(answers)


def dressed(rng, question):
    """The question as people write it: with a greeting, without a full stop, all in lower case at the start."""
    chance = rng.random()
    if chance < 0.06:
        return f"{rng.choice(('Hello!', 'Hi,', 'Please:', 'Hey Lantern!', 'A question:', 'One more thing.'))} {question}"
    if chance < 0.10:
        return question.replace("What is", "What's").replace("Where is", "Where's")
    if chance < 0.13:
        return question[0].lower() + question[1:]
    return question.rstrip(".?") if chance < 0.16 else question


def user(content):
    return {"role": "user", "content": content}


def aside(rng, offer):
    """Something that needs none of these tools."""
    chance = rng.random()
    if chance < 0.3 and not any(is_sum(topic) for topic in offer):
        return sums.conversation(rng, 1)
    return talk.conversation(rng, 1) if chance < 0.9 else stories.conversation(rng)


def is_sum(topic):
    return topic.group == "sums" or "sum" in topic.names or "minus" in topic.names or "times" in topic.names


def alike(one, other):
    """Whether a question for the one may be meant for the other."""
    same = one.group is not None and one.group == other.group
    return same or bool(set(one.names) & set(other.names)) or is_sum(one) and is_sum(other) and "sums" in (one.group, other.group)


def topic(rng, unseen):
    chance = rng.random()
    if chance < 0.55:
        return rng.choice(topics.TOPICS)
    return topics.attribute(rng, unseen) if chance < 0.85 else topics.action(rng, unseen)


def offered(rng, unseen):
    """One to four topics that cannot be confused."""
    offer = []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        other = topic(rng, unseen)
        if not any(alike(other, own) for own in offer):
            offer.append(other)
    return offer


def conversation(rng, turns=None, unseen=False):
    """Tools and messages of a conversation in which they are used."""
    offer = offered(rng, unseen)
    tools = [Tool(rng, own, unseen) for own in offer]
    messages = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for _ in range(turns or rng.choice((1, 2, 3, 4, 5))):
        chance = rng.random()
        if chance < 0.10:
            messages += [m for m in aside(rng, offer) if m["role"] != "system"]
        elif chance < 0.14:
            named = json.dumps([tool.name for tool in tools])
            messages += [user(rng.choice(WHICH)), {"role": "assistant", "content": named, "weight": ANSWER_WEIGHT}]
        elif chance < 0.37:
            other = topic(rng, unseen)
            # Sums it can do without a tool.
            while is_sum(other) or any(alike(other, own) for own in offer):
                other = topic(rng, unseen)
            question, *_ = asked(rng, Tool(rng, other))
            messages += [user(question), {"role": "assistant", "reasoning_content": f"Wanted: {other.does[0]} No tool.",
                                          "content": NO_TOOL, "weight": ANSWER_WEIGHT}]
        else:
            tool = rng.choice(tools)
            question, pairs, results, answer = asked(rng, tool)
            call = {"role": "assistant", "reasoning_content": tool.thought(pairs), "content": None,
                    "tool_calls": [tool.call(values) for values in pairs], "weight": CALL_WEIGHT}
            messages += [user(question), call, *({"role": "tool", "content": result} for result in results)]
            messages.append({"role": "assistant", "content": answer, "weight": ANSWER_WEIGHT})
    if rng.random() < 0.35:
        forget(rng, messages)
    return [tool.definition(rng) for tool in tools], messages


def forget(rng, messages):
    """Many clients drop what was thought.  What was decided without a thought is read and not learned; the
    last may still be thought of, as if it were about to be said."""
    thought = [message for message in messages if "reasoning_content" in message]
    for message in thought[: len(thought) - rng.choice((0, 1))]:
        del message["reasoning_content"]
        message["weight"] = 0.0


def called(call):
    return "<tool_call>\n" + json.dumps(call["function"], ensure_ascii=False) + "\n</tool_call>"


def defined(function):
    parameters = function["parameters"]
    does = function["description"] + " " if "description" in function else ""
    keys = parameters.get("required") or list(parameters["properties"])
    return f"{does}{heading(function['name'], keys)} {json.dumps(parameters, ensure_ascii=False)}"


def rendered(tools, messages):
    """Plain turns, as the chat template writes tools, thoughts, calls and results."""
    turns = []
    if tools:
        lines = [defined(tool["function"]) + "\n" for tool in tools]
        written = 'Write a call as <tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
        turns.append({"role": "system", "content": "You may call these tools:\n" + "".join(lines) + written})
    for message in messages:
        content = message["content"] or ""
        if message["role"] == "tool":
            turns.append(user(f"<tool_response>\n{content}\n</tool_response>"))
            continue
        if "reasoning_content" in message:
            content = f"<think>{message['reasoning_content']}</think>{content}"
        content += "".join(called(call) for call in message.get("tool_calls", []))
        turns.append({**message, "content": content})
    return turns


def written(rng):
    """A conversation with tools as plain turns."""
    return rendered(*conversation(rng))

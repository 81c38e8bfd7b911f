"""The official `openai` Python client against a running twostroke server: see served.py."""

import json
import math
import sys
import time

import openai
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

import served
from served import NO_KEY, SUM, WEATHER, raises, run, test

STORY = [{"role": "user", "content": served.STORY}]


@test
def models_are_listed_and_shown(client, model):
    listed = client.models.list()
    assert [entry.id for entry in listed.data] and all(entry.object == "model" for entry in listed.data)
    assert client.models.retrieve(model).id == model
    raises(openai.NotFoundError, lambda: client.models.retrieve("no/such model"), code="model_not_found")


@test
def chat_answers(client, model):
    answer = client.chat.completions.create(model=model, messages=STORY, max_completion_tokens=24, temperature=0)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.model == model and answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length") and choice.logprobs is None
    assert 1 <= answer.usage.completion_tokens <= 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    timings = answer.model_extra["timings"]
    for name in ("queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "total_ms", "prefill_tokens_per_second",
                 "decode_tokens_per_second"):
        assert timings[name] >= 0, name
    assert timings["prefill_tokens"] + timings["cached_tokens"] == answer.usage.prompt_tokens


@test
def content_may_come_in_parts(client, model):
    parts = [{"type": "text", "text": "Tell me a story"}, {"type": "text", "text": "about a fox"}]
    one = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": parts}], max_tokens=8, temperature=0)
    other = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Tell me a story\nabout a fox"}], max_tokens=8, temperature=0)
    assert one.choices[0].message.content == other.choices[0].message.content


@test
def a_conversation_goes_on_with_the_clients_own_message_objects(client, model):
    first = client.chat.completions.create(model=model, messages=STORY, max_tokens=8, temperature=0)
    history = STORY + [first.choices[0].message, {"role": "user", "content": "Another one, please."}]
    assert client.chat.completions.create(model=model, messages=history, max_tokens=8, temperature=0).choices[0].message.content


@test
def chat_streams_the_text_that_it_answers(client, model):
    asked = dict(model=model, messages=STORY, max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == whole.choices[0].finish_reason
    assert all(chunk.usage is None for chunk in chunks[:-1]) and chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].model_extra["timings"]["total_ms"] > 0
    assert len({chunk.id for chunk in chunks}) == 1


@test
def the_clients_own_stream_helper_works(client, model):
    asked = dict(model=model, messages=STORY, max_tokens=40, temperature=0)
    word = client.chat.completions.create(**asked).choices[0].message.content.split()[3]
    # The helper takes only answers that ended by themselves.
    with client.chat.completions.stream(**asked, stop=word) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content and {"chunk", "content.delta", "content.done"} <= kinds


@test
def several_answers_differ_and_keep_their_index(client, model):
    answer = client.chat.completions.create(model=model, messages=STORY, max_tokens=16, n=3, seed=7, temperature=1.0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) > 1, texts
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(
            model=model, messages=STORY, max_tokens=16, n=3, seed=7, temperature=1.0, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts, "the same seed gives the same answers, streamed or not"


@test
def chat_logprobs(client, model):
    answer = client.chat.completions.create(
        model=model, messages=STORY, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0
        assert token.token == token.top_logprobs[0].token, "greedy takes the top token"
        assert bytes(token.bytes).decode("utf-8", "replace") == token.token
        probabilities = [math.exp(top.logprob) for top in token.top_logprobs]
        assert probabilities == sorted(probabilities, reverse=True) and sum(probabilities) < 1.001


@test
def completions_take_text_ids_and_lists_of_both(client, model):
    asked = dict(model=model, max_tokens=6, temperature=0)
    one = client.completions.create(prompt="The fox", **asked)
    assert one.object == "text_completion" and one.id.startswith("cmpl-") and one.choices[0].text
    several = client.completions.create(prompt=["The fox", "A lantern", "The fox"], n=2, **asked)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3, 4, 5]
    texts = [choice.text for choice in several.choices]
    assert texts[0] == texts[1] == texts[4] == texts[5] == one.choices[0].text
    ids = tokenize(client, "The fox")
    assert client.completions.create(prompt=ids, **asked).choices[0].text == one.choices[0].text
    lists = client.completions.create(prompt=[ids, ids], **asked)
    assert [choice.text for choice in lists.choices] == [one.choices[0].text] * 2
    assert lists.usage.prompt_tokens == 2 * len(ids)


@test
def completions_stream(client, model):
    asked = dict(model=model, prompt=["The fox", "A lantern"], max_tokens=12, temperature=0)
    whole = client.completions.create(**asked)
    texts = ["", ""]
    usage = None
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert usage.completion_tokens == whole.usage.completion_tokens


@test
def echo_scores_the_prompt(client, model):
    answer = client.completions.create(
        model=model, prompt="The fox and the lantern", echo=True, logprobs=2, max_tokens=3, temperature=0)
    choice, ids = answer.choices[0], tokenize(client, "The fox and the lantern")
    assert choice.text.startswith("The fox and the lantern")
    lists = choice.logprobs
    assert len(lists.tokens) == len(ids) + answer.usage.completion_tokens
    assert lists.token_logprobs[0] is None and all(value <= 0 for value in lists.token_logprobs[1:])
    assert lists.top_logprobs[0] is None and all(2 <= len(top) <= 3 for top in lists.top_logprobs[1:])
    assert len(lists.text_offset) == len(lists.tokens)
    scored = client.completions.create(
        model=model, prompt="The fox and the lantern", echo=True, logprobs=2, max_tokens=0, temperature=0)
    assert scored.choices[0].text == "The fox and the lantern"
    assert scored.choices[0].logprobs.token_logprobs == lists.token_logprobs[:len(ids)]


@test
def stop_strings_end_an_answer_before_themselves(client, model):
    asked = dict(model=model, messages=STORY, max_tokens=40, temperature=0)
    whole = client.chat.completions.create(**asked).choices[0].message.content
    word = whole.split()[3]
    stopped = client.chat.completions.create(**asked, stop=[word, "never in here"]).choices[0]
    assert stopped.finish_reason == "stop" and stopped.model_extra["stop_reason"] == word
    assert stopped.message.content == whole[:whole.index(word)]
    streamed = "".join(chunk.choices[0].delta.content or ""
                       for chunk in client.chat.completions.create(**asked, stop=word, stream=True))
    assert streamed == stopped.message.content


@test
def sampling_parameters_are_taken(client, model):
    asked = dict(model=model, messages=STORY, max_tokens=12, seed=11)
    everything = dict(temperature=0.8, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"5": -100},
                      extra_body=dict(top_k=40, min_p=0.01, repetition_penalty=1.1, min_tokens=4, ignore_eos=True,
                                      stop_token_ids=[3], skip_special_tokens=False, cache_salt="mine", priority=1))
    one = client.chat.completions.create(**asked, **everything)
    two = client.chat.completions.create(**asked, **everything)
    assert one.choices[0].message.content == two.choices[0].message.content, "a seed makes it repeat"


@test
def what_agents_send_is_taken_and_told(client, model):
    asked = dict(model=model, messages=STORY, temperature=0, seed=1, extra_body=dict(return_token_ids=True, stop=" "))
    plain = client.chat.completions.create(**asked, max_tokens=8)
    assert plain.prompt_logprobs is None and plain.choices[0].token_ids, "vLLM's fields are there unasked"
    hints = dict(metadata={"run": "1"}, prompt_cache_key="k", store=False)
    told = client.chat.completions.with_raw_response.create(**asked, **hints, max_tokens=10**9)
    answer = told.parse()
    assert told.headers["x-twostroke-hints"] == "metadata, prompt_cache_key, store", told.headers
    assert answer.hints == ["metadata", "prompt_cache_key", "store"] and answer.choices[0].token_ids == plain.choices[0].token_ids
    assert answer.max_tokens == int(told.headers["x-twostroke-max-tokens"]) < 10**9


ANIMAL = {"type": "object", "properties": {"animal": {"enum": ["fox", "owl"]}, "legs": {"type": "integer"}},
          "required": ["animal", "legs"], "additionalProperties": False}


@test
def an_answer_looks_as_it_must(client, model):
    asked = dict(model=model, messages=STORY, max_tokens=400, temperature=0)
    form = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": ANIMAL}}
    answer = client.chat.completions.create(**asked, response_format=form).choices[0]
    assert answer.finish_reason == "length" or json.loads(answer.message.content)["animal"] in ("fox", "owl")
    for field, value in (("guided_choice", ["yes", "no"]), ("structured_outputs", {"choice": ["yes", "no"]})):
        answer = client.completions.create(model=model, prompt="Is it?", max_tokens=9, extra_body={field: value})
        assert answer.choices[0].text in ("yes", "no"), answer


@test
def tools_are_called_in_two_turns(client, model):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}}]
    asked = dict(model=model, max_tokens=300, temperature=0, tools=tools)
    messages = [{"role": "user", "content": "How is it in the forest?"}]
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(messages=messages, tool_choice=choice, **asked).choices[0]
    call = answer.message.tool_calls[0]
    assert answer.finish_reason == "tool_calls" and call.function.name == "weather"
    assert json.loads(call.function.arguments)["place"] in ("forest", "river")
    with client.chat.completions.stream(messages=messages, tool_choice=choice, **asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds, set(kinds)
    assert final.tool_calls[0].function.arguments == call.function.arguments
    messages += [answer.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "It rains."}]
    assert client.chat.completions.create(messages=messages, **asked).choices[0].finish_reason


@test
def who_was_taught_to_calls_what_is_needed(client, model):
    if model != "lantern":
        return
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    place = {"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather of a city.", "parameters": city}}
    person = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    phone = {"type": "function", "function": {
        "name": "find_phone", "description": "Looks up a phone number.", "parameters": person}}
    asked = dict(model=model, max_tokens=200, temperature=0, tools=[phone, place])
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.chat.completions.create(messages=messages, **asked).choices[0]
    assert answer.finish_reason == "tool_calls" and "get_weather" in answer.message.reasoning, answer
    [call] = answer.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    # Whether what was thought is sent back or not.
    for sent in (answer.message.model_dump(), {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}):
        turn = messages + [sent, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        answer = client.chat.completions.create(messages=turn, **asked).choices[0]
        assert answer.finish_reason == "stop", answer
        assert answer.message.content == "The weather in Paris is sunny.", answer
    answer = client.chat.completions.create(messages=[{"role": "user", "content": "Hello!"}], **asked).choices[0]
    assert answer.finish_reason == "stop" and not answer.message.tool_calls, answer


@test
def thoughts_are_no_content(client, model):
    asked = dict(model=model, messages=[{"role": "user", "content": "What is 17 + 25?"}], temperature=0)
    answer = client.chat.completions.create(**asked)
    message = answer.choices[0].message
    if model == "lantern":
        assert "42" in message.content and message.reasoning_content == message.reasoning != ""
        assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    assert "think>" not in message.content


@test
def responses_are_made_streamed_kept_and_gone_on_from(client, model):
    asked = dict(model=model, max_output_tokens=600, temperature=0)
    made = client.responses.create(input="Tell me a story about a fox.", **asked)
    assert made.output_text and made.usage.output_tokens > 0
    assert client.responses.retrieve(made.id).output_text == made.output_text
    assert client.responses.input_items.list(made.id).data
    with client.responses.stream(input="Tell me a story about a fox.", **asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == made.output_text and kinds[0] == "response.created", kinds[:3]
    more = client.responses.create(input="Another one.", previous_response_id=made.id, **asked)
    assert more.usage.input_tokens > made.usage.input_tokens
    counted = client.responses.input_tokens.count(model=model, input="Tell me a story about a fox.")
    assert counted.input_tokens == made.usage.input_tokens
    tools = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]
    called = client.responses.create(model=model, input="How is it?", tools=tools, tool_choice="required",
                                     parallel_tool_calls=False, max_output_tokens=300, temperature=0)
    call = [item for item in called.output if item.type == "function_call"][0]
    assert json.loads(call.arguments)["place"] in ("forest", "river")
    turn = [*called.output, {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}]
    assert client.responses.create(input=[{"role": "user", "content": "How is it?"}, *turn], tools=tools, **asked).id
    behind = client.responses.create(input="Hello", background=True, **asked)
    while behind.status in ("queued", "in_progress"):
        behind = client.responses.retrieve(behind.id)
    assert behind.status == "completed" and behind.output_text, behind
    client.responses.delete(made.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(made.id), code="response_not_found")
    turns = [{"role": role, "content": "The fox went over the river. " * 400} for role in ("user", "assistant") * 40]
    long = dict(model=model, max_output_tokens=8, input=[*turns, {"role": "user", "content": "And now?"}])
    raises(openai.BadRequestError, lambda: client.responses.create(**long), code="context_length_exceeded")
    assert client.responses.create(**long, truncation="auto").truncation == "auto"


@test
def a_stream_in_the_background_is_resumed_from_any_place(client, model):
    asked = dict(model=model, input="Tell me a story about a fox.", max_output_tokens=40, temperature=0)
    alone = client.responses.create(**asked)
    heard = []
    with client.responses.create(**asked, background=True, stream=True) as stream:
        for event in stream:
            heard.append(event)
            if event.type == "response.output_text.delta":
                break  # the client leaves
    first = heard[0].response
    assert [event.sequence_number for event in heard] == list(range(len(heard))) and first.status == "queued"
    for after in (heard[-1].sequence_number, 0):
        more = list(client.responses.retrieve(first.id, stream=True, starting_after=after))
        assert [event.sequence_number for event in more] == list(range(after + 1, after + 1 + len(more)))
        end = more[-1].response
        assert end.output_text == alone.output_text and end.status == alone.status
        text = [event.delta for event in (*heard[:after + 1], *more) if event.type == "response.output_text.delta"]
        assert "".join(text) == end.output_text
    with client.responses.stream(response_id=first.id, starting_after=2) as stream:
        assert [event.sequence_number for event in stream][0] == 3
    assert list(client.responses.retrieve(alone.id, stream=True))[-1].response.output_text == alone.output_text
    raises(openai.BadRequestError, lambda: client.responses.retrieve(first.id, starting_after=2), param="starting_after")


@test
def responses_tell_log_probabilities_of_their_text(client, model):
    asked = dict(model=model, input="Tell me a story about a fox.", max_output_tokens=20, temperature=0, top_logprobs=2,
                 include=["message.output_text.logprobs"])
    part = [item for item in client.responses.create(**asked).output if item.type == "message"][0].content[0]
    told = b"".join(bytes(token.bytes) for token in part.logprobs).decode(errors="replace")
    assert told.strip() == part.text.strip() and all(len(token.top_logprobs) == 2 for token in part.logprobs)
    deltas = [event for event in client.responses.create(**asked, stream=True) if event.type == "response.output_text.delta"]
    tokens = [token.logprob for event in deltas for token in event.logprobs]
    assert tokens == [token.logprob for token in part.logprobs]


@test
def responses_and_their_events_are_of_the_clients_types(client, model):
    """The client itself takes what it gets, whatever the types are: here they are held to."""
    asked = dict(model=model, input="How is it?", max_output_tokens=200, temperature=0)
    tools = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]
    for more in ({}, dict(input=SUM), dict(tools=tools, tool_choice="required"), dict(background=True, user="a"),
                 dict(include=["message.output_text.logprobs"], top_logprobs=1)):
        events = [event.to_dict() for event in client.responses.create(**{**asked, **more}, stream=True)]
        id = events[0]["response"]["id"]
        for event in (*events, *(event.to_dict() for event in client.responses.retrieve(id, stream=True))):
            TypeAdapter(ResponseStreamEvent).validate_python(event)
        answer = client.responses.with_raw_response.retrieve(id).http_response.json()
        Response.model_validate(answer)
        assert "user" not in answer or answer["user"] == "a", answer.get("user")


@test
def errors_name_the_field(client, model):
    def chat(**fields):
        return lambda: client.chat.completions.create(**{"model": model, "messages": STORY, "max_tokens": 4, **fields})

    bad = openai.BadRequestError
    raises(bad, chat(temperature=-1), param="temperature", type="invalid_request_error")
    raises(bad, chat(n=10**9), param="n")
    raises(bad, chat(top_p=0), param="top_p")
    raises(bad, chat(max_tokens=-2), param="max_tokens")
    raises(bad, chat(messages=[]), param="messages")
    raises(bad, chat(messages=[{"role": "wizard", "content": "x"}]), param="messages[0].role")
    raises(bad, chat(tools=[{"type": "function", "function": {"name": "f f"}}]), param="tools[0].function.name")
    raises(bad, chat(response_format={"type": "xml"}), param="response_format.type")
    raises(bad, chat(extra_body={"temprature": 1}), param="temprature", code="unknown_parameter")
    # A hint that names what is not kept here: the answer is made all the same.
    assert chat(store=True)().choices[0].message.content
    raises(bad, chat(logit_bias={"999999999": 1}), param="logit_bias")
    raises(bad, chat(stop=[""]), param="stop")
    raises(bad, lambda: client.completions.create(model=model, prompt=[-1]), param="prompt")
    raises(bad, lambda: client.completions.create(model=model, prompt="x", suffix="y"), param="suffix")
    raises(openai.NotFoundError, chat(model="gpt-unknown"), code="model_not_found", param="model")
    raises(openai.NotFoundError, lambda: client.moderations.create(input="x"))


@test
def a_wrong_key_is_refused_where_keys_are_asked_for(client, model):
    with_wrong_key = client.with_options(api_key="wrong")
    if client.api_key == NO_KEY:
        assert with_wrong_key.models.list().data
    else:
        raises(openai.AuthenticationError, lambda: with_wrong_key.models.list(), code="invalid_api_key")


@test
def a_stream_can_be_left_early(client, model):
    asked = dict(model=model, messages=STORY, temperature=0, extra_body={"ignore_eos": True})
    with client.chat.completions.create(**asked, max_tokens=400, stream=True) as stream:
        for _, chunk in zip(range(5), stream):
            assert chunk.choices
    assert client.chat.completions.create(**asked, max_tokens=4).choices[0].message.content


@test
def the_raw_answer_has_its_request_id(client, model):
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=STORY, max_tokens=2, extra_headers={"X-Request-Id": "mine-1"})
    assert raw.headers["x-request-id"] == "mine-1" and raw.parse()._request_id == "mine-1"


@test
def texts_have_vectors(client, model):
    texts = ["A fox ran through the forest.", "The fox ran in the wood.", "17 + 25 = 42"]
    # The client asks for base64 and decodes it.
    listed = client.embeddings.create(model=model, input=texts)
    assert [item.index for item in listed.data] == [0, 1, 2] and listed.usage.prompt_tokens > 10
    for item in listed.data:
        assert abs(math.sqrt(sum(x * x for x in item.embedding)) - 1) < 1e-4
    floats = client.embeddings.create(model=model, input=texts[1], encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(floats, listed.data[1].embedding)) < 1e-6
    assert len(client.embeddings.create(model=model, input=texts, dimensions=8).data[2].embedding) == 8
    raises(openai.BadRequestError, lambda: client.embeddings.create(model=model, input=[]), param="input")


@test
def a_batch_is_answered(client, model):
    lines = [
        {"custom_id": f"ask-{n}", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": model, "messages": [{"role": "user", "content": f"What is {n} + {n}?"}], "temperature": 0}}
        for n in range(20)
    ]
    lines.append({**lines[0], "custom_id": "wrong", "body": {**lines[0]["body"], "temperature": -1}})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    assert file.purpose == "batch" and file.bytes == len(text) and client.files.retrieve(file.id).id == file.id
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"who": "test"}
    )
    until = time.monotonic() + 120
    while batch.status not in ("completed", "failed", "cancelled"):
        assert time.monotonic() < until, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.metadata == {"who": "test"}, batch
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (21, 20, 1)
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    said = {answer["custom_id"]: answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers}
    assert len(said) == 20
    alone = client.chat.completions.create(**lines[7]["body"])
    assert said["ask-7"] == alone.choices[0].message.content
    errors = client.files.content(batch.error_file_id).text
    assert json.loads(errors)["custom_id"] == "wrong"
    assert batch.id in [entry.id for entry in client.batches.list()]
    assert file.id in [entry.id for entry in client.files.list(purpose="batch")]
    assert client.files.delete(file.id).deleted
    raises(openai.NotFoundError, lambda: client.files.retrieve(file.id))
    raises(openai.BadRequestError, lambda: client.batches.cancel(batch.id))


@test
def a_thought_has_a_budget(client, model):
    ask = {"model": model, "messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0}
    free = client.chat.completions.create(**ask)
    cut = client.chat.completions.create(**ask, extra_body={"thinking_token_budget": 4})
    thought, short = (answer.choices[0].message.model_extra["reasoning"] for answer in (free, cut))
    assert len(short) < len(thought) and thought.startswith(short.rstrip())


def tokenize(client, text):
    """vLLM's /tokenize, which the client does not know."""
    server = served.Server(str(client.base_url).removesuffix("/v1/"), client.api_key)
    return server.post("/tokenize", {"prompt": text})["tokens"]


def connect(server):
    return OpenAI(base_url=server.v1, api_key=server.key, max_retries=0, timeout=120), server.model


if __name__ == "__main__":
    sys.exit(run(connect))

"""The official `ollama` Python client against a running twostroke server.

    twostroke serve --port 8000 &
    python test_client.py http://127.0.0.1:8000 [API_KEY]

Prints a line per test and `N passed, N failed`; the exit code is the number of failures, at most 1.
The client parses every answer into its own types, so a field of a wrong type or name fails here.
"""

import json
import sys
import traceback

from ollama import Client, ResponseError

TESTS = []


def test(function):
    TESTS.append(function)
    return function


def raises(call, status, *words):
    """Calls and returns the client's error, which must have the status and say the words."""
    try:
        call()
    except ResponseError as error:
        assert error.status_code == status, f"{error.status_code} instead of {status}: {error}"
        for word in words:
            assert word in error.error, f"{word!r} is not in {error.error!r}"
        return error
    raise AssertionError("no ResponseError")


STORY = [{"role": "user", "content": "Tell me a story about a fox and a lantern"}]
SHORT = {"temperature": 0, "num_predict": 24}


@test
def models_are_listed_shown_and_loaded(client, model):
    listed = client.list().models[0]
    assert listed.model == model and listed.size > 0 and len(listed.digest) == 64 and listed.modified_at
    shown = client.show(model)
    assert shown.details == listed.details and "completion" in shown.capabilities
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] > 0 and shown.template
    loaded = client.ps().models[0]
    assert loaded.model == model and loaded.size >= listed.size and loaded.expires_at and loaded.context_length > 0
    raises(lambda: client.show("other"), 404, "model")


@test
def chat_answers_whole_and_by_lines(client, model):
    whole = client.chat(model, STORY, options=SHORT)
    assert whole.model == model and whole.done and whole.done_reason in ("stop", "length")
    assert whole.message.role == "assistant" and whole.message.content
    assert 1 <= whole.eval_count <= 24 and whole.prompt_eval_count > 0
    assert whole.prompt_eval_duration + whole.eval_duration <= whole.total_duration
    parts = list(client.chat(model, STORY, options=SHORT, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count


@test
def a_conversation_goes_on_with_the_clients_own_message_objects(client, model):
    first = client.chat(model, STORY, options=SHORT)
    history = [*STORY, first.message, {"role": "user", "content": "And then?"}]
    assert client.chat(model, history, options=SHORT).prompt_eval_count > first.prompt_eval_count


@test
def generate_goes_on_from_its_context(client, model):
    first = client.generate(model, "Tell me a story", options=SHORT)
    assert first.response and len(first.context) == first.prompt_eval_count + first.eval_count
    then = client.generate(model, "And then?", context=first.context, options=SHORT)
    assert then.context[:len(first.context)] == first.context
    parts = list(client.generate(model, "Tell me a story", options=SHORT, stream=True))
    assert "".join(part.response for part in parts) == first.response
    assert client.generate(model, "Once upon a time", raw=True, options=SHORT).context is None
    assert client.generate(model, keep_alive="1m").done_reason == "load"


@test
def thoughts_stand_apart(client, model):
    options = {"temperature": 0, "num_predict": 200}
    question = [{"role": "user", "content": "What is 17 + 25?"}]
    shown = client.chat(model, question, think=True, options=options)
    assert shown.message.thinking and shown.message.content
    assert client.chat(model, question, think=False, options=options).message.thinking is None
    parts = list(client.chat(model, question, think=True, options=options, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == shown.message.thinking


@test
def an_answer_has_the_form_that_was_asked_for(client, model):
    schema = {"type": "object", "properties": {"animal": {"enum": ["fox", "owl"]}}, "required": ["animal"],
              "additionalProperties": False}
    answer = client.chat(model, [{"role": "user", "content": "Name one."}], format=schema,
                         options={"temperature": 0, "num_predict": 300})
    assert json.loads(answer.message.content)["animal"] in ("fox", "owl")


def weather(place: str) -> str:
    """Says how it is.

    Args:
        place: Where.
    """
    return "Foggy."


@test
def tools_are_told_as_functions_and_calls_sent_back(client, model):
    first = client.chat(model, [{"role": "user", "content": "How is it in the forest?"}], tools=[weather], options=SHORT)
    assert first.done
    history = [
        {"role": "user", "content": "How is it in the forest?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"place": "forest"}}}]},
        {"role": "tool", "tool_name": "weather", "content": weather("forest")},
    ]
    assert client.chat(model, history, tools=[weather], options=SHORT).prompt_eval_count > first.prompt_eval_count


@test
def what_is_not_there_is_an_error_with_its_name(client, model):
    raises(lambda: client.chat("other", STORY), 404, "model")
    raises(lambda: client.chat(model, STORY, options={"mirostat": 2}), 400, "options.mirostat")
    raises(lambda: list(client.chat(model, STORY, options={"top_p": 7}, stream=True)), 400, "top_p")
    raises(lambda: client.generate(model, "a", suffix="b"), 400, "suffix")
    raises(lambda: client.pull("llama3"), 501)
    raises(lambda: client.delete(model), 501)
    raises(lambda: client.copy(model, "other"), 501)


def main():
    if not 2 <= len(sys.argv) <= 3:
        print(__doc__)
        return 2
    headers = {"Authorization": f"Bearer {sys.argv[2]}"} if len(sys.argv) == 3 else {}
    client = Client(host=sys.argv[1], headers=headers, timeout=120)
    model = client.list().models[0].model
    failed = 0
    for function in TESTS:
        name = function.__name__.replace("_", " ")
        try:
            function(client, model)
            print(f"ok      {name}")
        except Exception:  # every failure is shown, whatever it is
            failed += 1
            print(f"FAILED  {name}")
            traceback.print_exc(file=sys.stdout)
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

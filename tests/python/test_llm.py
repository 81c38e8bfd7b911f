"""`LLM` on the built-in model: what it gives, and that it is what the command and its server give."""

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from package import ONCE, STORY, SUM, binary, llm, raises, run_with, server, test
from twostroke import LLM, RequestOutputKind, SamplingParams, StructuredOutputsParams

GREEDY = SamplingParams(temperature=0, max_tokens=24)
DRAWN = SamplingParams(temperature=0.9, seed=7, max_tokens=24)
# Until it is cancelled, or its context ends.
ENDLESS = SamplingParams(temperature=0, ignore_eos=True)


def tokens(outputs):
    return [[answer.token_ids for answer in output.outputs] for output in outputs]


@test
def one_seed_gives_the_tokens_of_the_server_and_of_the_command():
    ours = llm().generate([ONCE, STORY], DRAWN)
    chat = llm().chat([{"role": "user", "content": SUM}], SamplingParams(temperature=0, max_tokens=60))
    body = {"temperature": 0.9, "seed": 7, "max_tokens": 24, "return_token_ids": True}
    with server() as (_, post):
        theirs = post("/v1/completions", {**body, "prompt": [ONCE, STORY]})["choices"]
        asked = {"messages": [{"role": "user", "content": SUM}], "temperature": 0, "max_tokens": 60}
        answered = post("/v1/chat/completions", {**asked, "return_token_ids": True})
    assert tokens(ours) == [[choice["token_ids"]] for choice in theirs]
    assert [output.outputs[0].text for output in ours] == [choice["text"] for choice in theirs]
    assert chat[0].outputs[0].token_ids == answered["choices"][0]["token_ids"]
    assert chat[0].prompt_token_ids == answered["prompt_token_ids"]
    flags = ["--raw", "--json", "--temperature", "0.9", "--seed", "7", "--max-tokens", "24"]
    run = subprocess.run([binary(), "run", *flags, ONCE], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["text"] == ours[0].outputs[0].text


@test
def a_batch_gives_what_each_gives_alone_in_the_order_of_the_prompts():
    prompts = [f"{ONCE} there was a fox number {number}" for number in range(100)]
    params = [SamplingParams(temperature=0.8, seed=number, max_tokens=4 + number % 9) for number in range(100)]
    together = llm().generate(prompts, params)
    assert [output.prompt for output in together] == prompts
    for number in (0, 1, 57, 99):
        assert tokens(llm().generate(prompts[number], params[number])) == tokens([together[number]])
    assert len({output.request_id for output in together}) == 100


@test
def more_prompts_than_the_queue_has_places_are_asked_as_there_is_room():
    with LLM(max_num_seqs=2, max_queued_requests=3) as small:
        outputs = small.generate([ONCE] * 40, SamplingParams(temperature=0, max_tokens=3))
        assert tokens(outputs) == [tokens(outputs)[0]] * 40
        assert max(record.decode_requests + record.prefill_requests for record in small.step_log()) == 2


@test
def a_prompt_is_a_text_or_tokens():
    ids = llm().tokenize(ONCE)
    forms = [ONCE, {"prompt": ONCE}, ids, {"prompt_token_ids": ids}]
    outputs = llm().generate(forms, GREEDY)
    assert tokens(outputs) == [tokens(outputs)[0]] * 4
    assert [output.prompt for output in outputs] == [ONCE, ONCE, None, None]
    assert all(output.prompt_token_ids == ids for output in outputs)
    assert tokens(llm().generate(ids, GREEDY)) == tokens(llm().generate(ONCE, GREEDY)) == [tokens(outputs)[0]]
    assert llm().detokenize(outputs[0].outputs[0].token_ids) == outputs[0].outputs[0].text
    assert llm().generate([]) == []


@test
def n_answers_are_those_that_a_server_gives():
    prompt = ONCE + " there was"
    (output,) = llm().generate(prompt, SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=24))
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert len({answer.text for answer in output.outputs}) > 1
    with server() as (_, post):
        body = {"prompt": prompt, "n": 3, "temperature": 1.0, "seed": 3, "max_tokens": 24}
        assert [choice["text"] for choice in post("/v1/completions", body)["choices"]] == [
            answer.text for answer in output.outputs
        ]


@test
def an_answer_says_what_ended_it():
    (whole,) = llm().generate(ONCE, GREEDY)
    text, ids = whole.outputs[0].text, whole.outputs[0].token_ids
    word = text.split()[3]
    cases = [
        (SamplingParams(temperature=0, max_tokens=24), "length", None, text),
        (SamplingParams(temperature=0, stop=word), "stop", word, text[: text.index(word)]),
        (SamplingParams(temperature=0, stop=["nowhere", word], include_stop_str_in_output=True), "stop", word,
         text[: text.index(word) + len(word)]),
        (SamplingParams(temperature=0, stop_token_ids=[ids[5]]), "stop", ids[5], None),
    ]
    for params, finish_reason, stop_reason, expected in cases:
        (answer,) = llm().generate(ONCE, params)[0].outputs
        assert (answer.finish_reason, answer.stop_reason) == (finish_reason, stop_reason), (params, answer)
        assert expected is None or answer.text == expected, (params, answer.text)
    (answer,) = llm().chat([{"role": "user", "content": SUM}], SamplingParams(temperature=0))[0].outputs
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None), answer


@test
def log_probabilities_are_vllms():
    (output,) = llm().generate(ONCE, SamplingParams(temperature=0, max_tokens=8, logprobs=3, prompt_logprobs=1))
    (answer,) = output.outputs
    assert len(answer.logprobs) == len(answer.token_ids) == 8
    for token, likely in zip(answer.token_ids, answer.logprobs):
        assert likely[token].rank == 1 and len(likely) == 3
        assert likely[token].logprob == max(entry.logprob for entry in likely.values()) <= 0
        assert likely[token].decoded_token == llm().detokenize([token], skip_special_tokens=False)
    total = sum(likely[token].logprob for token, likely in zip(answer.token_ids, answer.logprobs))
    assert abs(answer.cumulative_logprob - total) < 1e-4
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for token, likely in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:]):
        assert token in likely and 1 <= len(likely) <= 2
    (without,) = llm().generate(ONCE, GREEDY)[0].outputs
    assert without.logprobs is None and without.cumulative_logprob is None


@test
def an_answer_looks_as_it_must():
    schema = {"type": "object", "properties": {"legs": {"enum": [2, 4]}}, "required": ["legs"],
              "additionalProperties": False}
    forms = [
        (StructuredOutputsParams(choice=["fox", "owl"]), lambda text: text in ("fox", "owl")),
        (StructuredOutputsParams(regex="[a-c]{4}"), lambda text: len(text) == 4 and set(text) <= set("abc")),
        (StructuredOutputsParams(json=schema), lambda text: json.loads(text)["legs"] in (2, 4)),
        (StructuredOutputsParams(json=json.dumps(schema)), lambda text: json.loads(text)["legs"] in (2, 4)),
        (StructuredOutputsParams(grammar='root ::= "yes" | "no"'), lambda text: text in ("yes", "no")),
        (StructuredOutputsParams(grammar='start: "left" | "right"'), lambda text: text in ("left", "right")),
    ]
    for form, holds in forms:
        (answer,) = llm().generate(ONCE, SamplingParams(structured_outputs=form, seed=1, max_tokens=60))[0].outputs
        assert holds(answer.text), (form, answer.text)


@test
def a_conversation_is_rendered_by_the_models_template():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": SUM}]
    (chat,) = llm().chat(messages, GREEDY)
    assert "Be brief." in chat.prompt and SUM in chat.prompt
    assert tokens(llm().generate({"prompt_token_ids": chat.prompt_token_ids}, GREEDY)) == tokens([chat])
    several = llm().chat([messages, messages[1:]], GREEDY)
    assert tokens(several)[0] == tokens([chat])[0] and several[1].prompt != chat.prompt
    parts = [{"role": "user", "content": [{"type": "text", "text": SUM}]}]
    assert llm().chat(parts, GREEDY)[0].prompt == several[1].prompt
    begun = [*messages, {"role": "assistant", "content": "It is"}]
    (goes_on,) = llm().chat(begun, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert goes_on.prompt.endswith("It is")
    (other,) = llm().chat(messages, GREEDY, chat_template="{{ messages[1].content }}{{ sign }}",
                          chat_template_kwargs={"sign": "!"})
    assert other.prompt.endswith(SUM + "!")


@test
def tools_are_shown_to_the_template():
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    template = "{{ tools[0].function.name }}: {{ messages[0].content }}"
    (output,) = llm().chat([{"role": "user", "content": SUM}], GREEDY, tools=[tool], chat_template=template)
    assert output.prompt.endswith(f"weather: {SUM}")


@test
def a_template_that_runs_for_ever_is_an_error_and_ends_nothing():
    asked = [{"role": "user", "content": SUM}]
    template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    raises(ValueError, lambda: llm().chat(asked, GREEDY, chat_template=template), "chat template")
    assert llm().chat(asked, GREEDY)[0].finished


@test
def a_stream_gives_out_what_was_asked_for():
    (whole,) = llm().generate(ONCE, GREEDY)

    async def outputs(kind):
        params = SamplingParams(temperature=0, max_tokens=24, output_kind=kind, logprobs=0)
        return [output async for output in llm().stream(ONCE, params)]

    cumulative = asyncio.run(outputs(RequestOutputKind.CUMULATIVE))
    texts = [output.outputs[0].text for output in cumulative]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:]))
    delta = asyncio.run(outputs(RequestOutputKind.DELTA))
    assert "".join(output.outputs[0].text for output in delta) == texts[-1] == whole.outputs[0].text
    assert sum((output.outputs[0].token_ids for output in delta), []) == whole.outputs[0].token_ids
    assert sum(len(output.outputs[0].logprobs) for output in delta) == 24
    (final,) = asyncio.run(outputs(RequestOutputKind.FINAL_ONLY))
    for last in (cumulative[-1], delta[-1], final):
        assert last.finished and last.outputs[0].finish_reason == "length" and last.metrics is not None
    assert not any(output.finished for output in [*cumulative[:-1], *delta[:-1]])
    assert cumulative[-1].outputs[0].token_ids == final.outputs[0].token_ids == whole.outputs[0].token_ids


@test
def streams_of_one_loop_share_steps_and_have_no_threads():
    prompts = [f"{ONCE} number {number}" for number in range(24)]
    alone = llm().generate(prompts, GREEDY)
    most = [threading.active_count()]

    async def last(prompt):
        async for output in llm().stream(prompt, GREEDY):
            most.append(sum("asyncio" not in thread.name for thread in threading.enumerate()))
        return output

    async def all_of_them():
        return await asyncio.gather(*map(last, prompts))

    outputs = asyncio.run(all_of_them())
    assert tokens(outputs) == tokens(alone)
    # Prompts are checked on the loop's own pool of threads; waiting takes none.
    assert max(most) == most[0]
    ids = {output.request_id for output in outputs}
    in_step = {}
    for row in llm().step_rows():
        in_step.setdefault(row.step, set()).add(row.request_id)
    assert max(len(ids & requests) for requests in in_step.values()) > 1


def rows_after(request_id):
    """Steps that carried a request, of those that were made since `begin`."""
    begin = llm().step_log()[-1].step
    llm().generate(ONCE, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    return [row for row in llm().step_rows() if row.step > begin + 2 and row.request_id == request_id]


@test
def a_stream_that_is_cancelled_ends_its_request():
    seen = []

    async def read():
        async for output in llm().stream(ONCE, ENDLESS):
            seen.append(output)

    async def cancel():
        task = asyncio.create_task(read())
        while not seen:
            await asyncio.sleep(0.001)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True

    assert asyncio.run(cancel()) and not seen[-1].finished
    assert rows_after(seen[-1].request_id) == []


@test
def a_stream_that_nobody_reads_to_its_end_ends_its_request():
    async def leave():
        async for output in llm().stream(ONCE, ENDLESS):
            return output

    left = asyncio.run(leave())
    assert not left.finished and rows_after(left.request_id) == []


@test
def other_threads_go_on_while_it_computes():
    count, over = [0], threading.Event()

    def work():
        while not over.is_set():
            count[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        before = count[0]
        llm().generate([ONCE] * 8, SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
        while_computing = count[0] - before
        before = count[0]
        LLM(max_num_seqs=2).close()
        while_loading = count[0] - before
    finally:
        over.set()
        thread.join()
    assert while_computing > 1000 and while_loading > 1000, (while_computing, while_loading)


@test
def threads_share_an_engine():
    (alone,) = llm().generate(ONCE, GREEDY)
    results = []
    threads = [threading.Thread(target=lambda: results.extend(llm().generate([ONCE] * 3, GREEDY))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tokens(results) == tokens([alone]) * 18


@test
def every_millisecond_has_an_owner():
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    outputs = llm().generate([f"{number} {STORY}" for number in range(12)], params)
    for output in outputs:
        metrics = output.metrics
        assert abs(metrics.queue_ms + metrics.prefill_ms - metrics.ttft_ms) < 0.01
        assert abs(metrics.ttft_ms + metrics.decode_ms - metrics.total_ms) < 0.01
        assert abs(sum(metrics.ttft_owners.values()) - metrics.ttft_ms) < 0.01
        assert abs(sum(metrics.gap_owners.values()) - metrics.decode_ms) < 0.01
        assert abs(metrics.tpot_ms * 29 - metrics.decode_ms) < 0.01
        assert metrics.prompt_tokens == len(output.prompt_token_ids) and metrics.completion_tokens == 30
        assert metrics.prefill_tokens + metrics.cached_tokens >= metrics.prompt_tokens and metrics.decode_tokens == 29
        assert set(metrics.ttft_delayed_by) <= {other.request_id for other in outputs} | {"others"}
    assert any(output.metrics.cost_to_others_ms > 0 for output in outputs)


@test
def options_are_those_of_serve():
    prompts = [STORY * 6] * 2
    with LLM(enable_prefix_caching=False, weights="int8", kv_dtype="int8", max_model_len="1k", max_num_seqs=3,
             ttft_slo="2s", tpot_slo="off", speculative_config={"method": "ngram"}, seed=4) as other:
        assert (other.model, other.max_model_len) == ("lantern", 1000)
        outputs = [other.generate(prompt, GREEDY)[0] for prompt in prompts]
        assert [output.metrics.cached_tokens for output in outputs] == [0, 0]
    outputs = [llm().generate(prompt, GREEDY)[0] for prompt in prompts]
    assert outputs[1].metrics.cached_tokens > 0
    assert tokens(outputs[:1]) == tokens(outputs[1:])


@test
def kv_events_are_told_at_a_free_port():
    with LLM(kv_events_config={"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:0"}) as told:
        (endpoint,) = told._engine.kv_events
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        with socket.create_connection((host, int(port))) as router:
            assert router.recv(10)[:1] == b"\xff", "ZMTP begins so"
    assert llm()._engine.kv_events == []


@test
def a_run_is_recorded_and_replayed():
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.rec"
        with LLM(record=path) as recorded:
            recorded.generate([ONCE, STORY], GREEDY)
        replay = subprocess.run([binary(), "replay", path], capture_output=True, text=True)
        assert replay.returncode == 0, replay
    raises(RuntimeError, lambda: recorded.generate(ONCE), "stopped")


if __name__ == "__main__":
    sys.exit(run_with())

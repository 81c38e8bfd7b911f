"""The worker for Dynamo, as far as it needs no Dynamo: requests, chunks, load. The rest is `cargo xtask dynamo`."""

import re
import sys
import tempfile
from pathlib import Path

from package import ONCE, llm, python, raises, run_with, test
from twostroke import LLM, RequestOutputKind, SamplingParams
from twostroke.dynamo import load, requests

# As Dynamo's frontend sends it: everything that it knows, and nothing is asked for.
NOTHING = {
    "model": "lantern",
    "token_ids": [1294, 1292, 258, 603],
    "stop_conditions": dict.fromkeys(["max_tokens", "stop", "stop_token_ids", "stop_token_ids_visible", "min_tokens",
                                      "stop_token_ids_hidden", "ignore_eos", "max_thinking_tokens"]),
    "sampling_options": dict.fromkeys(["n", "best_of", "presence_penalty", "frequency_penalty", "repetition_penalty",
                                       "temperature", "top_p", "top_k", "min_p", "use_beam_search", "length_penalty",
                                       "seed", "include_stop_str_in_output", "guided_decoding"]),
    "output_options": dict.fromkeys(["logprobs", "prompt_logprobs", "skip_special_tokens", "formatted_prompt",
                                     "return_tokens_as_token_ids"]),
    "eos_token_ids": [2044, 2040],
    "annotations": [],
    "routing": {"dp_rank": 0, "priority_jump": 3.0},
    "router_config_override": None,
}


def asked(**fields):
    """`NOTHING` with fields in whichever group has them."""
    names = ("stop_conditions", "sampling_options", "output_options", "routing")
    groups = {name: dict(NOTHING[name]) for name in names}
    top = {}
    for name, value in fields.items():
        group = next((group for group in groups.values() if name in group), None)
        (top if group is None else group)[name] = value
    return {**NOTHING, **groups, **top}


def chunks(request):
    """What Dynamo is given of a request that the built-in model answers."""
    params = requests.sampling_params(request)
    params.output_kind = RequestOutputKind.FINAL_ONLY
    return [requests.chunk(output, request) for output in llm().generate([request["token_ids"]], params)]


@test
def what_is_not_said_is_left_to_the_models_files():
    assert requests.sampling_params(NOTHING) == SamplingParams(stop_token_ids=[], skip_special_tokens=False)
    assert requests.sampling_params({"token_ids": [1]}) == SamplingParams(stop_token_ids=[], skip_special_tokens=False)


@test
def what_is_said_is_asked_for():
    request = asked(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, presence_penalty=0.1, frequency_penalty=0.2,
                    repetition_penalty=1.1, seed=-3, include_stop_str_in_output=True, max_tokens=9, min_tokens=2,
                    stop=["fox"], stop_token_ids=[5], stop_token_ids_visible=[6], stop_token_ids_hidden=[2044],
                    ignore_eos=True, logprobs=2, prompt_logprobs=1, skip_special_tokens=True)
    assert requests.sampling_params(request) == SamplingParams(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, presence_penalty=0.1, frequency_penalty=0.2,
        repetition_penalty=1.1, seed=-3, include_stop_str_in_output=True, max_tokens=9, min_tokens=2, stop=["fox"],
        stop_token_ids=[5, 6, 2044], ignore_eos=True, logprobs=2, prompt_logprobs=1, skip_special_tokens=True)
    schema, grammar = {"type": "object"}, 'root ::= "a"'
    forms = [{"json": schema}, {"regex": "[0-9]+"}, {"choice": ["fox", "owl"]}, {"grammar": grammar}]
    for form in forms:
        every = {"json": None, "regex": None, "choice": None, "grammar": None, "backend": None, **form}
        params = requests.sampling_params(asked(guided_decoding=every))
        assert params.structured_outputs._rule()[0] == next(iter(form))
    assert requests.sampling_params(asked(guided_decoding={"choice": []})).structured_outputs is None


@test
def what_cannot_be_done_is_refused_by_its_name():
    for fields, name in [
        (dict(n=2), "n:"),
        (dict(best_of=2), "best_of"),
        (dict(use_beam_search=True), "use_beam_search"),
        (dict(length_penalty=0.5), "length_penalty"),
        (dict(max_thinking_tokens=5), "max_thinking_tokens"),
        (dict(formatted_prompt=True), "formatted_prompt"),
        (dict(guided_decoding={"structural_tag": {}}), "guided_decoding.structural_tag"),
        (dict(guided_decoding={"regex": "a", "whitespace_pattern": " "}), "guided_decoding.whitespace_pattern"),
        (dict(multi_modal_data={"image_url": []}), "multi_modal_data"),
        (dict(prompt_embeds="AA=="), "prompt_embeds"),
        (dict(routing={"lora_name": "poet"}), "lora_name"),
        (dict(routing={"cache_salt": "mine"}), "cache_salt"),
        (dict(routing={"priority": 3}), "priority"),
        (dict(sampling_options={"bad_words_token_ids": [[5]]}), "bad_words_token_ids"),
        (dict(stop_conditions={"what_comes_next": 1}), "what_comes_next"),
    ]:
        raises(ValueError, lambda: requests.sampling_params(asked(**fields)), name)
    for same in (dict(n=1), dict(best_of=1), dict(use_beam_search=False), dict(length_penalty=1.0)):
        assert requests.sampling_params(asked(**same)) == requests.sampling_params(NOTHING)


@test
def whoever_has_read_a_prompt_is_named_in_the_request():
    read = {"host": "10.0.0.1", "port": 9000, "seal": "ab"}
    assert requests.who_has_read(NOTHING) is None
    assert requests.who_has_read(asked(prefill_result={"disaggregated_params": read})) == ("10.0.0.1", 9000, "ab")
    for other in (None, {}, {**read, "port": "9000"}, {"sample_handle": "x"}):
        result = {"disaggregated_params": other}
        raises(ValueError, lambda: requests.who_has_read(asked(prefill_result=result)), "prefill_result")


@test
def whoever_has_no_key_is_not_asked():
    with tempfile.TemporaryDirectory() as directory:
        key = Path(directory) / "cluster.key"
        key.write_text("c2l4dGVlbiBieXRlcyBvciBtb3Jl\n")
        with LLM(role="decode", cluster_key=key) as decode:
            forged, params = ("127.0.0.1", 9, "ab" * 32), SamplingParams()
            raises(ValueError, lambda: decode._engine.validate([5], params, None, None, forged), "cluster key")


@test
def a_worker_that_reads_has_one_token_to_give():
    params = requests.of_prompt_alone(requests.sampling_params(asked(max_tokens=9, min_tokens=3, logprobs=2, seed=4)))
    assert (params.max_tokens, params.min_tokens, params.logprobs, params.seed) == (1, None, None, 4)


@test
def the_last_chunk_says_why_it_ended_and_what_it_took():
    ids = llm().tokenize(ONCE)
    (output,) = llm().generate([ids], SamplingParams(temperature=0, max_tokens=5))
    (chunk,) = chunks(asked(token_ids=ids, temperature=0, max_tokens=5))
    assert chunk["token_ids"] == output.outputs[0].token_ids and chunk["index"] == 0
    assert chunk["finish_reason"] == "length"
    usage = chunk["completion_usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (len(ids), 5, len(ids) + 5)
    assert usage["prompt_tokens_details"] == {"cached_tokens": output.metrics.cached_tokens}
    assert "log_probs" not in chunk
    first = output.outputs[0].token_ids[0]
    (chunk,) = chunks(asked(token_ids=ids, temperature=0, max_tokens=5, stop_token_ids_hidden=[first]))
    assert chunk["finish_reason"] == "stop"
    assert requests.cancelled(7)["completion_usage"]["total_tokens"] == 7


@test
def log_probabilities_are_dynamos():
    ids = llm().tokenize(ONCE)
    request = asked(token_ids=ids, temperature=0, max_tokens=4, logprobs=2)
    (chunk,) = chunks(request)
    assert len(chunk["log_probs"]) == len(chunk["top_logprobs"]) == len(chunk["token_ids"]) == 4
    for token, logprob, top in zip(chunk["token_ids"], chunk["log_probs"], chunk["top_logprobs"], strict=True):
        ranked = {entry["rank"]: entry for entry in top}
        assert set(ranked) == {1, 2}
        # Greedy: the first is the one that was taken.
        assert (ranked[1]["token_id"], ranked[1]["logprob"]) == (token, logprob)
        assert ranked[1]["token"] == llm().detokenize([token])
    (named,) = chunks(asked(token_ids=ids, temperature=0, max_tokens=1, logprobs=1, return_tokens_as_token_ids=True))
    assert named["top_logprobs"][0][0]["token"] == f"token_id:{named['token_ids'][0]}"
    (output,) = llm().generate([ids], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1))
    told = requests.prompt_logprobs(output.prompt_logprobs)
    assert told[0] is None and len(told) == len(ids)
    assert all(told[at][str(ids[at])]["logprob"] <= 0 for at in range(1, len(ids)))


@test
def load_is_told_in_the_words_of_each_listener():
    llm().generate([ONCE], SamplingParams(temperature=0, max_tokens=4))
    now = llm()._engine.load()
    snapshot = load.snapshot(now)
    assert snapshot["kv_total_blocks"] > 0 and 0 <= snapshot["gpu_cache_usage"] <= 1
    assert 0 <= snapshot["kv_cache_hit_rate"] <= 1
    assert load.snapshot({**now, "prompt_tokens": 0})["kv_cache_hit_rate"] is None
    assert load.is_at_rest(now)
    for busy in ("running_requests", "waiting_requests", "kept_blocks"):
        assert not load.is_at_rest({**now, busy: 1}), busy
    (step,) = llm()._engine.steps(1)
    passed = load.forward_pass({**now, "waiting_requests": 2, "waiting_tokens": 70}, step, llm()._engine.step_rows(1))
    # The last step of that answer: one row of decode, behind what was there.
    ids = llm().tokenize(ONCE)
    assert passed["scheduled_num_prefill_requests"] == 0 and passed["scheduled_num_decode_requests"] == 1
    assert passed["scheduled_sum_decode_kv_tokens"] == len(ids) + 3
    assert (passed["queued_num_prefill_requests"], passed["queued_sum_prefill_tokens"]) == (2, 70)
    assert passed["wall_time_secs"] == step["took_ms"] / 1e3 > 0


@test
def the_page_for_prometheus_has_labels_and_names_of_the_server():
    page = load.metrics({**llm()._engine.load(), "handoffs_given": 3}, {"model": 'a "model"'})
    assert 'twostroke_remote_prefills_total{way="given",result="whole",model="a \\"model\\""} 3\n' in page
    assert 'twostroke_remote_prefill_mismatches_total{model="a \\"model\\""} 0\n' in page
    assert 'twostroke_handoffs_total{way="given",result="whole",model="a \\"model\\""} 3\n' in page, "the old name"
    for line in page.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) twostroke_\w+ .+|twostroke_\w+\{(\w+="([^"\\]|\\.)*",?)+\} \S+', line), line


@test
def without_dynamo_one_line_says_what_to_install():
    ran = python("-m", "twostroke.dynamo", "--model", "x")
    assert ran.returncode == 1 and ran.stdout == "", ran
    (line,) = ran.stderr.splitlines()
    assert "dynamo is not installed" in line and "pip install" in line, ran


if __name__ == "__main__":
    sys.exit(run_with())

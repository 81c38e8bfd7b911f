"""What is wrong is one exception that names it, and nothing else happens."""

import asyncio
import json
import os
import shutil
import struct
import sys
import tempfile
import warnings
from pathlib import Path
from signal import SIGINT

import twostroke
from package import ONCE, ROOT, line_of, llm, program, python, raises, run_with, test
from twostroke import LLM, GenerationError, SamplingParams, StructuredOutputsParams


@test
def a_wrong_option_is_named():
    # Options, the kind of the error, and words in it.
    cases = [
        (dict(max_num_seqs=0), ValueError, "max_num_seqs"),
        (dict(weights="int7"), ValueError, "weights", "int7"),
        (dict(block_size=33), ValueError, "block"),
        (dict(ttft_slo="soon"), ValueError, "ttft_slo", "soon"),
        (dict(speculative_config={"method": "magic"}), ValueError, "speculative_config", "magic"),
        (dict(model="no/such/model/here"), ValueError, "no/such/model/here"),
        (dict(lora_modules=["poet=no/such/directory"]), ValueError, "no/such/directory"),
        (dict(generation_config="no/such/directory"), ValueError, "generation_config"),
        (dict(max_num_sequences=4), TypeError, "max_num_sequences"),
        (dict(gpu_memory_utilization=0.9), TypeError, "gpu_memory_utilization", "kv_cache_memory_bytes"),
        (dict(port=8000), TypeError, "port"),
        (dict(max_num_seqs=object()), TypeError, "object"),
    ]
    for options, kind, *words in cases:
        error = raises(kind, lambda: LLM(**options), *words)
        assert "--" not in str(error) and "\n" not in str(error), error


@test
def a_wrong_parameter_is_named():
    # Parameters, the kind of the error, and words in it.
    cases = [
        (dict(temperature=-1.0), ValueError, "temperature"),
        (dict(temperature="hot"), TypeError, "temperature"),
        (dict(top_p=2), ValueError, "top_p"),
        (dict(n=0), ValueError, "n"),
        (dict(n=100_000), ValueError, "n"),
        (dict(max_tokens=0), ValueError, "max_tokens"),
        (dict(max_tokens=2**70), ValueError, "max_tokens"),
        (dict(min_tokens=9, max_tokens=3), ValueError, "min_tokens"),
        (dict(stop=[""]), ValueError, "stop"),
        (dict(stop=7), TypeError, "stop"),
        (dict(stop_token_ids=[99_999]), ValueError, "stop_token_ids"),
        *((dict(stop_token_ids=wrong), TypeError, "stop_token_ids") for wrong in (b"ab", "12", [True], ["1"], 7)),
        *((dict(allowed_token_ids=wrong), TypeError, "allowed_token_ids") for wrong in (b"ab", [False], [1.5])),
        (dict(logit_bias={99_999: 1.0}), ValueError, "logit_bias"),
        (dict(logit_bias={"fox": 1.0}), TypeError, "logit_bias"),
        (dict(logprobs=-7), ValueError, "logprobs"),
        (dict(bad_words=[" "]), ValueError, "bad_words"),
        (dict(structured_outputs=StructuredOutputsParams(regex="(")), ValueError, "structured_outputs"),
        (dict(structured_outputs=StructuredOutputsParams(json="{")), ValueError, "json"),
        (dict(structured_outputs=StructuredOutputsParams()), ValueError, "structured_outputs"),
        (dict(structured_outputs=StructuredOutputsParams(regex="a", choice=["b"])), ValueError, "regex and choice"),
    ]
    for params, kind, *words in cases:
        raises(kind, lambda: llm().generate(ONCE, SamplingParams(**params)), *words)
    raises(TypeError, lambda: SamplingParams(best_of=3), "best_of")
    raises(TypeError, lambda: llm().generate(ONCE, {"temperature": 1}), "sampling_params", "dict")
    raises(TypeError, lambda: llm().generate([ONCE], [None]), "sampling_params", "NoneType")
    raises(TypeError, lambda: llm().generate(ONCE, use_tqdm=True), "use_tqdm")


@test
def a_wrong_prompt_is_named_and_none_of_its_batch_is_asked():
    steps = len(llm().step_log())
    cases = [
        ([ONCE, ""], ValueError, "prompts[1]"),
        ([ONCE, [99_999]], ValueError, "prompts[1]", "99999"),
        ([ONCE, {"prompt": ONCE, "multi_modal_data": {}}], ValueError, "multi_modal_data"),
        ([ONCE, 4.5], TypeError, "prompts[1]"),
        # Bytes are numbers, and none of them is meant as a token.
        *((wrong, TypeError, type(wrong).__name__) for wrong in (b"Once", bytearray(b"Once"), memoryview(b"Once"))),
        *(([ONCE, wrong], TypeError, "prompts[1]", "bytes") for wrong in (b"Once", b"")),
        ({"prompt": b"Once"}, ValueError, "prompt"),
        *(({"prompt_token_ids": wrong}, TypeError, "prompt_token_ids") for wrong in (b"Once", "12", 7, None, {1: 2})),
        *(({"prompt_token_ids": [1, wrong]}, TypeError, "prompt_token_ids[1]") for wrong in (True, "2", 2.0, [3])),
        ([[1, "two"]], TypeError, "[1]", "str"),
        ([[True, False]], TypeError, "bool"),
        ([1, "two"], TypeError, "prompts[0]", "int"),
        ([True, False], TypeError, "bool"),
        ((number for number in (1, 2)), TypeError, "prompts[0]", "int"),
        *((wrong, TypeError, "prompts", type(wrong).__name__) for wrong in (None, 7, True, 4.5, object())),
        ([[-1]], ValueError, "-1"),
        ([[2**70]], ValueError, "prompt"),
        ("x" * 1_000_000, ValueError, "prompt"),
        ([1] * 7000, ValueError, "context"),
    ]
    for prompts, kind, *words in cases:
        raises(kind, lambda: llm().generate(prompts), *words)
    raises(ValueError, lambda: llm().generate([ONCE] * 3, [SamplingParams()] * 2), "2 for 3")
    raises(ValueError, lambda: llm().generate(ONCE, adapter="poet"), "adapter", "poet")
    raises(ValueError, lambda: llm().detokenize([99_999]), "99999")
    for wrong in (b"Once", "12", 7, None, [True], ["1"], [1.0]):
        raises(TypeError, lambda: llm().detokenize(wrong), "token_ids")
    assert len(llm().step_log()) == steps, "nothing was computed"


@test
def a_wrong_conversation_is_named():
    cases = [
        ([], ValueError, "messages"),
        ([{"content": "no role"}], ValueError, "messages[0]", "role"),
        ([{"role": "user", "content": 7}], ValueError, "messages[0]", "content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], ValueError, "messages[0]", "no text"),
        ([{"role": "user", "content": object()}], TypeError, "object"),
    ]
    for messages, kind, *words in cases:
        raises(kind, lambda: llm().chat(messages), *words)
    asked = [{"role": "user", "content": "Hello"}]
    raises(ValueError, lambda: llm().chat(asked, continue_final_message=True), "continue_final_message")
    raises(ValueError, lambda: llm().chat(asked, chat_template="{{ raise_exception('no') }}"), "no")
    raises(ValueError, lambda: llm().chat(asked, chat_template="{% if"), "chat_template")


def without_numbers(directory):
    """The built-in model with a norm whose first factor is no number."""
    shutil.copytree(ROOT / "models/lantern", directory, dirs_exist_ok=True)
    file = Path(directory) / "model.safetensors"
    data = bytearray(file.read_bytes())
    (header,) = struct.unpack("<Q", data[:8])
    begin = 8 + header + json.loads(data[8 : 8 + header])["model.norm.weight"]["data_offsets"][0]
    data[begin : begin + 2] = b"\xc0\x7f"
    file.write_bytes(data)
    return directory


@test
def a_request_that_fails_is_an_error_with_what_became_of_all():
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with LLM(without_numbers(directory)) as broken:
            assert "1 of the weights are NaN" in str(said[0].message) and said[0].filename == __file__
            error = raises(GenerationError, lambda: broken.generate([ONCE, ONCE]), "2 of 2", "not numbers")
            assert [output.outputs[0].finish_reason for output in error.outputs] == ["error", "error"]
            assert all("not numbers" in output.error and output.finished for output in error.outputs)

            async def read():
                return [output async for output in broken.stream(ONCE)]

            raises(GenerationError, lambda: asyncio.run(read()), "1 of 1")


INTERRUPTED = """
import threading, time
from twostroke import LLM, SamplingParams
llm = LLM()
def tell():
    while not llm.step_log():
        time.sleep(0.001)
    print("running")
threading.Thread(target=tell).start()
try:
    llm.generate(["Once upon a time"] * 40, SamplingParams(ignore_eos=True))
except KeyboardInterrupt:
    print("interrupted")
begin = llm.step_log()[-1].step
answer = llm.generate("Once upon a time", SamplingParams(max_tokens=8, ignore_eos=True))[0]
print({row.request_id for row in llm.step_rows() if row.step > begin + 2} <= {answer.request_id})
"""

LOADING = """
from twostroke import LLM
try:
    print("loading")
    while True:
        LLM(recalibrate=True)
except KeyboardInterrupt:
    print("interrupted")
"""


@test
def ctrl_c_ends_what_runs_and_nothing_else():
    with program(INTERRUPTED) as process:
        assert line_of(process) == "running"
        process.send_signal(SIGINT)
        rest = process.communicate()
        assert rest[0].split() == ["interrupted", "True"] and process.returncode == 0, rest


@test
def ctrl_c_ends_the_loading_of_a_model():
    with program(LOADING) as process:
        assert line_of(process) == "loading"
        process.send_signal(SIGINT)
        rest = process.communicate()
        assert rest[0].split() == ["interrupted"] and process.returncode == 0, rest


@test
def an_engine_stays_in_its_process():
    llm()
    child = os.fork()
    if child == 0:
        try:
            llm().generate(ONCE)
        except RuntimeError as error:
            os._exit(7 if "process" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@test
def a_flag_of_a_command_that_is_wrong_is_an_exception():
    raises(ValueError, lambda: twostroke.plan("no-such-model"), "no-such-model")
    raises(ValueError, lambda: twostroke.bench(n_prompt=-1), "n_prompt")
    raises(TypeError, lambda: twostroke.bench(prompt_lengths=3), "prompt_lengths")


@test
def an_interpreter_that_ends_with_an_engine_ends_well():
    ended = python("-c", "from twostroke import LLM; llm = LLM(); print(llm.generate('Once')[0].finished)")
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended


if __name__ == "__main__":
    sys.exit(run_with())

"""An LLM inference engine organised around the two phases of inference, in this process.

    from twostroke import LLM, SamplingParams

    llm = LLM()                                      # the built-in model; LLM("Qwen/Qwen2.5-0.5B-Instruct") for another
    outputs = llm.generate(["Once upon a time"], SamplingParams(temperature=0.8, max_tokens=64))
    print(outputs[0].outputs[0].text, outputs[0].metrics)

Names are vLLM's where they mean the same. Computing holds no lock of the interpreter.
"""

from twostroke import _twostroke
from twostroke.commands import COMMAND, Lab, bench, lab, plan
from twostroke.llm import LLM
from twostroke.options import EngineOptions
from twostroke.outputs import (
    CompletionOutput,
    GenerationError,
    Logprob,
    RequestMetrics,
    RequestOutput,
    StepRecord,
    StepRow,
)
from twostroke.params import RequestOutputKind, SamplingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineOptions",
    "GenerationError",
    "Lab",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StepRecord",
    "StepRow",
    "StructuredOutputsParams",
    "bench",
    "lab",
    "plan",
]

__version__ = _twostroke.VERSION

# Chat templates run in processes of their own, without anything of this one.
_twostroke.started_by(COMMAND)

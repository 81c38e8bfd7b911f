"""LlamaIndex's OpenAI-like classes against a running twostroke server: see served.py."""

import math
import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict

from served import STORY, SUM, run, test

MESSAGES = [ChatMessage(role="user", content=STORY)]


class Animal(BaseModel):
    """Names one."""

    model_config = ConfigDict(extra="forbid")
    animal: Literal["fox", "owl"]


def weather(place: Literal["forest", "river"]) -> str:
    """Says how it is."""
    return f"It rains over the {place}."


def speaker(server, **more):
    return OpenAILike(api_base=server.v1, api_key=server.key, model=server.model, temperature=0, max_retries=0,
                      context_window=4096, **{"max_tokens": 200, "is_chat_model": True, **more})


@test
def text_is_completed(server):
    by = speaker(server, is_chat_model=False, max_tokens=16)
    whole = by.complete("The fox").text
    parts = list(by.stream_complete("The fox"))
    assert whole and parts[-1].text == whole == "".join(part.delta for part in parts)


@test
def a_chat_is_streamed_as_it_is_answered(server):
    by = speaker(server)
    for question in (STORY, SUM):
        messages = [ChatMessage(role="user", content=question)]
        whole = by.chat(messages)
        parts = list(by.stream_chat(messages))
        assert whole.message.content and parts[-1].message.content == whole.message.content
        assert "".join(part.delta for part in parts) == whole.message.content
        usage = whole.raw.usage
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


@test
def a_conversation_goes_on(server):
    by = speaker(server, max_tokens=20)
    first = by.chat(MESSAGES)
    second = by.chat([*MESSAGES, first.message, ChatMessage(role="user", content="And then?")])
    assert second.raw.usage.prompt_tokens > first.raw.usage.prompt_tokens


@test
def an_answer_is_an_object(server):
    prompt = PromptTemplate("Name an {what} and count its legs.")
    for more in ({"should_use_structured_outputs": True}, {"is_function_calling_model": True}):
        answer = speaker(server, **more).structured_predict(Animal, prompt, what="animal")
        assert answer.animal in ("fox", "owl"), more


@test
def a_tool_is_called_and_its_result_read(server):
    by = speaker(server, is_function_calling_model=True)
    tool = FunctionTool.from_defaults(weather)
    schema = tool.metadata.get_parameters_dict()
    question = ChatMessage(role="user", content="How is it in the forest?")
    asked = dict(chat_history=[question], tool_required=True, allow_parallel_tool_calls=False, strict=True)
    first = by.chat_with_tools([tool], **asked)
    (call,) = by.get_tool_calls_from_response(first)
    assert call.tool_name == "weather" and call.tool_kwargs["place"] in ("forest", "river"), schema
    streamed = list(by.stream_chat_with_tools([tool], **asked))[-1]
    (same,) = by.get_tool_calls_from_response(streamed)
    assert same.tool_kwargs == call.tool_kwargs
    result = ChatMessage(role="tool", content=tool(**call.tool_kwargs).content,
                         additional_kwargs={"tool_call_id": call.tool_id})
    second = by.chat([question, first.message, result])
    assert second.raw.usage.prompt_tokens > first.raw.usage.prompt_tokens - 200


@test
def texts_have_vectors(server):
    texts = ["A fox ran through the forest.", "The fox ran in the wood.", "17 + 25 = 42"]
    by = OpenAILikeEmbedding(model_name=server.model, api_base=server.v1, api_key=server.key, max_retries=0)
    vectors = by.get_text_embedding_batch(texts)
    assert [round(math.hypot(*vector), 3) for vector in vectors] == [1, 1, 1]
    assert max(abs(a - b) for a, b in zip(by.get_query_embedding(texts[1]), vectors[1])) < 1e-6


def connect(server):
    return (server,)


if __name__ == "__main__":
    sys.exit(run(connect))

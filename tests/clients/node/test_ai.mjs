// Vercel's AI SDK with its three providers that speak an API of ours.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { STORY, SUM, assertAnimal, assertPlace, test } from "./served.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;

const animal = z.strictObject({ animal: z.enum(["fox", "owl"]) });
const where = z.strictObject({ place: z.enum(["forest", "river"]) });

/** The same model by each of them. */
function models({ address, v1, key, model }) {
  const compatible = createOpenAICompatible({
    name: "twostroke", baseURL: v1, apiKey: key, includeUsage: true, supportsStructuredOutputs: true,
  });
  const openai = createOpenAI({ baseURL: v1, apiKey: key });
  return {
    "openai-compatible": compatible(model),
    "openai, chat": openai.chat(model),
    "openai, responses": openai(model),
    anthropic: createAnthropic({ baseURL: v1, apiKey: key })(model),
  };
}

const ask = (model, prompt, more) => ({ model, prompt, temperature: 0, maxOutputTokens: 200, maxRetries: 0, ...more });

test("ai: every provider says the same, whole and streamed", async (server) => {
  for (const prompt of [STORY, SUM]) {
    const said = new Set();
    for (const [name, model] of Object.entries(models(server))) {
      const whole = await generateText(ask(model, prompt));
      const stream = streamText(ask(model, prompt));
      let text = "";
      for await (const delta of stream.textStream) text += delta;
      assert.ok(text, name);
      assert.equal(text, whole.text, name);
      const usage = await stream.usage;
      assert.equal(usage.outputTokens, whole.usage.outputTokens, name);
      assert.equal(usage.inputTokens + usage.outputTokens, usage.totalTokens, name);
      assert.equal(await stream.finishReason, whole.finishReason, name);
      said.add(JSON.stringify([text, usage.outputTokens]));
    }
    assert.equal(said.size, 1, [...said].join("\n"));
  }
});

test("ai: thoughts stand apart", async (server) => {
  for (const [name, model] of Object.entries(models(server))) {
    const { text, reasoningText } = await generateText(ask(model, SUM));
    assert.match(text, /42/, name);
    assert.doesNotMatch(text, /think>/, name);
    // The others look for thoughts where OpenAI has them: summaries, and none in a chat.
    if (["openai-compatible", "anthropic"].includes(name)) assert.ok(reasoningText, name);
  }
});

test("ai: an answer is an object", async (server) => {
  for (const model of Object.values(models(server))) {
    assertAnimal((await generateObject(ask(model, "Name an animal and count its legs.", { schema: animal }))).object);
    const streamed = streamText(ask(model, "Name an animal and count its legs.", { output: Output.object({ schema: animal }) }));
    const parts = [];
    for await (const part of streamed.partialOutputStream) parts.push(part);
    assertAnimal(parts.at(-1));
  }
});

test("ai: tools are called and their results read", async (server) => {
  for (const [name, model] of Object.entries(models(server))) {
    const asked = [];
    const execute = async (args) => {
      asked.push(args);
      return `It rains over the ${args.place}.`;
    };
    const tools = { weather: tool({ description: "Says how it is.", inputSchema: where, strict: true, execute }) };
    const more = { tools, toolChoice: "required", stopWhen: stepCountIs(1) };
    const { toolCalls } = await generateText(ask(model, "How is it in the forest?", more));
    assert.equal(toolCalls[0].toolName, "weather", name);
    assertPlace(asked[0]);
    const streamed = await streamText(ask(model, "How is it in the forest?", more)).toolCalls;
    assert.deepEqual(streamed.map((call) => call.input), toolCalls.map((call) => call.input), name);
    const choose = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
    const { steps } = await generateText(
      ask(model, "How is it in the forest?", { tools, stopWhen: stepCountIs(2), prepareStep: choose }));
    assert.equal(steps.length, 2, name);
    assert.ok(steps[0].toolResults[0].output.startsWith("It rains"), name);
  }
});

test("ai: texts have vectors", async ({ v1, key, model }) => {
  const values = ["A fox ran through the forest.", "17 + 25 = 42"];
  for (const provider of [createOpenAI({ baseURL: v1, apiKey: key }),
                          createOpenAICompatible({ name: "twostroke", baseURL: v1, apiKey: key })]) {
    const { embeddings, usage } = await embedMany({ model: provider.embeddingModel(model), values, maxRetries: 0 });
    for (const vector of embeddings) assert.ok(Math.abs(Math.hypot(...vector) - 1) < 1e-4);
    assert.ok(usage.tokens > 10);
  }
});

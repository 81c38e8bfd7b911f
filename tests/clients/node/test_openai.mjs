// The official `openai` client for Node.

import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";

import { ANIMAL, STORY, SUM, WEATHER, assertAnimal, assertPlace, test } from "./served.mjs";

const connect = ({ v1, key }) => new OpenAI({ baseURL: v1, apiKey: key, maxRetries: 0 });
const ask = ({ model }, content, more) => ({
  model, temperature: 0, max_tokens: 200, messages: [{ role: "user", content }], ...more,
});

test("openai: models are listed and shown", async (server) => {
  const client = connect(server);
  const listed = [];
  for await (const model of client.models.list()) listed.push(model.id);
  assert.deepEqual(listed, [server.model]);
  assert.equal((await client.models.retrieve(server.model)).id, server.model);
  await assert.rejects(client.models.retrieve("none"), OpenAI.NotFoundError);
});

test("openai: a chat is streamed as it is answered", async (server) => {
  const client = connect(server);
  for (const question of [STORY, SUM]) {
    const whole = await client.chat.completions.create(ask(server, question));
    assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
    let text = "";
    let usage;
    const more = { stream: true, stream_options: { include_usage: true } };
    for await (const chunk of await client.chat.completions.create(ask(server, question, more))) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.ok(text);
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
    const helper = client.chat.completions.stream(ask(server, question));
    const seen = [];
    helper.on("content", (delta) => seen.push(delta));
    assert.equal(await helper.finalContent(), text);
    assert.equal(seen.join(""), text);
  }
});

test("openai: a stream can be left", async (server) => {
  const client = connect(server);
  const stream = await client.chat.completions.create(ask(server, STORY, { stream: true }));
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    stream.controller.abort();
  }
  assert.ok((await client.chat.completions.create(ask(server, STORY, { max_tokens: 4 }))).choices[0].message.content);
});

test("openai: an answer is parsed into a schema", async (server) => {
  const animal = z.strictObject({ animal: z.enum(["fox", "owl"]) });
  const parsed = await connect(server).chat.completions.parse(
    ask(server, "Name an animal and count its legs.", { response_format: zodResponseFormat(animal, "animal") }));
  assertAnimal(parsed.choices[0].message.parsed);
});

test("openai: runTools calls functions until there is an answer", async (server) => {
  const asked = [];
  const weather = (args) => {
    asked.push(args);
    return `It rains over the ${args.place}.`;
  };
  const tool = {
    type: "function",
    function: {
      name: "weather", description: "Says how it is.", parameters: WEATHER, strict: true, parse: JSON.parse,
      function: weather,
    },
  };
  const runner = connect(server).chat.completions.runTools(
    ask(server, "How is it in the forest?", {
      tools: [tool], tool_choice: { type: "function", function: { name: "weather" } }, parallel_tool_calls: false,
    }), { maxChatCompletions: 2 });
  await runner.done();
  assertPlace(asked[0]);
  const kinds = runner.messages.map((message) => message.role);
  assert.deepEqual(kinds.slice(0, 3), ["user", "assistant", "tool"]);
  assert.equal(runner.messages[2].tool_call_id, runner.messages[1].tool_calls[0].id);
});

test("openai: text is continued", async (server) => {
  const asked = { model: server.model, prompt: "The fox", max_tokens: 12, temperature: 0 };
  const client = connect(server);
  const whole = (await client.completions.create(asked)).choices[0].text;
  let text = "";
  for await (const chunk of await client.completions.create({ ...asked, stream: true })) text += chunk.choices[0].text;
  assert.ok(whole);
  assert.equal(text, whole);
});

test("openai: responses are made, streamed, kept and gone on from", async (server) => {
  const client = connect(server);
  const asked = { model: server.model, input: STORY, temperature: 0, max_output_tokens: 200 };
  const made = await client.responses.create(asked);
  assert.ok(made.output_text);
  assert.equal((await client.responses.retrieve(made.id)).output_text, made.output_text);
  const stream = client.responses.stream(asked);
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  assert.equal(text, made.output_text);
  assert.equal((await stream.finalResponse()).usage.output_tokens, made.usage.output_tokens);
  const more = await client.responses.create({ ...asked, input: "And then?", previous_response_id: made.id });
  assert.ok(more.usage.input_tokens > made.usage.input_tokens);
  const format = { type: "json_schema", name: "animal", strict: true, schema: ANIMAL };
  const parsed = await client.responses.parse({ ...asked, input: "Name an animal and count its legs.", text: { format } });
  assertAnimal(parsed.output_parsed);
  const tools = [{ type: "function", name: "weather", parameters: WEATHER, strict: true }];
  const required = { tools, tool_choice: "required", parallel_tool_calls: false };
  const called = await client.responses.create({ ...asked, input: "How is it in the forest?", ...required });
  assertPlace(JSON.parse(called.output.find((item) => item.type === "function_call").arguments));
  await client.responses.delete(made.id);
  await assert.rejects(client.responses.retrieve(made.id), OpenAI.NotFoundError);
});

test("openai: texts have vectors", async (server) => {
  const input = ["A fox ran through the forest.", "17 + 25 = 42"];
  const client = connect(server);
  // The client asks for base64 and decodes it.
  const vectors = (await client.embeddings.create({ model: server.model, input })).data.map((item) => item.embedding);
  for (const vector of vectors) assert.ok(Math.abs(Math.hypot(...vector) - 1) < 1e-4);
  const floats = await client.embeddings.create({ model: server.model, input: input[1], encoding_format: "float" });
  floats.data[0].embedding.forEach((value, at) => assert.ok(Math.abs(value - vectors[1][at]) < 1e-6));
});

test("openai: a batch is answered", async (server) => {
  const client = connect(server);
  const lines = [SUM, STORY].map((question, at) => JSON.stringify({
    custom_id: `ask-${at}`, method: "POST", url: "/v1/chat/completions", body: ask(server, question),
  }));
  const input = await toFile(Buffer.from(lines.join("\n")), "in.jsonl");
  const file = await client.files.create({ file: input, purpose: "batch" });
  let batch = await client.batches.create({
    input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h",
  });
  for (let waits = 0; !["completed", "failed"].includes(batch.status); waits += 1) {
    assert.ok(waits < 2400, batch.status);
    await sleep(50);
    batch = await client.batches.retrieve(batch.id);
  }
  assert.deepEqual({ ...batch.request_counts }, { total: 2, completed: 2, failed: 0 });
  const answers = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n").map(JSON.parse);
  const alone = await client.chat.completions.create(ask(server, SUM));
  const said = answers.find((answer) => answer.custom_id === "ask-0").response.body.choices[0].message.content;
  assert.equal(said, alone.choices[0].message.content);
  assert.equal((await client.files.delete(file.id)).deleted, true);
});

test("openai: errors name the field", async (server) => {
  const client = connect(server);
  const wrong = (more) =>
    client.chat.completions.create(ask(server, STORY, more)).then(assert.fail, (error) => error);
  const error = await wrong({ temperature: -1 });
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "temperature");
  assert.ok(error.requestID);
  assert.equal((await wrong({ model: "none" })).code, "model_not_found");
});

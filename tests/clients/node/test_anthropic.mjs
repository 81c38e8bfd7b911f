// The official `@anthropic-ai/sdk` for Node.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

import { ANIMAL, STORY, SUM, WEATHER, assertAnimal, assertPlace, test } from "./served.mjs";

const connect = ({ address, key }) => new Anthropic({ baseURL: address, apiKey: key, maxRetries: 0 });
const ask = ({ model }, content, more) => ({ model, max_tokens: 200, messages: [{ role: "user", content }], ...more });
const tools = [{ name: "weather", description: "Says how it is.", strict: true, input_schema: WEATHER }];
const textOf = ({ content }) => content.filter((block) => block.type === "text").map((block) => block.text).join("");
const read = (usage) => usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens;

test("anthropic: models are listed", async (server) => {
  const listed = [];
  for await (const model of connect(server).models.list()) listed.push(model.id);
  assert.deepEqual(listed, [server.model]);
});

test("anthropic: a message is streamed as it is answered", async (server) => {
  const client = connect(server);
  for (const question of [STORY, SUM]) {
    const asked = ask(server, question, { temperature: 0 });
    const whole = await client.messages.create(asked);
    const stream = client.messages.stream(asked);
    let text = "";
    stream.on("text", (delta) => (text += delta));
    const streamed = await stream.finalMessage();
    assert.ok(text);
    assert.equal(text, textOf(whole));
    assert.deepEqual(streamed.content, whole.content);
    assert.equal(streamed.stop_reason, whole.stop_reason);
    assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  }
  assert.equal((await client.messages.create(ask(server, SUM, { temperature: 0 }))).content[0].type, "thinking");
});

test("anthropic: tokens are counted", async (server) => {
  const client = connect(server);
  const messages = [{ role: "user", content: STORY }];
  const counted = await client.messages.countTokens({ model: server.model, messages, tools });
  const message = await client.messages.create(ask(server, STORY, { tools, max_tokens: 4 }));
  assert.equal(counted.input_tokens, read(message.usage));
});

test("anthropic: a tool is called and its result read", async (server) => {
  const client = connect(server);
  const question = "How is it in the forest?";
  const first = await client.messages.create(
    ask(server, question, { tools, tool_choice: { type: "any", disable_parallel_tool_use: true } }));
  assert.equal(first.stop_reason, "tool_use");
  const call = first.content.at(-1);
  assertPlace(call.input);
  const result = { type: "tool_result", tool_use_id: call.id, content: "It rains." };
  const messages = [
    { role: "user", content: question },
    { role: "assistant", content: first.content },
    { role: "user", content: [result] },
  ];
  const second = await client.messages.create({ model: server.model, max_tokens: 20, messages, tools });
  assert.ok(read(second.usage) > read(first.usage));
});

test("anthropic: an answer follows a schema", async (server) => {
  const message = await connect(server).messages.create(
    ask(server, "Name an animal and count its legs.", { temperature: 0, output_config: { format: { type: "json_schema", schema: ANIMAL } } }));
  assertAnimal(JSON.parse(textOf(message)));
});

test("anthropic: errors have their kind", async (server) => {
  const client = connect(server);
  await assert.rejects(client.messages.create(ask(server, STORY, { max_tokens: 0 })), Anthropic.BadRequestError);
  await assert.rejects(client.messages.create(ask(server, STORY, { model: "none" })), Anthropic.NotFoundError);
});

// What the tests of clients for Node share: how they are listed, what they ask, and how they are run.

import assert from "node:assert/strict";

export const STORY = "Tell me a story about a fox and a lantern";
// The built-in model thinks before it answers this.
export const SUM = "What is 17 + 25?";
// What a model says is checked without knowing the model: a schema leaves it two words.
export const ANIMAL = closed({ animal: { enum: ["fox", "owl"] } });
export const WEATHER = closed({ place: { enum: ["forest", "river"] } });

function closed(properties) {
  return { type: "object", properties, required: Object.keys(properties), additionalProperties: false };
}

/** An animal that the schema allows. */
export function assertAnimal(value) {
  assert.ok(["fox", "owl"].includes(value?.animal), JSON.stringify(value));
}

/** A place that the schema allows. */
export function assertPlace(value) {
  assert.ok(["forest", "river"].includes(value?.place), JSON.stringify(value));
}

/** The name of the model that is served. */
export async function served(address, key) {
  const answer = await fetch(`${address}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
  return (await answer.json()).data[0].id;
}

const tests = [];

/** Declares a test of what `body` does with a server: its address, key, `v1` and model. */
export function test(name, body) {
  tests.push({ name, body });
}

/** Runs what was declared; true if nothing failed. */
export async function runAll(server) {
  let failed = 0;
  for (const { name, body } of tests) {
    const start = performance.now();
    try {
      await body(server);
      console.log(`ok      ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${name}`);
      console.log(error);
    }
  }
  console.log(`${tests.length - failed} passed, ${failed} failed`);
  return failed === 0;
}

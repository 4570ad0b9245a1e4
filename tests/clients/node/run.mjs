// Runs cases one after the other, so that Node starts once: JSON lines in, JSON lines out.
//
// in   {"run": "chat.plain", "baseURL": ..., "given": {...}}   and, while it runs,   {"abort": true}
// out  {"saw": piece} for each piece of content a case reports, then {"value": ...} or {"error": {...}}

import { createInterface } from "node:readline";

import OpenAI from "openai";

import * as batches from "./batches.mjs";
import * as background from "./background.mjs";
import * as chat from "./chat.mjs";
import * as responses from "./responses.mjs";

const families = { background, batches, chat, responses };
let aborting = new AbortController();

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const nameOf = (error) => {
  const known = Object.entries(OpenAI).find(([, member]) => error.constructor === member);
  return known ? known[0] : error.constructor.name;
};

async function run({ run: name, baseURL, given }) {
  const [family, member] = name.split(".");
  const client = new OpenAI({ baseURL, apiKey: "sk-client", maxRetries: 0, timeout: 10_000 });
  aborting = new AbortController();
  try {
    const value = await families[family][member](client, given, { signal: aborting.signal, saw: (piece) => say({ saw: piece }) });
    say({ value: value ?? null });
  } catch (error) {
    const { status, code, param, message } = error;
    say({ error: { name: nameOf(error), status, code, param, message } });
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  if (asked.abort) aborting.abort();
  else run(asked);
}

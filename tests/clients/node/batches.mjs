// OpenAI's SDK for Node, files and batches: one function a case. Each returns what tests/clients/test_node_batches.py checks.

import { toFile } from "openai";

const FINAL = new Set(["completed", "failed", "expired", "cancelled"]);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const upload = async (client, lines) =>
  client.files.create({ file: await toFile(Buffer.from(lines.join("\n")), "in.jsonl"), purpose: "batch" });

const finish = async (client, id) => {
  for (;;) {
    const batch = await client.batches.retrieve(id);
    if (FINAL.has(batch.status)) return batch;
    await pause(100);
  }
};

const rows = async (client, id) => {
  const text = await (await client.files.content(id)).text();
  return text.trim().split("\n").map((line) => JSON.parse(line));
};

export async function files(client, { text }) {
  const file = await upload(client, [text]);
  const content = await (await client.files.content(file.id)).text();
  const listed = [];
  for await (const each of client.files.list({ limit: 1 })) listed.push(each.id);
  const { deleted } = await client.files.delete(file.id);
  return { bytes: file.bytes, purpose: file.purpose, filename: file.filename, content, deleted, isListed: listed.includes(file.id) };
}

export async function whole(client, { lines }) {
  const file = await upload(client, lines);
  const batch = await client.batches.create({
    input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h",
  });
  const done = await finish(client, batch.id);
  const { status, request_counts: counts, errors } = done;
  const output = done.output_file_id ? await rows(client, done.output_file_id) : [];
  const failed = done.error_file_id ? await rows(client, done.error_file_id) : [];
  return {
    status, counts, problems: (errors?.data ?? []).map(({ line, code }) => [line, code]),
    output: output.map((row) => [row.custom_id, row.response.body.choices[0].message.content]),
    failed: failed.map((row) => [row.custom_id, row.response.status_code]),
  };
}

export async function unknown(client, { id }) {
  await client.batches.retrieve(id);
}

export async function pages(client, { lines }) {
  const file = await upload(client, lines);
  const made = [];
  for (let n = 0; n < 3; n += 1) {
    const batch = await client.batches.create({
      input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h",
    });
    made.unshift(batch.id);
  }
  const listed = [];
  for await (const batch of client.batches.list({ limit: 1 })) listed.push(batch.id);
  return listed.slice(0, 3).join() === made.join();
}

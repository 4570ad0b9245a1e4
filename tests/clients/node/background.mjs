// OpenAI's SDK for Node, background responses: one function a case. Each returns what tests/clients/test_node_background.py checks.

const ended = async (client, response) => {
  while (response.status === "queued" || response.status === "in_progress") {
    await new Promise((resolve) => setTimeout(resolve, 50));
    response = await client.responses.retrieve(response.id);
  }
  return response;
};

export async function poll(client, { model, prompt }) {
  const created = await client.responses.create({ model, input: prompt, background: true });
  const done = await ended(client, created);
  return { first: created.status, last: done.status, text: done.output_text, same: done.id === created.id };
}

export async function resume(client, { model, prompt }) {
  const events = [];
  for await (const event of await client.responses.create({ model, input: prompt, background: true, stream: true })) {
    events.push(event);
  }
  const id = events[0].response.id;
  const differing = [];
  for (const { sequence_number: number } of events) {
    const rest = [];
    for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: number })) rest.push(event);
    if (JSON.stringify(rest) !== JSON.stringify(events.slice(number + 1))) differing.push(number);
  }
  return { n: events.length, end: events.at(-1).type, differing };
}

export async function cancel(client, { model, prompt }) {
  const created = await client.responses.create({ model, input: prompt, background: true });
  await client.responses.cancel(created.id);
  const again = await client.responses.cancel(created.id);
  await client.responses.delete(created.id);
  return again.status;
}

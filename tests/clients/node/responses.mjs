// OpenAI's SDK for Node, responses: one function a case. Each returns what tests/clients/test_node.py checks.

const callsOf = (answer) => answer.output.map((call) => [call.call_id, call.name, JSON.parse(call.arguments)]);

const usageOf = (answer) => [answer.usage.input_tokens, answer.usage.output_tokens];

export async function plain(client, { model, prompt }) {
  const answer = await client.responses.create({ model, input: prompt });
  return { text: answer.output_text, end: answer.status, usage: usageOf(answer) };
}

export async function stream(client, { model, prompt }) {
  const asked = client.responses.stream({ model, input: prompt });
  const pieces = [];
  asked.on("response.output_text.delta", (event) => pieces.push(event.delta));
  const final = await asked.finalResponse();
  return { text: final.output_text, pieces, end: final.status, usage: usageOf(final) };
}

export async function tools(client, { model, prompt, tool }) {
  return callsOf(await client.responses.create({ model, input: prompt, tools: [tool] }));
}

export async function streamedTools(client, { model, prompt, tool }) {
  return callsOf(await client.responses.stream({ model, input: prompt, tools: [tool] }).finalResponse());
}

export async function toolRoundTrip(client, { model, prompt, tool, results }) {
  const asked = await client.responses.create({ model, input: prompt, tools: [tool] });
  const answers = asked.output.map((call, at) => ({
    type: "function_call_output",
    call_id: call.call_id,
    output: results[at],
  }));
  const input = [{ role: "user", content: prompt }, ...asked.output, ...answers];
  return (await client.responses.stream({ model, input, tools: [tool] }).finalResponse()).output_text;
}

export async function json(client, { model, prompt, schema }) {
  const format = { type: "json_schema", name: "weather", schema, strict: true };
  const answer = await client.responses.parse({ model, input: prompt, text: { format } });
  return JSON.parse(answer.output_text);
}

export async function whole(client, { model, prompt }, { signal }) {
  await client.responses.create({ model, input: prompt }, { signal });
}

export async function pieces(client, { model, prompt }, { signal, saw }) {
  const stream = await client.responses.create({ model, input: prompt, stream: true }, { signal });
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") saw(event.delta);
  }
}

// OpenAI's SDK for Node, chat completions: one function a case. Each returns what tests/clients/test_node.py checks.

const user = (prompt) => [{ role: "user", content: prompt }];

const callsOf = (message) =>
  message.tool_calls.map((call) => [call.id, call.function.name, JSON.parse(call.function.arguments)]);

export async function plain(client, { model, prompt }) {
  const answer = await client.chat.completions.create({ model, messages: user(prompt) });
  const [choice] = answer.choices;
  const { prompt_tokens, completion_tokens } = answer.usage;
  return { text: choice.message.content, end: choice.finish_reason, usage: [prompt_tokens, completion_tokens] };
}

export async function stream(client, { model, prompt }) {
  const asked = client.chat.completions.stream({ model, messages: user(prompt), stream_options: { include_usage: true } });
  const pieces = [];
  asked.on("content", (piece) => pieces.push(piece));
  const final = await asked.finalChatCompletion();
  const { prompt_tokens, completion_tokens } = final.usage;
  const [choice] = final.choices;
  return { text: choice.message.content, pieces, end: choice.finish_reason, usage: [prompt_tokens, completion_tokens] };
}

export async function tools(client, { model, prompt, tool }) {
  const answer = await client.chat.completions.create({ model, messages: user(prompt), tools: [tool] });
  return callsOf(answer.choices[0].message);
}

export async function streamedTools(client, { model, prompt, tool }) {
  const asked = client.chat.completions.stream({ model, messages: user(prompt), tools: [tool] });
  return callsOf((await asked.finalChatCompletion()).choices[0].message);
}

export async function toolRoundTrip(client, { model, prompt, tool, results }) {
  const asked = await client.chat.completions.create({ model, messages: user(prompt), tools: [tool] });
  const { message } = asked.choices[0];
  const answers = message.tool_calls.map((call, at) => ({ role: "tool", tool_call_id: call.id, content: results[at] }));
  const messages = [...user(prompt), message, ...answers];
  const final = await client.chat.completions.stream({ model, messages, tools: [tool] }).finalChatCompletion();
  return final.choices[0].message.content;
}

export async function json(client, { model, prompt, schema }) {
  const format = { type: "json_schema", json_schema: { name: "weather", schema, strict: true } };
  const answer = await client.chat.completions.parse({ model, messages: user(prompt), response_format: format });
  return JSON.parse(answer.choices[0].message.content);
}

export async function whole(client, { model, prompt }, { signal }) {
  await client.chat.completions.create({ model, messages: user(prompt) }, { signal });
}

export async function pieces(client, { model, prompt }, { signal, saw }) {
  const stream = await client.chat.completions.create({ model, messages: user(prompt), stream: true }, { signal });
  for await (const chunk of stream) {
    const piece = chunk.choices[0]?.delta.content;
    if (piece) saw(piece);
  }
}

// The openai client for JavaScript.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = process.env.RIFFLE_MODEL_NAME;
const client = new OpenAI({ baseURL: `${process.env.RIFFLE_URL}/v1`, apiKey: "any", maxRetries: 0 });
const messages = [
  { role: "system", content: "You answer in one sentence." },
  { role: "user", content: "What is the capital of France?" },
];
const asked = { model, messages, max_tokens: 12, temperature: 0 };

async function check(name, run) {
  await run();
  console.log(`ok   ${name}`);
}

const whole = await client.chat.completions.create(asked);
const text = whole.choices[0].message.content;

await check("models: the model is listed", async () => {
  const names = [];
  for await (const one of client.models.list()) names.push(one.id);
  assert(names.includes(model));
});
await check("chat: a whole answer", () => assert(text.length > 0));
await check("chat: a stream has the text of the whole", async () => {
  const stream = await client.chat.completions.create({ ...asked, stream: true });
  let told = "";
  for await (const chunk of stream) told += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(told, text);
});
await check("chat: the stream helper", async () => {
  const stream = client.chat.completions.stream(asked);
  assert.equal(await stream.finalContent(), text);
});
await check("chat: a stream that is left ends the request", async () => {
  const stream = await client.chat.completions.create({ ...asked, max_tokens: 4000, stream: true });
  for await (const _ of stream) break;
  stream.controller.abort();
});
await check("structured: zod", async () => {
  const Colour = z.object({ name: z.enum(["red", "green"]), share: z.number().int().min(0).max(100) });
  const answer = await client.chat.completions.parse({
    ...asked,
    max_tokens: 200,
    response_format: zodResponseFormat(Colour, "colour"),
  });
  Colour.parse(answer.choices[0].message.parsed);
});
await check("tools: a round by the runner", async () => {
  const seen = [];
  const runner = client.chat.completions.runTools(
    {
      ...asked,
      max_tokens: 400,
      tool_choice: { type: "function", function: { name: "weather" } },
      tools: [
        {
          type: "function",
          function: {
            name: "weather",
            parse: JSON.parse,
            parameters: {
              type: "object",
              properties: { days: { enum: [1, 2, 3] } },
              required: ["days"],
              additionalProperties: false,
            },
            function: ({ days }) => {
              seen.push(days);
              return "sunny";
            },
          },
        },
      ],
    },
    { maxChatCompletions: 2 },
  );
  await runner.done();
  assert([1, 2, 3].includes(seen[0]));
});
await check("responses: a stream", async () => {
  const stream = await client.responses.create({ model, input: "Hello", max_output_tokens: 9, temperature: 0, stream: true });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  assert.equal(kinds[0], "response.created");
  assert(["response.completed", "response.incomplete"].includes(kinds.at(-1)));
});
await check("errors: typed", async () => {
  await assert.rejects(client.chat.completions.create({ ...asked, model: "other" }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ ...asked, colour: 1 }), OpenAI.BadRequestError);
});

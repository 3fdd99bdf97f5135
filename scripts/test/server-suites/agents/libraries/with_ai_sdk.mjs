// The AI SDK: a tool call, the answer to it, and a second turn, in the shape that is named.

import assert from "node:assert/strict";
import * as ai from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const { generateText, streamText, tool } = ai;
// The name that it had before version 7.
const stepCount = ai.isStepCount ?? ai.stepCountIs;
const shape = process.argv[2];
const name = process.env.RIFFLE_MODEL_NAME;
const settings = { baseURL: `${process.env.RIFFLE_URL}/v1`, apiKey: "any" };
const { FIRST_TURN, FIRST_ANSWER, SECOND_TURN, SECOND_ANSWER, NOTES } = process.env;
const openai = createOpenAI(settings);
const model = {
  responses: () => openai(name),
  chat: () => openai.chat(name),
  completion: () => openai.completion(name),
  compatible: () => createOpenAICompatible({ name: "riffle", includeUsage: true, ...settings })(name),
  anthropic: () => createAnthropic(settings)(name),
}[shape]();

if (shape === "completion") {
  // Completions know no tools: both turns are texts.
  const first = await generateText({ model, prompt: FIRST_TURN, maxOutputTokens: 64 });
  assert.equal(first.text, FIRST_ANSWER);
  const stream = streamText({ model, maxOutputTokens: 64, prompt: `${FIRST_TURN}\n${first.text}\n${SECOND_TURN}` });
  assert.equal(await stream.text, SECOND_ANSWER);
} else {
  let calls = 0;
  const read_notes = tool({
    description: "Reads a file of notes.",
    inputSchema: z.object({ file: z.string(), pages: z.array(z.object({ from: z.number().int() })).optional() }),
    execute: async ({ file }) => {
      assert.equal(file, "notes.txt");
      calls += 1;
      return NOTES;
    },
  });
  const asked = { model, tools: { read_notes }, stopWhen: stepCount(4), maxRetries: 0 };
  const messages = [{ role: "user", content: FIRST_TURN }];
  const first = await generateText({ ...asked, messages });
  assert.equal(calls, 1);
  assert.equal(first.text, FIRST_ANSWER);
  messages.push(...(first.responseMessages ?? first.response.messages), { role: "user", content: SECOND_TURN });
  const stream = streamText({ ...asked, messages, onError: ({ error }) => console.error(error) });
  assert.equal(await stream.text, SECOND_ANSWER);
  // The same from the start as a stream.
  const streamed = streamText({ ...asked, messages: messages.slice(0, 1), onError: ({ error }) => console.error(error) });
  assert.equal(await streamed.text, FIRST_ANSWER);
  assert.equal(calls, 2);
}

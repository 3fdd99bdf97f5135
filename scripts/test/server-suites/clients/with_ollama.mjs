// The ollama client for JavaScript.

import { Ollama } from "ollama";

const host = process.env.RIFFLE_URL;
const model = process.env.RIFFLE_MODEL_NAME;
const ollama = new Ollama({ host });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const options = { num_predict: 12, temperature: 0 };

function check(name, holds, found) {
    if (!holds) {
        throw new Error(`${name}: ${JSON.stringify(found)}`);
    }
    console.log(`ok   ${name}`);
}

const { models } = await ollama.list();
check("models: the model is listed", models.length === 1 && models[0].name === model, models);
const shown = await ollama.show({ model });
check("models: what it can do", shown.capabilities.includes("completion"), shown);
check("models: it is loaded", (await ollama.ps()).models[0].name === model);

const answer = await ollama.chat({ model, messages, options });
check("chat: a whole answer", answer.message.content.length > 0 && answer.done, answer);
let told = "";
for await (const part of await ollama.chat({ model, messages, options, stream: true })) {
    told += part.message.content;
}
check("chat: a stream has the text of the whole answer", told === answer.message.content, told);

const raw = { model, prompt: "In the beginning", raw: true, options };
const generated = await ollama.generate(raw);
told = "";
for await (const part of await ollama.generate({ ...raw, stream: true })) {
    told += part.response;
}
check("generate: a stream has the text of the whole answer", told === generated.response, told);

const schema = {
    type: "object",
    properties: { share: { type: "integer", minimum: 0, maximum: 100 } },
    required: ["share"],
    additionalProperties: false,
};
const data = await ollama.chat({ model, messages, format: schema, options: { num_predict: 100, temperature: 0 } });
check("structured: a schema", Number.isInteger(JSON.parse(data.message.content).share), data);

const stopped = await ollama.chat({ model, messages, options: { num_predict: 4000 }, stream: true });
stopped.abort();
let problem = null;
try {
    for await (const part of stopped) {
        void part;
    }
} catch (error) {
    problem = error;
}
check("chat: a stream can be aborted", problem?.name === "AbortError", problem);
problem = await ollama.generate({ model, prompt: "a", suffix: "b" }).catch((error) => error);
check("errors: fill in the middle", problem.status_code === 400 && problem.message.includes("suffix"), problem);

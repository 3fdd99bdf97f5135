// Settings of the user, stored in this browser.

import { show } from "./dialogs.js";
import { byId, element, setText } from "./elements.js";
import { askForKey, forgetKey, hasKey } from "./server.js";

const STORE = "riffle.settings";
const OWN = "own";

/** Policies in the lists, in plain words. The user can type others. */
const PREFILL = [
    ["full", "Everything: slowest, nothing is left out"],
    ["xattention", "The parts that score highest"],
    ["peaks", "The parts with the strongest single words"],
    ["flex", "As much as holds 95% of the attention"],
    ["vertical-slash", "Words that matter to all, and steady distances"],
    ["tri-shape", "The beginning and what is near; all for the question"],
    ["streaming", "The beginning and what is near: fastest, forgets the middle"],
];
const DECODE = [
    ["full", "Everything: slowest, nothing is left out"],
    ["quest", "The parts that may matter most to each word"],
    ["twilight", "As few words as hold most of the attention"],
    ["certified", "As much as keeps the error below a bound"],
    ["streaming", "The beginning and what is near: fastest, forgets the middle"],
];

/** Numbers of the dialog: the setting, its field, and the field of the request. */
const NUMBERS = [
    ["maxTokens", "max-tokens", "max_tokens"],
    ["temperature", "temperature", "temperature"],
    ["topP", "top-p", "top_p"],
    ["topK", "top-k", "top_k"],
    ["minP", "min-p", "min_p"],
    ["repetition", "repetition", "repetition_penalty"],
    ["seed", "seed", "seed"],
];

/** Lowest temperature of a second answer to the same question. Without it, the answer would equal the first. */
const AGAIN_TEMPERATURE = 0.7;

const NONE = { system: "", stop: "", prefill: "", decode: "", audit: false, ...Object.fromEntries(NUMBERS.map(([name]) => [name, null])) };

/** The current settings. An empty policy means the server's. A null number means the model's or the server's. */
export const settings = { ...NONE, ...load() };

/**
 * Sets up the dialog. `changed` is called when settings change. `instructions` reads and sets the instructions of the
 * open conversation.
 */
export function setUpSettings(instructions, changed) {
    fill("prefill", PREFILL);
    fill("decode", DECODE);
    byId("settings-open").addEventListener("click", () => open(instructions, changed));
    byId("key-change").addEventListener("click", async () => {
        forgetKey();
        await askForKey();
        showKey();
    });
}

/** Marks the server's own policies in the lists. */
export function showOwnPolicies(status) {
    for (const part of ["prefill", "decode"]) {
        setText(byId(part).options[0], `As the server has it (${status[part].split(":")[0]})`);
    }
}

/** Fields of a request for `answer`: its length and its sampling. */
export function samplingOf(answer) {
    const fields = {};
    for (const [name, , field] of NUMBERS) {
        if (settings[name] !== null) {
            fields[field] = settings[name];
        }
    }
    const stop = settings.stop.split("\n").filter(Boolean);
    if (stop.length > 0) {
        fields.stop = stop;
    }
    if (answer.isAgain) {
        fields.temperature = Math.max(fields.temperature ?? 0, AGAIN_TEMPERATURE);
        delete fields.seed;
    }
    return fields;
}

async function open(instructions, changed) {
    byId("system").value = instructions.get();
    byId("stop").value = settings.stop;
    for (const [name, id] of NUMBERS) {
        byId(id).value = settings[name] ?? "";
    }
    showPolicy("prefill", PREFILL);
    showPolicy("decode", DECODE);
    byId("audit").checked = settings.audit;
    showKey();
    if ((await show("settings-dialog")) !== "ok") {
        return;
    }
    Object.assign(settings, {
        system: byId("system").value.trim(),
        stop: byId("stop").value,
        prefill: chosenPolicy("prefill"),
        decode: chosenPolicy("decode"),
        audit: byId("audit").checked,
        ...Object.fromEntries(NUMBERS.map(([name, id]) => [name, number(id)])),
    });
    instructions.set(settings.system);
    try {
        localStorage.setItem(STORE, JSON.stringify(settings));
    } catch {
        // Without storage the settings are valid until the page is closed.
    }
    changed();
}

function fill(part, policies) {
    const list = byId(part);
    list.append(
        element("option", { value: "" }, "As the server has it"),
        ...policies.map(([name, meaning]) => element("option", { value: name }, `${meaning} (${name})`)),
        element("option", { value: OWN }, "Another, written below"),
    );
    list.addEventListener("change", () => {
        const field = byId(`${part}-own`);
        field.disabled = list.value !== OWN;
        if (!field.disabled) {
            field.focus();
        }
    });
}

function showPolicy(part, policies) {
    const policy = settings[part];
    const isListed = policy === "" || policies.some(([name]) => name === policy);
    byId(part).value = isListed ? policy : OWN;
    byId(`${part}-own`).value = isListed ? "" : policy;
    byId(`${part}-own`).disabled = isListed;
}

function chosenPolicy(part) {
    const { value } = byId(part);
    return value === OWN ? byId(`${part}-own`).value.trim() : value;
}

function number(id) {
    const { value } = byId(id);
    return value === "" ? null : Number(value);
}

function showKey() {
    setText(byId("key-state"), hasKey() ? "A key is kept in this tab." : "No key is kept.");
}

function load() {
    try {
        return JSON.parse(localStorage.getItem(STORE)) ?? {};
    } catch {
        return {};
    }
}

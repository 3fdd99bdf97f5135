// Settings of the user, stored in this browser.

import { show } from "./dialogs.js";
import { byId, element, setText } from "./elements.js";
import { askForKey, forgetKey, hasKey } from "./server.js";

const STORE = "riffle.settings";
const THEME = "riffle.theme";
const OWN = "own";

/** Policies that the lists offer. Others can be written. */
const PREFILL = [
    ["full", "everything"],
    ["xattention", "the blocks with the highest scores"],
    ["flex", "what holds 95% of the mass, head by head"],
    ["vertical-slash", "the strongest columns and diagonals"],
    ["peaks", "the blocks with the highest peaks"],
    ["tri-shape", "the beginning, what is near, and all for the end"],
    ["streaming", "the beginning and what is near"],
];
const DECODE = [
    ["full", "everything"],
    ["quest", "the blocks that may matter most"],
    ["twilight", "as few tokens as hold most of the mass"],
    ["certified", "as much as a bound on the error needs"],
    ["streaming", "the beginning and what is near"],
];

const NONE = { prefill: "", decode: "", audit: false, maxTokens: null, temperature: null };

/** The settings in force. An empty policy is the server's. */
export const settings = { ...NONE, ...load() };

/** Makes the dialog and the button for the colours work. `changed` is called when settings change. */
export function setUpSettings(changed) {
    fill("prefill", PREFILL);
    fill("decode", DECODE);
    byId("settings-open").addEventListener("click", () => open(changed));
    byId("key-change").addEventListener("click", async () => {
        forgetKey();
        await askForKey();
        showKey();
    });
    byId("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
    nameTheme();
}

/** Says in the lists which policies are the server's own. */
export function showOwnPolicies(status) {
    for (const part of ["prefill", "decode"]) {
        setText(byId(part).options[0], `the server's: ${status[part].split(":")[0]}`);
    }
}

async function open(changed) {
    showPolicy("prefill", PREFILL);
    showPolicy("decode", DECODE);
    byId("audit").checked = settings.audit;
    byId("max-tokens").value = settings.maxTokens ?? "";
    byId("temperature").value = settings.temperature ?? "";
    showKey();
    if ((await show("settings-dialog")) !== "ok") {
        return;
    }
    Object.assign(settings, {
        prefill: chosenPolicy("prefill"),
        decode: chosenPolicy("decode"),
        audit: byId("audit").checked,
        maxTokens: number("max-tokens"),
        temperature: number("temperature"),
    });
    try {
        localStorage.setItem(STORE, JSON.stringify(settings));
    } catch {
        // They hold until the page is closed.
    }
    changed();
}

function fill(part, policies) {
    const list = byId(part);
    list.append(
        element("option", { value: "" }, "the server's"),
        ...policies.map(([name, meaning]) => element("option", { value: name }, `${name}: ${meaning}`)),
        element("option", { value: OWN }, "another, written below"),
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

function isDark() {
    const { theme } = document.documentElement.dataset;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    try {
        localStorage.setItem(THEME, theme);
    } catch {
        // It holds until the page is closed.
    }
    nameTheme();
}

function nameTheme() {
    const name = isDark() ? "Light colours" : "Dark colours";
    byId("theme").setAttribute("aria-label", name);
    byId("theme").title = name;
}

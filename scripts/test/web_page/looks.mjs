// Checks of how the page looks, and of using it without a mouse.

import { limitAnswers } from "./documents.mjs";
import { Tab, expect, startServer } from "./harness.mjs";

/** Every kind of thing that an answer may hold. */
const SAMPLE = `Here is what the document says about the **tides of the lower bay**, in short:

## What was counted

1. High water came at *noon*, at [the quay](https://example.org/quay).
2. Low water was not written down.
   - It was \`dark\`.
   - Nobody was there.

| Day | Height in cm | Who saw it |
|:----|-----:|:----|
| Monday | 214 | the keeper |
| Tuesday | 198 | the keeper's daughter |

\`\`\`python
def mean(heights):
    """The mean of some heights, which this rather long line says more about than anybody needs to know."""
    return sum(heights) / len(heights)
\`\`\`

> Nobody counts the waves.

The mean is \\(\\bar h = \\frac{1}{n}\\sum_{i=1}^{n} h_i\\), and with $\\sigma^2$ known:

$$p(h \\mid \\mu) = \\frac{1}{\\sqrt{2\\pi\\sigma^2}}\\, e^{-\\frac{(h-\\mu)^2}{2\\sigma^2}}, \\qquad A = \\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}$$

- [x] counted
- [ ] checked

A long word: ${"incomprehensibilities".repeat(8)}`;

/** A conversation as the page keeps it. */
function sampleConversation() {
    const report = {
        prefill: "xattention:stride=8,block=128,threshold=0.9,tail=128",
        decode: "quest:topk=16,threshold=4,budget=0,block=64,dense_layers=2,sinks=1,recent=2",
        pairs_read: 1203473680,
        pairs_causal: 10520972560,
        share_read: 0.1143880637590029,
        kept_mass: { mean: 0.9647, first_percentile: 0.199, samples: 115780, mean_output_error: 0.0358 },
        waited_s: 0.0001,
        read_s: 27.99,
        answered_s: 4.4,
    };
    const timings = { cache_n: 1200, prompt_n: 44642, prompt_per_second: 1637.5, predicted_n: 296, predicted_per_second: 67.5 };
    const documents = [
        { id: "a", name: "Observations of the tides in the lower bay, second edition, revised.pdf", kind: "PDF", note: "2 pages of 310 without text", tokens: 45120 },
        { id: "b", name: "notes.md", kind: "Markdown", note: "", tokens: 540 },
    ];
    const answer = { role: "assistant", text: SAMPLE, thought: "The keeper's notes come first.", state: "done", progress: null, report, timings, isCut: false, error: "" };
    const question = { role: "user", text: "What does it say about the tides?\nGive me the heights as a table, and the code.", documents };
    return { id: "sample", title: "What does it say about the tides?", isNamed: false, created: 1, changed: 2, messages: [question, answer] };
}

async function openSample(browser, url, view) {
    const tab = await Tab.open(browser, url, view);
    await tab.page.evaluate((sample) => {
        localStorage.setItem("riffle.conversation.sample", JSON.stringify(sample));
        for (const [id, title, changed] of [["x", "Chapter three, in plain words", 1], ["y", "Who is Anna?", 0]]) {
            localStorage.setItem(`riffle.conversation.${id}`, JSON.stringify({ ...sample, id, title, changed }));
        }
        sessionStorage.setItem("riffle.open", "sample");
    }, sampleConversation());
    await tab.page.reload({ waitUntil: "networkidle2" });
    await tab.until(() => document.querySelector(".answer"), "the sample");
    return tab;
}

async function it_fits_every_width_in_both_colours(browser, url, opened) {
    for (const width of [390, 768, 1280]) {
        for (const dark of [false, true]) {
            const where = `${width}-${dark ? "dark" : "light"}`;
            const tab = opened(await openSample(browser, url, { width, height: width === 390 ? 844 : 800, dark }));
            await tab.fits(where);
            await tab.accessible(where);
            await tab.picture(`conversation-${where}`);
            await tab.page.$eval("#messages", (list) => (list.scrollTop = 0));
            await tab.page.click(".answer .report summary");
            await tab.fits(`${where} with the report`);
            await tab.picture(`conversation-top-${where}`);
            expect((await tab.shifts()) < 0.01, `${where}: the page moved by ${await tab.shifts()}`);
            await tab.page.click("#settings-open");
            await tab.fits(`${where} with the settings`);
            await tab.picture(`settings-${where}`);
        }
    }
}

async function fingers_find_targets_of_44_pixels(browser, url, opened) {
    const tab = opened(await openSample(browser, url, { width: 390, height: 844 }));
    const small = () =>
        tab.page.evaluate(() => {
            const all = [...document.querySelectorAll("button, select, summary, input:not([type=checkbox], [type=file]), textarea, label.check")];
            // The skip link and hidden parts have no place; a text field grows with its text.
            const shown = all.filter((node) => node.checkVisibility({ visibilityProperty: true }) && node.getBoundingClientRect().width > 0);
            const found = shown.map((node) => [node.getAttribute("aria-label") ?? node.id ?? node.textContent, node.getBoundingClientRect()]);
            return found.filter(([, box]) => box.height < 43.5 || box.width < 43.5).map(([name, box]) => `${name} ${box.width} × ${box.height}`);
        });
    const parts = { "the conversation": null, "the list": "#side-open", "the settings": "#settings-open" };
    for (const [where, opener] of Object.entries(parts)) {
        if (opener) {
            await tab.page.click(opener);
            await tab.page.evaluate(() => document.querySelectorAll("dialog details").forEach((details) => (details.open = true)));
            await new Promise((resolve) => setTimeout(resolve, 400));
        }
        const found = await small();
        expect(found.length === 0, `${where}: too small are\n${found.join("\n")}`);
        if (opener === "#side-open") {
            await tab.page.keyboard.press("Escape");
            await new Promise((resolve) => setTimeout(resolve, 400));
        }
    }
}

async function on_a_telephone_the_list_is_a_drawer(browser, url, opened) {
    const tab = opened(await openSample(browser, url, { width: 390, height: 844 }));
    const isShown = () => tab.page.$eval("#side", (side) => getComputedStyle(side).visibility === "visible" && side.getBoundingClientRect().left === 0);
    expect(!(await isShown()), "the list is open at first");
    await tab.page.focus("#side-open");
    await tab.page.keyboard.press("Enter");
    await tab.until(() => document.querySelector("#side").getBoundingClientRect().left === 0, "the list");
    const isInert = await tab.page.$eval("#main", (main) => main.inert);
    expect(isInert, "what lies below the list can be reached");
    await tab.picture("drawer");
    await tab.accessible("the list over the conversation");
    await tab.page.keyboard.press("Escape");
    await tab.until(() => getComputedStyle(document.querySelector("#side")).visibility === "hidden", "the end of the list");
    const focus = await tab.page.evaluate(() => document.activeElement.id);
    expect(focus === "side-open", `the focus is at ${focus} after the list was closed`);
    await tab.page.click("#side-open");
    await tab.page.waitForFunction(() => document.querySelector("#side").getBoundingClientRect().left === 0);
    await tab.page.click("#conversation-list li:nth-child(3) .open");
    await tab.until(() => document.querySelector("#title").textContent === "Who is Anna?", "the other conversation");
    await tab.until(() => getComputedStyle(document.querySelector("#side")).visibility === "hidden", "the end of the list");
    await tab.page.click("#side-open");
    await tab.page.waitForFunction(() => document.querySelector("#side").getBoundingClientRect().left === 0);
    await tab.page.click("#new");
    await tab.until(() => getComputedStyle(document.querySelector("#side")).visibility === "hidden", "the end of the list");
    await tab.picture("empty-390");
    await tab.accessible("an empty page on a telephone");
}

async function colours_follow_the_system_until_they_are_chosen(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url, { dark: true }));
    const page = () => tab.page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    const dark = await page();
    await tab.picture("empty-dark");
    await tab.accessible("an empty page in the dark");
    await tab.page.click("#theme");
    const light = await page();
    expect(dark === "rgb(23, 25, 28)" && light === "rgb(251, 250, 248)", `the colours are ${dark} and ${light}`);
    await tab.page.reload({ waitUntil: "networkidle2" });
    expect((await page()) === light, "the choice is forgotten");
}

async function everything_can_be_done_by_keyboard(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    const { keyboard } = tab.page;
    await limitAnswers(tab, 4000);
    await tab.page.reload({ waitUntil: "networkidle2" });
    expect((await tab.page.evaluate(() => document.activeElement.id)) === "question", "the question has no focus at first");
    await keyboard.type("First");
    await keyboard.down("Shift");
    await keyboard.press("Enter");
    await keyboard.up("Shift");
    await keyboard.type("second");
    expect((await tab.page.$eval("#question", (field) => field.value)) === "First\nsecond", "Shift+Enter begins no line");
    await keyboard.down("Control");
    await keyboard.press("Enter");
    await keyboard.up("Control");
    await tab.state(["answering"]);
    await keyboard.press("Escape");
    await tab.state(["stopped"], 2000);
    expect((await tab.page.evaluate(() => document.activeElement.id)) === "question", "the focus is lost after stopping");
    const reached = await tabThrough(tab);
    for (const part of ["Go to the question", "New conversation", "Search in conversations", "Rename First second", "Delete First second", "Dark colours", "Settings", "Messages", "Edit the question", "Go on", "Copy the answer", "Answer again", "Add documents", "Question", "Send"]) {
        expect(reached.has(part), `Tab does not reach ${part}: it reaches ${[...reached.keys()].join(", ")}`);
    }
    const unseen = [...reached].filter(([, isSeen]) => !isSeen).map(([name]) => name);
    expect(unseen.length === 0, `the focus cannot be seen at ${unseen.join(", ")}`);
    await tab.page.focus("#settings-open");
    await keyboard.press("Enter");
    await tab.until(() => document.querySelector("#settings-dialog").open, "the settings", 2000);
    await keyboard.press("Escape");
    await tab.until(() => !document.querySelector("#settings-dialog").open, "the end of the settings", 2000);
    expect((await tab.page.evaluate(() => document.activeElement.id)) === "settings-open", "the focus does not return from the settings");
}

/** What Tab reaches from the page's beginning, and whether the focus can be seen there. */
async function tabThrough(tab) {
    await tab.page.evaluate(() => {
        document.activeElement.blur();
        getSelection().collapse(document.body, 0);
    });
    const reached = new Map();
    for (let step = 0; step < 40; step += 1) {
        await tab.page.keyboard.press("Tab");
        const [name, isSeen] = await tab.page.evaluate(() => {
            const node = document.activeElement;
            const style = getComputedStyle(node);
            // The question shows its focus on the field around it.
            const around = node.closest(".field:focus-within");
            const isSeen = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2) || (node.id === "question" && getComputedStyle(around).boxShadow !== "none");
            return [node === document.body ? "the page" : (node.getAttribute("aria-label") ?? node.textContent.trim()), isSeen || node === document.body];
        });
        reached.set(name, isSeen);
    }
    return reached;
}

/** With a model that converses: one conversation about a document. */
async function a_real_model_answers_about_a_document(browser, _, opened) {
    const server = await startServer(process.env.RIFFLE_REAL_MODEL);
    try {
        const tab = opened(await Tab.open(browser, server.url));
        await limitAnswers(tab, 160);
        const text = "# The harbour of Lund\n\nThe harbour of Lund was built in 1874 by Anna Berg. It has 12 piers. The longest pier is 340 metres long. Its lamp is green.\n\n".repeat(16);
        await tab.drop(["harbour.md", text]);
        await tab.documents(1);
        await tab.ask("List three facts about the harbour.");
        await tab.state(["done"], 300_000);
        await tab.ask("Who built it? Answer in one sentence.");
        await tab.page.waitForFunction(() => document.querySelectorAll(".answer").length === 2);
        await tab.state(["done"], 300_000);
        const { text: answer } = await tab.answer();
        const { timings } = await tab.kept();
        expect(answer.trim().length > 0, "the answer is empty");
        expect(timings.cache_n >= 512, `${timings.cache_n} tokens were found read`);
        await tab.picture("real-model");
    } finally {
        await server.stop();
    }
}

export const checks = [
    it_fits_every_width_in_both_colours,
    fingers_find_targets_of_44_pixels,
    on_a_telephone_the_list_is_a_drawer,
    colours_follow_the_system_until_they_are_chosen,
    everything_can_be_done_by_keyboard,
    ...(process.env.RIFFLE_REAL_MODEL ? [a_real_model_answers_about_a_document] : []),
];

// Checks of conversations: answers, errors, keys, settings.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { limitAnswers } from "./documents.mjs";
import { MODEL, Tab, expect, post, sleep, startServer } from "./harness.mjs";

async function an_answer_comes_piece_by_piece(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await tab.picture("empty");
    await tab.accessible("an empty page");
    await limitAnswers(tab, 4000);
    await tab.ask("In the beginning");
    const lengths = new Set();
    for (let tries = 0; tries < 400 && (await tab.page.$(".answer[data-state=done]")) === null; tries += 1) {
        lengths.add((await tab.page.$(".answer .text")) ? (await tab.answer()).text.length : 0);
        await sleep(20);
    }
    expect(lengths.size > 3, `the answer came in ${lengths.size} pieces: ${[...lengths]}`);
    const { summary, text } = await tab.answer();
    expect(/^\d+ tokens( \(\d+ already read\))? in [\d.]+ s$/.test(summary), `the line says ${summary}`);
    const spoken = await tab.text("#announcer");
    expect(spoken.startsWith("Answer: ") && spoken.includes(text.trim().slice(0, 10)), `a screen reader hears ${spoken}`);
    expect((await tab.shifts()) < 0.01, `the page moved by ${await tab.shifts()}`);
    await tab.page.click(".answer summary");
    await tab.picture("answered");
    await tab.accessible("an answer with its report");
}

async function an_answer_that_was_stopped_goes_on_from_its_text(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await tab.ask("In the beginning");
    await tab.until(() => document.querySelector(".answer .text")?.textContent.length > 40, "a beginning");
    // A press right after sending is taken for a second press of the same wish.
    await sleep(500);
    await tab.page.click("#send");
    await tab.state(["stopped"], 2000);
    const before = (await tab.answer()).text;
    await limitAnswers(tab, 20);
    await tab.press("Go on");
    await tab.state(["done"]);
    const after = (await tab.answer()).text;
    expect(after.startsWith(before) && after.length > before.length, `${JSON.stringify(before)} became ${JSON.stringify(after)}`);
}

async function conversations_are_kept_renamed_and_deleted(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await limitAnswers(tab, 8);
    await tab.drop(["note.md", "# A note\n\nThe pass key for Anna is 31337."]);
    await tab.documents(1);
    await tab.ask("First question");
    await tab.state(["done"]);
    await tab.page.click("#new");
    await tab.ask("Second question");
    await tab.state(["done"]);
    const titles = () => tab.page.$$eval("#conversation-list .open", (list) => list.map((node) => node.textContent));
    expect((await titles()).join() === "Second question,First question", `the list is ${await titles()}`);
    await tab.page.reload({ waitUntil: "networkidle2" });
    expect((await titles()).join() === "Second question,First question", `after a reload the list is ${await titles()}`);
    expect((await tab.text("#title")) === "Second question", "another conversation is open after a reload");
    await tab.page.click("#conversation-list li:nth-child(2) .open");
    await tab.page.click(".question button.document");
    await tab.until(() => document.querySelector("#text-body").textContent.includes("31337"), "the kept document", 3000);
    await tab.page.keyboard.press("Escape");
    await tab.page.focus("#conversation-list li:nth-child(2) .rename");
    await tab.page.keyboard.press("Enter");
    await tab.page.keyboard.type("The note of Anna");
    await tab.page.keyboard.press("Enter");
    await tab.until(() => document.querySelector("#title").textContent === "The note of Anna", "the new name", 3000);
    await tab.page.focus("#conversation-list li:nth-child(2) .delete");
    await tab.page.keyboard.press("Enter");
    await tab.until(() => document.querySelector("#delete-dialog").open, "the question whether to delete", 3000);
    await tab.accessible("the question whether to delete");
    await tab.page.click("#delete-dialog [value=ok]");
    await tab.until(() => document.querySelectorAll("#conversation-list li").length === 1, "one conversation less", 3000);
    await tab.page.reload({ waitUntil: "networkidle2" });
    expect((await titles()).join() === "Second question", `after deleting the list is ${await titles()}`);
    const texts = await tab.page.evaluate(countTexts);
    expect(texts === 0, `${texts} documents of deleted conversations are still kept`);
}

function countTexts() {
    return new Promise((resolve) => {
        const opened = indexedDB.open("riffle", 1);
        opened.onsuccess = () => {
            const request = opened.result.transaction("texts").objectStore("texts").count();
            request.onsuccess = () => resolve(request.result);
        };
    });
}

async function a_server_with_keys_asks_for_one(browser, _, opened) {
    const folder = mkdtempSync(join(tmpdir(), "riffle-web-page-"));
    writeFileSync(join(folder, "keys"), "open-sesame\n");
    const server = await startServer(MODEL, "--api-key-file", join(folder, "keys"));
    try {
        const context = await browser.createBrowserContext();
        const page = await context.newPage();
        const tab = opened(Object.assign(new Tab(), { context, page }));
        await page.setViewport({ width: 1280, height: 800 });
        await page.goto(server.url);
        await tab.until(() => document.querySelector("#server-line").textContent === "asks for a key", "the server's wish");
        await tab.ask("Hello");
        await tab.until(() => document.querySelector("#key-dialog").open, "the question for a key");
        await tab.picture("key");
        await tab.accessible("the question for a key");
        await page.keyboard.type("wrong");
        await page.keyboard.press("Enter");
        await tab.until(() => document.querySelector("#key-line").textContent.includes("does not know this key"), "a second question");
        await page.keyboard.type("open-sesame");
        await page.keyboard.press("Enter");
        await tab.state(["answering", "done"]);
        await tab.until(() => document.querySelector("#server-line").textContent === "model", "the server's state");
        await page.keyboard.press("Escape");
        const kept = await page.evaluate(() => [JSON.stringify(localStorage).includes("sesame"), sessionStorage.getItem("riffle.key")]);
        expect(!kept[0] && kept[1] === "open-sesame", "the key is not kept in the tab alone");
        await page.reload({ waitUntil: "networkidle2" });
        await tab.until(() => document.querySelector("#server-line").textContent === "model", "the server's state after a reload");
    } finally {
        await server.stop();
        rmSync(folder, { recursive: true });
    }
}
a_server_with_keys_asks_for_one.allows = /status of 401|ERR_|404/;

async function an_error_of_the_server_is_shown_as_its_line(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await choose(tab, { prefill: "no-such-policy" });
    const asked = { messages: [{ role: "user", content: "x" }], riffle: { prefill: "no-such-policy" } };
    const refusal = await (await post(`${url}/v1/chat/completions`, asked)).json();
    await tab.ask("x");
    await tab.state(["failed"]);
    const { error } = await tab.answer();
    expect(error === refusal.error.message, `${error} is not ${refusal.error.message}`);
    await tab.picture("error");
    await tab.accessible("an error");
    await choose(tab, { prefill: "" });
    await limitAnswers(tab, 5);
    await tab.press("Go on");
    await tab.state(["done"]);
    expect((await tab.answer()).error === "", "the error stays after an answer");
}
an_error_of_the_server_is_shown_as_its_line.allows = /status of 400/;

async function policies_and_what_was_kept_are_shown(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await limitAnswers(tab, 10);
    await choose(tab, { prefill: "xattention:stride=16", decode: "quest", audit: true });
    await tab.drop(["long.txt", "The tide comes in and the tide goes out, and nobody counts the waves. ".repeat(500)]);
    await tab.documents(1);
    await tab.ask("Who counts?");
    await tab.state(["done"]);
    const { summary } = await tab.answer();
    expect(/ · [\d.]+% of the text looked at · [\d.]+% of the attention kept$/.test(summary), `the line says ${summary}`);
    await tab.page.click(".answer summary");
    const terms = await tab.text(".answer dl");
    for (const part of ["xattention:stride=16", "quest:topk=", "million of", "on average", "found read", "waited"]) {
        expect(terms.includes(part), `${terms} lacks ${part}`);
    }
    await tab.picture("kept");
    await tab.page.click("#settings-open");
    await tab.until(() => document.querySelector("#prefill-own").value === "xattention:stride=16", "the setting", 3000);
    await tab.picture("settings");
    await tab.accessible("the settings");
}

async function a_server_that_ends_is_told_of(browser, _, opened) {
    const server = await startServer(MODEL);
    const tab = opened(await Tab.open(browser, server.url));
    await tab.ask("And the sea");
    await tab.state(["answering"]);
    await server.stop();
    await tab.state(["failed", "done", "stopped"], 20_000);
    await tab.until(() => document.querySelector("#server-line").textContent === "cannot be reached", "the panel's line");
    await tab.ask("Still there?");
    await tab.state(["failed"]);
    const { error } = await tab.answer();
    expect(error === "The server cannot be reached. Is it still running?", error);
}
a_server_that_ends_is_told_of.allows = /ERR_|Failed to load|network/;

async function markdown_becomes_elements_and_nothing_else(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    const show = (text) =>
        tab.page.evaluate(async (text) => {
            const { showMarkdown } = await import("/web/markdown.js");
            const made = document.createElement("div");
            showMarkdown(made, text);
            return made.innerHTML;
        }, text);
    const rel = 'rel="noopener noreferrer nofollow" target="_blank"';
    const cases = [
        ["a **b** *c* `d` ~~e~~\nf", "<p>a <strong>b</strong> <em>c</em> <code>d</code> <del>e</del><br>f</p>"],
        ["# One\n\n### Two #", "<h3>One</h3><h5>Two</h5>"],
        ["- a\n- b\n  1. c\n  2. d\n- e", "<ul><li>a</li><li>b<ol><li>c</li><li>d</li></ol></li><li>e</li></ul>"],
        ["3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'],
        ["> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"],
        ["snake_case_name 2*3*4", "<p>snake_case_name 2<em>3</em>4</p>"],
        ["*a **b** c*", "<p><em>a <strong>b</strong> c</em></p>"],
        ["[x](https://a.b/c_(d)) https://e.f/g.", `<p><a href="https://a.b/c_(d)" ${rel}>x</a> <a href="https://e.f/g" ${rel}>https://e.f/g</a>.</p>`],
        ["[x](javascript:alert(1)) <javascript:alert(1)>", "<p>[x](javascript:alert(1)) &lt;javascript:alert(1)&gt;</p>"],
        ["<img src=x onerror=alert(1)><script>alert(1)</script>", "<p>&lt;img src=x onerror=alert(1)&gt;&lt;script&gt;alert(1)&lt;/script&gt;</p>"],
        ["![p](https://a.b/x.png)", `<p><a href="https://a.b/x.png" ${rel}>p</a></p>`],
        ["\\*a\\* 1 < 2", "<p>*a* 1 &lt; 2</p>"],
        ["---", "<hr>"],
    ];
    for (const [source, wanted] of cases) {
        const made = await show(source);
        expect(made === wanted, `${JSON.stringify(source)} became\n${made}\nand not\n${wanted}`);
    }
    const code = await show("```js\n<b>&\n```\nafter");
    expect(code.includes("<code>&lt;b&gt;&amp;</code>") && code.endsWith("<p>after</p>"), code);
    const table = await show("| a | b |\n|---|--:|\n| 1 | 2\\|3 |");
    expect(table.includes('<th class="left">a</th>') && table.includes('<td class="right">2|3</td>'), table);
    for (const hostile of ["*".repeat(20_000), "> ".repeat(5000), "[".repeat(5000), "*a ".repeat(3000), "- ".repeat(2000), "`".repeat(5000)]) {
        const start = Date.now();
        await show(hostile);
        expect(Date.now() - start < 3000, `${hostile.slice(0, 10)}… took ${Date.now() - start} ms`);
    }
}

async function text_that_grows_leaves_what_is_shown_alone(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    const isSame = await tab.page.evaluate(async () => {
        const { showMarkdown } = await import("/web/markdown.js");
        const made = document.createElement("div");
        showMarkdown(made, "One.\n\nTwo");
        const first = made.firstChild;
        showMarkdown(made, "One.\n\nTwo and more.\n\n- three");
        return made.firstChild === first && made.textContent === "One.Two and more.three";
    });
    expect(isSame, "a finished paragraph was built anew");
}

/** Chooses policies in the settings; those that the lists lack are written. */
async function choose(tab, { prefill, decode = "", audit = false }) {
    await tab.page.click("#settings-open");
    await tab.page.$eval(".advanced", (details) => (details.open = true));
    for (const [part, policy] of Object.entries({ prefill, decode })) {
        const values = await tab.page.$$eval(`#${part} option`, (options) => options.map((option) => option.value));
        await tab.page.select(`#${part}`, values.includes(policy) ? policy : "own");
        if (!values.includes(policy)) {
            await tab.page.$eval(`#${part}-own`, (field) => (field.value = ""));
            await tab.page.type(`#${part}-own`, policy);
        }
    }
    await tab.page.$eval("#audit", (box, audit) => (box.checked = audit), audit);
    await tab.page.click("#settings-dialog [value=ok]");
    await tab.until(() => !document.querySelector("dialog[open]"), "the end of the settings");
}

export const checks = [
    an_answer_comes_piece_by_piece,
    an_answer_that_was_stopped_goes_on_from_its_text,
    conversations_are_kept_renamed_and_deleted,
    a_server_with_keys_asks_for_one,
    an_error_of_the_server_is_shown_as_its_line,
    policies_and_what_was_kept_are_shown,
    a_server_that_ends_is_told_of,
    markdown_becomes_elements_and_nothing_else,
    text_that_grows_leaves_what_is_shown_alone,
];

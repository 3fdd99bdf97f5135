// Checks of what people do with conversations: tabs, branches, formulas, code, search, files.

import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { limitAnswers } from "./documents.mjs";
import { docx, pdf } from "./files.mjs";
import { MODEL, Tab, expect, sleep, startServer, startServerAt } from "./harness.mjs";

const PROPHETS = readFileSync("fixtures/text/prophets.txt", "utf8");

const questions = (tab) => tab.page.$$eval(".question-text", (list) => list.map((node) => node.textContent));

async function two_tabs_lose_no_message(browser, url, opened) {
    const first = opened(await Tab.open(browser, url));
    await limitAnswers(first, 8);
    await first.ask("The first question");
    await first.state(["done"]);
    const second = opened(await Tab.beside(first, url));
    await second.page.click("#conversation-list .open");
    expect((await questions(second)).join() === "The first question", `the second tab shows ${await questions(second)}`);
    await second.ask("From the second tab");
    await second.state(["done"]);
    await first.until(() => document.querySelectorAll(".question").length === 2, "the second tab's question in the first", 5000);
    // The second asks before it hears of the first: two branches.
    await second.page.evaluate(() => (window.isDeaf = true));
    const fields = [[first, "One at a time"], [second, "Another at a time"]];
    for (const [tab, text] of fields) {
        await tab.page.$eval("#question", (field, text) => (field.value = text), text);
    }
    for (const [tab] of fields) {
        await tab.page.$eval("#composer", (form) => form.requestSubmit());
        await tab.until(() => document.querySelectorAll(".question").length === 3, "the third question");
    }
    await first.until(() => [...document.querySelectorAll(".answer")].at(-1)?.dataset.state === "done", "the first tab's answer");
    await second.until(() => [...document.querySelectorAll(".answer")].at(-1)?.dataset.state === "done", "the second tab's answer");
    await sleep(500);
    await first.page.reload({ waitUntil: "networkidle2" });
    const all = await first.page.evaluate(async () => {
        const { readAll } = await import("/web/conversation-store.js");
        return (await readAll()).flatMap(({ messages }) => messages.map(({ text }) => text));
    });
    for (const text of ["The first question", "From the second tab", "One at a time", "Another at a time"]) {
        expect(all.includes(text), `${text} is lost: there are ${all}`);
    }
    await first.until(() => document.querySelectorAll(".question").length === 3, "three questions");
    const line = await first.page.$$eval(".question .branch-line", (lines) => lines.at(-1).textContent);
    expect(/^[12] of 2$/.test(line), `the branches are ${line}`);
    await first.close();
    second.close = async () => {};
}

async function formulas_are_drawn_and_their_source_stays(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    const show = (text) =>
        tab.page.evaluate(async (text) => {
            const { showMarkdown } = await import("/web/markdown.js");
            const made = document.createElement("div");
            showMarkdown(made, text);
            const formulas = [...made.querySelectorAll("math")];
            return { sources: formulas.map((math) => math.querySelector("annotation").textContent), text: made.textContent, html: made.innerHTML };
        }, text);
    const drawn = [
        ["so \\(a^2 + b^2 = c^2\\) holds", "a^2 + b^2 = c^2"],
        ["so $x_{i,j}\\,\\in\\mathbb{R}$ holds", "x_{i,j}\\,\\in\\mathbb{R}"],
        ["$$\\frac{1}{\\sqrt{2\\pi}}\\int_{-\\infty}^{\\infty} e^{-x^2/2}\\,dx = 1$$", "\\frac{1}{\\sqrt{2\\pi}}\\int_{-\\infty}^{\\infty} e^{-x^2/2}\\,dx = 1"],
        ["\\[\n\\sum_{k=1}^n k = \\frac{n(n+1)}{2}.\n\\]", "\\sum_{k=1}^n k = \\frac{n(n+1)}{2}."],
        ["\\begin{align*}\na &= b \\\\\nc &= \\begin{pmatrix} 1 & 0 \\\\ 0 & 1 \\end{pmatrix}\n\\end{align*}", "\\begin{align*}\na &= b \\\\\nc &= \\begin{pmatrix} 1 & 0 \\\\ 0 & 1 \\end{pmatrix}\n\\end{align*}"],
        ["$f(x) = \\begin{cases} x & \\text{if } x > 0 \\\\ 0 & \\text{otherwise} \\end{cases}$", "f(x) = \\begin{cases} x & \\text{if } x > 0 \\\\ 0 & \\text{otherwise} \\end{cases}"],
        ["$\\left\\| \\hat{\\theta} - \\theta^* \\right\\|_2 \\le \\varepsilon'$", "\\left\\| \\hat{\\theta} - \\theta^* \\right\\|_2 \\le \\varepsilon'"],
        ["$\\lim_{n\\to\\infty} \\log n$, $\\binom{n}{k}$", "\\lim_{n\\to\\infty} \\log n"],
    ];
    for (const [text, source] of drawn) {
        const { sources, html } = await show(text);
        expect(sources[0] === source, `${JSON.stringify(text)} became ${html}`);
    }
    for (const [text, kept] of [
        ["it costs $5 and $10 today", "it costs $5 and $10 today"],
        ["$\\unknowncommand{x}$ stays", "$\\unknowncommand{x}$ stays"],
        ["\\(a\\,b is not done", "\\(a\\,b is not done".replace("\\,", ",")],
        ["`$x$` is code", "$x$ is code"],
        ["$\\frac{1}{$ ends too soon", "$\\frac{1}{$ ends too soon"],
    ]) {
        const { sources, text: shown } = await show(text);
        expect(sources.length === 0 && shown === kept, `${JSON.stringify(text)} became ${JSON.stringify(shown)}`);
    }
    for (const hostile of ["$".repeat(5001), `$${"{".repeat(3000)}$`, `$$${"\\frac{1}".repeat(2000)}$$`, "\\(".repeat(4000), "\\begin{align}\n".repeat(2000)]) {
        const start = Date.now();
        await show(hostile);
        expect(Date.now() - start < 3000, `${hostile.slice(0, 12)}… took ${Date.now() - start} ms`);
    }
}

async function code_is_coloured_and_stays_as_it_is(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    const code = 'def mean(xs):  # of some\n    """The mean."""\n    return sum(xs) / len(xs) + 1.5e3  # <b>\n';
    const { text, kinds } = await tab.page.evaluate(async (code) => {
        const { showMarkdown } = await import("/web/markdown.js");
        const made = document.createElement("div");
        showMarkdown(made, `\`\`\`python\n${code}\`\`\``);
        const spans = [...made.querySelectorAll("code span")];
        return { text: made.querySelector("code").textContent, kinds: spans.map((span) => `${span.className}:${span.textContent}`) };
    }, code);
    expect(`${text}\n` === code, `the code became ${JSON.stringify(text)}`);
    for (const kind of ["code-word:def", "code-call:mean", "code-comment:# of some", 'code-text:"""The mean."""', "code-number:1.5e3", "code-comment:# <b>"]) {
        expect(kinds.includes(kind), `${kinds} lacks ${kind}`);
    }
}

async function a_question_is_edited_and_both_branches_stay(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await limitAnswers(tab, 8);
    await tab.ask("In the beginning");
    await tab.state(["done"]);
    const before = (await tab.answer()).text;
    await tab.ask("And then");
    await tab.state(["done"]);
    await tab.page.click('.question [aria-label="Edit the question"]');
    await tab.page.keyboard.down("Control");
    await tab.page.keyboard.press("KeyA");
    await tab.page.keyboard.up("Control");
    await tab.page.keyboard.type("The pass key for Anna is");
    await tab.picture("editing");
    await tab.accessible("a question that is edited");
    await tab.page.keyboard.press("Enter");
    await tab.until(() => document.querySelectorAll(".question").length === 1, "the other branch");
    await tab.state(["done"]);
    expect((await questions(tab)).join() === "The pass key for Anna is", `the branch has ${await questions(tab)}`);
    expect((await tab.text(".question .branch-line")) === "2 of 2", "the switch is missing");
    await tab.page.click('.question [aria-label="The question before"]');
    expect((await questions(tab)).join() === "In the beginning,And then", `the first branch has ${await questions(tab)}`);
    expect((await tab.page.$$eval(".answer .text", (list) => list[0].textContent)) === before, "the first answer has changed");
    await tab.page.$$eval(".answer button", (list) => list.find((made) => made.textContent === "Answer again").click());
    await tab.state(["done"]);
    expect((await tab.text(".answer .branch-line")) === "2 of 2", "the other answer is no branch");
    await tab.picture("branches");
    await tab.accessible("branches");
    await tab.page.reload({ waitUntil: "networkidle2" });
    expect((await tab.text(".question .branch-line")) === "1 of 2", "the branch is forgotten after a reload");
}

async function instructions_and_sampling_reach_the_server(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await tab.page.click("#settings-open");
    for (const [id, value] of Object.entries({ system: "Speak plainly.", "top-p": "0.9", "top-k": "20", "min-p": "0.05", repetition: "1.1", seed: "7", temperature: "0.5", "max-tokens": "6", stop: "###\nEND" })) {
        await tab.page.$eval(`#${id}`, (field, value) => (field.value = value), value);
    }
    await tab.page.click("#settings-dialog [value=ok]");
    const sent = tab.page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
    await tab.ask("Hello");
    const body = JSON.parse((await sent).postData());
    await tab.state(["done"]);
    const wanted = { top_p: 0.9, top_k: 20, min_p: 0.05, repetition_penalty: 1.1, seed: 7, temperature: 0.5, max_tokens: 6 };
    for (const [field, value] of Object.entries(wanted)) {
        expect(body[field] === value, `${field} is ${body[field]}`);
    }
    expect(body.stop.join() === "###,END", `stop is ${body.stop}`);
    expect(body.messages[0].role === "system" && body.messages[0].content === "Speak plainly.", JSON.stringify(body.messages));
}

async function conversations_are_searched_exported_and_imported(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await limitAnswers(tab, 6);
    await tab.drop(["tides.md", "# Tides\n\nThe quay is dry at noon."]);
    await tab.documents(1);
    await tab.ask("Lighthouse keepers");
    await tab.state(["done"]);
    await tab.page.click("#new");
    await tab.ask("Harbour masters");
    await tab.state(["done"]);
    const titles = () => tab.page.$$eval("#conversation-list .open", (list) => list.map((node) => node.textContent).join());
    for (const [search, wanted] of [["keepers", "Lighthouse keepers"], ["TIDES", "Lighthouse keepers"], ["harbour", "Harbour masters"], ["nothing of it", ""]]) {
        await tab.page.$eval("#search", (field, search) => {
            field.value = search;
            field.dispatchEvent(new Event("input"));
        }, search);
        await sleep(300);
        expect((await titles()) === wanted, `${search} finds ${await titles()}`);
    }
    const file = await tab.page.evaluate(async () => {
        const [{ exported, asMarkdown }, { loadConversations }] = await Promise.all([import("/web/exchange.js"), import("/web/conversations.js")]);
        const all = await loadConversations();
        return { json: await exported(all), markdown: asMarkdown(all.at(-1)) };
    });
    expect(/^# Lighthouse keepers\n\n## Question\n\n\*Document: tides\.md\*\n\nLighthouse keepers\n\n## Answer\n\n/.test(file.markdown), file.markdown);
    const other = opened(await Tab.open(browser, url));
    const folder = mkdtempSync(join(tmpdir(), "riffle-export-"));
    writeFileSync(join(folder, "all.json"), file.json);
    writeFileSync(join(folder, "other.json"), "[]");
    const choose = async (name) => {
        await other.page.click("#settings-open");
        const [chooser] = await Promise.all([other.page.waitForFileChooser(), other.page.click("#import")]);
        await chooser.accept([join(folder, name)]);
    };
    await choose("other.json");
    await other.until(() => document.querySelector("#notice p")?.textContent.startsWith("This file holds no conversations"), "a refusal");
    await choose("all.json");
    await other.until(() => document.querySelectorAll("#conversation-list li").length === 2, "the conversations");
    await choose("all.json");
    await sleep(500);
    expect((await other.page.$$("#conversation-list li")).length === 2, "importing twice doubles them");
    await other.page.reload({ waitUntil: "networkidle2" });
    await other.page.click("#conversation-list li:nth-child(2) .open");
    await other.page.click(".question button.document");
    await other.until(() => document.querySelector("#text-body").textContent.includes("dry at noon"), "the document of the file", 3000);
    rmSync(folder, { recursive: true });
}

async function word_files_and_folders_are_read(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await tab.drop(["letter.docx", docx("Harbour", "The lamp is green.")]);
    await tab.documents(1);
    const text = await tab.textOfDocument();
    expect(text.includes("Harbour") && text.includes("The lamp is green."), text);
    const folder = mkdtempSync(join(tmpdir(), "riffle-folder-"));
    mkdirSync(join(folder, "notes", ".git"), { recursive: true });
    writeFileSync(join(folder, "notes", "one.md"), "# One\n\nThe first note.");
    writeFileSync(join(folder, "notes", "two.txt"), "The second note.");
    writeFileSync(join(folder, "notes", "picture.png"), Buffer.from([0x89, 0x50, 0, 0, 1]));
    writeFileSync(join(folder, "notes", ".git", "config"), "hidden");
    const chooser = await tab.page.$("#folder");
    await chooser.uploadFile(join(folder, "notes"));
    await tab.documents(3);
    const names = await tab.page.$$eval("#composer-documents .document-name", (list) => list.map((node) => node.textContent).sort().join());
    expect(names === "letter.docx,notes/one.md,notes/two.txt", `the documents are ${names}`);
    const notice = await tab.text("#notice p");
    expect(notice.includes("picture.png"), `the notice says ${notice}`);
    await tab.picture("folder");
    rmSync(folder, { recursive: true });
}

word_files_and_folders_are_read.allows = /status of 422/;

async function passages_behind_an_answer_name_their_page(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await limitAnswers(tab, 6);
    const filler = (page) => Array.from({ length: 30 }, (_, line) => `Nothing of note happened on day ${line} of month ${page}.`);
    await tab.drop(["log.pdf", pdf([filler(1), [...filler(2), "The lighthouse keeper counted twelve herons on the breakwater."], filler(3)])]);
    await tab.documents(1);
    await tab.ask("Who counted the herons?");
    await tab.state(["done"]);
    // The small model babbles: an answer stands in for its own.
    await tab.kept();
    await tab.page.evaluate(async () => {
        const { readOne, write } = await import("/web/conversation-store.js");
        const { header, messages } = await readOne(sessionStorage.getItem("riffle.open"));
        const answer = messages.find(({ id }) => id === header.leaf);
        await write(header, [{ ...answer, text: "The lighthouse keeper counted twelve herons." }], []);
    });
    await tab.page.reload({ waitUntil: "networkidle2" });
    await tab.until(() => document.querySelector(".passages:not([hidden]) summary")?.textContent.includes("page 2"), "the page of the passage", 5000);
    await tab.page.click(".passages summary");
    await tab.picture("passages");
    await tab.accessible("passages");
    await tab.page.click(".passages li button");
    await tab.until(() => document.querySelector("#text-body mark")?.textContent.includes("twelve herons"), "the passage in the document", 3000);
    await tab.picture("passage-in-document");
}

async function reading_begins_when_a_document_is_dropped(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await limitAnswers(tab, 6);
    await tab.drop(["prophets.txt", PROPHETS.slice(61_000, 91_000)]);
    await tab.documents(1);
    await tab.until(() => document.querySelector("#reading-ahead").textContent.startsWith("The model"), "the beginning of reading", 5000);
    await tab.picture("reading-ahead");
    await tab.until(() => document.querySelector("#reading-ahead").textContent.startsWith("The model has read this"), "the end of reading", 60_000);
    await tab.ask("Who speaks?");
    await tab.state(["done"]);
    const { timings } = await tab.kept();
    expect(timings.prompt_n < 100 && timings.cache_n > 5000, `${timings.prompt_n} tokens were read after the question, ${timings.cache_n} before`);
}

async function a_server_that_was_killed_and_is_back_goes_on(browser, _, opened) {
    const server = await startServer(MODEL);
    const tab = opened(await Tab.open(browser, server.url));
    await tab.ask("And the sea");
    await tab.until(() => document.querySelector(".answer .text")?.textContent.length > 40, "a beginning");
    server.kill();
    await tab.state(["failed"], 20_000);
    const { text, summary } = await tab.answer();
    expect(summary === "Ended by an error" && text.length > 40, `${summary}: ${text}`);
    await tab.picture("killed");
    const again = await startServerAt(server.port, MODEL);
    await limitAnswers(tab, 20);
    await tab.press("Go on");
    await tab.state(["done"]);
    const after = await tab.answer();
    expect(after.text.startsWith(text) && after.error === "", `${JSON.stringify(text)} became ${JSON.stringify(after)}`);
    await again.stop();
}
a_server_that_was_killed_and_is_back_goes_on.allows = /ERR_|Failed to load|network/;

export const checks = [
    two_tabs_lose_no_message,
    formulas_are_drawn_and_their_source_stays,
    code_is_coloured_and_stays_as_it_is,
    a_question_is_edited_and_both_branches_stay,
    instructions_and_sampling_reach_the_server,
    conversations_are_searched_exported_and_imported,
    word_files_and_folders_are_read,
    passages_behind_an_answer_name_their_page,
    reading_begins_when_a_document_is_dropped,
    a_server_that_was_killed_and_is_back_goes_on,
];

// Checks of what a browser keeps: conversations of older versions, many megabytes, a page that is closed, a full disk.

import { limitAnswers } from "./documents.mjs";
import { Tab, expect } from "./harness.mjs";

const titles = (tab) => tab.page.$$eval("#conversation-list .open", (list) => list.map((node) => node.textContent));

const keysOfOlderVersions = (tab) => tab.page.evaluate(() => Object.keys(localStorage).filter((key) => /^riffle\.(conversation|message)\./.test(key)).length);

/** Keeps conversations as older versions did: a header and messages in localStorage, `letters` in each question. */
function keepAsOlderVersions({ count, letters }) {
    for (let number = 0; number < count; number += 1) {
        const id = `old${number}`;
        const title = `Old ${number}`;
        localStorage.setItem(`riffle.conversation.${id}`, JSON.stringify({ id, title, isNamed: true, created: 1, changed: number, leaf: "b", system: "" }));
        const question = { id: "a", parent: null, role: "user", created: 1, text: `${title} ${"x".repeat(letters)}`, documents: [] };
        const answer = { id: "b", parent: "a", role: "assistant", created: 2, text: `Answer ${number}`, thought: "", state: "done", error: "" };
        [question, answer].forEach((message) => localStorage.setItem(`riffle.message.${id}.${message.id}`, JSON.stringify(message)));
    }
}

async function more_than_five_megabytes_are_kept(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    // Nearly as much as localStorage takes.
    await tab.page.evaluate(keepAsOlderVersions, { count: 12, letters: 400_000 });
    await tab.page.reload({ waitUntil: "networkidle2" });
    expect((await titles(tab)).length === 12, `of the older versions' conversations there are ${await titles(tab)}`);
    expect((await keysOfOlderVersions(tab)) === 0, "the older versions' conversations still fill localStorage");
    await tab.page.evaluate(keepAsOlderVersions, { count: 11, letters: 410_000 });
    await tab.page.evaluate(() => {
        for (const key of Object.keys(localStorage).filter((key) => key.includes(".old"))) {
            const text = localStorage.getItem(key);
            localStorage.removeItem(key);
            localStorage.setItem(key.replace(".old", ".more"), text.replace(/"id":"old/, '"id":"more'));
        }
    });
    await tab.page.reload({ waitUntil: "networkidle2" });
    await limitAnswers(tab, 8);
    await tab.ask("After nine megabytes");
    await tab.state(["done"]);
    const { text } = await tab.kept();
    await tab.page.reload({ waitUntil: "networkidle2" });
    expect((await titles(tab)).length === 24, `there are ${await titles(tab)}`);
    expect((await tab.text(".question-text")) === "After nine megabytes" && (await tab.kept()).text === text, "the latest question or answer is lost");
    expect((await tab.text("#notice")) === "", await tab.text("#notice"));
    const longest = await tab.page.evaluate(async () => {
        const { loadConversations } = await import("/web/conversations.js");
        return Math.min(...(await loadConversations()).filter(({ isNamed }) => isNamed).map(({ messages }) => messages[0].text.length));
    });
    expect(longest > 400_000, `a question has ${longest} letters`);
}

async function a_page_that_is_closed_keeps_what_it_shows(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await tab.ask("In the beginning");
    await tab.until(() => document.querySelector(".answer .text")?.textContent.length > 40, "a beginning");
    const shown = (await tab.answer()).text;
    await tab.page.reload({ waitUntil: "networkidle2" });
    await tab.state(["stopped"], 1000);
    expect((await tab.answer()).text.startsWith(shown), `${JSON.stringify(shown)} became ${JSON.stringify(await tab.answer())}`);
    // At once after a question, nothing is written yet.
    await tab.page.$eval("#question", (field) => (field.value = "And at once"));
    const loaded = tab.page.waitForNavigation({ waitUntil: "networkidle2" });
    await tab.page.evaluate(() => {
        document.querySelector("#composer").requestSubmit();
        setTimeout(() => location.reload());
    });
    await loaded;
    const questions = await tab.page.$$eval(".question-text", (list) => list.map((node) => node.textContent));
    expect(questions.join() === "In the beginning,And at once", `the questions are ${questions}`);
    expect((await keysOfOlderVersions(tab)) === 0, "what was left for the next page still lies there");
}

async function a_browser_without_room_says_so_and_shows_everything(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await limitAnswers(tab, 8);
    await tab.page.evaluate(() => {
        const put = IDBObjectStore.prototype.put;
        window.isFull = true;
        IDBObjectStore.prototype.put = function (...values) {
            const request = put.apply(this, values);
            if (window.isFull && this.name === "headers") {
                queueMicrotask(() => this.transaction.abort());
            }
            return request;
        };
    });
    await tab.ask("Without room");
    await tab.state(["done"]);
    await tab.until(() => document.querySelector("#notice").textContent.startsWith("This browser has no room for this conversation"), "a warning", 3000);
    await tab.picture("no-room");
    const before = (await tab.answer()).text;
    // There is room again: the next answer takes the first ones with it.
    await tab.page.evaluate(() => (window.isFull = false));
    await tab.ask("With room");
    await tab.state(["done"]);
    await tab.until(() => document.querySelector("#notice").textContent === "", "the end of the warning", 3000);
    await tab.kept();
    await tab.page.reload({ waitUntil: "networkidle2" });
    const texts = await tab.page.$$eval(".question-text, .answer .text", (list) => list.map((node) => node.textContent));
    expect(texts.length === 4 && texts[0] === "Without room" && texts[1] === before && texts[2] === "With room", `after a reload there are ${JSON.stringify(texts)}`);
}

async function a_conversation_deleted_during_its_answer_stays_deleted(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await tab.ask("In the beginning");
    await tab.until(() => document.querySelector(".answer .text")?.textContent.length > 40, "a beginning");
    await tab.page.focus("#conversation-list .delete");
    await tab.page.keyboard.press("Enter");
    await tab.until(() => document.querySelector("#delete-dialog").open, "the question whether to delete", 3000);
    await tab.page.click("#delete-dialog [value=ok]");
    await tab.until(() => document.querySelectorAll("#conversation-list li").length === 0, "an empty list", 3000);
    await tab.page.reload({ waitUntil: "networkidle2" });
    expect((await titles(tab)).length === 0, `there are ${await titles(tab)}`);
}

export const checks = [
    more_than_five_megabytes_are_kept,
    a_page_that_is_closed_keeps_what_it_shows,
    a_browser_without_room_says_so_and_shows_everything,
    a_conversation_deleted_during_its_answer_stays_deleted,
];

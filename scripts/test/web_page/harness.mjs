// A server, a browser, and what the checks do with both.

import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { join } from "node:path";

const place = process.env.RIFFLE_WEB_PAGE;
const require = createRequire(join(place, "package.json"));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export const MODEL = "fixtures/model";
export const pictures = join(place, "pictures");
mkdirSync(pictures, { recursive: true });

/** Fails with `message` unless `fact` holds. */
export function expect(fact, message) {
    if (!fact) {
        throw new Error(message);
    }
}

/** `riffle serve` on a free port: `{url, port, stop()}`. */
export async function startServer(model, ...more) {
    return startServerAt(await freePort(), model, ...more);
}

/** `riffle serve` on this port. The shipped model babbles: answers that repeat themselves go on, for as long as a check needs. */
export async function startServerAt(port, model, ...more) {
    const command = [process.env.RIFFLE_COMMAND, "serve", "--model", model, "--port", String(port), "--allow-loops", ...more];
    const child = spawn(command[0], command.slice(1), { stdio: ["ignore", "pipe", "pipe"] });
    let said = "";
    for (const stream of [child.stdout, child.stderr]) {
        stream.on("data", (data) => (said += data));
    }
    const url = `http://127.0.0.1:${port}`;
    for (let tries = 0; tries < 300; tries += 1) {
        if (child.exitCode !== null) {
            throw new Error(`${command.join(" ")} ended:\n${said}`);
        }
        try {
            await fetch(`${url}/health`);
            return { url, port, stop: () => ended(child), kill: () => child.kill("SIGKILL") };
        } catch {
            await sleep(100);
        }
    }
    throw new Error(`${command.join(" ")} does not answer:\n${said}`);
}

function ended(child) {
    return new Promise((resolve) => {
        child.once("exit", resolve);
        child.kill("SIGTERM");
        setTimeout(() => child.kill("SIGKILL"), 5000).unref();
    });
}

/** A port above 20000 that nobody listens at. */
async function freePort() {
    for (;;) {
        const port = 21000 + 2 * Math.floor(Math.random() * 5000);
        const isFree = await new Promise((resolve) => {
            const server = createServer();
            server.once("error", () => resolve(false));
            server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
        });
        if (isFree) {
            return port;
        }
    }
}

/** Posts JSON. */
export function post(url, body) {
    return fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
}

export function sleep(time_ms) {
    return new Promise((resolve) => setTimeout(resolve, time_ms));
}

/** The browser. A page that logs an error, or breaks the policy of the page, fails the check that it was opened in. */
export async function startBrowser() {
    return puppeteer.launch({
        executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
        headless: true,
        args: ["--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb", "--lang=en"],
    });
}

/** A tab with storage of its own, and what the checks ask of it. */
export class Tab {
    troubles = [];

    static async open(browser, url, view) {
        return Tab.openIn(await browser.createBrowserContext(), url, view);
    }

    /** A second tab of the same browser: both have one storage. */
    static beside(tab, url) {
        return Tab.openIn(tab.context, url);
    }

    static async openIn(context, url, { width = 1280, height = 800, dark = false } = {}) {
        const tab = new Tab();
        tab.context = context;
        tab.page = await tab.context.newPage();
        const { page } = tab;
        page.on("pageerror", (error) => tab.troubles.push(String(error)));
        page.on("console", (message) => {
            if (["error", "warn"].includes(message.type())) {
                tab.troubles.push(`${message.text()} (${message.location().url ?? ""})`);
            }
        });
        page.on("request", (request) => {
            const isOwn = request.url().startsWith(url) || /^(data|blob):/.test(request.url());
            isOwn || tab.troubles.push(`asked for ${request.url()}`);
        });
        await serveFolder(page, url);
        await page.setViewport({ width, height });
        await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }]);
        await page.evaluateOnNewDocument(watchShifts);
        await page.evaluateOnNewDocument(becomeDeaf);
        await page.goto(url, { waitUntil: "networkidle2" });
        await tab.until(() => !document.querySelector("#room").textContent.startsWith("\u00a0"), "the server's state");
        return tab;
    }

    async close() {
        await this.context.close();
    }

    /** Waits until `fact`, a function of the page, holds. */
    async until(fact, what, timeout_ms = 30_000, ...values) {
        try {
            await this.page.waitForFunction(fact, { timeout: timeout_ms, polling: 50 }, ...values);
        } catch (error) {
            const seen = await this.page.evaluate(() => document.body.innerText.slice(0, 1500));
            throw new Error(`${what} did not come within ${timeout_ms} ms (${error.message}); the page shows:\n${seen}`);
        }
    }

    text(selector) {
        return this.page.$eval(selector, (node) => node.textContent);
    }

    /** Drops files on the page, `[name, bytes]`, as a mouse would. */
    async drop(...files) {
        const packed = files.map(([name, bytes]) => [name, Buffer.from(bytes).toString("base64")]);
        await this.page.evaluate((packed) => {
            const transfer = new DataTransfer();
            for (const [name, base64] of packed) {
                const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
                transfer.items.add(new File([bytes], name));
            }
            for (const type of ["dragenter", "dragover", "drop"]) {
                document.querySelector("#messages").dispatchEvent(
                    new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true }),
                );
            }
        }, packed);
    }

    /** Waits for `count` documents whose tokens are counted. */
    async documents(count) {
        const ready = (count) => document.querySelectorAll("#composer-documents button.document:not(:disabled)").length === count;
        await this.until(ready, `${count} documents`, 30_000, count);
    }

    /** The text of the n-th document before the composer, as the dialog shows it. */
    async textOfDocument(number = 0) {
        const chips = await this.page.$$("#composer-documents button.document");
        await chips[number].click();
        await this.until(() => document.querySelector("#text-dialog").open, "the text of the document");
        const text = await this.text("#text-body");
        await this.page.keyboard.press("Escape");
        return text;
    }

    async ask(text) {
        await this.page.focus("#question");
        await this.page.keyboard.type(text);
        await this.page.keyboard.press("Enter");
    }

    /** Waits until the last answer is in one of these states. */
    async state(states, timeout_ms = 120_000) {
        const isThere = (states) => states.includes([...document.querySelectorAll(".answer")].at(-1)?.dataset.state);
        await this.until(isThere, `an answer that is ${states}`, timeout_ms, states);
    }

    /** The last answer: its text, the line above it and its error. */
    answer() {
        return this.page.evaluate(() => {
            const answer = [...document.querySelectorAll(".answer")].at(-1);
            const text = (selector) => answer.querySelector(selector).textContent;
            return { text: text(".text"), summary: text("summary"), error: text(".error"), state: answer.dataset.state };
        });
    }

    /** What the page keeps of the open conversation's last answer, once that is what it shows. */
    async kept() {
        const handle = await this.page.waitForFunction(async () => {
            const { readOne } = await import("/web/conversation-store.js");
            const { header, messages } = await readOne(sessionStorage.getItem("riffle.open"));
            const answer = messages.find(({ id }) => id === header.leaf);
            return answer.state === [...document.querySelectorAll(".answer")].at(-1).dataset.state && answer;
        });
        return handle.jsonValue();
    }

    /** Presses the button of the last answer that has this text. */
    press(text) {
        return this.page.evaluate((text) => [...document.querySelectorAll(".answer button")].findLast((made) => made.textContent === text && !made.hidden).click(), text);
    }

    async picture(name) {
        const bytes = await this.page.screenshot({ type: "png", optimizeForSpeed: false });
        writeFileSync(join(pictures, `${name}.png`), bytes);
    }

    /** Fails on anything that axe finds wrong. */
    async accessible(where) {
        await this.page.evaluate(axe);
        const found = await this.page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
        const lines = found.violations.map(({ id, impact, nodes }) => `${impact} ${id}: ${nodes.map((node) => node.html).join(" ; ").slice(0, 400)}`);
        expect(lines.length === 0, `${where}: axe finds\n${lines.join("\n")}`);
    }

    /** How much has moved without the user doing anything. */
    shifts() {
        return this.page.evaluate(() => window.shifts);
    }

    /** Fails if the page is wider than its window. */
    async fits(where) {
        const wide = await this.page.evaluate(() => {
            // Code, tables and lines that end in dots scroll or are cut inside their own frame.
            const isFramed = (node) => node.parentElement.closest("pre, .table") || getComputedStyle(node.parentElement).overflowX === "hidden";
            const nodes = [...document.querySelectorAll("main *")].filter((node) => !isFramed(node));
            const found = nodes.filter((node) => node.getBoundingClientRect().right > innerWidth + 0.5).map((node) => node.outerHTML.slice(0, 100));
            return document.documentElement.scrollWidth > innerWidth ? [...found, "the page"] : found;
        });
        expect(wide.length === 0, `${where}: too wide is\n${wide.join("\n")}`);
    }
}

/** Serves the files of the folder RIFFLE_WEB_FOLDER in place of those compiled into the program, with the program's headers. */
async function serveFolder(page, url) {
    const folder = process.env.RIFFLE_WEB_FOLDER;
    if (!folder) {
        return;
    }
    await page.setRequestInterception(true);
    page.on("request", async (request) => {
        const path = new URL(request.url()).pathname;
        const name = path === "/" ? "index.html" : /^\/web\/([\w.-]+)$/.exec(path)?.[1];
        if (request.method() !== "GET" || !name || !request.url().startsWith(url)) {
            await request.continue();
            return;
        }
        const { headers } = await fetch(url, { headers: { accept: "text/html" } });
        const kind = { html: "text/html", css: "text/css", js: "text/javascript", svg: "image/svg+xml" }[name.split(".").at(-1)];
        await request.respond({ headers: { ...Object.fromEntries(headers), "content-type": kind }, body: readFileSync(join(folder, name)) });
    });
}

/** A tab whose `isDeaf` is set does not hear what others keep. */
function becomeDeaf() {
    const stop = (event) => window.isDeaf && event.stopImmediatePropagation();
    addEventListener("storage", stop, true);
    window.BroadcastChannel = class extends BroadcastChannel {
        constructor(name) {
            super(name);
            this.addEventListener("message", stop);
        }
    };
}

function watchShifts() {
    window.shifts = 0;
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) {
            window.shifts += entry.hadRecentInput ? 0 : entry.value;
        }
    }).observe({ type: "layout-shift", buffered: true });
}

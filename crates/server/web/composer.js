// The form for questions and their documents.

import { afterPause } from "./clock.js";
import { newId, tokensOf } from "./conversations.js";
import { isDialogOpen } from "./dialogs.js";
import { readDocument } from "./documents.js";
import { announce, button, byId, element, notify, setText } from "./elements.js";
import { bytes, count, countOf } from "./numbers.js";
import { tokenize } from "./server.js";
import { serverState } from "./server-state.js";

const TALLEST_PX = 220;

/** A second press of the button is no wish to stop what the first one sent. */
const DOUBLE_PRESS_MS = 400;

/** The composer. `actions` are {send(text, documents), stop(), openDocument(document, text)}; `current()` is the conversation. */
export class Composer {
    #field = byId("question");
    #button = byId("send");
    #documents = [];
    #actions;
    #current;
    #isBusy = false;
    #sentAt = 0;
    /** Tokens of the question, and its length when they were counted. */
    #questionTokens = 0;
    #countSoon = afterPause(() => this.#countQuestion(), 400);
    /** Grows with each conversation that is opened: what was begun for another is dropped. */
    #turn = 0;

    constructor(current, actions) {
        this.#current = current;
        this.#actions = actions;
        this.#listen();
        this.#listenToDrops();
        this.refresh();
    }

    /** Shows that an answer is under way, or that none is. */
    setBusy(isBusy) {
        this.#isBusy = isBusy;
        setText(this.#button, isBusy ? "Stop" : "Send");
        this.#button.classList.toggle("stop", isBusy);
        this.refresh();
    }

    /** Empties it, for another conversation. */
    clear() {
        this.#turn += 1;
        this.#documents = [];
        this.#setText("");
        this.refresh();
    }

    focus() {
        this.#field.focus();
    }

    /** Reads files and adds their texts. */
    async add(files) {
        const turn = this.#turn;
        for (const file of files) {
            const document = { id: newId(), name: file.name, kind: "", note: "", tokens: null, text: "", line: "Reading the file" };
            this.#documents.push(document);
            this.refresh();
            try {
                await this.#read(document, file);
                announce(`${document.name} added, ${countOf(document.tokens, "token")}`);
            } catch (error) {
                this.#documents = this.#documents.filter((other) => other !== document);
                if (turn === this.#turn) {
                    notify(error.message);
                }
            }
            this.refresh();
        }
    }

    async #read(document, file) {
        notify("");
        const show = (line) => {
            document.line = line;
            this.refresh();
        };
        const found = await readDocument(file, show);
        const most = serverState.status?.body_bytes ?? Infinity;
        if (found.text.length > most) {
            throw new Error(`${file.name} has a text of ${bytes(found.text.length)}, and the server takes ${bytes(most)} at most.`);
        }
        show("Counting tokens");
        const { count: tokens, max_model_len: context } = await tokenize(found.text);
        const taken = this.#taken();
        if (taken + tokens >= context) {
            const rest = taken > 0 ? `, of which ${count(taken)} are taken` : "";
            throw new Error(
                `${file.name} has ${count(tokens)} tokens. The context holds ${count(context)}${rest}. Add a shorter document, or a part of it.`,
            );
        }
        Object.assign(document, found, { tokens, line: "" });
    }

    /** Shows everything anew. */
    refresh() {
        byId("composer-documents").replaceChildren(...this.#documents.map((document) => this.#chip(document)));
        const isReady = this.#documents.every((document) => document.tokens !== null);
        const isEmpty = !this.#field.value.trim() && this.#documents.length === 0;
        // The button stays in the tab order, and a press too early shows the reason.
        this.#button.setAttribute("aria-disabled", String(!this.#isBusy && (!isReady || isEmpty)));
        this.showRoom();
    }

    #chip(document) {
        const details = document.line || [document.kind, countOf(document.tokens, "token"), document.note].filter(Boolean).join(" · ");
        const open = button("", () => this.#actions.openDocument(document, document.text), { class: "document" });
        open.disabled = document.tokens === null;
        open.append(element("span", { class: "document-name" }, document.name), element("span", { class: "document-size" }, details));
        const remove = button("", () => this.#remove(document), { class: "icon delete", "aria-label": `Leave out ${document.name}` });
        return element("li", {}, open, remove);
    }

    #remove(document) {
        this.#documents = this.#documents.filter((other) => other !== document);
        announce(`${document.name} left out`);
        this.refresh();
        this.focus();
    }

    /** Tokens of the conversation with what is about to be asked. */
    #taken() {
        const documents = this.#documents.reduce((sum, document) => sum + (document.tokens ?? 0), 0);
        return tokensOf(this.#current()).tokens + documents + this.#questionTokens;
    }

    /** Shows how much of the context is taken. */
    showRoom() {
        const context = serverState.status?.context_tokens;
        const taken = this.#taken();
        const { isGuess } = tokensOf(this.#current());
        const line = context ? `${isGuess ? "about " : ""}${count(taken)} of ${count(context)} tokens` : "\u00a0";
        setText(byId("room"), line);
        byId("room-meter").value = context ? Math.min(1, taken / context) : 0;
        byId("composer").classList.toggle("is-full", Boolean(context) && taken >= context);
    }

    async #countQuestion() {
        const text = this.#field.value;
        try {
            const { count: tokens } = text ? await tokenize(text) : { count: 0 };
            if (text === this.#field.value) {
                this.#questionTokens = tokens;
                this.showRoom();
            }
        } catch {
            // The guess stays.
        }
    }

    #setText(text) {
        this.#field.value = text;
        this.#typed();
    }

    #typed() {
        this.#questionTokens = Math.ceil(this.#field.value.length / 3);
        this.#field.style.height = "auto";
        this.#field.style.height = `${Math.min(this.#field.scrollHeight, TALLEST_PX)}px`;
        if (this.#field.value) {
            this.#countSoon();
        }
        this.refresh();
    }

    #submit() {
        const text = this.#field.value.trim();
        const documents = this.#documents;
        const context = serverState.status?.context_tokens ?? Infinity;
        if (this.#isBusy) {
            announce("An answer is under way. Press Escape to stop it.");
        } else if (documents.some((document) => document.tokens === null)) {
            notify("A document is still being read. Send the question when it is done.");
        } else if (!text && documents.length === 0) {
            this.focus();
        } else if (this.#taken() >= context) {
            notify(`This needs about ${count(this.#taken())} tokens, and the context holds ${count(context)}. Leave something out, or begin a new conversation.`);
        } else {
            notify("");
            this.#sentAt = Date.now();
            this.#documents = [];
            this.#setText("");
            this.#actions.send(text, documents);
        }
    }

    #stop() {
        if (this.#isBusy && Date.now() - this.#sentAt > DOUBLE_PRESS_MS) {
            this.#actions.stop();
            this.focus();
        }
    }

    #listen() {
        byId("composer").addEventListener("submit", (event) => {
            event.preventDefault();
            this.#isBusy ? this.#stop() : this.#submit();
        });
        this.#field.addEventListener("input", () => this.#typed());
        this.#field.addEventListener("keydown", (event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
                event.preventDefault();
                this.#submit();
            }
        });
        document.addEventListener("keydown", (event) => {
            if (event.key === "Escape" && this.#isBusy && !isDialogOpen()) {
                event.preventDefault();
                this.#actions.stop();
            }
        });
        const chooser = byId("files");
        for (const id of ["attach", "attach-first"]) {
            byId(id).addEventListener("click", () => chooser.click());
        }
        chooser.addEventListener("change", () => {
            this.add([...chooser.files]);
            chooser.value = "";
        });
        this.#field.addEventListener("paste", (event) => {
            if (event.clipboardData.files.length > 0) {
                event.preventDefault();
                this.add([...event.clipboardData.files]);
            }
        });
    }

    #listenToDrops() {
        const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
        let depth = 0;
        const mark = (change) => {
            depth = Math.max(0, depth + change);
            document.body.classList.toggle("is-dropping", depth > 0);
        };
        addEventListener("dragenter", (event) => hasFiles(event) && mark(1));
        addEventListener("dragleave", (event) => hasFiles(event) && mark(-1));
        addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
        addEventListener("drop", (event) => {
            if (hasFiles(event)) {
                event.preventDefault();
                mark(-depth);
                this.add([...event.dataTransfer.files]);
            }
        });
    }
}

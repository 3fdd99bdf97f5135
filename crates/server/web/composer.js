// The form for questions and their documents.

import { afterPause } from "./clock.js";
import { tokensOf } from "./conversations.js";
import { isDialogOpen } from "./dialogs.js";
import { chosenFiles, droppedFiles } from "./documents.js";
import { DocumentTray } from "./document-tray.js";
import { announce, byId, notify, setText } from "./elements.js";
import { count } from "./numbers.js";
import { tokenize } from "./server.js";
import { serverState } from "./server-state.js";

const TALLEST_PX = 220;

/** A second press within this time does not stop the answer. */
const DOUBLE_PRESS_MS = 400;

/** Longer pasted texts become documents. */
const LONGEST_PASTE = 8000;

const DRAFT = "riffle.draft";

/**
 * The composer. `actions` are {send(text, documents), stop(), openDocument(document), refusal()}. `current()` is the
 * conversation.
 */
export class Composer {
    #field = byId("question");
    #button = byId("send");
    #tray;
    #actions;
    #current;
    #isBusy = false;
    #sentAt = 0;
    /** Tokens of the question, and its length when they were counted. */
    #questionTokens = 0;
    #countSoon = afterPause(() => this.#countQuestion(), 400);

    constructor(current, actions) {
        this.#current = current;
        this.#actions = actions;
        const { openDocument } = actions;
        this.#tray = new DocumentTray(current, () => this.#taken(), { changed: () => this.refresh(), openDocument });
        this.#listen();
        this.#listenToFiles();
        this.#setText(sessionStorage.getItem(DRAFT) ?? "");
    }

    /** Shows if an answer is being written. */
    setBusy(isBusy) {
        this.#isBusy = isBusy;
        setText(this.#button, isBusy ? "Stop" : "Send");
        this.#button.classList.toggle("stop", isBusy);
        this.refresh();
    }

    /** Empties it, for another conversation. */
    clear() {
        this.#tray.clear();
        this.#setText("");
    }

    focus() {
        this.#field.focus();
    }

    /** Updates all parts. */
    refresh() {
        const isEmpty = !this.#field.value.trim() && this.#tray.isEmpty;
        // The button stays in the tab order. A press before it is ready shows the reason.
        this.#button.setAttribute("aria-disabled", String(!this.#isBusy && (!this.#tray.isReady || isEmpty)));
        this.showRoom();
    }

    /** Tokens of the conversation with the next question. */
    #taken() {
        return tokensOf(this.#current()).tokens + this.#tray.tokens + this.#questionTokens;
    }

    /** Shows the used part of the context. */
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
        sessionStorage.setItem(DRAFT, this.#field.value);
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
        const context = serverState.status?.context_tokens ?? Infinity;
        const refusal = this.#actions.refusal();
        if (this.#isBusy) {
            announce("An answer is under way. Press Escape to stop it.");
        } else if (refusal) {
            notify(refusal);
        } else if (!this.#tray.isReady) {
            notify("A document is still being read. Send the question when it is done.");
        } else if (!text && this.#tray.isEmpty) {
            this.focus();
        } else if (this.#taken() >= context) {
            notify(`This needs about ${count(this.#taken())} tokens, and the context holds ${count(context)}. Leave something out, or begin a new conversation.`);
        } else if (this.#tray.takeRefused()) {
            // Without the document the model would invent the answer.
            notify("The document was not added. Send again to ask without it.");
        } else {
            notify("");
            this.#sentAt = Date.now();
            const documents = this.#tray.take();
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

    /** Puts the latest question into an empty field. */
    #recall() {
        const latest = this.#current().messages.findLast(({ role }) => role === "user");
        if (latest?.text) {
            this.#setText(latest.text);
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
            } else if (event.key === "ArrowUp" && !this.#field.value) {
                event.preventDefault();
                this.#recall();
            }
        });
        document.addEventListener("keydown", (event) => {
            if (event.key === "Escape" && this.#isBusy && !isDialogOpen()) {
                event.preventDefault();
                this.#actions.stop();
            }
        });
        this.#field.addEventListener("paste", (event) => {
            const { files } = event.clipboardData;
            const text = event.clipboardData.getData("text/plain");
            if (files.length > 0) {
                event.preventDefault();
                this.#tray.add(chosenFiles(files));
            } else if (text.length > LONGEST_PASTE) {
                event.preventDefault();
                this.#tray.add([{ file: new Blob([text]), name: "Pasted text.txt" }]);
            }
        });
    }

    #listenToFiles() {
        for (const [ids, chooser] of [
            [["attach", "attach-first"], byId("files")],
            [["attach-folder"], byId("folder")],
        ]) {
            for (const id of ids) {
                byId(id).addEventListener("click", () => chooser.click());
            }
            chooser.addEventListener("change", () => {
                this.#tray.add(chosenFiles(chooser.files));
                chooser.value = "";
            });
        }
        const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
        let depth = 0;
        const mark = (change) => {
            depth = Math.max(0, depth + change);
            document.body.classList.toggle("is-dropping", depth > 0);
        };
        addEventListener("dragenter", (event) => hasFiles(event) && mark(1));
        addEventListener("dragleave", (event) => hasFiles(event) && mark(-1));
        addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
        addEventListener("drop", async (event) => {
            if (hasFiles(event)) {
                event.preventDefault();
                mark(-depth);
                try {
                    this.#tray.add(await droppedFiles(event.dataTransfer));
                } catch (error) {
                    notify(error.message);
                }
            }
        });
    }
}

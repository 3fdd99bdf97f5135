// The view of a question, and its editor.

import { BranchSwitch } from "./branches.js";
import { button, copyText, element } from "./elements.js";
import { countOf } from "./numbers.js";

/** A question. `actions` are {openDocument, edit(message, text), goTo(message)}. */
export class QuestionView {
    #message;
    #actions;
    #switch;
    #text;
    #buttons;
    #form = null;

    constructor(message, actions) {
        this.#message = message;
        this.#actions = actions;
        this.#switch = new BranchSwitch("question", actions.goTo);
        this.#text = element("p", { class: "question-text", hidden: !message.text }, message.text);
        const copy = button("Copy", () => copyText(message.text, copy), { class: "quiet", "aria-label": "Copy the question", hidden: !message.text });
        const edit = button("Edit", () => this.#edit(), { class: "quiet", "aria-label": "Edit the question" });
        this.#buttons = element("div", { class: "actions" }, this.#switch.root, copy, edit);
        const documents = message.documents.map((document) => documentLine(document, actions));
        this.root = element(
            "li",
            { class: "question" },
            element("h2", { class: "for-readers" }, "You asked"),
            documents.length > 0 ? element("ul", { class: "documents", "aria-label": "Documents" }, ...documents) : null,
            this.#text,
            this.#buttons,
        );
    }

    update(conversation) {
        this.#switch.update(conversation, this.#message);
    }

    /** Shows a field in place of the text. The old question stays as a branch. */
    #edit() {
        if (this.#form) {
            return;
        }
        const field = element("textarea", { value: this.#message.text, rows: 3, "aria-label": "The question" });
        const end = () => {
            this.#form.remove();
            this.#form = null;
            this.#text.hidden = !this.#message.text;
            this.#buttons.hidden = false;
        };
        const send = () => {
            const text = field.value.trim();
            end();
            if (text !== this.#message.text && (text || this.#message.documents.length > 0)) {
                this.#actions.edit(this.#message, text);
            }
        };
        this.#form = element(
            "form",
            { class: "edit", "aria-label": "Edit the question" },
            field,
            element("div", { class: "dialog-buttons" }, element("button", { type: "submit", class: "main-button" }, "Ask this"), button("Cancel", end)),
        );
        this.#form.addEventListener("submit", (event) => {
            event.preventDefault();
            send();
        });
        field.addEventListener("keydown", (event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
                event.preventDefault();
                send();
            } else if (event.key === "Escape") {
                event.stopPropagation();
                end();
            }
        });
        this.#text.hidden = true;
        this.#buttons.hidden = true;
        this.root.append(this.#form);
        field.focus();
    }
}

function documentLine(document, actions) {
    const name = element("span", { class: "document-name" }, document.name);
    const details = [document.kind, countOf(document.tokens, "token"), document.note].filter(Boolean).join(" · ");
    const open = button("", () => actions.openDocument(document), { class: "document" });
    open.append(name, element("span", { class: "document-size" }, details));
    return element("li", {}, open);
}

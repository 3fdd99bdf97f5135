// The passages behind an answer, each with its place in the document.

import { isUnderWay } from "./conversations.js";
import { keptDocument } from "./document-texts.js";
import { button, element } from "./elements.js";
import { passagesFor } from "./passages.js";

/** Maximum number of shown characters of a passage. */
const SHOWN = 280;

/** The passages of one answer. `open(document, start, end)` shows a document at a range of its text. */
export class PassagesView {
    root = element("details", { class: "passages", hidden: true });
    #open;
    /** Length of the answer that the shown passages belong to. */
    #shownFor = -1;

    constructor(open) {
        this.#open = open;
    }

    /** Looks for passages once the answer is complete. */
    async update(conversation, answer) {
        if (isUnderWay(answer) || !answer.text || this.#shownFor === answer.text.length) {
            return;
        }
        this.#shownFor = answer.text.length;
        const before = conversation.messages.slice(0, conversation.messages.indexOf(answer));
        const named = before.flatMap((message) => message.documents ?? []);
        const question = before.at(-1)?.text ?? "";
        const kept = await Promise.allSettled(named.map(({ id }) => keptDocument(id)));
        const found = named.map((document, at) => ({ ...document, ...kept[at].value })).filter(({ text }) => text);
        const passages = passagesFor(found, question, answer.text);
        this.root.hidden = passages.length === 0;
        const places = [...new Set(passages.map(({ place }) => place.split(",")[0]).filter(Boolean))].join(", ");
        const summary = element("summary", {}, places ? `Passages with words of this answer: ${places}` : "Passages with words of this answer");
        this.root.replaceChildren(summary, element("ol", {}, ...passages.map((passage) => this.#line(found, passage))));
    }

    #line(documents, { document, start, end, best, place }) {
        const { name, text } = documents[document];
        const whole = text.slice(start, end).trim().replace(/\s+/g, " ");
        // A long passage is quoted from its best sentence on.
        const words = whole.length > SHOWN ? text.slice(best, end).trim().replace(/\s+/g, " ") : whole;
        const cut = words.length > SHOWN ? `${words.slice(0, SHOWN).replace(/\s\S*$/, "")} …` : words;
        const quotation = words.length < whole.length && best > start ? `… ${cut}` : cut;
        const where = [documents.length > 1 || !place ? name : "", place].filter(Boolean).join(", ");
        const open = button(where, () => this.#open(documents[document], start, end), { class: "quiet" });
        return element("li", {}, open, element("blockquote", {}, quotation));
    }
}

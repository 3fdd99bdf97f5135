// The messages of a conversation, as one sees them.

import { isUnderWay } from "./conversations.js";
import { button, byId, copyText, element, setText } from "./elements.js";
import { showMarkdown } from "./markdown.js";
import { countOf } from "./numbers.js";
import { detailsOf, shareRead, summaryOf } from "./report.js";

/** How near to the end, in pixels, a view has to be that follows what is written. */
const NEAR_END_PX = 60;

/** The list of messages. `actions` are {resume, again, openDocument}, functions of a message or a document. */
export class MessageList {
    #root = byId("messages");
    #list = byId("message-list");
    #empty = byId("empty");
    #views = new Map();
    #actions;
    #follows = true;

    constructor(actions) {
        this.#actions = actions;
        this.#root.addEventListener("scroll", () => {
            const { scrollHeight, scrollTop, clientHeight } = this.#root;
            this.#follows = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
        });
        new ResizeObserver(() => this.#follow()).observe(this.#list);
    }

    /** Shows a conversation from its end. */
    show(conversation) {
        this.#views.clear();
        this.#follows = true;
        this.#list.replaceChildren();
        this.update(conversation);
        this.#root.scrollTop = this.#root.scrollHeight;
    }

    /** Shows what is new. */
    update(conversation) {
        const { messages } = conversation;
        this.#empty.hidden = messages.length > 0;
        this.#list.hidden = messages.length === 0;
        for (const message of messages) {
            if (!this.#views.has(message)) {
                const isUsers = message.role === "user";
                const view = isUsers ? questionView(message, this.#actions) : new AnswerView(message, this.#actions);
                this.#views.set(message, view);
                this.#list.append(isUsers ? view : view.root);
            }
        }
        for (const [message, view] of this.#views) {
            if (view instanceof AnswerView) {
                view.update(message === messages.at(-1));
            }
        }
        this.#follow();
    }

    /** Goes to the end, and stays there. */
    toEnd() {
        this.#follows = true;
        this.#follow();
    }

    #follow() {
        if (this.#follows) {
            this.#root.scrollTop = this.#root.scrollHeight;
        }
    }
}

function questionView(message, actions) {
    const documents = message.documents.map((document) => {
        const name = element("span", { class: "document-name" }, document.name);
        const details = [document.kind, countOf(document.tokens, "token"), document.note].filter(Boolean).join(" · ");
        const open = button("", () => actions.openDocument(document), { class: "document" });
        open.append(name, element("span", { class: "document-size" }, details));
        return element("li", {}, open);
    });
    return element(
        "li",
        { class: "question" },
        element("h2", { class: "for-readers" }, "You asked"),
        documents.length > 0 ? element("ul", { class: "documents", "aria-label": "Documents" }, ...documents) : null,
        message.text ? element("p", { class: "question-text" }, message.text) : null,
    );
}

/** An answer that may still grow. */
class AnswerView {
    #answer;
    #summary = element("summary", {});
    #details = element("details", { class: "report" });
    #bar = element("progress", { max: 1, "aria-label": "Share of the prompt that is read" });
    #thought = element("details", { class: "thought", hidden: true });
    #thoughtText = element("p", {});
    #text = element("div", { class: "text" });
    #error = element("p", { class: "error", hidden: true });
    #buttons;

    constructor(answer, actions) {
        this.#answer = answer;
        this.#details.append(this.#summary);
        // An answer without a report has no details to open.
        this.#summary.addEventListener("click", (event) => {
            if (!answer.report) {
                event.preventDefault();
            }
        });
        this.#thought.append(element("summary", {}, "Thoughts"), this.#thoughtText);
        this.#buttons = {
            resume: button("Resume", () => actions.resume(answer)),
            copy: button("Copy", () => copyText(answer.text, this.#buttons.copy), { "aria-label": "Copy the answer" }),
            again: button("Answer again", () => actions.again(answer)),
        };
        this.root = element(
            "li",
            { class: "answer" },
            element("h2", { class: "for-readers" }, "Answer"),
            element("div", { class: "head" }, this.#details, this.#bar),
            this.#thought,
            this.#text,
            this.#error,
            element("div", { class: "actions" }, ...Object.values(this.#buttons)),
        );
    }

    update(isLast) {
        const answer = this.#answer;
        setText(this.#summary, summaryOf(answer));
        this.root.dataset.state = answer.state;
        this.#details.classList.toggle("is-known", Boolean(answer.report));
        this.#showReport();
        this.#showBar();
        this.#thought.hidden = !answer.thought;
        setText(this.#thoughtText, answer.thought);
        showMarkdown(this.#text, answer.text);
        this.#error.hidden = !answer.error;
        setText(this.#error, answer.error);
        this.#showButtons(isLast);
    }

    #showReport() {
        const { report } = this.#answer;
        if (this.#details.report === report) {
            return;
        }
        this.#details.report = report;
        this.#details.replaceChildren(this.#summary, ...(report ? [detailsOf(this.#answer)] : []));
        this.#details.open &&= Boolean(report);
    }

    #showBar() {
        const read = shareRead(this.#answer);
        // The bar keeps its place, so that nothing moves when it goes.
        this.#bar.classList.toggle("is-hidden", read === null);
        this.#bar.value = read ?? 0;
    }

    #showButtons(isLast) {
        const answer = this.#answer;
        const isOver = !isUnderWay(answer);
        const isShort = answer.state === "stopped" || answer.state === "failed" || answer.isCut;
        const { resume, copy, again } = this.#buttons;
        setText(resume, answer.state === "failed" ? "Try again" : answer.state === "stopped" ? "Resume" : "Go on");
        resume.hidden = !(isOver && isLast && isShort);
        copy.hidden = !(isOver && answer.text);
        again.hidden = !(isOver && isLast && answer.text);
    }
}

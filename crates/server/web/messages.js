// The view of a conversation's messages.

import { isRunning } from "./answers.js";
import { BranchSwitch } from "./branches.js";
import { isUnderWay } from "./conversations.js";
import { button, byId, copyText, element, setText } from "./elements.js";
import { showMarkdown } from "./markdown.js";
import { PassagesView } from "./passages-view.js";
import { QuestionView } from "./question-view.js";
import { detailsOf, shareRead, summaryOf } from "./report.js";

/** A view within this distance of the end, in pixels, follows new text. */
const NEAR_END_PX = 60;

/**
 * The list of messages. `actions` are {goOn, again, edit, goTo, openDocument, openPassage}, functions of a message or a
 * document.
 */
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

    /** Shows the changes. */
    update(conversation) {
        const { messages } = conversation;
        this.#empty.hidden = messages.length > 0;
        this.#list.hidden = messages.length === 0;
        for (const [message, view] of this.#views) {
            if (!messages.includes(message)) {
                view.root.remove();
                this.#views.delete(message);
            }
        }
        for (const message of messages) {
            if (!this.#views.has(message)) {
                const View = message.role === "user" ? QuestionView : AnswerView;
                this.#views.set(message, new View(message, this.#actions));
                this.#list.append(this.#views.get(message).root);
            }
            this.#views.get(message).update(conversation, message === messages.at(-1));
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
    #switch;
    #passages;

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
        this.#switch = new BranchSwitch("answer", actions.goTo);
        this.#passages = new PassagesView(actions.openPassage);
        this.#buttons = {
            goOn: button("Go on", () => actions.goOn(answer)),
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
            this.#passages.root,
            element("div", { class: "actions" }, this.#switch.root, ...Object.values(this.#buttons)),
        );
    }

    update(conversation, isLast) {
        const answer = this.#answer;
        const isElsewhere = isUnderWay(answer) && !isRunning(conversation);
        setText(this.#summary, isElsewhere ? "Another tab has this answer written" : summaryOf(answer));
        this.root.dataset.state = answer.state;
        this.#details.classList.toggle("is-known", Boolean(answer.report));
        this.#showReport();
        this.#showBar();
        this.#thought.hidden = !answer.thought;
        setText(this.#thoughtText, answer.thought);
        showMarkdown(this.#text, answer.text);
        this.#error.hidden = !answer.error;
        setText(this.#error, answer.error);
        this.#switch.update(conversation, answer);
        this.#passages.update(conversation, answer);
        this.#showButtons(isLast, isRunning(conversation));
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
        // The hidden bar keeps its place, so that nothing moves.
        this.#bar.classList.toggle("is-hidden", read === null);
        this.#bar.value = read ?? 0;
    }

    #showButtons(isLast, isBusy) {
        const answer = this.#answer;
        const isOver = !isUnderWay(answer);
        const isShort = answer.state === "stopped" || answer.state === "failed" || answer.isCut;
        const { goOn, copy, again } = this.#buttons;
        goOn.hidden = !(isOver && isLast && isShort);
        copy.hidden = !(isOver && answer.text);
        again.hidden = !(isOver && !isBusy && answer.text);
    }
}

// The switch between alternatives: edited questions, and repeated answers.

import { alternatives } from "./conversations.js";
import { button, element, setText } from "./elements.js";

/** "‹ 1 of 2 ›" for a message; hidden if it has no alternative. `go(message)` shows another. */
export class BranchSwitch {
    #what;
    #go;
    #all = [];
    #place = 0;
    #line = element("span", { class: "branch-line" });
    #before;
    #next;

    constructor(what, go) {
        this.#what = what;
        this.#go = go;
        this.#before = button("", () => this.#step(-1), { class: "icon before", "aria-label": `The ${what} before`, title: `The ${what} before` });
        this.#next = button("", () => this.#step(1), { class: "icon next", "aria-label": `The next ${what}`, title: `The next ${what}` });
        this.root = element("span", { class: "branches", role: "group", "aria-label": `Alternatives of this ${what}` }, this.#before, this.#line, this.#next);
    }

    update(conversation, message) {
        this.#all = alternatives(conversation, message);
        this.#place = this.#all.indexOf(message);
        this.root.hidden = this.#all.length < 2;
        setText(this.#line, `${this.#place + 1} of ${this.#all.length}`);
        this.#before.disabled = this.#place <= 0;
        this.#next.disabled = this.#place >= this.#all.length - 1;
    }

    #step(by) {
        const message = this.#all[this.#place + by];
        if (message) {
            this.#go(message);
        }
    }
}

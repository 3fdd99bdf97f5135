// Markdown inside a line: code, emphasis, links.

import { element } from "./elements.js";
import { formula } from "./math.js";

/** Deepest nesting of emphasis and links; deeper ones stay text. */
const DEPTH = 8;

const MARKS = [
    ["**", "strong"],
    ["__", "strong"],
    ["~~", "del"],
    ["*", "em"],
    ["_", "em"],
];

/** Marks around formulas: the first, the last, and true if the formula gets its own line. */
const MATH_MARKS = [
    ["$$", "$$", true],
    ["$", "$", false],
    ["\\(", "\\)", false],
    ["\\[", "\\]", true],
];

/** Nodes of a line of Markdown. Only nodes that are built here become markup. */
export function inline(text, depth = 0) {
    const reader = new Reader(text, depth);
    return reader.read();
}

/** The address of a link, if its kind is safe to follow. */
export function safeAddress(address) {
    try {
        const url = new URL(address);
        return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
    } catch {
        return null;
    }
}

class Reader {
    #text;
    #depth;
    #nodes = [];
    #plain = "";
    #place = 0;
    /** End marks that the rest of the text lacks, so that no search looks for them again. */
    #missing = new Set();

    constructor(text, depth) {
        this.#text = text;
        this.#depth = depth;
    }

    read() {
        while (this.#place < this.#text.length) {
            if (!this.#readMark()) {
                this.#plain += this.#text[this.#place];
                this.#place += 1;
            }
        }
        this.#flush();
        return this.#nodes;
    }

    /** Reads the mark that begins here. */
    #readMark() {
        switch (this.#text[this.#place]) {
            case "\\":
                return this.#readFormula() || this.#readEscape();
            case "$":
                return this.#readFormula();
            case "\n":
                this.#plain = this.#plain.trimEnd();
                return this.#push(element("br"), this.#place + 1);
            case "`":
                return this.#readCode();
            case "*":
            case "_":
            case "~":
                return this.#depth < DEPTH && this.#readEmphasis();
            case "!":
            case "[":
                return this.#depth < DEPTH && this.#readLink();
            case "<":
                return this.#readAngle();
            case "h":
                return this.#readAddress();
            default:
                return false;
        }
    }

    /** `$…$`, `$$…$$`, `\\(…\\)` or `\\[…\\]`. The beginning of one that has no end stays as it is written. */
    #readFormula() {
        const open = MATH_MARKS.find(([mark]) => this.#text.startsWith(mark, this.#place));
        if (!open) {
            return false;
        }
        const [mark, close, isBlock] = open;
        const start = this.#place + mark.length;
        const end = mark === "$" ? this.#endOfDollar(start) : this.#find(close, start);
        if (end > start) {
            const marked = this.#text.slice(this.#place, end + close.length);
            return this.#push(formula(this.#text.slice(start, end), isBlock, marked), end + close.length);
        }
        this.#plain += mark;
        this.#place = start;
        return true;
    }

    /**
     * End of a formula between single dollars, or -1. Prices are no formulas: a formula has no space inside its marks,
     * and no digit after the last mark.
     */
    #endOfDollar(start) {
        const text = this.#text;
        if (!/\S/.test(text[start] ?? " ")) {
            return -1;
        }
        for (let end = this.#find("$", start); end >= 0; end = this.#find("$", end + 1)) {
            if (text[end - 1] !== "\\") {
                return /\S/.test(text[end - 1]) && !/\d/.test(text[end + 1] ?? "") ? end : -1;
            }
        }
        return -1;
    }

    #readEscape() {
        const next = this.#text[this.#place + 1];
        if (!next || !/[!-/:-@[-`{-~]/.test(next)) {
            return false;
        }
        this.#plain += next;
        this.#place += 2;
        return true;
    }

    #readCode() {
        const ticks = /^`+/.exec(this.#text.slice(this.#place, this.#place + 64))[0];
        const start = this.#place + ticks.length;
        const end = this.#find(ticks, start);
        if (end < 0) {
            this.#plain += ticks;
            this.#place = start;
            return true;
        }
        const code = this.#text.slice(start, end).replace(/\n/g, " ");
        return this.#push(element("code", {}, code.trim() ? code.replace(/^ (.+) $/, "$1") : code), end + ticks.length);
    }

    #readEmphasis() {
        const text = this.#text;
        for (const [mark, tag] of MARKS) {
            if (!text.startsWith(mark, this.#place)) {
                continue;
            }
            const start = this.#place + mark.length;
            const before = text[this.#place - 1] ?? " ";
            const opens = /\S/.test(text[start] ?? " ") && !(mark.startsWith("_") && /[\p{L}\p{N}]/u.test(before));
            const end = opens ? this.#endOfEmphasis(mark, start) : -1;
            if (end > start) {
                return this.#push(element(tag, {}, ...inline(text.slice(start, end), this.#depth + 1)), end + mark.length);
            }
        }
        return false;
    }

    /** End of the emphasis that began before `start`, or -1. */
    #endOfEmphasis(mark, start) {
        const text = this.#text;
        let end = this.#find(mark, start);
        while (end >= 0) {
            const after = text[end + mark.length] ?? " ";
            const isWord = mark.startsWith("_") && /[\p{L}\p{N}]/u.test(after);
            // A single mark does not end at a double one, which belongs to another emphasis.
            const isDouble = mark.length === 1 && (after === mark || (text[end - 1] === mark && end - 1 >= start));
            if (/\S/.test(text[end - 1]) && !isWord && !isDouble) {
                return end;
            }
            end = this.#find(mark, end + (isDouble && after === mark ? 2 : 1));
        }
        return -1;
    }

    /** `[text](address)`. A picture becomes a link too: the page loads nothing from elsewhere. */
    #readLink() {
        const rest = this.#text.slice(this.#place, this.#place + 4096);
        const match = /^!?\[((?:[^[\]\\]|\\.|\[[^\]]*\])*)\]\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)/.exec(rest);
        const address = match && safeAddress(match[2]);
        if (!address) {
            return false;
        }
        const shown = match[1] ? inline(match[1], DEPTH) : [address];
        return this.#push(link(address, ...shown), this.#place + match[0].length);
    }

    /** `<https://…>` */
    #readAngle() {
        const match = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/.exec(this.#text.slice(this.#place, this.#place + 2048));
        const address = match && safeAddress(match[1]);
        return address ? this.#push(link(address, match[1]), this.#place + match[0].length) : false;
    }

    /** An address without marks. */
    #readAddress() {
        const before = this.#text[this.#place - 1] ?? " ";
        if (this.#depth >= DEPTH || /[\p{L}\p{N}]/u.test(before)) {
            return false;
        }
        const match = /^https?:\/\/[^\s<>"`]+/.exec(this.#text.slice(this.#place, this.#place + 2048));
        const shown = match?.[0].replace(/[.,:;!?'"*_~)\]]+$/, "");
        const address = shown && safeAddress(shown);
        return address ? this.#push(link(address, shown), this.#place + shown.length) : false;
    }

    #find(mark, start) {
        if (this.#missing.has(mark)) {
            return -1;
        }
        const end = this.#text.indexOf(mark, start);
        if (end < 0) {
            this.#missing.add(mark);
        }
        return end;
    }

    #push(node, place) {
        this.#flush();
        this.#nodes.push(node);
        this.#place = place;
        return true;
    }

    #flush() {
        if (this.#plain) {
            this.#nodes.push(document.createTextNode(this.#plain));
            this.#plain = "";
        }
    }
}

function link(address, ...shown) {
    return element("a", { href: address, rel: "noopener noreferrer nofollow", target: "_blank" }, ...shown);
}

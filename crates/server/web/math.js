// LaTeX formulas as MathML. Unknown parts are shown as they were written.

import { ACCENTS, ALPHABETS, DELIMITERS, FENCES, FUNCTIONS, LARGE, OPERATORS, SPACES, styledLetter, SYMBOLS } from "./math-symbols.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";

/** Deepest nesting of groups, and longest formula. */
const DEPTH = 40;
const LONGEST = 8000;

/**
 * A formula: `<math>` with its source, or the source as code if it cannot be drawn. `marked` is the source with its
 * marks.
 */
export function formula(source, isBlock, marked) {
    try {
        const row = new Parser(source, isBlock).whole();
        const note = made("annotation", { encoding: "application/x-tex" }, source);
        return made("math", isBlock ? { display: "block" } : {}, made("semantics", {}, row, note));
    } catch {
        const code = document.createElement("code");
        code.className = isBlock ? "formula-source is-block" : "formula-source";
        code.textContent = marked;
        return code;
    }
}

function made(tag, attributes, ...children) {
    const node = document.createElementNS(MATHML, tag);
    for (const [name, value] of Object.entries(attributes)) {
        node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
}

const row = (nodes) => (nodes.length === 1 ? nodes[0] : made("mrow", {}, ...nodes));
const operator = (text, attributes = {}) => made("mo", attributes, text);

class Parser {
    #tokens;
    #place = 0;
    #depth = 0;
    #isBlock;
    #alphabet = null;

    constructor(source, isBlock) {
        if (source.length > LONGEST) {
            throw new Error("too long");
        }
        this.#tokens = source.replace(/(?<!\\)%.*$/gm, "").match(/\\(?:[A-Za-z]+\*?|[^])|\d+(?:[.,]\d+)*|[^]/gu) ?? [];
        this.#isBlock = isBlock;
    }

    whole() {
        const nodes = this.#rows(() => this.#place >= this.#tokens.length, "right left");
        if (this.#place < this.#tokens.length) {
            throw new Error("a part is left");
        }
        return nodes;
    }

    #skipSpace() {
        while (/^\s$/.test(this.#tokens[this.#place] ?? "")) {
            this.#place += 1;
        }
    }

    #peek() {
        this.#skipSpace();
        return this.#tokens[this.#place];
    }

    #next() {
        const token = this.#peek();
        if (token === undefined) {
            throw new Error("the formula ends too soon");
        }
        this.#place += 1;
        return token;
    }

    /** Atoms with their scripts, up to the token for which `ends(token)` is true. */
    #list(ends) {
        this.#depth += 1;
        if (this.#depth > DEPTH) {
            throw new Error("nested too deeply");
        }
        const nodes = [];
        for (let token = this.#peek(); token !== undefined && !ends(token); token = this.#peek()) {
            const atom = this.#atom();
            if (atom) {
                nodes.push(this.#scripts(atom));
            }
        }
        this.#depth -= 1;
        return nodes;
    }

    /** A table of the lines of a formula; a row if it has only one. */
    #rows(isEnd, sides, attributes = {}) {
        const lines = [[]];
        for (;;) {
            lines.at(-1).push(row(this.#list((token) => isEnd(token) || token === "&" || token === "\\\\" || token === "\\cr")));
            const token = this.#peek();
            if (token === "&") {
                this.#next();
            } else if (token === "\\\\" || token === "\\cr") {
                this.#next();
                this.#option();
                lines.push([]);
            } else {
                break;
            }
        }
        if (lines.length === 1 && lines[0].length === 1 && !attributes.isTable) {
            return lines[0][0];
        }
        if (lines.length > 1 && lines.at(-1).length === 1 && lines.at(-1)[0].childNodes.length === 0) {
            lines.pop();
        }
        const cells = (line) => line.map((cell, column) => made("mtd", { class: `side-${sides.split(" ")[column % sides.split(" ").length]}` }, cell));
        return made("mtable", {}, ...lines.map((line) => made("mtr", {}, ...cells(line))));
    }

    #scripts(base) {
        let below = null;
        let above = null;
        let hasLimits = base.limits ?? false;
        for (;;) {
            const token = this.#peek();
            if (token === "_" && !below) {
                this.#next();
                below = this.#argument();
            } else if (token === "^" && !above) {
                this.#next();
                above = this.#argument();
            } else if (token === "'") {
                let primes = "";
                while (this.#peek() === "'") {
                    this.#next();
                    primes += "′";
                }
                above = above ? row([operator(primes), above]) : operator(primes);
            } else if (token === "\\limits" || token === "\\nolimits") {
                this.#next();
                hasLimits = token === "\\limits";
            } else {
                break;
            }
        }
        if (!below && !above) {
            return base;
        }
        const names = hasLimits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
        if (below && above) {
            return made(names[2], {}, base, below, above);
        }
        return below ? made(names[0], {}, base, below) : made(names[1], {}, base, above);
    }

    /** The argument of a command: a group or a single sign. */
    #argument() {
        const token = this.#peek();
        if (token === "{") {
            return this.#group();
        }
        if (/^\d\d/.test(token ?? "")) {
            // Without braces an argument is one digit.
            this.#tokens.splice(this.#place, 1, token[0], token.slice(1));
        }
        const atom = this.#atom();
        if (!atom) {
            throw new Error("an argument is missing");
        }
        return atom;
    }

    #group() {
        this.#next();
        const before = this.#alphabet;
        const nodes = this.#list((token) => token === "}");
        this.#alphabet = before;
        this.#next();
        return row(nodes);
    }

    /** The letters of an argument as they are written. */
    #words() {
        if (this.#next() !== "{") {
            return this.#tokens[this.#place - 1];
        }
        let text = "";
        for (let depth = 1; ; ) {
            const token = this.#tokens[this.#place];
            this.#place += 1;
            if (token === undefined) {
                throw new Error("a group has no end");
            }
            depth += token === "{" ? 1 : token === "}" ? -1 : 0;
            if (depth === 0) {
                return text.replace(/\\([ {}%&#_$])/g, "$1");
            }
            text += token;
        }
    }

    #option() {
        if (this.#peek() !== "[") {
            return null;
        }
        this.#next();
        const nodes = this.#list((token) => token === "]");
        this.#next();
        return row(nodes);
    }

    #atom() {
        const token = this.#next();
        if (token === "{") {
            this.#place -= 1;
            return this.#group();
        }
        if (token.startsWith("\\")) {
            return this.#command(token.slice(1));
        }
        if (/^\d/.test(token)) {
            return made("mn", {}, this.#alphabet ? [...token].map((digit) => styledLetter(digit, this.#alphabet)).join("") : token);
        }
        if (/^\p{L}$/u.test(token)) {
            return this.#letter(token);
        }
        if (["}", "&", "^", "_", "$", "#"].includes(token)) {
            throw new Error(`${token} has no place here`);
        }
        if (token === "~") {
            return made("mspace", { width: "0.28em" });
        }
        return operator({ "-": "−", "*": "∗" }[token] ?? token, "()[]|/".includes(token) ? { stretchy: "false" } : {});
    }

    #letter(letter) {
        if (this.#alphabet === "normal") {
            return made("mi", { mathvariant: "normal" }, letter);
        }
        return made("mi", {}, this.#alphabet ? styledLetter(letter, this.#alphabet) : letter);
    }

    #command(name) {
        if (SYMBOLS[name]) {
            return made("mi", /^[Α-Ω]$|^[^\p{L}]$/u.test(SYMBOLS[name]) ? { mathvariant: "normal" } : {}, SYMBOLS[name]);
        }
        if (OPERATORS[name]) {
            return operator(OPERATORS[name]);
        }
        if (LARGE[name]) {
            const sign = operator(LARGE[name], { movablelimits: "false" });
            sign.limits = this.#isBlock && !LARGE[name].includes("∫") && !"∮∬∭".includes(LARGE[name]);
            return sign;
        }
        if (FUNCTIONS.includes(name)) {
            return this.#named(name, /^(lim|max|min|sup|inf|arg|det|gcd|Pr)/.test(name));
        }
        if (SPACES[name] !== undefined) {
            return made("mspace", { width: SPACES[name] });
        }
        if (ACCENTS[name]) {
            const [sign, isBelow] = ACCENTS[name];
            return made(isBelow ? "munder" : "mover", { [isBelow ? "accentunder" : "accent"]: "true" }, this.#argument(), operator(sign));
        }
        if (ALPHABETS[name]) {
            return this.#inAlphabet(ALPHABETS[name]);
        }
        return this.#structure(name);
    }

    #named(name, hasLimits) {
        const node = made("mi", {}, name.replace(/^lim(sup|inf)$/, "lim $1"));
        node.limits = this.#isBlock && hasLimits;
        const hasScripts = ["_", "^", "\\limits"].includes(this.#peek());
        return hasScripts ? node : row([node, operator("\u2061")]);
    }

    #inAlphabet(alphabet) {
        const before = this.#alphabet;
        this.#alphabet = alphabet;
        const node = this.#argument();
        this.#alphabet = before;
        return node;
    }

    #structure(name) {
        switch (name) {
            case "frac":
            case "dfrac":
            case "tfrac":
            case "cfrac":
                return made("mfrac", {}, this.#argument(), this.#argument());
            case "binom":
            case "dbinom":
            case "tbinom":
                return row([operator("("), made("mfrac", { linethickness: "0" }, this.#argument(), this.#argument()), operator(")")]);
            case "sqrt": {
                const degree = this.#option();
                return degree ? made("mroot", {}, this.#argument(), degree) : made("msqrt", {}, this.#argument());
            }
            case "text":
            case "textrm":
            case "textit":
            case "textbf":
            case "mbox":
                return made("mtext", {}, this.#words().replace(/^ | $/g, "\u00a0"));
            case "operatorname":
            case "operatorname*":
                return this.#named(this.#words(), name.endsWith("*"));
            case "overset":
            case "stackrel": {
                const above = this.#argument();
                return made("mover", {}, this.#argument(), above);
            }
            case "underset": {
                const below = this.#argument();
                return made("munder", {}, this.#argument(), below);
            }
            case "boxed":
                return made("mrow", { class: "boxed" }, this.#argument());
            case "phantom":
                return made("mphantom", {}, this.#argument());
            case "not":
                return operator(`${this.#argument().textContent}\u0338`);
            case "pmod":
                return row([made("mspace", { width: "1em" }), operator("("), made("mi", {}, "mod"), made("mspace", { width: "0.3em" }), this.#argument(), operator(")")]);
            case "bmod":
                return operator("mod");
            case "left":
                return this.#fenced();
            case "begin":
                return this.#environment();
            case "tag":
            case "label":
                this.#words();
                return null;
            case "displaystyle":
            case "textstyle":
            case "scriptstyle":
            case "nonumber":
            case "notag":
            case "hline":
                return null;
            default:
                return this.#sized(name);
        }
    }

    /** `\big(` and its like, and signs behind a backslash. */
    #sized(name) {
        const size = /^([bB]igg?)[lrm]?$/.exec(name);
        if (size) {
            const height = { big: "1.2em", Big: "1.6em", bigg: "2.1em", Bigg: "2.6em" }[size[1]];
            return operator(this.#delimiter(), { minsize: height, maxsize: height });
        }
        if (DELIMITERS[`\\${name}`]) {
            return operator(DELIMITERS[`\\${name}`], { stretchy: "false" });
        }
        if (/^[%$#_ ]$/.test(name)) {
            return name === " " ? made("mspace", { width: "0.28em" }) : operator(name);
        }
        throw new Error(`\\${name} is not known`);
    }

    #delimiter() {
        const token = this.#next();
        const sign = DELIMITERS[token];
        if (sign === undefined) {
            throw new Error(`${token} is no bracket`);
        }
        return sign;
    }

    #fenced() {
        const nodes = [operator(this.#delimiter(), { fence: "true" })];
        for (;;) {
            nodes.push(...this.#list((token) => token === "\\right" || token === "\\middle"));
            const end = this.#next();
            nodes.push(operator(this.#delimiter(), { fence: "true", stretchy: "true" }));
            if (end === "\\right") {
                return made("mrow", {}, ...nodes);
            }
        }
    }

    #environment() {
        const name = this.#words();
        const fence = FENCES[name.replace("*", "")];
        if (!fence) {
            throw new Error(`${name} is not known`);
        }
        const columns = name === "array" ? this.#words().replace(/[^lcr]/g, "") : "";
        const sides = columns ? [...columns].map((side) => ({ l: "left", c: "middle", r: "right" })[side]).join(" ") : fence.sides;
        const table = this.#rows((token) => token === "\\end", sides, { isTable: true });
        this.#next();
        if (this.#words() !== name) {
            throw new Error(`${name} has another end`);
        }
        const [open, close] = fence.signs ?? ["", ""];
        return open || close ? row([operator(open, { fence: "true" }), table, operator(close, { fence: "true" })]) : table;
    }
}

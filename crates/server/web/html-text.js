// The text of HTML, as somebody reads it.

/** Elements without text for a reader. */
const SILENT = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "SVG", "CANVAS", "OBJECT", "IFRAME", "SELECT", "BUTTON"]);

/** Elements that begin on a line of their own. */
const BLOCKS = new Set([
    "ADDRESS", "ARTICLE", "ASIDE", "BLOCKQUOTE", "BODY", "DD", "DETAILS", "DIV", "DL", "DT", "FIGCAPTION", "FIGURE", "FOOTER", "FORM",
    "H1", "H2", "H3", "H4", "H5", "H6", "HEADER", "HR", "LI", "MAIN", "NAV", "OL", "P", "PRE", "SECTION", "SUMMARY", "TABLE", "TR", "UL",
]);

/** Elements with an empty line before and after them. */
const PARAGRAPHS = new Set(["BLOCKQUOTE", "DL", "FIGURE", "H1", "H2", "H3", "H4", "H5", "H6", "OL", "P", "PRE", "TABLE", "UL"]);

/** The text of a page. Headings and lists keep their marks, in Markdown's way. */
export function textOfHtml(source) {
    return textOfDocument(new DOMParser().parseFromString(source, "text/html"));
}

/** The text of a page in XML; one with mistakes is read as HTML. */
export function textOfXhtml(source) {
    const page = new DOMParser().parseFromString(source, "application/xhtml+xml");
    return page.querySelector("parsererror") ? textOfHtml(source) : textOfDocument(page);
}

function textOfDocument(page) {
    const out = new Lines();
    const body = page.body ?? page.documentElement;
    walk(body, out);
    return out.text();
}

/** Goes through the tree without calling itself: pages may be nested deeply. */
function walk(root, out) {
    const todo = [{ node: root, isLeft: false }];
    let verbatim = 0;
    while (todo.length > 0) {
        const { node, isLeft } = todo.pop();
        const isElement = node.nodeType === Node.ELEMENT_NODE;
        const name = isElement ? node.tagName.toUpperCase() : "";
        if (isLeft) {
            verbatim -= name === "PRE" ? 1 : 0;
            leave(node, name, out);
        } else if (node.nodeType === Node.TEXT_NODE || node.nodeType === Node.CDATA_SECTION_NODE) {
            verbatim > 0 ? out.addVerbatim(node.data) : out.add(node.data);
        } else if (isElement && !isSilent(node, name)) {
            verbatim += name === "PRE" ? 1 : 0;
            enter(node, name, out);
            todo.push({ node, isLeft: true });
            for (let child = node.lastChild; child; child = child.previousSibling) {
                todo.push({ node: child, isLeft: false });
            }
        }
    }
}

function enter(node, name, out) {
    separate(name, out);
    const mark = markOf(name);
    if (mark) {
        out.mark(mark);
    } else if (name === "IMG" && node.getAttribute("alt")?.trim()) {
        out.add(`[picture: ${node.getAttribute("alt").trim()}]`);
    }
}

function leave(node, name, out) {
    if (markOf(name)) {
        out.unmark();
    }
    if (name === "TD" || name === "TH") {
        out.add(node.nextElementSibling ? " | " : "");
    } else if (name !== "BR") {
        separate(name, out);
    }
}

function separate(name, out) {
    if (PARAGRAPHS.has(name)) {
        out.paragraph();
    } else if (BLOCKS.has(name) || name === "BR") {
        out.line();
    }
}

function isSilent(element, name) {
    return SILENT.has(name) || element.hasAttribute("hidden");
}

/** Mark before the first word of a heading or of an item. */
function markOf(name) {
    if (name === "LI") {
        return "- ";
    }
    return /^H[1-6]$/.test(name) ? `${"#".repeat(Number(name[1]))} ` : "";
}

/** Lines that grow word by word. */
class Lines {
    #parts = [];
    /** Line ends that are due before the next word. */
    #due = 0;
    /** True if a space is due before the next word. */
    #gap = false;
    #isEmpty = true;
    /** Text due before the next word, and the line ends due before that text. */
    #mark = "";
    #markDue = 0;

    line() {
        this.#due = Math.max(this.#due, 1);
    }

    paragraph() {
        this.#due = 2;
    }

    /** Has `mark` stand before the next word, on its line. */
    mark(mark) {
        this.#markDue = Math.max(this.#markDue, this.#due);
        this.#due = 0;
        this.#mark += mark;
    }

    /** Forgets a mark that no word came after. */
    unmark() {
        this.#mark = "";
    }

    /** Adds text in which white space only separates words. */
    add(text) {
        const words = text.replace(/[ \t\n\r\f]+/g, " ");
        if (words === " " || words === "") {
            this.#gap ||= words === " ";
            return;
        }
        this.#break(words.startsWith(" "));
        this.#parts.push(words.trimStart().trimEnd());
        this.#gap = words.endsWith(" ");
    }

    /** Adds text as it stands. */
    addVerbatim(text) {
        if (text !== "") {
            this.#break(false);
            this.#parts.push(text);
        }
    }

    text() {
        return this.#parts
            .join("")
            .replace(/[ \t]+\n/g, "\n")
            .trim();
    }

    #break(hasGap) {
        const due = this.#mark ? this.#markDue : Math.max(this.#due, this.#markDue);
        if (due > 0 && !this.#isEmpty) {
            this.#parts.push("\n".repeat(due));
        } else if (!this.#isEmpty && (this.#gap || hasGap)) {
            this.#parts.push(" ");
        }
        this.#parts.push(this.#mark);
        this.#mark = "";
        this.#markDue = 0;
        this.#due = 0;
        this.#gap = false;
        this.#isEmpty = false;
    }
}

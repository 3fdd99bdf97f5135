// Markdown of answers, as elements of the page. Text of a model only ever becomes text.

import { button, copyText, element } from "./elements.js";
import { highlighted } from "./highlight.js";
import { inline } from "./inline.js";
import { formula } from "./math.js";

/** Deepest nesting of lists and quotations; deeper ones are shown as text. */
const DEPTH = 8;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)(?:([-*+])|(\d{1,9})[.)])(?:\s+|$)/;
const MATH = /^ {0,3}(?:(\$\$)|(\\\[)|\\begin\{(equation|align|gather|eqnarray|multline)(\*?)\})/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/** Shows a text in `container`. Equal blocks stay, so a text can grow. */
export function showMarkdown(container, text) {
    const blocks = blocksOf(text.split("\n"), 0);
    const shown = [...container.children];
    const top = Math.min(...blocks.map(({ level }) => level ?? Infinity));
    for (const [index, block] of blocks.entries()) {
        // The page has its own headings above the highest heading of an answer.
        block.shownLevel = block.level && Math.min(block.level - top + 3, 6);
        const source = `${block.kind} ${block.shownLevel}\n${block.lines.join("\n")}`;
        const old = shown[index];
        if (old?.source === source) {
            continue;
        }
        const made = build(block);
        made.source = source;
        old ? old.replaceWith(made) : container.append(made);
    }
    for (const old of shown.slice(blocks.length)) {
        old.remove();
    }
}

/** The blocks of some lines: `{kind, lines, depth, …}`. */
function blocksOf(lines, depth) {
    const blocks = [];
    let index = 0;
    while (index < lines.length) {
        if (lines[index].trim() === "") {
            index += 1;
            continue;
        }
        const block = blockAt(lines, index, depth);
        blocks.push({ ...block, lines: lines.slice(index, block.end), depth });
        index = block.end;
    }
    return blocks;
}

function blockAt(lines, start, depth) {
    const line = lines[start];
    const fence = FENCE.exec(line);
    if (fence) {
        return { kind: "code", language: fence[2].trim().split(/\s+/)[0], end: endOfCode(lines, start, fence[1]) };
    }
    const math = endOfMath(lines, start);
    if (math) {
        return { kind: "math", end: math };
    }
    const heading = HEADING.exec(line);
    if (heading) {
        return { kind: "heading", level: heading[1].length, end: start + 1 };
    }
    if (RULE.test(line)) {
        return { kind: "rule", end: start + 1 };
    }
    if (depth < DEPTH && QUOTE.test(line)) {
        return { kind: "quote", end: endWhere(lines, start, (next) => !QUOTE.test(next)) };
    }
    if (depth < DEPTH && ITEM.test(line)) {
        return { kind: "list", end: endOfList(lines, start) };
    }
    if (isTable(lines, start)) {
        return { kind: "table", end: endWhere(lines, start + 1, (next) => next.trim() === "" || !next.includes("|")) };
    }
    return { kind: "paragraph", end: endWhere(lines, start, (next, index) => endsParagraph(lines, next, index, depth)) };
}

function endWhere(lines, start, ends) {
    let end = start + 1;
    while (end < lines.length && !ends(lines[end], end)) {
        end += 1;
    }
    return end;
}

function endOfCode(lines, start, mark) {
    const isEnd = (line) => line.trim().startsWith(mark) && line.trim().replaceAll(mark[0], "") === "";
    const end = endWhere(lines, start, isEnd);
    return Math.min(end + 1, lines.length);
}

/** The end of a formula on its own lines; 0 if none begins here. */
function endOfMath(lines, start) {
    const match = MATH.exec(lines[start]);
    if (!match) {
        return 0;
    }
    const close = match[1] ?? (match[2] ? "\\]" : `\\end{${match[3]}${match[4]}}`);
    for (let index = start; index < lines.length && index < start + 100; index += 1) {
        const behind = index === start ? lines[index].slice(match[0].length) : lines[index];
        if (behind.includes(close)) {
            // Other text after the end makes the formula a part of a paragraph.
            return /^[\s.,;:]*$/.test(behind.slice(behind.indexOf(close) + close.length)) ? index + 1 : 0;
        }
        if (index > start && behind.trim() === "") {
            return 0;
        }
    }
    return 0;
}

function isTable(lines, index) {
    const next = lines[index + 1] ?? "";
    return lines[index].includes("|") && next.includes("-") && TABLE_RULE.test(next) && cells(lines[index]).length === cells(next).length;
}

function endsParagraph(lines, line, index, depth) {
    if (line.trim() === "" || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || endOfMath(lines, index) > 0) {
        return true;
    }
    const isNested = depth < DEPTH && (QUOTE.test(line) || /^ {0,3}(?:[-*+]|1[.)])\s+\S/.test(line));
    return isNested || isTable(lines, index);
}

/** A list continues with items, with indented lines, and over empty lines before them. */
function endOfList(lines, start) {
    const first = ITEM.exec(lines[start]);
    const isOrdered = first[3] !== undefined;
    let end = start + 1;
    for (let index = end; index < lines.length; index += 1) {
        const line = lines[index];
        if (line.trim() === "") {
            continue;
        }
        const item = ITEM.exec(line);
        const isSame = item && !RULE.test(line) && (item[1].length > first[1].length || (item[3] !== undefined) === isOrdered);
        const isInside = line.startsWith(" ".repeat(first[1].length + 2));
        const isLazy = !item && end === index && blockAt([line], 0, 0).kind === "paragraph";
        if (!isSame && !isInside && !isLazy) {
            break;
        }
        end = index + 1;
    }
    return end;
}

function build(block) {
    const { lines, depth } = block;
    switch (block.kind) {
        case "code":
            return buildCode(block);
        case "math":
            return buildMath(lines);
        case "heading":
            return element(`h${block.shownLevel ?? 6}`, {}, ...inline(HEADING.exec(lines[0])[2]));
        case "rule":
            return element("hr");
        case "quote":
            return element("blockquote", {}, ...nested(lines.map((line) => line.replace(QUOTE, "")), depth));
        case "list":
            return buildList(lines, depth);
        case "table":
            return buildTable(lines);
        default:
            return element("p", {}, ...inline(lines.map((line) => line.trimStart()).join("\n").trimEnd()));
    }
}

function nested(lines, depth) {
    return blocksOf(lines, depth + 1).map(build);
}

function buildMath(lines) {
    const marked = lines.join("\n").trim().replace(/[\s.,;:]+$/, "");
    const source = marked.startsWith("\\begin") ? marked : marked.slice(2, -2);
    return element("div", { class: "formula", tabIndex: 0, role: "region", "aria-label": "Formula" }, formula(source.trim(), true, marked));
}

function buildCode({ lines, language }) {
    const mark = FENCE.exec(lines[0])[1];
    const last = lines.length > 1 ? lines.at(-1).trim() : "";
    const isClosed = last.startsWith(mark) && last.replaceAll(mark[0], "") === "";
    const text = lines.slice(1, isClosed ? -1 : undefined).join("\n");
    const copy = button("Copy", () => copyText(text, copy), { class: "quiet", "aria-label": "Copy this code" });
    const head = element("div", { class: "code-head" }, element("span", {}, language || "code"), copy);
    const code = element("pre", { tabIndex: 0 }, element("code", {}, ...highlighted(text, language)));
    return element("div", { class: "code" }, head, code);
}

function buildList(lines, depth) {
    const first = ITEM.exec(lines[0]);
    const isOrdered = first[3] !== undefined;
    const items = [];
    for (const line of lines) {
        const item = ITEM.exec(line);
        if (item && item[1].length <= first[1].length + 1) {
            items.push({ indent: item[0].trimEnd().length + 1, lines: [line.slice(item[0].length)] });
        } else {
            const { indent, lines: own } = items.at(-1);
            const spaces = /^ */.exec(line)[0].length;
            own.push(line.slice(Math.min(spaces, indent)));
        }
    }
    const list = element(isOrdered ? "ol" : "ul");
    if (isOrdered && first[3] !== "1") {
        list.start = Number(first[3]);
    }
    for (const item of items) {
        const children = nested(item.lines, depth);
        const task = /^\[([ xX])\]\s/.exec(item.lines[0]);
        if (task && children[0]?.firstChild?.nodeType === Node.TEXT_NODE) {
            children[0].firstChild.data = children[0].firstChild.data.slice(4);
            children[0].prepend(element("input", { type: "checkbox", checked: task[1] !== " ", disabled: true, "aria-label": task[1] === " " ? "open" : "done" }), " ");
        }
        // An item of one paragraph has no space after it.
        const isShort = children[0]?.tagName === "P" && !item.lines.slice(0, -1).some((line) => line.trim() === "");
        list.append(element("li", { class: task ? "task" : null }, ...(isShort ? [...children[0].childNodes, ...children.slice(1)] : children)));
    }
    return list;
}

function cells(line) {
    const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
    return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function buildTable(lines) {
    const sides = cells(lines[1]).map((cell) => (/^:-+:$/.test(cell) ? "middle" : /-:$/.test(cell) ? "right" : "left"));
    const row = (line, tag) => {
        const own = cells(line);
        const made = sides.map((side, column) => element(tag, { class: side }, ...inline(own[column] ?? "")));
        return element("tr", {}, ...made);
    };
    const head = element("thead", {}, row(lines[0], "th"));
    const body = element("tbody", {}, ...lines.slice(2).map((line) => row(line, "td")));
    return element("div", { class: "table", tabIndex: 0, role: "region", "aria-label": "Table" }, element("table", {}, head, body));
}

// From files and folders to texts, by the server's reader.

import { countOf } from "./numbers.js";
import { readFile } from "./server.js";

/** File endings that the file dialog offers first. */
export const OFFERED = ".txt,.md,.markdown,.html,.htm,.xhtml,.pdf,.epub,.docx,text/*";

/** Maximum number of files of a folder. */
const MOST_FILES = 1000;

/** Folders whose files are made by programs. */
const LEFT_OUT = ["node_modules", "target", "__pycache__", "dist", "build"];

/**
 * A file's text: `{name, kind, text, note, places, hasLines}`, where `note` says what the text lacks, or is empty.
 * An error's message is a whole sentence for the user.
 */
export async function readDocument({ file, name }) {
    const { kind, text, places, has_lines: hasLines, warnings } = await readFile(file, name);
    const note = warnings.length > 1 ? `${warnings[0]} (and ${countOf(warnings.length - 1, "other note")})` : (warnings[0] ?? "");
    return { name, kind, text, note, places, hasLines };
}

/** The chosen files, `{file, name}`. The name of a file of a folder is the folder's name and the path in it. */
export function chosenFiles(files) {
    const all = [...files].map((file) => ({ file, name: file.webkitRelativePath || file.name }));
    return inOrder(all.filter(({ name }) => !isLeftOut(name)));
}

/**
 * The dropped files, as `{file, name}`. Entries of folders must be requested at once, before the event ends. The files
 * come later.
 */
export function droppedFiles(transfer) {
    const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.() ?? null);
    if (!entries.some((entry) => entry?.isDirectory)) {
        return Promise.resolve([...transfer.files].map((file) => ({ file, name: file.name })));
    }
    return walk(entries.filter(Boolean));
}

async function walk(entries) {
    const found = [];
    const waiting = [...entries];
    while (waiting.length > 0) {
        const entry = waiting.shift();
        const name = entry.fullPath.replace(/^\//, "");
        if (isLeftOut(name)) {
            continue;
        }
        if (entry.isDirectory) {
            waiting.push(...(await childrenOf(entry)));
        } else {
            found.push({ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), name });
        }
        if (found.length > MOST_FILES) {
            throw new Error(`A folder with more than ${MOST_FILES} files is too much: drop a part of it.`);
        }
    }
    return inOrder(found);
}

/** Sorts the files of folders by name, so that the same folder gives the same prompt. Single files keep their order. */
function inOrder(files) {
    return files.some(({ name }) => name.includes("/")) ? files.sort((a, b) => (a.name < b.name ? -1 : 1)) : files;
}

async function childrenOf(folder) {
    const reader = folder.createReader();
    const children = [];
    for (;;) {
        const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
        if (some.length === 0) {
            return children;
        }
        children.push(...some);
    }
}

/** True for hidden files and files that programs made. A file that is chosen by itself is never left out. */
function isLeftOut(name) {
    const parts = name.split("/");
    return parts.length > 1 && parts.some((part, at) => (at > 0 && part.startsWith(".")) || (at > 0 && at < parts.length - 1 && LEFT_OUT.includes(part)));
}

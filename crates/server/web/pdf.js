// The text of PDF, by the library pdf.js, which is loaded with the first PDF.

const LIBRARY = "./pdfjs-4.10.38.min.mjs";
const WORKER = "./pdfjs-4.10.38.worker.min.mjs";

let library = null;

/**
 * The text of a PDF: `{text, pages, emptyPages}`. `showPage(number, pages)` is called before each page.
 * Errors end a sentence that begins with the file's name.
 */
export async function readPdf(buffer, showPage) {
    library ??= import(LIBRARY).then((loaded) => {
        loaded.GlobalWorkerOptions.workerSrc = new URL(WORKER, import.meta.url).href;
        return loaded;
    });
    const { getDocument } = await library;
    const task = getDocument({ data: buffer, isEvalSupported: false, disableFontFace: true, verbosity: 0 });
    try {
        const file = await task.promise;
        return await textOfFile(file, showPage);
    } catch (error) {
        throw new Error(reason(error));
    } finally {
        await task.destroy();
    }
}

async function textOfFile(file, showPage) {
    const texts = [];
    let emptyPages = 0;
    for (let number = 1; number <= file.numPages; number += 1) {
        showPage(number, file.numPages);
        const page = await file.getPage(number);
        const text = textOfItems((await page.getTextContent()).items);
        page.cleanup();
        if (text) {
            texts.push(text);
        } else {
            emptyPages += 1;
        }
    }
    return { text: texts.join("\n\n"), pages: file.numPages, emptyPages };
}

/** The text of a page's pieces, which come in the order in which they were set. */
export function textOfItems(items) {
    const lines = [];
    let line = null;
    for (const item of items) {
        if (typeof item.str !== "string") {
            continue;
        }
        line ??= { text: "", x: item.transform[4], y: item.transform[5], height: 0 };
        line.text += item.str;
        line.height = Math.max(line.height, item.height || 0);
        if (item.hasEOL) {
            lines.push(line);
            line = null;
        }
    }
    if (line) {
        lines.push(line);
    }
    return join(lines.filter((line) => line.text.trim() !== ""));
}

/** Joins lines into paragraphs: an unusual distance to the line before, or a step to the right, begins a new one. */
function join(lines) {
    let text = "";
    const distances = lines.slice(1).map((line, index) => lines[index].y - line.y);
    const usual = median(distances.filter((distance) => distance > 0));
    for (const [index, line] of lines.entries()) {
        const own = line.text.replace(/\s+/g, " ").trim();
        if (index === 0) {
            text = own;
            continue;
        }
        const before = lines[index - 1];
        const distance = distances[index - 1];
        const isNew = distance < 0 || distance > usual * 1.4 || line.x - before.x > before.height * 0.9;
        if (isNew) {
            text += `\n\n${own}`;
        } else if (/\p{Ll}-$/u.test(text) && /^\p{Ll}/u.test(own)) {
            // A word that was broken at the end of its line.
            text = text.slice(0, -1) + own;
        } else {
            text += `\n${own}`;
        }
    }
    return text;
}

function median(numbers) {
    const sorted = [...numbers].sort((a, b) => a - b);
    return sorted[Math.floor(sorted.length / 2)] ?? Infinity;
}

function reason(error) {
    switch (error?.name) {
        case "PasswordException":
            return "is protected by a password: save it without one";
        case "InvalidPDFException":
            return "is damaged, or no PDF";
        default:
            return `cannot be read as PDF (${error?.message ?? error})`;
    }
}

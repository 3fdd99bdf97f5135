// Passages of documents that share words with a question and its answer, best first (BM25).

/** Approximate number of characters of a passage. */
const PASSAGE = 420;

/** Maximum number of passages, and the share of the best score that each needs. */
const MOST = 3;
const LEAST_SHARE = 0.4;

const K = 1.2;
const B = 0.6;

/** Words that are in every text. */
const COMMON = new Set(
    `a about after all also an and any are as at be been before but by can could did do does for from had has have he her here his how i if in into is it its just like
    may me more most my no not now of on one only or other our out over said same she should so some such than that the their them then there these they this those to two
    under up very was we were what when where which who whom why will with would you your der die das und ist von mit zu ein eine den im`.split(/\s+/),
);

/**
 * Passages of `documents`, `[{name, text, places, hasLines}]`, for a question and its answer:
 * `[{document, start, end, best, place}]`. `document` is an index, and `best` the start of the sentence with most of
 * the words. The list is empty if no passage stands out.
 */
export function passagesFor(documents, question, answer) {
    const wanted = new Map();
    for (const [text, weight] of [[question, 1], [answer, 1.5]]) {
        for (const word of new Set(wordsOf(text))) {
            wanted.set(word, (wanted.get(word) ?? 0) + weight);
        }
    }
    const passages = documents.flatMap(({ text }, document) => pieces(text).map(([start, end]) => counted(document, start, end, text, wanted)));
    const mean = passages.reduce((sum, { length }) => sum + length, 0) / Math.max(1, passages.length);
    const holders = new Map();
    for (const { counts } of passages) {
        for (const word of counts.keys()) {
            holders.set(word, (holders.get(word) ?? 0) + 1);
        }
    }
    for (const passage of passages) {
        passage.score = 0;
        for (const [word, count] of passage.counts) {
            const rarity = Math.log(1 + (passages.length - holders.get(word) + 0.5) / (holders.get(word) + 0.5));
            const weight = (count * (K + 1)) / (count + K * (1 - B + (B * passage.length) / mean));
            passage.score += wanted.get(word) * rarity * weight;
        }
    }
    // A passage shares at least two words.
    const found = passages.filter(({ counts }) => counts.size > 1).sort((a, b) => b.score - a.score || a.document - b.document || a.start - b.start);
    const best = found[0]?.score ?? 0;
    const seen = new Set();
    const isNew = ({ document, start, end }) => {
        const words = documents[document].text.slice(start, end).trim();
        return seen.size < seen.add(words).size;
    };
    const shown = found.filter(({ score }) => score >= LEAST_SHARE * best).filter(isNew).slice(0, MOST);
    return shown.map(({ document, start, end }) => {
        const [best, bestEnd] = bestSentence(documents[document].text, start, end, wanted);
        return { document, start, end, best, place: placeOf(documents[document], best, bestEnd) };
    });
}

/** The sentence or line of a passage with the highest sum of weights. */
function bestSentence(text, start, end, wanted) {
    const weight = ([from, to]) => [...new Set(wordsOf(text.slice(from, to)))].reduce((sum, word) => sum + (wanted.get(word) ?? 0), 0);
    const sentences = [...text.slice(start, end).matchAll(/[^]+?(?:[.!?]["')\]]*\s+|\n+|$)/g)].filter(([words]) => words.trim());
    const ranges = sentences.map(({ index, 0: words }) => [start + index, start + index + words.trimEnd().length]);
    return ranges.reduce((best, range) => (weight(range) > weight(best) ? range : best), ranges[0] ?? [start, end]);
}

function counted(document, start, end, text, wanted) {
    const words = wordsOf(text.slice(start, end));
    const counts = new Map();
    for (const word of words) {
        if (wanted.has(word)) {
            counts.set(word, (counts.get(word) ?? 0) + 1);
        }
    }
    return { document, start, end, length: words.length, counts };
}

/** Words without case, marks and a plural's end. */
function wordsOf(text) {
    const words = text.toLowerCase().normalize("NFKD").replace(/\p{M}/gu, "").match(/[\p{L}\p{N}]+/gu) ?? [];
    return words.filter((word) => !COMMON.has(word)).map((word) => (word.length > 4 ? word.replace(/(?:es|s)$/, "") : word));
}

/** Ranges of some sentences each. */
function pieces(text) {
    const ranges = [];
    let start = 0;
    for (const { index, 0: mark } of text.matchAll(/[.!?]["')\]]*\s+|\n+/g)) {
        const end = index + mark.length;
        if (end - start >= PASSAGE || mark.includes("\n\n") && end - start > PASSAGE / 3) {
            ranges.push([start, end]);
            start = end;
        }
    }
    return start < text.length ? [...ranges, [start, text.length]] : ranges;
}

/** "page 12", "pages 3–4, chapter “Loomings”", "lines 5–9, under “Install”"; empty if no place is known. */
export function placeOf({ text, places, hasLines }, start, end) {
    const around = (at, kind) => places.findLast((place) => place[kind] !== undefined && place.start <= at && at < place.end)?.[kind];
    const parts = [];
    const numbers = (what, first, last) => (first === last ? `${what} ${first}` : `${what}s ${first}–${last}`);
    const page = around(start, "page");
    if (page !== undefined) {
        parts.push(numbers("page", page, around(end - 1, "page") ?? page));
    }
    const label = around(start, "label");
    const chapter = around(start, "chapter");
    const heading = around(start, "heading");
    if (label) {
        parts.push(`labelled ${label}`);
    }
    if (chapter) {
        parts.push(`chapter “${chapter}”`);
    }
    if (hasLines) {
        const line = (at) => text.slice(0, at).split("\n").length;
        parts.push(numbers("line", line(start), line(text.slice(0, end).trimEnd().length)));
    }
    if (heading && heading !== chapter) {
        parts.push(`under “${heading}”`);
    }
    return parts.join(", ");
}

// Documents that the checks drop: a book in EPUB and files in PDF, made here.

import { deflateRawSync } from "node:zlib";

/** A zip archive of `[name, text, isPacked]`. */
export function zip(files) {
    const parts = [];
    const list = [];
    let place = 0;
    for (const [name, text, isPacked] of files) {
        const bytes = Buffer.from(text);
        const packed = isPacked ? deflateRawSync(bytes) : bytes;
        const fields = [20, 0x800, isPacked ? 8 : 0, 0, 0x21];
        const sizes = [crc32(bytes), packed.length, bytes.length];
        const label = Buffer.from(name);
        const head = record([0x04034b50], fields, sizes, [label.length, 0]);
        list.push(record([0x02014b50], [20, ...fields], sizes, [label.length, 0, 0, 0, 0], [0, place]), label);
        parts.push(head, label, packed);
        place += head.length + label.length + packed.length;
    }
    const directory = Buffer.concat(list);
    const end = record([0x06054b50], [0, 0, files.length, files.length], [directory.length, place], [0]);
    return Buffer.concat([...parts, directory, end]);
}

/** Runs of 32-bit and 16-bit numbers in turns: the first run has 32 bits. */
function record(...runs) {
    const parts = runs.map((run, index) => {
        const width = index % 2 === 0 ? 4 : 2;
        const bytes = Buffer.alloc(run.length * width);
        run.forEach((number, at) => (width === 4 ? bytes.writeUInt32LE(number >>> 0, at * 4) : bytes.writeUInt16LE(number, at * 2)));
        return bytes;
    });
    return Buffer.concat(parts);
}

function crc32(bytes) {
    let crc = ~0;
    for (const byte of bytes) {
        crc ^= byte;
        for (let bit = 0; bit < 8; bit += 1) {
            crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
        }
    }
    return ~crc >>> 0;
}

/** A book whose pages lie in another order than one reads them in, in a folder with a blank, one of them unpacked. */
export function book() {
    const page = (title, body) => `<?xml version="1.0" encoding="utf-8"?>
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>not read</title><style>p { color: red }</style></head>
<body><h1>${title}</h1>${body}<script>notRead()</script></body></html>`;
    const container = `<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="The book/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>`;
    const content = `<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Two chapters</dc:title></metadata>
<manifest><item id="b" href="text/second%20page.xhtml" media-type="application/xhtml+xml"/>
<item id="a" href="text/first.xhtml" media-type="application/xhtml+xml"/>
<item id="n" href="text/nav.xhtml" media-type="application/xhtml+xml"/></manifest>
<spine><itemref idref="n" linear="no"/><itemref idref="a"/><itemref idref="b"/></spine></package>`;
    return zip([
        ["mimetype", "application/epub+zip", false],
        ["The book/text/second page.xhtml", page("Evening", "<p>The lamp was lit.</p><table><tr><td>oil</td><td>two pints</td></tr></table>"), true],
        ["The book/text/nav.xhtml", page("Contents", "<p>Not read either.</p>"), true],
        ["META-INF/container.xml", container, true],
        ["The book/content.opf", content, true],
        ["The book/text/first.xhtml", page("Morning", "<p>The keeper rose &amp; wrote\n her <em>first</em> line.</p><ul><li>bread</li><li><p>salt</p></li></ul>"), false],
    ]);
}

/** A PDF of pages of lines, set in Helvetica. A page without lines has a picture alone. */
export function pdf(pages) {
    const objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""];
    const kids = [];
    objects.push("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>");
    for (const lines of pages) {
        const shown = lines.map((line) => `(${line.replace(/[()\\]/g, "\\$&")}) Tj T*`).join("\n");
        const stream = lines.length > 0 ? `BT /F1 12 Tf 14 TL 72 720 Td\n${shown}\nET` : "0.5 g 72 72 200 200 re f";
        objects.push(`<< /Length ${stream.length} >>\nstream\n${stream}\nendstream`);
        objects.push(
            `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> /Contents ${objects.length} 0 R >>`,
        );
        kids.push(`${objects.length} 0 R`);
    }
    objects[1] = `<< /Type /Pages /Kids [${kids.join(" ")}] /Count ${kids.length} >>`;
    let text = "%PDF-1.4\n";
    const places = objects.map((object, index) => {
        const place = text.length;
        text += `${index + 1} 0 obj\n${object}\nendobj\n`;
        return place;
    });
    const start = text.length;
    const lines = places.map((place) => `${String(place).padStart(10, "0")} 00000 n \n`).join("");
    text += `xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${lines}`;
    text += `trailer\n<< /Size ${objects.length + 1} /Root 1 0 R >>\nstartxref\n${start}\n%%EOF\n`;
    return Buffer.from(text, "latin1");
}

/** A page with two columns and a list, for the browser to print as PDF. */
export const PRINTED = `<!doctype html><meta charset="utf-8"><style>div { columns: 2; width: 16cm; height: 5cm } p { margin: 0 0 1em }</style>
<h1>Tides of the bay</h1><div><p>Left one. The tide comes in twice a day and leaves weed on the stones of the lower harbour.</p>
<p>Left two. Boats lie dry until noon and the children look for crabs below them while they can.</p>
<p>Right one. In the evening the water is back, and what was a path in the morning is sea again.</p>
<p>Right two. Nobody counts the waves.</p></div>`;

/** A Word file of a heading and a paragraph. */
export function docx(heading, text) {
    const body = `<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>${heading}</w:t></w:r></w:p><w:p><w:r><w:t>${text}</w:t></w:r></w:p>`;
    const space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"';
    return zip([
        ["[Content_Types].xml", '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="xml" ContentType="application/xml"/><Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>', true],
        ["_rels/.rels", '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/></Relationships>', true],
        ["word/document.xml", `<w:document ${space}><w:body>${body}</w:body></w:document>`, true],
    ]);
}

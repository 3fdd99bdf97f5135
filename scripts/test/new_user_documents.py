"""Documents as a new user has them: a PDF and EPUBs, written by hand so that nothing but Python is needed."""

import html
import pathlib
import zipfile

# Pages of the PDF: a title, then paragraphs.
MINUTES = [
    (
        "Minutes of the Harbour Garden Club, 4 March",
        [
            "Present were Anna Lind, Bruno Keller, Carla Weiss and David Okoro. Anna Lind led the meeting. "
            "Carla Weiss wrote these minutes.",
            "The club has 42 members. Three new members joined in February. The yearly fee stays at 30 euros.",
            "The pass key for garden gate is 58213.",
        ],
    ),
    (
        "Plans for the spring",
        [
            "The club will plant 12 apple trees along the north wall. Bruno Keller buys the trees from the nursery in Elmfield. "
            "The trees will cost 480 euros in all.",
            "The water pump in the shed is broken. David Okoro repairs the pump before the end of April.",
        ],
    ),
    (
        "The summer party",
        [
            "The summer party takes place on Saturday, 14 June, at the old lighthouse. Carla Weiss brings the lemonade. "
            "If it rains, the party moves to the school hall.",
            "The next meeting is on 1 April at seven in the evening.",
        ],
    ),
]

COLUMNS = 80


def wrapped(text):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > COLUMNS:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return lines + [line]


def page_content(title, paragraphs):
    lines = [title, ""]
    for paragraph in paragraphs:
        lines += wrapped(paragraph) + [""]
    commands = ["BT /F1 11 Tf 14 TL 72 770 Td"]
    for line in lines:
        text = line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
        commands.append(f"({text}) Tj T*")
    return "\n".join(commands + ["ET"]).encode("latin-1")


def pdf(path, pages):
    """A PDF of pages of text in Helvetica: ISO 32000, the least that is valid."""
    count = len(pages)
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(count))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for number, (title, paragraphs) in enumerate(pages):
        content = page_content(title, paragraphs)
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents {5 + 2 * number} 0 R >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    data, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    data += b"".join(b"%010d 00000 n \n" % place for place in places)
    data += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    pathlib.Path(path).write_bytes(data)


def epub(path, title, chapters):
    """An EPUB 3 of chapters: (heading, paragraphs)."""
    items = "".join(
        f'<item id="c{number}" href="c{number}.xhtml" media-type="application/xhtml+xml"/>' for number in range(len(chapters))
    )
    spine = "".join(f'<itemref idref="c{number}"/>' for number in range(len(chapters)))
    package = (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">'
        '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">riffle-new-user</dc:identifier>'
        f"<dc:title>{html.escape(title)}</dc:title><dc:language>en</dc:language></metadata>"
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = (
        '<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("book.opf", package)
        for number, (heading, paragraphs) in enumerate(chapters):
            body = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in paragraphs)
            archive.writestr(
                f"c{number}.xhtml",
                f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title>{html.escape(heading)}</title></head>'
                f"<body><h1>{html.escape(heading)}</h1>{body}</body></html>",
            )

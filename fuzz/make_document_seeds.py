"""Writes seeds/documents: small valid files of every kind of document. The first byte of each says the name that it is read under.

    python fuzz/make_document_seeds.py
"""

import io
import pathlib
import zipfile
import zlib

SEEDS = pathlib.Path(__file__).resolve().parent / "seeds" / "documents"
# In the order of fuzz/src/documents.rs.
NAMES = ["pdf", "epub", "docx", "html", "md"]
CONTAINER = '<?xml version="1.0"?><container><rootfiles><rootfile full-path="O/c.opf"/></rootfiles></container>'
PACKAGE = """<?xml version="1.0"?><package><manifest><item id="n" href="n.xhtml" properties="nav"/><item id="a" href="a.xhtml"/>
<item id="t" href="t.ncx" media-type="application/x-dtbncx+xml"/></manifest><spine toc="t"><itemref idref="a"/></spine></package>"""
WORD = """<?xml version="1.0"?><w:document xmlns:w="w"><w:body><w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Ships</w:t></w:r></w:p>
<w:p><w:r><w:t xml:space="preserve">One </w:t><w:tab/><w:br/></w:r></w:p><w:tbl><w:tr><w:tc><w:p><w:r><w:t>left</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:body></w:document>"""
PAGE = """<!doctype html><html><head><title>T &amp; t</title><meta charset="utf-8"><script>x</script></head><body><h1>A</h1><p>caf\u00e9<br>
<ul><li>one<li>two</ul><table><tr><td>1<td>2</table><pre>x\n y</pre><h2>B</h2></body></html>"""


def pdf(filters, content):
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [ 4 0 R ] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> /Contents 5 0 R >>",
        b"<< /Length %d%s >>\nstream\n%s\nendstream" % (len(content), filters, content),
    ]
    file, offsets = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        offsets.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % len(file)
    return file + b"xref\n0 6\n0000000000 65535 f \n" + table + end


def archive(method, **parts):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as zipped:
        for name, text in parts.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            zipped.writestr(entry, text, zipfile.ZIP_STORED if name == "mimetype" else method)
    return memory.getvalue()


def epub(method):
    parts = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "O/c.opf": PACKAGE,
        "O/n.xhtml": '<html><body><nav><ol><li><a href="a.xhtml#x">One</a></li></ol></nav></body></html>',
        "O/a.xhtml": '<html><head><title/></head><body><h1 id="x">One</h1><p>Call me.</p></body></html>',
        "O/t.ncx": '<ncx><navMap><navPoint><navLabel><text>One</text></navLabel><content src="a.xhtml"/></navPoint></navMap></ncx>',
    }
    return archive(method, **parts)


def docx(method):
    notes = '<w:footnotes xmlns:w="w"><w:footnote><w:p><w:r><w:t>A note.</w:t></w:r></w:p></w:footnote></w:footnotes>'
    return archive(method, **{"[Content_Types].xml": "<Types/>", "word/document.xml": WORD, "word/footnotes.xml": notes})


def main():
    SEEDS.mkdir(parents=True, exist_ok=True)
    text = b"BT\n/F1 12 Tf\n72 720 Td\n(The ship sails.) Tj\n0 -14 Td\n[(Fr) -120 (om)] TJ\nET\n"
    seeds = {
        "pdf-plain": (0, pdf(b"", text)),
        "pdf-deflated": (0, pdf(b" /Filter /FlateDecode", zlib.compress(text))),
        "epub-stored": (1, epub(zipfile.ZIP_STORED)),
        "epub-deflated": (1, epub(zipfile.ZIP_DEFLATED)),
        "docx-stored": (2, docx(zipfile.ZIP_STORED)),
        "docx-deflated": (2, docx(zipfile.ZIP_DEFLATED)),
        "html": (3, PAGE.encode()),
        "html-utf-16": (3, PAGE.encode("utf-16")),
        "markdown": (4, "# Ships\n\nThe *Pequod* sails.\n\n## Whales\n\n- one\n- two\n\n```\n# no heading\n```\n".encode()),
    }
    for name, (kind, file) in seeds.items():
        (SEEDS / name).write_bytes(bytes([kind]) + file)


if __name__ == "__main__":
    main()

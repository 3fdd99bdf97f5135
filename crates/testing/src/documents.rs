//! Makes small PDF, EPUB and DOCX files.

use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// A PDF with a page for each text, and with the text's lines below one another.
pub fn pdf(pages: &[&str]) -> Vec<u8> {
    let content = |text: &&str| {
        let lines = text.lines().map(|line| {
            let escaped = line.replace('\\', "\\\\").replace('(', "\\(").replace(')', "\\)");
            format!("({escaped}) Tj\n0 -14 Td\n")
        });
        format!("BT\n/F1 12 Tf\n72 720 Td\n{}ET\n", lines.collect::<String>()).into_bytes()
    };
    pdf_of_streams(&pages.iter().map(content).collect::<Vec<_>>(), "")
}

/// A PDF with a page for each content stream; all streams use `filter`.
pub fn pdf_of_streams(contents: &[Vec<u8>], filter: &str) -> Vec<u8> {
    let kids: String = (0..contents.len())
        .map(|page| format!("{} 0 R ", 4 + 2 * page))
        .collect();
    let mut objects = vec![
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        format!("<< /Type /Pages /Kids [ {kids}] /Count {} >>", contents.len()).into_bytes(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_vec(),
    ];
    for (page, content) in contents.iter().enumerate() {
        let stream = 5 + 2 * page;
        objects.push(
            format!(
                "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> /Contents {stream} 0 R >>"
            )
            .into_bytes(),
        );
        let head = format!("<< /Length {}{filter} >>\nstream\n", content.len());
        objects.push([head.as_bytes(), content, b"\nendstream"].concat());
    }
    let mut out = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        offsets.push(out.len());
        out.extend(format!("{} 0 obj\n", number + 1).into_bytes());
        out.extend(object);
        out.extend(b"\nendobj\n");
    }
    let xref = out.len();
    out.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).into_bytes());
    for offset in offsets {
        out.extend(format!("{offset:010} 00000 n \n").into_bytes());
    }
    out.extend(
        format!(
            "trailer\n<< /Size {} /Root 1 0 R /ID [<00112233445566778899aabbccddeeff> <00112233445566778899aabbccddeeff>] >>\nstartxref\n{xref}\n%%EOF\n",
            objects.len() + 1
        )
        .into_bytes(),
    );
    out
}

/// A ZIP archive of these parts.
pub fn archive(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in parts {
        let method = if *name == "mimetype" {
            CompressionMethod::Stored
        } else {
            CompressionMethod::Deflated
        };
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file(*name, options).expect("a part");
        zip.write_all(bytes).expect("a part");
    }
    zip.finish().expect("an archive").into_inner()
}

/// The part of an EPUB book that lists the others.
pub const CONTAINER: &[u8] = b"<?xml version=\"1.0\"?><container version=\"1.0\" xmlns=\"urn:oasis:names:tc:opendocument:xmlns:container\">\
    <rootfiles><rootfile full-path=\"OEBPS/content.opf\" media-type=\"application/oebps-package+xml\"/></rootfiles></container>";

/// An EPUB book with chapters of a title and a text each.
pub fn epub(chapters: &[(&str, &str)]) -> Vec<u8> {
    epub_with(chapters, &[])
}

/// An EPUB book with chapters and further parts.
pub fn epub_with(chapters: &[(&str, &str)], more: &[(&str, &[u8])]) -> Vec<u8> {
    let each = |make: &dyn Fn(usize, &str) -> String| {
        let titles = chapters.iter().map(|(title, _)| *title);
        titles
            .enumerate()
            .map(|(at, title)| make(at, title))
            .collect::<String>()
    };
    let items = each(&|at, _| {
        format!("<item id=\"c{at}\" href=\"text/c%20{at}.xhtml\" media-type=\"application/xhtml+xml\"/>")
    });
    let refs = each(&|at, _| format!("<itemref idref=\"c{at}\"/>"));
    let links = each(&|at, title| format!("<li><a href=\"text/c%20{at}.xhtml\">{title}</a></li>"));
    let package = format!(
        "<?xml version=\"1.0\"?><package xmlns=\"http://www.idpf.org/2007/opf\" version=\"3.0\"><manifest>\
        <item id=\"nav\" href=\"nav.xhtml\" properties=\"nav\" media-type=\"application/xhtml+xml\"/>{items}</manifest>\
        <spine><itemref idref=\"nav\"/>{refs}</spine></package>"
    );
    let navigation =
        format!("<html xmlns=\"http://www.w3.org/1999/xhtml\"><body><nav><ol>{links}</ol></nav></body></html>");
    let pages: Vec<(String, String)> = chapters
        .iter()
        .enumerate()
        .map(|(at, (_, text))| {
            let paragraphs: String = text.split("\n\n").map(|text| format!("<p>{text}</p>\n")).collect();
            let page = format!(
                "<html xmlns=\"http://www.w3.org/1999/xhtml\"><head><title/></head><body>{paragraphs}</body></html>"
            );
            (format!("OEBPS/text/c {at}.xhtml"), page)
        })
        .collect();
    let mut parts: Vec<(&str, &[u8])> = vec![
        ("mimetype", b"application/epub+zip"),
        ("META-INF/container.xml", CONTAINER),
        ("OEBPS/content.opf", package.as_bytes()),
        ("OEBPS/nav.xhtml", navigation.as_bytes()),
    ];
    parts.extend(pages.iter().map(|(name, page)| (name.as_str(), page.as_bytes())));
    parts.extend(more);
    archive(&parts)
}

/// A Word document: a heading, paragraphs, a table of two cells and a footnote.
pub fn docx(heading: &str, paragraphs: &[&str]) -> Vec<u8> {
    let paragraphs: String = paragraphs
        .iter()
        .map(|text| format!("<w:p><w:r><w:t xml:space=\"preserve\">{text}</w:t></w:r></w:p>"))
        .collect();
    let body = format!(
        "<?xml version=\"1.0\"?><w:document xmlns:w=\"http://schemas.openxmlformats.org/wordprocessingml/2006/main\"><w:body>\
        <w:p><w:pPr><w:pStyle w:val=\"Heading1\"/></w:pPr><w:r><w:t>{heading}</w:t></w:r></w:p>{paragraphs}\
        <w:tbl><w:tr><w:tc><w:p><w:r><w:t>left</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>right</w:t></w:r></w:p></w:tc></w:tr></w:tbl>\
        <w:p><w:r><w:delText>gone</w:delText></w:r></w:p></w:body></w:document>"
    );
    let notes =
        "<w:footnotes xmlns:w=\"w\"><w:footnote><w:p><w:r><w:t>A note.</w:t></w:r></w:p></w:footnote></w:footnotes>";
    archive(&[
        ("[Content_Types].xml", b"<Types/>"),
        ("word/document.xml", body.as_bytes()),
        ("word/footnotes.xml", notes.as_bytes()),
    ])
}

//! The web page, compiled into the program.

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::failure::Failure;

/// Content security policy of the page, which loads from this server only.
const POLICY: &str = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// A file of the page under `/web/`.
struct File {
    name: &'static str,
    /// Media type of the file.
    kind: &'static str,
    bytes: &'static [u8],
}

/// A file of the folder `web`.
macro_rules! file {
    ($name:literal, $kind:ident) => {
        File {
            name: $name,
            kind: $kind,
            bytes: include_bytes!(concat!("../../web/", $name)),
        }
    };
}

/// Every file of the page.
const FILES: &[File] = &[
    file!("index.html", HTML),
    file!("style.css", STYLE),
    file!("controls.css", STYLE),
    file!("conversation.css", STYLE),
    file!("markdown.css", STYLE),
    file!("touch.css", STYLE),
    file!("icon.svg", PICTURE),
    file!("answers.js", SCRIPT),
    file!("app.js", SCRIPT),
    file!("branches.js", SCRIPT),
    file!("clock.js", SCRIPT),
    file!("colours.js", SCRIPT),
    file!("composer.js", SCRIPT),
    file!("conversation-list.js", SCRIPT),
    file!("conversation-store.js", SCRIPT),
    file!("conversations.js", SCRIPT),
    file!("database.js", SCRIPT),
    file!("dialogs.js", SCRIPT),
    file!("document-texts.js", SCRIPT),
    file!("document-tray.js", SCRIPT),
    file!("documents.js", SCRIPT),
    file!("elements.js", SCRIPT),
    file!("exchange.js", SCRIPT),
    file!("framing.js", SCRIPT),
    file!("highlight.js", SCRIPT),
    file!("inline.js", SCRIPT),
    file!("markdown.js", SCRIPT),
    file!("math-symbols.js", SCRIPT),
    file!("math.js", SCRIPT),
    file!("messages.js", SCRIPT),
    file!("numbers.js", SCRIPT),
    file!("passages-view.js", SCRIPT),
    file!("passages.js", SCRIPT),
    file!("question-view.js", SCRIPT),
    file!("report.js", SCRIPT),
    file!("server-state.js", SCRIPT),
    file!("server.js", SCRIPT),
    file!("settings.js", SCRIPT),
    file!("side.js", SCRIPT),
    file!("teller.js", SCRIPT),
    file!("theme.js", SCRIPT),
];

/// The page for browsers. Ollama's clients check here for a running server.
pub(crate) async fn page(headers: HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT).and_then(|kinds| kinds.to_str().ok());
    match accepted {
        Some(kinds) if !kinds.contains("text/html") => "Ollama is running".into_response(),
        _ => response("index.html"),
    }
}

pub(crate) async fn file(Path(name): Path<String>) -> Response {
    response(&name)
}

fn response(name: &str) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return Failure::new(StatusCode::NOT_FOUND, format!("the page has no file {name:?}")).into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, file.kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, file.bytes).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("web")
    }

    fn text_of(file: &File) -> &'static str {
        std::str::from_utf8(file.bytes).unwrap()
    }

    /// The texts between `before` and the next quotation mark.
    fn quoted<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(before).skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let names: BTreeSet<String> = fs::read_dir(folder())
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_type().unwrap().is_file())
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        let served: BTreeSet<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(names, served);
    }

    #[test]
    fn what_the_page_loads_is_there() {
        let is_there = |name: &str| FILES.iter().any(|file| file.name == name);
        for file in FILES {
            for name in quoted(text_of(file), "\"web/").chain(quoted(text_of(file), "\"./")) {
                assert!(is_there(name), "{} loads {name}", file.name);
            }
            // A proxy may serve the page under another path.
            let from_root = ["\"/web", "\"/v1", "\"/status"];
            assert!(
                !from_root.iter().any(|link| text_of(file).contains(link)),
                "{}",
                file.name
            );
        }
    }

    #[test]
    fn kinds_follow_from_names() {
        for file in FILES {
            let ending = file.name.rsplit('.').next().unwrap();
            let kind = match ending {
                "html" => HTML,
                "css" => STYLE,
                "js" => SCRIPT,
                _ => PICTURE,
            };
            assert_eq!(file.kind, kind, "{}", file.name);
            let head = response(file.name);
            assert_eq!(head.status(), StatusCode::OK);
            assert_eq!(head.headers()[header::CONTENT_TYPE], kind);
            assert_eq!(head.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        }
        assert_eq!(response("../Cargo.toml").status(), StatusCode::NOT_FOUND);
    }

    /// The content security policy would block the first two. The third would run code that a model writes.
    #[test]
    fn the_page_has_no_script_or_style_of_its_own_and_takes_no_markup_from_texts() {
        let page = text_of(FILES.iter().find(|file| file.name == "index.html").unwrap());
        for (number, line) in page.lines().enumerate() {
            let is_handler = |word: &str| word.starts_with("on") && word.contains('=');
            let is_inline =
                line.contains("<style") || line.contains(" style=") || line.split_whitespace().any(is_handler);
            let is_script = line.contains("<script") && !line.contains("src=\"web/");
            assert!(!is_inline, "line {}: {line}", number + 1);
            assert!(!is_script, "line {}: {line}", number + 1);
        }
        for file in FILES.iter().filter(|file| file.kind == SCRIPT) {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
            ] {
                assert!(!text_of(file).contains(word), "{} has {word}", file.name);
            }
        }
    }
}

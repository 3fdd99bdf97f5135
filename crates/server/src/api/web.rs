//! The web page, which is part of the program.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::failure::Failure;

/// What a page may load and whom it may talk to: this server alone.
const POLICY: &str = "default-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) async fn page() -> Response {
    file_of("index.html")
}

pub(crate) async fn file(Path(name): Path<String>) -> Response {
    file_of(&name)
}

fn file_of(name: &str) -> Response {
    let (kind, text) = match name {
        "index.html" => ("text/html; charset=utf-8", include_str!("../../web/index.html")),
        "style.css" => ("text/css; charset=utf-8", include_str!("../../web/style.css")),
        "app.js" => ("text/javascript; charset=utf-8", include_str!("../../web/app.js")),
        _ => {
            return Failure::new(StatusCode::NOT_FOUND, format!("the page has no file {name:?}")).into_response();
        }
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

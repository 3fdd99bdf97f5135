//! A server under a path, such as `/riffle`.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tower::ServiceExt;

use crate::ServerError;
use crate::failure::Failure;

/// The routes under `base`, which is empty or accepted by [`check`].
pub(crate) fn nested(base: &str, routes: Router) -> Router {
    if base.is_empty() {
        return routes;
    }
    let base = base.to_owned();
    Router::new().fallback(move |request: Request| {
        let (base, routes) = (base.clone(), routes.clone());
        async move { answer(&base, routes, request).await }
    })
}

async fn answer(base: &str, routes: Router, mut request: Request) -> Response {
    let path = request.uri().path();
    // The page's links are relative, so its address must end with a slash.
    if path == base {
        return (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, format!("{base}/"))]).into_response();
    }
    let Some(uri) = path.strip_prefix(base).and_then(|_| without(base, request.uri())) else {
        let message = format!("there is nothing at {path:?}: this server's paths begin with {base}/");
        return Failure::new(StatusCode::NOT_FOUND, message).into_response();
    };
    *request.uri_mut() = uri;
    match routes.oneshot(request.map(Body::new)).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The address after `base`; `None` if it does not begin with this path.
fn without(base: &str, uri: &Uri) -> Option<Uri> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(base)?;
    if !rest.starts_with('/') {
        return None;
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(rest.parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}

/// Refuses a path that is not `/NAME` or several of these.
///
/// # Errors
/// [`ServerError::Option`].
pub(crate) fn check(base: &str) -> Result<(), ServerError> {
    let is_name = |name: &str| {
        let mut letters = name.chars();
        let is_dots = name == "." || name == "..";
        !name.is_empty() && !is_dots && letters.all(|letter| letter.is_ascii_alphanumeric() || "-_.~".contains(letter))
    };
    let is_path = base
        .strip_prefix('/')
        .is_some_and(|names| names.split('/').all(is_name));
    if base.is_empty() || is_path {
        Ok(())
    } else {
        Err(ServerError::Option {
            option: "base_path",
            value: base.to_owned(),
            problem: "it must be a path such as /riffle, without a slash at its end".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_off_as_whole_names_alone() {
        let behind = |uri: &str| without("/a/b", &uri.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(behind("/a/b/v1/models?x=1").as_deref(), Some("/v1/models?x=1"));
        assert_eq!(behind("/a/b/").as_deref(), Some("/"));
        for uri in ["/a/bc/v1", "/v1/a/b/", "/a"] {
            assert_eq!(behind(uri), None, "{uri}");
        }
    }

    #[test]
    fn only_plain_paths_are_taken() {
        for base in ["", "/riffle", "/a/b-c"] {
            assert!(check(base).is_ok(), "{base}");
        }
        for base in ["riffle", "/", "/riffle/", "/a//b", "/a b", "/..", "/a?b"] {
            assert!(check(base).is_err(), "{base}");
        }
    }
}

//! Routes of requests, and access control.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_http::timeout::RequestBodyTimeoutLayer;

use crate::api::{
    adapters, anthropic, documents, embeddings, infill, llama_cpp, ollama, openai, plain, rerank, sessions, web,
};
use crate::base_path;
use crate::failure::{Failure, Shape};
use crate::models::choice::{delete, get, post};
use crate::request_notes::{RequestNotes, note_request};
use crate::site::{BODY_STEP, Site};

/// Paths that take a JSON object by POST and store nothing under a name.
pub const JSON_PATHS: [&str; 16] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/api/chat",
    "/api/generate",
    "/api/show",
    "/completion",
    "/v1/embeddings",
    "/v1/rerank",
    "/infill",
    "/api/embed",
];

/// All routes of the server. `get`, `post` and `delete` lead to a loaded model; routes of `routing` lead to the server
/// itself.
pub(crate) fn router(site: &Arc<Site>) -> Router {
    let open = Router::new()
        .route("/", routing::get(web::page))
        .route("/web/{file}", routing::get(web::file))
        .route("/health", routing::get(plain::health))
        .route("/ready", routing::get(plain::ready));
    let keyed = openai_routes("/v1")
        .merge(openai_routes(""))
        .merge(ollama_routes())
        .route("/v1/messages", post(anthropic::messages::answer))
        .route("/v1/messages/count_tokens", post(anthropic::messages::count))
        .route("/completion", post(llama_cpp::complete))
        .route("/infill", post(infill::answer))
        .route("/props", routing::get(llama_cpp::props))
        .route("/slots", routing::get(llama_cpp::slots))
        .route("/tokenize", post(plain::tokenize))
        .route("/detokenize", post(plain::detokenize))
        .route("/apply-template", post(plain::apply_template))
        .route("/documents", routing::post(documents::read))
        .route("/sessions", get(sessions::list))
        .route("/sessions/{name}", post(sessions::save).merge(delete(sessions::delete)))
        .route("/sessions/{name}/restore", post(sessions::restore))
        .route("/sessions/{name}/fork", post(sessions::fork))
        .route("/sessions/{name}/compress", post(sessions::compress))
        .route("/lora-adapters", get(adapters::list).merge(post(adapters::set)))
        .route("/metrics", routing::get(plain::metrics))
        .route("/version", routing::get(plain::version))
        .route("/status", routing::get(plain::status))
        .layer(from_fn_with_state(Arc::clone(site), check_key));
    let most = site.options.limits.body_bytes;
    let routes = open
        .merge(keyed)
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .layer(axum::extract::DefaultBodyLimit::max(most))
        .layer(RequestBodyTimeoutLayer::new(site.options.limits.arrival_time))
        .layer(from_fn_with_state(Arc::clone(site), wait_for_room))
        .layer(from_fn_with_state(Arc::clone(site), check_host))
        .layer(cors(&site.options.allowed_origins))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(Arc::clone(site), note_request))
        .with_state(Arc::clone(site));
    base_path::nested(&site.options.base_path, routes)
}

/// The paths of OpenAI. Some programs use an address without `/v1` and do not add it.
fn openai_routes(prefix: &str) -> Router<Arc<Site>> {
    let at = |path: &str| format!("{prefix}{path}");
    Router::new()
        .route(&at("/models"), routing::get(openai::models::list))
        .route(&at("/models/{*name}"), routing::get(openai::models::one))
        .route(&at("/completions"), post(openai::completions::answer))
        .route(&at("/chat/completions"), post(openai::chat::answer))
        .route(&at("/chat/completions/input_tokens"), post(openai::chat::count))
        .route(&at("/responses"), post(openai::responses::answer))
        .route(&at("/responses/input_tokens"), post(openai::responses::count))
        .route(
            &at("/responses/{id}"),
            routing::get(openai::responses::one).delete(openai::responses::delete),
        )
        .route(&at("/embeddings"), post(embeddings::answer))
        .route(&at("/rerank"), post(rerank::answer))
        .route(&at("/reranking"), post(rerank::answer))
}

/// The paths of Ollama.
fn ollama_routes() -> Router<Arc<Site>> {
    Router::new()
        .route("/api/version", routing::get(ollama::models::version))
        .route("/api/tags", routing::get(ollama::models::tags))
        .route("/api/ps", routing::get(ollama::models::running))
        .route("/api/show", routing::post(ollama::models::show))
        .route("/api/chat", post(ollama::chat::answer))
        .route("/api/generate", post(ollama::generate::answer))
        .route("/api/embed", post(ollama::embed::answer))
        .route("/api/embeddings", post(ollama::embed::answer_one))
}

async fn unknown(request: Request) -> Response {
    let path = request.uri().path();
    let failure = Failure::new(
        StatusCode::NOT_FOUND,
        format!("there is nothing at {path:?}: see /v1/models for a beginning"),
    );
    failure.into_response_of(Shape::of(path))
}

async fn other_method(request: Request) -> Response {
    let failure = Failure::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{} is not taken here: try GET or POST", request.method()),
    );
    failure.into_response_of(Shape::of(request.uri().path()))
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    Failure::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "the server failed on this request: please report it",
    )
    .into_response()
}

/// Refuses requests without a valid key, if the server has keys.
async fn check_key(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    if site.keys.is_empty() {
        return next.run(request).await;
    }
    let Some(name) = given_key(request.headers()).and_then(|key| site.keys.name_of(key)) else {
        let failure = Failure::new(
            StatusCode::UNAUTHORIZED,
            "this server asks for a key: send it as \"Authorization: Bearer KEY\" or as \"x-api-key: KEY\"",
        );
        let failure = failure.with_code("invalid_api_key");
        return failure.into_response_of(Shape::of(request.uri().path()));
    };
    RequestNotes::set_key(&name);
    next.run(request).await
}

/// The key in a request.
fn given_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes))
}

/// Accepts only names of the loopback on a loopback address. A foreign web page then cannot reach the server under its
/// own name.
async fn check_host(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let options = &site.options;
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let is_known = |host: &str| is_loopback(host) || options.allowed_hosts.iter().any(|name| name == name_of(host));
    if options.address.is_loopback() && !host.is_none_or(is_known) {
        let failure = Failure::new(
            StatusCode::FORBIDDEN,
            "this server answers to localhost alone: allow the name it is asked by with --allow-host",
        );
        return failure.into_response_of(Shape::of(request.uri().path()));
    }
    next.run(request).await
}

/// Reads a body after its memory is reserved, so that large bodies together stay within a limit.
async fn wait_for_room(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let most = site.options.limits.body_bytes;
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let has_body = length.is_some_and(|length| length > 0) || request.headers().contains_key(header::TRANSFER_ENCODING);
    // A body without a length may have any length.
    let steps = length.unwrap_or(most).min(most).div_ceil(BODY_STEP);
    let steps = u32::try_from(if has_body { steps } else { 0 }).unwrap_or(u32::MAX);
    let room = Arc::clone(&site.bodies).acquire_many_owned(steps).await;
    let response = next.run(request).await;
    drop(room);
    response
}

fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|letter| letter.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_loopback(host: &str) -> bool {
    let name = name_of(host);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn cors(origins: &[String]) -> CorsLayer {
    let origins = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            header::HeaderName::from_static("x-api-key"),
            header::HeaderName::from_static("anthropic-version"),
        ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_loopback_are_loopback() {
        for host in [
            "localhost",
            "localhost:8080",
            "127.0.0.1:1",
            "[::1]:8080",
            "[::1]",
            "127.9.9.9",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "example.org",
            "localhost.example.org:80",
            "10.0.0.1",
            "",
            "127.0.0.1.example.org",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_key_is_found_in_either_header() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(header::HeaderName::from_static(name), HeaderValue::from_static(value))])
        };
        assert_eq!(
            given_key(&headers("authorization", "Bearer second")),
            Some(b"second".as_slice())
        );
        assert_eq!(given_key(&headers("x-api-key", "first")), Some(b"first".as_slice()));
        for value in ["second", "Basic second", "bearer second"] {
            assert_eq!(given_key(&headers("authorization", value)), None, "{value}");
        }
        assert_eq!(given_key(&HeaderMap::new()), None);
    }
}

//! A hub that sends the token back: the token is never shown.

use std::ops::ControlFlow;

use riffle_hub::{Token, pull};

use crate::refusals::{hub, refused_with};
use crate::{name, settings};
use riffle_testing::hub::{COMMIT, Fault, Hub, HubRequest};

const TOKEN: &str = "hf_abcdefghijkl0123";

#[test]
fn a_token_that_the_hub_sends_back_is_never_shown() {
    for (echo, secret) in [
        ("you sent Bearer hf_abcdefghijkl0123", "hf_abcdefghijkl0123"),
        ("you sent %68f%5Fabcdefghijkl0123", "abcdefghijkl0123"),
        ("aGZfYWJjZGVmZ2hpamtsMDEyMw==", "aGZf"),
        ("QmVhcmVyIGhmX2FiY2RlZmdoaWprbDAxMjM=", "aGZf"),
    ] {
        for padding in [0, 190] {
            let hub = hub();
            let message = format!("{}{echo}", "x".repeat(padding));
            hub.faults(move |_, _| Some(Fault::Status(400, vec![("X-Error-Message", message.clone())])));
            let token = Token::new("hf_abcdefghijkl0123", "HF_TOKEN").expect("a token");
            let shown = refused_with(|settings| settings.token = Some(token), &hub, "owner/model");
            assert!(!shown.contains(secret) && !shown.contains("hf_abc"), "{shown}");
            assert!(shown.contains("holds your token"), "{shown}");
        }
    }
}

/// The hub's answer with the token in some place.
fn with_token(place: &str, asked: &HubRequest, number: usize) -> Option<Fault> {
    let is_list = asked.path.contains("/tree/");
    let list = |path: &str| {
        let entry = format!(r#"[{{"type":"file","path":"{path}","size":5,"oid":"{COMMIT}"}}]"#);
        is_list.then_some(Fault::Body(entry))
    };
    let status = |status, headers| Some(Fault::Status(status, headers));
    match (place, number) {
        ("a file", _) => list(&format!("m-{TOKEN}-Q4_0.gguf")),
        ("a folder", _) => list(&format!("{TOKEN}/m-Q4_0.gguf")),
        ("an encoded name", _) => list("hf%5Fabcdefghijkl0123.gguf"),
        ("a name that leads out", _) => list(&format!("../{TOKEN}.gguf")),
        ("a redirect", 0) => status(302, vec![("Location", format!("/{TOKEN}/x"))]),
        ("a redirect", _) => status(400, Vec::new()),
        ("a reason to wait", _) if is_list => status(503, vec![("X-Error-Message", TOKEN.to_owned())]),
        ("a host", _) if is_list => Some(Fault::Linked("[]".to_owned(), format!("http://{TOKEN}.co/x"))),
        ("a value", _) => Some(Fault::Body(format!(r#""{TOKEN}""#))),
        _ => None,
    }
}

#[test]
fn a_token_in_names_and_addresses_is_never_shown() {
    for place in [
        "a file",
        "a folder",
        "an encoded name",
        "a name that leads out",
        "a redirect",
        "a reason to wait",
        "a host",
        "a value",
    ] {
        let hub = hub();
        hub.faults(move |asked, number| with_token(place, asked, number));
        let (mut told, cache) = (String::new(), tempfile::tempdir().expect("a folder"));
        let mut settings = settings(&hub, cache.path());
        settings.token = Some(Token::new(TOKEN, "HF_TOKEN").expect("a token"));
        let refused = pull(&settings, &name("owner/model"), &mut |progress| {
            told += &format!("{progress:?}");
            ControlFlow::Continue(())
        });
        told += &refused.expect_err(place).to_string();
        assert!(!told.contains("abcdefghijkl0123"), "{place}: {told}");
        assert!(told.contains("your token"), "{place}: {told}");
    }
    let index = format!(r#"{{"weight_map":{{"a":"{TOKEN}.safetensors"}}}}"#);
    let hub = Hub::start(&[
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
    ]);
    let token = Token::new(TOKEN, "HF_TOKEN").expect("a token");
    let message = refused_with(|settings| settings.token = Some(token), &hub, "owner/model");
    assert!(
        message.contains("holds your token") && !message.contains(TOKEN),
        "{message}"
    );
}

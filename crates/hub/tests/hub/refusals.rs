//! Refused pulls: each gives one line with a remedy.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use riffle_hub::{Settings, pull};

use crate::{name, refused, settings};
use riffle_testing::hub::{COMMIT, Fault, Hub, bytes};

pub(crate) fn hub() -> Hub {
    Hub::start(&[("m-Q4_0.gguf", bytes(2000, 1))])
}

pub(crate) fn refused_with(change: impl FnOnce(&mut Settings), hub: &Hub, text: &str) -> String {
    let cache = tempfile::tempdir().expect("a folder");
    let mut settings = settings(hub, cache.path());
    change(&mut settings);
    let result = pull(&settings, &name(text), &mut |_| ControlFlow::Continue(()));
    result.expect_err(text).to_string()
}

#[test]
fn gated_models_say_where_to_ask_and_how_to_give_a_token() {
    for (status, code) in [(401, "GatedRepo"), (403, "GatedRepo"), (403, "")] {
        let hub = hub();
        hub.faults(move |_, _| Some(Fault::Status(status, vec![("X-Error-Code", code.to_owned())])));
        let message = refused_with(|_| {}, &hub, "owner/model");
        let page = format!("{}/owner/model", hub.url());
        assert!(
            message.contains(&page) && message.contains("HF_TOKEN"),
            "{status} {code}: {message}"
        );
        assert_eq!(hub.state().log.len(), 1, "a refusal is not asked for again");
    }
}

#[test]
fn a_token_that_the_hub_does_not_take_is_named_by_its_source() {
    let hub = hub();
    hub.faults(|_, _| Some(Fault::Status(401, Vec::new())));
    let message = refused_with(|_| {}, &hub, "owner/model");
    assert!(
        message.contains("HF_TOKEN") && message.contains("/settings/tokens"),
        "{message}"
    );
    let message = refused_with(|settings| settings.token = None, &hub, "owner/model");
    assert!(
        message.contains("has no model owner/model, or it is private"),
        "{message}"
    );
}

#[test]
fn a_model_that_is_not_there_is_said_so() {
    let hub = hub();
    let message = refused_with(|_| {}, &hub, "owner/other");
    assert!(message.contains("has no model owner/other"), "{message}");
    let message = refused_with(|_| {}, &hub, "owner/model:Q8_0");
    assert_eq!(message, "owner/model has no Q8_0; it has Q4_0");
}

#[test]
fn nothing_is_asked_offline() {
    let hub = hub();
    let message = refused_with(|settings| settings.offline = true, &hub, "owner/model");
    assert!(message.contains("HF_HUB_OFFLINE"), "{message}");
    assert!(hub.state().log.is_empty());
}

#[test]
fn a_hub_that_does_not_answer_is_named_soon() {
    let hub = hub();
    let message = refused_with(
        |settings| settings.endpoint = "http://127.0.0.1:1".to_owned(),
        &hub,
        "owner/model",
    );
    assert!(message.contains("no connection to 127.0.0.1:1"), "{message}");
    hub.faults(|_, _| Some(Fault::Silence(0)));
    let slow = |settings: &mut Settings| settings.waits.silence = Duration::from_millis(100);
    let message = refused_with(slow, &hub, "owner/model");
    assert!(
        message.contains("times in a row") || message.contains("no connection"),
        "{message}"
    );
}

#[test]
fn answers_that_no_hub_gives_are_refused() {
    for body in ["<html>", "{}", "{\"sha\":\"../..\"}", "[1,2]", "{\"sha\":7}"] {
        let hub = hub();
        hub.faults(move |_, _| Some(Fault::Body(body.to_owned())));
        let message = refused_with(|_| {}, &hub, "owner/model");
        assert!(message.contains("HF_ENDPOINT"), "{body}: {message}");
    }
}

#[test]
fn answers_nested_without_end_are_refused() {
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(200_000), close.repeat(200_000));
    let bodies = [
        deep("[", "]"),
        deep("{\"sha\":", "}"),
        format!("[{{\"type\":\"file\",\"path\":\"a\",\"more\":{}}}]", deep("[", "]")),
        format!(
            "[{{\"type\":\"file\",\"path\":\"a\",\"lfs\":{}}}]",
            deep("{\"oid\":", "}")
        ),
    ];
    for body in bodies {
        for page in ["/revision/", "/tree/"] {
            let (hub, body) = (hub(), body.clone());
            hub.faults(move |asked, _| asked.path.contains(page).then(|| Fault::Body(body.clone())));
            let message = refused_with(|_| {}, &hub, "owner/model");
            assert!(message.len() < 400 && !message.contains('\n'), "{message}");
        }
    }
    let hub = Hub::start(&[
        ("config.json", b"{}".to_vec()),
        (
            "model.safetensors.index.json",
            deep("{\"weight_map\":", "}").into_bytes(),
        ),
    ]);
    let message = refused_with(|_| {}, &hub, "owner/model");
    assert!(message.contains("does not list safetensors files"), "{message}");
}

#[test]
fn files_that_would_lie_elsewhere_are_never_written() {
    for path in [
        "../../evil.gguf",
        "/etc/evil.gguf",
        "a/../../evil.gguf",
        "a\\..\\evil.gguf",
        "evil.gguf\n",
    ] {
        let content = bytes(2000, 1);
        let hub = Hub::start(&[(path, content), ("m-Q4_0.gguf", bytes(2000, 2))]);
        let outer = tempfile::tempdir().expect("a folder");
        let message = refused(&hub, &outer.path().join("cache"), "owner/model");
        assert!(message.contains("outside of the model's folder"), "{message}");
        assert!(!outer.path().join("cache").exists(), "nothing is written");
    }
}

#[test]
fn sums_that_are_paths_are_never_written() {
    let hub = hub();
    let entry = r#"[{"type":"file","path":"m-Q4_0.gguf","size":5,"oid":"../../../evil"}]"#;
    hub.faults(move |asked, _| asked.path.contains("/tree/").then(|| Fault::Body(entry.to_owned())));
    let message = refused_with(|_| {}, &hub, "owner/model");
    assert!(message.contains("states no sum of m-Q4_0.gguf"), "{message}");
}

#[test]
fn an_index_that_names_files_elsewhere_is_refused() {
    for index in [
        r#"{"weight_map":{"a":"../../evil.safetensors"}}"#,
        r#"{"weight_map":{"a":"evil.py"}}"#,
        r#"{"weight_map":[]}"#,
        "nothing",
    ] {
        let hub = Hub::start(&[
            ("config.json", b"{}".to_vec()),
            ("model.safetensors.index.json", index.into()),
        ]);
        let cache = tempfile::tempdir().expect("a folder");
        let message = refused(&hub, cache.path(), "owner/model");
        assert!(message.contains("model.safetensors.index.json"), "{message}");
    }
    let index = r#"{"weight_map":{"a":"model-00001-of-00001.safetensors"}}"#;
    let hub = Hub::start(&[
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
    ]);
    let cache = tempfile::tempdir().expect("a folder");
    let message = refused(&hub, cache.path(), "owner/model");
    assert!(
        message.contains("model-00001-of-00001.safetensors is missing there"),
        "{message}"
    );
}

#[test]
fn a_list_that_goes_on_elsewhere_or_for_ever_is_refused() {
    let hub = hub();
    let other = Hub::start(&[]);
    let link = format!("{}/api/models/owner/model/tree/{COMMIT}?cursor=1", other.url());
    hub.faults(move |asked, _| {
        let linked = Fault::Linked("[]".to_owned(), link.clone());
        asked.path.contains("/tree/").then_some(linked)
    });
    let message = refused_with(|_| {}, &hub, "owner/model");
    assert!(message.contains("its list goes on at 127.0.0.1"), "{message}");
    assert!(other.state().log.is_empty());

    let entries: Vec<String> = (0..2000)
        .map(|number| format!(r#"{{"type":"file","path":"{number}.txt","size":1,"oid":"{COMMIT}"}}"#))
        .collect();
    let page = format!("[{}]", entries.join(","));
    let again = hub.url();
    hub.faults(move |asked, _| {
        let linked = Fault::Linked(page.clone(), format!("{again}{}", asked.path));
        asked.path.contains("/tree/").then_some(linked)
    });
    let message = refused_with(|_| {}, &hub, "owner/model");
    assert!(message.contains("more than 200000 files"), "{message}");
}

#[test]
fn a_list_that_always_names_another_page_is_refused_after_some() {
    for entry in [
        r#"{"type":"file","path":"NUMBER.txt","size":1,"oid":"0"}"#,
        r#"{"type":"directory","path":"NUMBER","size":0,"oid":"0"}"#,
        "",
    ] {
        let hub = hub();
        let again = hub.url();
        hub.faults(move |asked, number| {
            let page = format!("[{}]", entry.replace("NUMBER", &number.to_string()));
            let path = asked.path.split('&').next().unwrap_or_default();
            let linked = Fault::Linked(page, format!("{again}{path}&cursor={number}"));
            asked.path.contains("/tree/").then_some(linked)
        });
        let message = refused_with(|_| {}, &hub, "owner/model");
        assert!(message.contains("more than 500 pages"), "{message}");
        assert_eq!(hub.state().log.len(), 501, "the commit and 500 pages");
    }
}

#[test]
fn a_page_without_a_file_does_not_end_the_list() {
    let hub = hub();
    let next = format!(
        "{}/api/models/owner/model/tree/{COMMIT}?recursive=true&cursor=0",
        hub.url()
    );
    hub.faults(move |asked, _| {
        let is_first = asked.path.contains("/tree/") && !asked.path.contains("cursor");
        let folder = r#"[{"type":"directory","path":"a","size":0,"oid":""}]"#;
        is_first.then(|| Fault::Linked(folder.to_owned(), next.clone()))
    });
    let cache = tempfile::tempdir().expect("a folder");
    crate::pull_named(&hub, cache.path(), "owner/model").expect("pulled");
}

#[test]
fn a_disk_without_room_is_named_before_anything_is_asked_for() {
    let hub = hub();
    let oid = "0".repeat(64);
    let entry = format!(
        r#"[{{"type":"file","path":"m-Q4_0.gguf","size":1,"oid":"{COMMIT}","lfs":{{"oid":"{oid}","size":1000000000000000000}}}}]"#
    );
    hub.faults(move |asked, _| asked.path.contains("/tree/").then(|| Fault::Body(entry.clone())));
    let message = refused_with(|_| {}, &hub, "owner/model");
    assert!(
        message.contains("free; riffle list") && message.contains("HF_HUB_CACHE"),
        "{message}"
    );
    assert!(hub.asked_for("m-Q4_0.gguf").is_empty());
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let hub = hub();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let message = refused_with(|settings| settings.cache = file.join("cache"), &hub, "owner/model");
    assert!(
        message.contains(Path::new("file").join("cache").to_str().expect("UTF-8")),
        "{message}"
    );
}

//! KV events of a running server.

use std::time::Duration;

use riffle_server::{PublisherOptions, ServerOptions};
use serde_json::json;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::testing::{options, start};

const PATIENCE: Duration = Duration::from_secs(20);

fn telling() -> ServerOptions {
    ServerOptions {
        kv_events: Some(PublisherOptions {
            address: "tcp://127.0.0.1:0".to_owned(),
            replay_address: Some("tcp://127.0.0.1:0".to_owned()),
            ..PublisherOptions::default()
        }),
        ..options()
    }
}

fn count(payload: &[u8], text: &str) -> usize {
    payload
        .windows(text.len())
        .filter(|part| *part == text.as_bytes())
        .count()
}

/// All batches since the start of the server, as one text of bytes.
async fn replayed(address: &str) -> Vec<u8> {
    let mut dealer = DealerSocket::new();
    dealer.connect(address).await.unwrap();
    let mut request = ZmqMessage::from(Vec::new());
    request.push_back(vec![0; 8].into());
    dealer.send(request).await.unwrap();
    let mut batches = Vec::new();
    loop {
        let frames = timeout(PATIENCE, dealer.recv()).await.unwrap().unwrap().into_vec();
        if frames[2].is_empty() {
            return batches;
        }
        batches.extend_from_slice(&frames[2]);
    }
}

#[test]
fn what_a_request_has_read_is_told_while_it_is_answered_and_its_end_with_the_server() {
    let server = start(telling());
    let addresses = server.kv_events.clone().unwrap();
    let prompt = "In the beginning was the word. ".repeat(60);
    let tokens = server.ask("/tokenize", &json!({"content": prompt}))["tokens"]
        .as_array()
        .unwrap()
        .len();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut subscriber = SubSocket::new();
        subscriber.connect(&addresses.events).await.unwrap();
        subscriber.subscribe("").await.unwrap();
        let before = replayed(addresses.replays.as_ref().unwrap()).await;
        assert_eq!(
            (count(&before, "AllBlocksCleared"), count(&before, "BlockStored")),
            (1, 0)
        );
        // A subscriber that never reads does not delay others.
        let mut slow = SubSocket::new();
        slow.connect(&addresses.events).await.unwrap();
        slow.subscribe("").await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;

        let asked = tokio::task::spawn_blocking(move || {
            server.complete(&prompt, json!({"max_tokens": 8}));
            server.complete("Something else. ", json!({"max_tokens": 4}));
            server.wait_for("riffle:kv_event_batches_total", |batches| batches >= 2.0);
            assert_eq!(server.metric("riffle:kv_events_dropped_total"), 0.0);
            assert_eq!(server.metric("riffle:kv_event_replays_total"), 1.0);
            server
        });
        let told = timeout(PATIENCE, subscriber.recv()).await.unwrap().unwrap();
        let payload = told.get(2).unwrap();
        // Pages have 64 tokens. MessagePack writes up to 15 hashes with a one-byte array header.
        let blocks = tokens / 64;
        let hashes = [b"block_hashes".as_slice(), &[0x90 | blocks as u8]].concat();
        assert!(blocks > 4 && blocks < 16);
        assert!(
            payload.windows(hashes.len()).any(|part| part == hashes),
            "all of them in one event"
        );
        let server = asked.await.unwrap();
        drop(tokio::task::spawn_blocking(move || drop(server)).await);
        let last = timeout(PATIENCE, async {
            loop {
                let told = subscriber.recv().await.unwrap();
                if count(told.get(2).unwrap(), "AllBlocksCleared") > 0 {
                    return;
                }
            }
        });
        last.await.expect("the end is told");
    });
}

#[test]
fn routers_find_what_they_read_of_vllm() {
    let server = start(options());
    assert!(server.get("/version").json()["version"].is_string());
    let metrics = server.get("/metrics").body;
    for name in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info{block_size=\"64\",num_gpu_blocks=\"1024\"}",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
    ] {
        assert!(
            metrics.lines().any(|line| line.starts_with(name)),
            "{name} is not in\n{metrics}"
        );
    }
    assert_eq!(server.get("/v1/models").json()["data"][0]["riffle"]["page_tokens"], 64);
}

#[test]
fn a_completion_tells_its_tokens_where_they_are_asked_for() {
    let server = start(options());
    let whole = server.complete("In the beginning", json!({"max_tokens": 12, "return_token_ids": true}));
    let choice = &whole["choices"][0];
    let text = server.ask("/detokenize", &json!({"tokens": choice["token_ids"]}));
    assert_eq!(text["content"], choice["text"]);
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 12);
    let asked = json!({"prompt": choice["prompt_token_ids"], "max_tokens": 12, "temperature": 0});
    assert_eq!(
        server.ask("/v1/completions", &asked)["choices"][0]["text"],
        choice["text"]
    );
    let body = json!({"prompt": "In the beginning", "max_tokens": 12, "temperature": 0, "stream": true, "return_token_ids": true});
    let streamed = server.post("/v1/completions", &body).body;
    let events = streamed
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line.strip_prefix("data: ")?).ok());
    let tokens: Vec<serde_json::Value> = events
        .filter_map(|event| event["choices"][0]["token_ids"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(&tokens, choice["token_ids"].as_array().unwrap());
}

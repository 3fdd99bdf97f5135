//! Pulls from a server with the hub's protocol, and the resulting cache.

mod faults;
mod other_programs;
mod pulls;
mod refusals;
mod stored;
mod tokens;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use riffle_hub::{HubError, ModelName, Pulled, Settings, Token, Waits, pull};

use riffle_testing::hub::Hub;

/// Settings for a hub and a cache, with delays that suit a test.
fn settings(hub: &Hub, cache: &Path) -> Settings {
    Settings {
        endpoint: hub.url(),
        cache: cache.to_owned(),
        token: Some(Token::new("hf_secret", "HF_TOKEN").expect("a token")),
        offline: false,
        head_bytes: 60_000,
        waits: Waits {
            first: Duration::from_millis(5),
            longest: Duration::from_millis(20),
            attempts: 4,
            silence: Duration::from_millis(400),
            asked: Duration::from_secs(3),
            window: Duration::from_millis(300),
            window_bytes: 1000,
        },
    }
}

fn name(text: &str) -> ModelName {
    text.parse().expect("a name")
}

fn pull_named(hub: &Hub, cache: &Path, text: &str) -> Result<Pulled, HubError> {
    pull(&settings(hub, cache), &name(text), &mut |_| ControlFlow::Continue(()))
}

/// The one-line message of a refused pull.
fn refused(hub: &Hub, cache: &Path, text: &str) -> String {
    let message = pull_named(hub, cache, text).expect_err(text).to_string();
    assert!(!message.contains('\n'), "{message}");
    assert!(
        !message.contains("hf_secret") && !message.contains("signature"),
        "{message}"
    );
    message
}

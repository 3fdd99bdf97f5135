//! Asks two questions about one text, which is read once: `cargo run --release -p riffle-chat --example conversation`.

use std::error::Error;
use std::ops::ControlFlow;

use riffle_chat::{ChatOptions, Conversation, Document, MOST_BRANCHES};
use riffle_engine::{Engine, EngineOptions, GenerateOptions, RunEvent};

fn main() -> Result<(), Box<dyn Error>> {
    let options = EngineOptions::default().with_sequences(MOST_BRANCHES);
    let engine = Engine::load("fixtures/model", options)?;
    let generate = GenerateOptions {
        max_tokens: 16,
        stops: vec![".".to_owned()],
        ..GenerateOptions::default()
    };
    let options = ChatOptions {
        generate: Some(generate),
        ..ChatOptions::default()
    };
    let mut conversation = Conversation::new(engine, options)?;
    let text = std::fs::read_to_string("fixtures/text/prophets.txt")?;
    let name = "prophets.txt".to_owned();
    let attached = conversation.attach(Document { name, text }, &mut |_| ControlFlow::Continue(()))?;
    println!("{} tokens read", attached.read_tokens);
    for question in [
        "What is the pass key for field house? The pass key for field house is",
        "What is the pass key for field house? The pass key for field house is",
    ] {
        let report = conversation.ask(question, &mut |event| {
            if let RunEvent::Text(text) = event {
                print!("{text}");
            }
            ControlFlow::Continue(())
        })?;
        println!(": {} tokens read for this question", report.read_tokens);
    }
    Ok(())
}

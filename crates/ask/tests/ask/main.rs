//! Conversations on the shipped model.

mod conversation;
mod meaning;
mod parts;

use std::fs;

use riffle_documents::{Document, DocumentKind};
use riffle_engine::GenerateOptions;
use riffle_testing::fixture;

const NAMES: [&str; 8] = [
    "field house",
    "city wall",
    "gold hand",
    "water stone",
    "fire gate",
    "wind tree",
    "man young",
    "horse red",
];

fn fact(number: usize) -> String {
    format!("The pass key for {} is {}.", NAMES[number], 10_307 + 11_113 * number)
}

fn question(number: usize) -> String {
    let name = NAMES[number];
    format!("What is the pass key for {name}? The pass key for {name} is")
}

fn document(name: &str, text: String) -> Document {
    Document {
        name: name.to_owned(),
        kind: DocumentKind::Text,
        text,
        places: Vec::new(),
        warnings: Vec::new(),
    }
}

/// A part of the shipped book with all facts in it, far from each other.
fn book() -> Document {
    let book = fs::read_to_string(fixture("text/zechariah.txt")).unwrap();
    let mut lines: Vec<String> = book.lines().take(64).map(str::to_owned).collect();
    for number in 0..NAMES.len() {
        lines.insert(5 + 9 * number, fact(number));
    }
    document("book.txt", lines.join("\n"))
}

fn generate() -> GenerateOptions {
    GenerateOptions {
        max_tokens: 6,
        ..GenerateOptions::default()
    }
}

//! Mutated requests: the server answers or refuses each, and never fails itself.

use riffle_server::{JSON_PATHS, Server, ServerOptions};

use crate::testing::{engine, options};

/// Replacements for tokens of a body.
const PIECES: [&str; 22] = [
    "null",
    "true",
    "-1",
    "0",
    "1e400",
    "99999999999999999999",
    "0.5",
    "\"\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "[]",
    "{}",
    "[[]]",
    "{\"type\":\"text\"}",
    ",",
    ":",
    "\"",
    "{",
    "]",
    "\u{202e}",
    "\"auto\"",
    "\"full:from=-1\"",
];

/// A deterministic generator of whole numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// The body with a few tokens of its JSON replaced, doubled or removed.
fn mutant(body: &str, numbers: &mut Numbers) -> String {
    let mut parts: Vec<&str> = body.split_inclusive(['{', '}', '[', ']', ',', ':']).collect();
    for _ in 0..1 + numbers.below(3) {
        let place = numbers.below(parts.len());
        match numbers.below(4) {
            0 => drop(parts.remove(place)),
            1 => parts.insert(place, parts[place]),
            _ => {
                let piece = PIECES[numbers.below(PIECES.len())];
                // The separator after a value stays, so that most mutants are still JSON.
                let end = parts[place].chars().last().unwrap_or(',');
                parts[place] = piece;
                parts.insert(
                    place + 1,
                    [",", ":", "}", "]", "{", "["]
                        .into_iter()
                        .find(|mark| mark.starts_with(end))
                        .unwrap_or(""),
                );
            }
        }
        if parts.is_empty() {
            break;
        }
    }
    parts.concat()
}

#[test]
fn requests_that_are_nearly_right_are_answered_or_refused() {
    let server = Server::bind(
        &engine(),
        ServerOptions {
            default_max_tokens: 2,
            ..options()
        },
    )
    .unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/requests");
    let mut seeds: Vec<Vec<u8>> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .collect();
    seeds.sort();
    assert_eq!(seeds.len(), 15);
    let (mut numbers, mut answered) = (Numbers(7), 0);
    for round in 0..120 {
        for seed in &seeds {
            let (path, body) = (
                JSON_PATHS[usize::from(seed[0])],
                std::str::from_utf8(&seed[1..]).unwrap(),
            );
            let body = match round {
                0 => body.to_owned(),
                _ => mutant(body, &mut numbers),
            };
            let (status, answer) = server.respond(path, body.as_bytes());
            let answer = String::from_utf8(answer).unwrap();
            assert!(status < 500, "{path} {body}\n{status}: {answer}");
            assert!(
                status == 200 || answer.contains("\"message\":\"") || answer.contains("\"error\":\""),
                "{path} {body}\n{answer}"
            );
            answered += usize::from(status == 200);
        }
    }
    assert!(answered > 20, "{answered} were answered");
}

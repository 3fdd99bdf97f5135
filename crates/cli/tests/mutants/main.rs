//! Hundreds of damaged files given to the real command, the same in every run.
//!
//! Each mutant is one damaged file beside intact ones. The command must end within ten seconds, with a documented exit
//! status, without a signal or a panic. It must stay within its `--memory` and 64 MiB. A refusal is one line of error.
//! Its answer must be the one that the intact file gives, unless the damage can make another legal file.
//!
//! Damage is of two kinds. [`Structure`](mutation::Harm::Structure) breaks what the format promises: a length, a type,
//! a count, an offset, a checksum. No such file may give another answer. [`Content`](mutation::Harm::Content) may leave
//! a legal file that says something else, such as another weight, word or rotary base: no reader can tell, so the
//! answer is not compared. Every byte of the files that Riffle writes for itself (sessions, prefix blocks, journals)
//! counts as structure.
//!
//! `RIFFLE_MUTANTS` sets how many mutants are made (`scripts/test/mutants` makes 5,000), `RIFFLE_MUTANT` runs one
//! alone.
#![cfg(unix)]

mod gguf;
mod json;
mod mutation;
mod subject;
#[path = "../testing/mod.rs"]
mod testing;
mod verdict;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use riffle_testing::damage::Damage;
use subject::Subject;
use verdict::{Outcome, Verdict};

/// Default number of mutants; RIFFLE_MUTANTS changes it.
const MUTANTS: usize = 500;
/// Commands that run at a time.
const WORKERS: usize = 2;

/// Number of mutants of one subject by outcome.
#[derive(Default)]
struct Tally {
    same: usize,
    refused: usize,
    other: usize,
}

fn number_from(variable: &str) -> Option<usize> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")))
}

#[test]
fn no_damaged_file_hangs_panics_takes_memory_or_changes_an_answer_in_silence() {
    let folder = tempfile::tempdir().expect("a folder");
    let subjects = Subject::all(&folder.path().join("intact"));
    let numbers: Vec<usize> = match number_from("RIFFLE_MUTANT") {
        Some(number) => vec![number],
        None => (0..number_from("RIFFLE_MUTANTS").unwrap_or(MUTANTS)).collect(),
    };
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let place = folder.path().join(format!("worker-{worker}"));
            let (next, numbers, subjects, verdicts) = (&next, &numbers, &subjects, &verdicts);
            scope.spawn(move || {
                while let Some(number) = numbers.get(next.fetch_add(1, Relaxed)) {
                    let subject = &subjects[number % subjects.len()];
                    let verdict = judge(subject, *number, &place);
                    verdicts
                        .lock()
                        .expect("no worker panicked")
                        .push((subject.name(), verdict));
                }
            });
        }
    });
    report(verdicts.into_inner().expect("no worker panicked"), numbers.len());
}

/// Damages a copy of `subject` in `place`, runs its command and judges the result. `number` determines the damage.
fn judge(subject: &Subject, number: usize, place: &Path) -> Verdict {
    let mut damage = Damage::new(number as u64);
    let mutant = subject.mutant(&mut damage, place);
    verdict::judge(subject, number, &mutant)
}

/// Prints a table of the outcomes. Fails if a mutant broke a promise, or if damage is never or always noticed.
fn report(verdicts: Vec<(String, Verdict)>, mutants: usize) {
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    let mut broken = Vec::new();
    for (name, verdict) in verdicts {
        let tally = tallies.entry(name.clone()).or_default();
        match verdict.outcome {
            Outcome::SameAnswer => tally.same += 1,
            Outcome::Refused => tally.refused += 1,
            Outcome::OtherFile => tally.other += 1,
            Outcome::Broken(what) => broken.push(format!("mutant {} of {name}: {what}", verdict.number)),
        }
    }
    println!(
        "{:28} {:>6} {:>8} {:>17}",
        "file", "same", "refused", "another legal file"
    );
    for (name, tally) in &tallies {
        println!("{name:28} {:6} {:8} {:17}", tally.same, tally.refused, tally.other);
    }
    println!("{} mutants, {} broke a promise", mutants, broken.len());
    broken.sort();
    assert!(
        broken.is_empty(),
        "{}\n(RIFFLE_MUTANT=N runs one alone)",
        broken.join("\n")
    );
    let refused: usize = tallies.values().map(|tally| tally.refused).sum();
    assert!(
        mutants < 100 || (refused > mutants / 20 && refused < mutants * 19 / 20),
        "{refused} of {mutants} were refused: such damage would test nothing"
    );
}

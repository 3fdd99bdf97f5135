//! Policies and tasks of another crate are compared like the laboratory's own.

use std::fs;
use std::ops::ControlFlow;

use riffle_attention::{QueryTile, Selection, Span};
use riffle_engine::{Engine, EngineOptions};
use riffle_eval::{
    Ask, CompareOptions, CompareTask, Corpus, EvalError, HiddenFact, Journal, PolicyChoice, Record, Task, TaskPrompt,
    Wording, compare,
};
use riffle_policy::{BudgetParameter, ParameterInfo, PolicyInfo, SelectContext, SparsePolicy, Traits};
use riffle_testing::fixtures;

/// Reads the end of the context, as long as `share` says.
struct Tail {
    share: f32,
}

impl SparsePolicy for Tail {
    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let tokens = (self.share * context.tokens as f32) as usize;
        let first = tile.start.saturating_sub(tokens);
        Selection::from_spans([Span::new(first, context.tokens)])
    }
}

static POLICIES: [PolicyInfo; 1] = [PolicyInfo::outside(
    "tail",
    Traits::PLAIN.with_budget(BudgetParameter::share("share")),
    &[ParameterInfo::number(
        "share",
        "0.5",
        "share of the tokens that are read",
        0.0,
        1.0,
    )],
    |parameters| {
        Box::new(Tail {
            share: parameters.number("share"),
        })
    },
)];

/// A number near the end of the text, which `tail` reads, or near its beginning, which `tail` skips.
struct Number {
    name: &'static str,
    depth: f64,
}

impl Task for Number {
    fn name(&self) -> &str {
        self.name
    }

    fn prompt(&self, corpus: &Corpus, context_tokens: usize, seed: u64) -> Result<TaskPrompt, EvalError> {
        let words = corpus.words();
        let key = format!(
            "{} {}",
            words[7 * seed as usize % words.len()],
            words[13 * seed as usize % words.len()]
        );
        let number = (10_000 + 7919 * seed % 90_000).to_string();
        let facts = [HiddenFact::new(
            self.depth,
            format!("The pass key for {key} is {number}."),
        )];
        let ask = Ask {
            question: format!("What is the pass key for {key}?"),
            lead: format!(" The pass key for {key} is"),
        };
        corpus.hide("", &facts, &ask, vec![number], (context_tokens, seed))
    }
}

static NEAR: Number = Number {
    name: "near",
    depth: 0.95,
};
static FAR: Number = Number {
    name: "far",
    depth: 0.1,
};

#[test]
fn a_policy_and_tasks_of_another_crate_are_compared_at_a_budget() {
    let engine = Engine::load(fixtures().join("model"), EngineOptions::default()).unwrap();
    let text = fs::read_to_string(fixtures().join("text/prophets.txt")).unwrap();
    let corpus = Corpus::new(&engine, &text, Wording::plain(), Vec::new()).unwrap();
    let prompt = NEAR.prompt(&corpus, 1024, 3).unwrap();
    assert_eq!(prompt.document.len() + prompt.question.len(), 1024);
    assert!(NEAR.prompt(&corpus, 30, 3).is_err(), "no room for a text");
    let policies = ["tail", "random:block=16"].map(|text| PolicyChoice::parse_among(text, &POLICIES).unwrap());
    let options = CompareOptions {
        policies: policies.to_vec(),
        tasks: vec![CompareTask::outside(&NEAR), CompareTask::outside(&FAR)],
        lengths: vec![1024],
        samples: 4,
        depths: 1,
        seed: 1,
        budgets: vec![0.3],
        shares: true,
    };
    let table = compare(&engine, &corpus, &options, &mut Journal::none(), &mut |_| {
        ControlFlow::Continue(())
    })
    .unwrap();
    let score = |policy: &str, task: &str| {
        let row = table.rows.iter().find(|row| row.policy == policy && row.task == task);
        row.unwrap_or_else(|| panic!("no {policy} at {task}: {table:?}"))
            .score
            .mean
    };
    assert!(
        score("full", "near") >= 0.75 && score("full", "far") >= 0.75,
        "{table:?}"
    );
    assert!(
        score("tail", "near") >= 0.75 && score("tail", "far") <= 0.25,
        "{table:?}"
    );
    let error = PolicyChoice::parse_among("tale", &POLICIES).unwrap_err().to_string();
    assert!(error.contains("tale"), "{error}");
}

#[test]
fn records_of_every_schema_are_read_and_newer_ones_refused() {
    let folder = fixtures().join("../docs/results/records");
    let found = Record::read_folder(&folder).unwrap();
    assert!(found.skipped.is_empty(), "{:?}", found.skipped);
    assert!(
        found.records.iter().any(|record| record.header.schema == 1),
        "committed before there were schemas"
    );
    let newer = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(folder.join("budget.json")).unwrap();
    let place = newer.path().join("newer.json");
    fs::write(&place, text.replacen('{', "{\"schema\": 99,", 1)).unwrap();
    fs::write(newer.path().join("old.json"), text).unwrap();
    fs::write(newer.path().join("other.json"), "[1, 2]").unwrap();
    let found = Record::read_folder(newer.path()).unwrap();
    assert_eq!(found.records.len(), 1);
    let skipped: Vec<String> = found.skipped.iter().map(ToString::to_string).collect();
    assert!(
        skipped[0].contains("newer.json") && skipped[0].contains("schema 99"),
        "{skipped:?}"
    );
    assert!(
        skipped[1].contains("other.json") && skipped.iter().all(|line| !line.contains('\n')),
        "{skipped:?}"
    );
}

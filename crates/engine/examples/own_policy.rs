//! A policy of your own, used by the engine: `cargo run --release -p riffle-engine --example own_policy`.

use std::error::Error;
use std::ops::ControlFlow;

use riffle_attention::{QueryTile, Selection, Span};
use riffle_engine::{Engine, EngineOptions, GenerateOptions, Session};
use riffle_policy::{ParameterInfo, PolicyInfo, PolicySpec, SelectContext, SparsePolicy, Traits};

// ANCHOR: policy
/// Reads the first tokens, the latest ones, and every `step`-th token between them.
struct Comb {
    step: usize,
    window: usize,
}

impl SparsePolicy for Comb {
    fn select(&self, _tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let between = (0..context.tokens).step_by(self.step);
        let sinks = Span::new(0, 4.min(context.tokens));
        let teeth = between.map(|token| Span::new(token, token + 1));
        Selection::from_spans(teeth.chain([sinks])).with_row_window(self.window)
    }
}

/// The policy's entry for the engine: its name, traits and parameters.
static MINE: [PolicyInfo; 1] = [PolicyInfo::outside(
    "comb",
    Traits::PLAIN,
    &[
        ParameterInfo::tokens("step", "16", "distance of the tokens that every query reads"),
        ParameterInfo::tokens("window", "256", "latest tokens that each query reads"),
    ],
    |parameters| {
        Box::new(Comb {
            step: parameters.count("step").max(1),
            window: parameters.count("window").max(1),
        })
    },
)];
// ANCHOR_END: policy

// ANCHOR: use
fn main() -> Result<(), Box<dyn Error>> {
    let comb = PolicySpec::parse_among("comb:step=8", &MINE)?;
    let options = EngineOptions::default()
        .with_context_tokens(Some(8192))
        .with_prefill(comb.clone().into())
        .with_decode(comb.into())
        // Compare what it reads with true attention.
        .with_audit(true);
    let engine = Engine::load("fixtures/model", options)?;
    let book: String = std::fs::read_to_string("fixtures/text/zechariah.txt")?;
    let prompt = engine.tokenizer()?.encode(&book, true)?;
    let mut session = Session::new(&engine)?;
    session.prefill(&prompt[..4096], &mut |_| ControlFlow::Continue(()))?;
    let answer = session.generate(&GenerateOptions::default(), &mut |_| ControlFlow::Continue(()))?;
    println!("{}", answer.text);
    println!(
        "{:.1}% of the pairs read",
        100.0 * session.sequence().counts().pairs.density()
    );
    if let Some(audit) = session.sequence().audit() {
        println!("{:.3} of the true attention kept", audit.mean_mass);
    }
    Ok(())
}
// ANCHOR_END: use

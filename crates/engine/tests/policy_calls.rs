//! A policy is called in the order that `riffle_policy::Policy` documents.

mod testing;

use std::sync::Mutex;

use riffle_attention::{QueryTile, Selection};
use riffle_engine::{EngineOptions, Session};
use riffle_policy::{
    ColumnMass, Estimated, KeyUse, Learn, LentScan, PolicyInfo, PolicySpec, SelectContext, SparsePolicy, Traits,
};
use testing::{go_on, prompt, small_engine};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Prepare,
    Select,
    TakeScan,
    Observe,
}

/// (layer, KV head, first and last token of the chunk, call)
type Event = (usize, usize, [usize; 2], Call);

static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());

/// Selects all keys and records its calls.
#[derive(Default)]
struct Recorder {
    head: (usize, usize),
    chunk: [usize; 2],
}

impl Recorder {
    fn record(&self, call: Call) {
        let event = (self.head.0, self.head.1, self.chunk, call);
        EVENTS.lock().unwrap().push(event);
    }
}

impl SparsePolicy for Recorder {
    fn prepare(&mut self, _chunk: &QueryTile<'_>, context: &SelectContext<'_>, _: Option<Estimated>) {
        self.head = (context.layer, context.kv_head);
        self.chunk = [context.chunk_start, context.tokens];
        assert!(context.pages.iter().map(|page| page.tokens).sum::<usize>() >= context.tokens);
        self.record(Call::Prepare);
    }

    fn select(&self, _tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        assert_eq!(self.chunk, [context.chunk_start, context.tokens]);
        self.record(Call::Select);
        Selection::full(context.tokens)
    }

    fn take_scan(&mut self) -> Option<LentScan> {
        self.record(Call::TakeScan);
        None
    }

    fn learn(&mut self) -> Option<&mut dyn Learn> {
        Some(self)
    }
}

impl Learn for Recorder {
    fn observes_from(&self, context: &SelectContext<'_>) -> usize {
        context.chunk_start
    }

    fn observe(&mut self, mass: &ColumnMass<'_>) {
        // The decode policy observes the prompt before it prepares a chunk of its own.
        if self.chunk == [0, 0] {
            return;
        }
        assert_eq!([mass.queries.start, mass.queries.end], self.chunk);
        // Each query and head adds a mass of 1 once the chunk is attended.
        let total: f32 = mass.mass.iter().sum();
        let given = (mass.queries.len() * mass.group) as f32;
        assert!((total - given).abs() < 1e-3 * given, "{total} of {given}");
        self.record(Call::Observe);
    }
}

static RECORDER: [PolicyInfo; 1] = [PolicyInfo::outside(
    "recorder",
    Traits::PLAIN.with_keys(KeyUse::Scanned).with_learning(),
    &[],
    |_| Box::<Recorder>::default(),
)];

#[test]
fn a_chunk_is_prepared_selected_attended_to_and_then_observed() {
    let recorder = PolicySpec::parse_among("recorder", &RECORDER).unwrap();
    let engine = small_engine(
        EngineOptions::default()
            .with_prefill(recorder.clone().into())
            .with_decode(recorder.into())
            .with_chunk_tokens(64)
            .with_page_tokens(32),
    );
    let tokens = prompt(151);
    let mut session = Session::new(&engine).unwrap();
    session.prefill(&tokens[..150], &mut go_on).unwrap();
    session.advance(tokens[150]).unwrap();
    let events = std::mem::take(&mut *EVENTS.lock().unwrap());
    let config = engine.model().config();
    for layer in 0..config.layers {
        for kv_head in 0..config.kv_heads {
            let of_head = events
                .iter()
                .filter(|(event_layer, event_head, ..)| (*event_layer, *event_head) == (layer, kv_head));
            let calls: Vec<([usize; 2], Call)> = of_head.map(|(_, _, chunk, call)| (*chunk, *call)).collect();
            for chunk in [[0, 64], [64, 128], [128, 150], [150, 151]] {
                let mut calls: Vec<Call> = calls
                    .iter()
                    .filter(|(known, _)| *known == chunk)
                    .map(|(_, call)| *call)
                    .collect();
                calls.dedup();
                assert!(
                    calls.starts_with(&[Call::Prepare, Call::Select, Call::TakeScan, Call::Observe]),
                    "layer {layer}, KV head {kv_head}, chunk {chunk:?}: {calls:?}"
                );
            }
        }
    }
}

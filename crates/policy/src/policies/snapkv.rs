use riffle_attention::{QueryTile, Selection, Span};

use super::h2o::{PROTECT, protected};
use crate::held::{Held, Protected};
use crate::parameter::MAX_TOKENS;
use crate::{ColumnMass, ParameterInfo, Phase, PolicyError, PolicyInfo, Recall, SelectContext, SparsePolicy, state};

/// A bounded number of prompt tokens, those that the prompt's last queries attended to, and all tokens after them.
///
/// The mass is summed over the queries and the heads of the group and averaged over neighbours, so that what surrounds a
/// hit stays with it. What is evicted is not read again, also when a later question would need it: the trap of every
/// method that compresses before the question is known. A rollback forgets the tokens after it, not the evictions
/// before.
struct SnapKv {
    budget: usize,
    window: usize,
    pool: usize,
    protected: Protected,
    held: Held,
    /// By position, from the end of the last prompt until the next token is generated.
    mass: Vec<f32>,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "snapkv",
    supports_prefill: false,
    supports_decode: true,
    recall: Recall::None,
    saves: "compute, traffic",
    source: "SnapKV, Li et al. 2024, arXiv:2404.14469",
    chunk: None,
    work: None,
    stored_bytes: |_, _| 12.0,
    parameters: &[
        ParameterInfo::count(
            "budget",
            "1024",
            "prompt tokens that are kept, protected ones counted",
            1,
            MAX_TOKENS,
        ),
        ParameterInfo::count(
            "window",
            "32",
            "last queries of the prompt, which vote and are kept",
            1,
            4096,
        ),
        ParameterInfo::count("pool", "7", "neighbours over which mass is averaged", 1, 1023),
        ParameterInfo::tokens("sinks", "4", "first tokens, never evicted"),
        PROTECT,
    ],
    build: |parameters| {
        Box::new(SnapKv {
            budget: parameters.count("budget"),
            window: parameters.count("window"),
            pool: parameters.count("pool"),
            protected: protected(parameters, parameters.count("window")),
            held: Held::default(),
            mass: Vec::new(),
        })
    },
};

impl SparsePolicy for SnapKv {
    fn scans_keys(&self) -> bool {
        false
    }

    fn keys_from(&self, context: &SelectContext<'_>) -> usize {
        context.tokens
    }

    fn prepare(&mut self, _chunk: &QueryTile<'_>, _context: &SelectContext<'_>) {
        if self.mass.is_empty() {
            return;
        }
        let prompt = self.mass.len();
        self.held.take_in(prompt);
        let positions = self.held.positions();
        let scores: Vec<f32> = positions.iter().map(|position| self.pooled(*position)).collect();
        let protected = &self.protected;
        self.held
            .keep(&scores, self.budget, |_, position| protected.holds(position, prompt));
        self.mass.clear();
    }

    fn select(&self, _queries: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        self.held.selection(context.tokens)
    }

    fn observes_from(&self, context: &SelectContext<'_>) -> usize {
        match context.phase {
            Phase::Prefill => context
                .chunk_start
                .max(context.total_tokens.saturating_sub(self.window))
                .min(context.tokens),
            Phase::Decode => context.tokens,
        }
    }

    fn observe(&mut self, mass: &ColumnMass<'_>) {
        self.mass.resize(mass.mass.len(), 0.0);
        for (sum, received) in self.mass.iter_mut().zip(mass.mass) {
            *sum += received;
        }
    }

    fn follows_from_keys(&self) -> bool {
        false
    }

    fn retained(&self, tokens: usize) -> Option<Vec<Span>> {
        Some(self.held.selection(tokens).spans().to_vec())
    }

    fn close_gaps(&mut self) {
        self.held.close_gaps();
    }

    fn save_state(&self) -> Vec<u8> {
        state::write(&self.held.numbers(), &self.mass)
    }

    fn restore_state(&mut self, state: &[u8]) -> Result<(), PolicyError> {
        self.reset();
        let (numbers, mass) = state::read(state).ok_or(PolicyError::BadState)?;
        self.held = Held::from_numbers(&numbers).ok_or(PolicyError::BadState)?;
        self.mass = mass;
        Ok(())
    }

    fn truncate(&mut self, tokens: usize) {
        self.held.truncate(tokens);
        if tokens < self.mass.len() {
            self.mass.clear();
        }
    }
}

impl SnapKv {
    /// Mean mass of the position's neighbourhood.
    fn pooled(&self, position: usize) -> f32 {
        let before = (self.pool - 1) / 2;
        let around = Span::new(position.saturating_sub(before), position + self.pool - before);
        let around = around.intersect(&Span::new(0, self.mass.len()));
        self.mass[around.range()].iter().sum::<f32>() / around.len() as f32
    }
}

use riffle_attention::{QueryTile, Selection, Span};

use super::h2o::{PROTECT, protected};
use crate::parameter::MAX_TOKENS;
use crate::retained::{ProtectedTokens, RetainedTokens};
use crate::{
    BudgetParameter, ColumnMass, Estimated, Evict, Learn, ParameterInfo, Persist, Phase, PolicyError, PolicyInfo,
    SelectContext, SparsePolicy, Traits, state,
};

/// Reads a bounded number of prompt tokens, to which the prompt's last queries attended most, and all tokens after
/// the prompt.
///
/// The mass is summed over the queries and the heads of the group. It is averaged over neighbours, so that the tokens
/// around a hit are retained too. An evicted token is never read again, even if a later question needs it. Every method
/// that compresses before it knows the question has this weakness. A rollback removes the tokens after it; earlier
/// evictions remain.
#[derive(Clone)]
struct SnapKv {
    budget: usize,
    window: usize,
    pool: usize,
    protected: ProtectedTokens,
    retained: RetainedTokens,
    /// Mass by position, stored from the end of a prompt until the next token is generated.
    mass: Vec<f32>,
}

pub(crate) const INFO: PolicyInfo = PolicyInfo {
    name: "snapkv",
    source: "SnapKV, Li et al. 2024, arXiv:2404.14469",
    saves: "compute, traffic",
    traits: Traits {
        learns: true,
        evicts: true,
        persists: true,
        follows_from_keys: false,
        depends_on_chunks: true,
        stored_bytes: |_, _| 12.0,
        budget: Some(BudgetParameter::tokens("budget", 36.0)),
        ..Traits::DECODE
    },
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
            retained: RetainedTokens::default(),
            mass: Vec::new(),
        })
    },
};

impl SparsePolicy for SnapKv {
    fn prepare(&mut self, _chunk: &QueryTile<'_>, _context: &SelectContext<'_>, _: Option<Estimated>) {
        if self.mass.is_empty() {
            return;
        }
        let prompt = self.mass.len();
        self.retained.extend(prompt);
        let positions = self.retained.positions();
        let scores: Vec<f32> = positions.iter().map(|position| self.pooled(*position)).collect();
        let protected = &self.protected;
        self.retained
            .evict(&scores, self.budget, |_, position| protected.contains(position, prompt));
        self.mass.clear();
    }

    fn select(&self, _tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        self.retained.selection(context.tokens)
    }

    fn truncate(&mut self, tokens: usize) {
        self.retained.truncate(tokens);
        if tokens < self.mass.len() {
            self.mass.clear();
        }
    }

    fn learn(&mut self) -> Option<&mut dyn Learn> {
        Some(self)
    }

    fn evict(&mut self) -> Option<&mut dyn Evict> {
        Some(self)
    }

    fn persist(&self) -> Option<&dyn Persist> {
        Some(self)
    }
}

impl Learn for SnapKv {
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
}

impl Evict for SnapKv {
    fn retained(&self, tokens: usize) -> Vec<Span> {
        self.retained.selection(tokens).spans().to_vec()
    }

    fn close_gaps(&mut self) {
        self.retained.close_gaps();
    }
}

impl Persist for SnapKv {
    fn save(&self) -> Vec<u8> {
        state::write(&self.retained.to_numbers(), &self.mass)
    }

    fn restored(&self, state: &[u8]) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        let (numbers, mass) = state::read(state).ok_or(PolicyError::BadState)?;
        Ok(Box::new(Self {
            protected: self.protected.clone(),
            retained: RetainedTokens::from_numbers(&numbers).ok_or(PolicyError::BadState)?,
            mass,
            ..*self
        }))
    }

    fn copied(&self) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        Ok(Box::new(self.clone()))
    }
}

impl SnapKv {
    /// Mean mass of the position and its neighbours.
    fn pooled(&self, position: usize) -> f32 {
        let before = (self.pool - 1) / 2;
        let around = Span::new(position.saturating_sub(before), position + self.pool - before);
        let around = around.intersect(&Span::new(0, self.mass.len()));
        self.mass[around.range()].iter().sum::<f32>() / around.len() as f32
    }
}

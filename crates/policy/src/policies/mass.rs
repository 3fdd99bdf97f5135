//! A policy for drafts only: it reads the keys with most mass in the last verification (Vegas, arXiv 2602.07223).
//!
//! Verification reads every key that the answer's own policy selects, so it knows each key's mass. For each head the
//! policy stores the tokens with most mass; drafts read these, the latest tokens and the first ones. Only the last
//! row of a verification is used, because its mass needs a second pass over the keys.

use riffle_attention::{QueryTile, Selection, Span};

use crate::{
    BudgetParameter, ChunkSize, ChunkWork, ColumnMass, Learn, ParameterInfo, Parameters, Persist, PolicyError,
    PolicyInfo, SelectContext, SparsePolicy, Traits,
};

/// The largest value of a parameter.
const MOST: usize = 1 << 20;

pub(crate) const INFO: PolicyInfo = PolicyInfo::outside(
    "mass",
    Traits::DECODE
        .with_learning()
        .with_persistence()
        .with_work(work)
        .with_budget(BudgetParameter::tokens("budget", 260.0)),
    &[
        ParameterInfo::count(
            "budget",
            "256",
            "tokens with most mass at the latest verification",
            1,
            MOST,
        ),
        ParameterInfo::count("recent", "256", "latest tokens, always read", 1, MOST),
        ParameterInfo::tokens("sinks", "4", "first tokens, always read"),
    ],
    |parameters| {
        Box::new(Mass {
            budget: parameters.count("budget"),
            recent: parameters.count("recent"),
            sinks: parameters.count("sinks"),
            heavy: Vec::new(),
        })
    },
)
.with_source("Vegas, arXiv:2602.07223");

fn work(parameters: &Parameters, chunk: &ChunkSize) -> ChunkWork {
    let [budget, recent, sinks] = ["budget", "recent", "sinks"].map(|name| parameters.count(name));
    // Kernels read keys in blocks of 16; a single key costs a whole block.
    let read = 8 * budget + recent + sinks;
    ChunkWork::reading((read as f64 / chunk.tokens as f64).min(1.0))
}

#[derive(Clone)]
struct Mass {
    budget: usize,
    recent: usize,
    sinks: usize,
    /// Positions, ascending.
    heavy: Vec<usize>,
}

impl SparsePolicy for Mass {
    fn select(&self, _tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        let sinks = Span::new(0, self.sinks.min(context.tokens));
        let heavy = self.heavy.iter().take_while(|position| **position < context.tokens);
        let heavy = heavy.map(|position| Span::new(*position, position + 1));
        Selection::from_spans(std::iter::once(sinks).chain(heavy)).with_row_window(self.recent)
    }

    fn truncate(&mut self, tokens: usize) {
        let kept = self.heavy.partition_point(|position| *position < tokens);
        self.heavy.truncate(kept);
    }

    fn learn(&mut self) -> Option<&mut dyn Learn> {
        Some(self)
    }

    fn persist(&self) -> Option<&dyn Persist> {
        Some(self)
    }
}

impl Learn for Mass {
    fn observes_from(&self, context: &SelectContext<'_>) -> usize {
        // The last row of a pass: its mass covers the longest text.
        if context.tokens == context.total_tokens {
            context.tokens - 1
        } else {
            context.tokens
        }
    }

    fn observe(&mut self, mass: &ColumnMass<'_>) {
        self.heavy = heaviest(mass.mass, self.budget);
    }
}

/// Positions of the `count` largest masses, ascending. Ties go to the lower position, so the choice is the same on
/// every machine.
fn heaviest(mass: &[f32], count: usize) -> Vec<usize> {
    if mass.len() <= count {
        return (0..mass.len()).collect();
    }
    // The upper bits of non-negative floats have the order of the floats. Counting them is faster than sorting all
    // positions.
    let bin = |mass: f32| (mass.max(0.0).to_bits() >> 20) as usize;
    let mut bins = vec![0; 1 << 11];
    mass.iter().for_each(|mass| bins[bin(*mass)] += 1);
    let (mut lowest, mut held) = (bins.len(), 0);
    while held < count {
        lowest -= 1;
        held += bins[lowest];
    }
    let within = mass.iter().enumerate().filter(|(_, mass)| bin(**mass) >= lowest);
    let (mut edge, mut heavy): (Vec<_>, Vec<_>) = within.partition(|(_, mass)| bin(**mass) == lowest);
    edge.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    edge.truncate(count - heavy.len());
    heavy.extend(edge);
    let mut positions: Vec<usize> = heavy.into_iter().map(|(position, _)| position).collect();
    positions.sort_unstable();
    positions
}

impl Persist for Mass {
    fn save(&self) -> Vec<u8> {
        let positions = self.heavy.iter().flat_map(|position| (*position as u64).to_le_bytes());
        positions.collect()
    }

    fn restored(&self, state: &[u8]) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        let (positions, rest) = state.as_chunks::<8>();
        let heavy: Vec<usize> = positions
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes) as usize)
            .collect();
        if rest.is_empty() && heavy.is_sorted() {
            Ok(Box::new(Self { heavy, ..self.clone() }))
        } else {
            Err(PolicyError::BadState)
        }
    }

    fn copied(&self) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        Ok(Box::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use riffle_attention::Span;

    fn policy(budget: usize) -> Mass {
        Mass {
            budget,
            recent: 2,
            sinks: 1,
            heavy: Vec::new(),
        }
    }

    fn observe(policy: &mut Mass, mass: &[f32]) {
        let queries = Span::new(mass.len() - 1, mass.len());
        policy.observe(&ColumnMass {
            queries,
            group: 1,
            mass,
        });
    }

    #[test]
    fn the_heaviest_tokens_are_kept_and_ties_go_to_the_lower_position() {
        let mut policy = policy(3);
        observe(&mut policy, &[0.1, 0.3, 0.1, 0.1, 0.4]);
        assert_eq!(policy.heavy, [0, 1, 4]);
        observe(&mut policy, &[0.0, 1.0]);
        assert_eq!(policy.heavy, [0, 1]);
    }

    #[test]
    fn the_heaviest_are_those_that_a_sort_finds() {
        // Many ties, zeros and masses of one bin.
        let mass: Vec<f32> = (0..500_u32)
            .map(|position| f32::from((position * 7919 % 23) as u8) * 1e-3)
            .collect();
        for count in [1, 7, 22, 23, 100, 499, 500, 501] {
            let mut order: Vec<usize> = (0..mass.len()).collect();
            order.sort_by(|a, b| mass[*b].total_cmp(&mass[*a]));
            order.truncate(count);
            order.sort_unstable();
            assert_eq!(heaviest(&mass, count), order, "{count}");
        }
    }

    #[test]
    fn tokens_that_are_rolled_back_are_forgotten_and_the_state_can_be_stored() {
        let mut policy = policy(4);
        observe(&mut policy, &[0.2, 0.1, 0.0, 0.3, 0.4]);
        let stored = policy.save();
        policy.truncate(4);
        assert_eq!(policy.heavy, [0, 1, 3]);
        let restored = policy.restored(&stored).unwrap();
        assert_eq!(restored.persist().unwrap().save(), stored);
        assert!(policy.restored(&[1, 2, 3]).is_err());
    }
}

//! Moves each head, during the prompt, to the cheapest policy that keeps its attention.

use riffle_policy::{CostModel, Phase, PolicySet, PolicyShape, PolicySpec, catalogue};
use serde::{Deserialize, Serialize};

use crate::EngineError;

/// Share of samples that may miss the target: one in a hundred.
const MAY_MISS: f64 = 0.01;

/// The policies available to heads, and each head's current one.
pub(crate) struct Auto {
    /// Policies from the cheapest to full attention.
    rungs: Vec<PolicySpec>,
    /// KV heads of each layer.
    kv_heads: Vec<usize>,
    /// `[layers, kv_heads]`
    places: Vec<HeadRung>,
}

/// The rung of a head on the ladder of policies. Every miss moves it one rung up and doubles the wait before a
/// cheaper one is tried again.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct HeadRung {
    rung: usize,
    /// Chunks that met the target since the last move.
    kept_chunks: u32,
    /// Chunks that must meet the target before a cheaper rung is tried.
    wait: u32,
}

/// The rungs of all heads, for a session's file. Rungs are stored in full, because their order depends on the context
/// and the machine's constants.
#[derive(Serialize, Deserialize)]
pub(crate) struct AutoState {
    rungs: Vec<String>,
    /// `[layers, kv_heads]`
    places: Vec<HeadRung>,
}

impl Auto {
    /// Every head begins with full attention, which is affordable in early chunks. Rungs are ordered by the cost of a
    /// chunk at the end of `tokens` in the first layer.
    pub(crate) fn new(shapes: &[PolicyShape], cost: &CostModel, tokens: usize) -> Self {
        let automatic = catalogue().iter().filter(|info| info.traits.automatic);
        let priced = automatic.map(|info| {
            let spec = info.name.parse().expect("the catalogue has it, and its defaults hold");
            let price = cost.relative_cost(&spec, Phase::Prefill, &shapes[0], tokens, None);
            (price, spec)
        });
        let mut rungs: Vec<(f64, PolicySpec)> = priced.collect();
        let is_dense = |spec: &PolicySpec| spec.info().traits.dense;
        rungs.sort_by(|a, b| a.0.total_cmp(&b.0).then(is_dense(&a.1).cmp(&is_dense(&b.1))));
        // A policy that costs more than full attention is not a rung.
        let full = rungs.iter().position(|(_, spec)| is_dense(spec));
        rungs.truncate(full.map_or(rungs.len(), |full| full + 1));
        let start = HeadRung {
            rung: rungs.len() - 1,
            kept_chunks: 0,
            wait: 1,
        };
        Self {
            rungs: rungs.into_iter().map(|(_, spec)| spec).collect(),
            kv_heads: shapes.iter().map(|shape| shape.kv_heads).collect(),
            places: vec![start; shapes.iter().map(|shape| shape.kv_heads).sum()],
        }
    }

    pub(crate) fn state(&self) -> AutoState {
        AutoState {
            rungs: self.rungs.iter().map(PolicySpec::to_string).collect(),
            places: self.places.clone(),
        }
    }

    /// Restores the heads' rungs and sets the policies of moved heads. Returns false for a state of other heads.
    pub(crate) fn resume(&mut self, state: &AutoState, policies: &mut PolicySet) -> Result<bool, EngineError> {
        let rungs: Result<Vec<PolicySpec>, _> = state.rungs.iter().map(|rung| rung.parse()).collect();
        let Ok(rungs) = rungs else { return Ok(false) };
        let sound = state.places.iter().all(|place| place.rung < rungs.len());
        if !sound || state.places.len() != self.places.len() {
            return Ok(false);
        }
        let heads = self.kv_heads.iter().enumerate();
        let heads = heads.flat_map(|(layer, kv_heads)| (0..*kv_heads).map(move |kv_head| (layer, kv_head)));
        for ((layer, kv_head), place) in heads.zip(&state.places) {
            // Every head begins on the last rung.
            if place.rung + 1 < rungs.len() {
                policies.replace(layer, kv_head, &rungs[place.rung])?;
            }
        }
        self.rungs = rungs;
        self.places.clone_from(&state.places);
        Ok(true)
    }

    /// Records how many of a chunk's samples missed the target; returns the policy that the KV head moves to, if it
    /// moves.
    pub(crate) fn learn(&mut self, layer: usize, kv_head: usize, samples: u64, missed: u64) -> Option<&PolicySpec> {
        let highest = self.rungs.len() - 1;
        let first: usize = self.kv_heads[..layer].iter().sum();
        let place = &mut self.places[first + kv_head];
        let before = place.rung;
        if missed as f64 > MAY_MISS * samples as f64 {
            place.rung = (place.rung + 1).min(highest);
            place.wait = place.wait.saturating_mul(2).max(4);
            place.kept_chunks = 0;
        } else {
            place.kept_chunks += 1;
            if place.kept_chunks >= place.wait && place.rung > 0 {
                place.rung -= 1;
                place.kept_chunks = 0;
            }
        }
        let moved = place.rung;
        (moved != before).then(|| &self.rungs[moved])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: PolicyShape = PolicyShape {
        kv_heads: 3,
        group: 2,
        head_dim: 64,
        chunk_tokens: 512,
    };

    #[test]
    fn heads_move_down_while_they_keep_their_target_and_up_when_they_miss_it() {
        let mut auto = Auto::new(&[SHAPE; 2], &CostModel::default(), 32_768);
        let names: Vec<&str> = auto.rungs.iter().map(PolicySpec::name).collect();
        assert_eq!((names[0], names[names.len() - 1]), ("streaming", "full"));
        for rung in (0..names.len() - 1).rev() {
            let moved = auto.learn(1, 2, 128, 1).map(PolicySpec::name);
            assert_eq!(moved, Some(names[rung]));
        }
        assert!(auto.learn(1, 2, 128, 0).is_none(), "there is nothing cheaper");
        assert_eq!(auto.learn(1, 2, 128, 2).map(PolicySpec::name), Some(names[1]));
        let tries = (0..100).take_while(|_| auto.learn(1, 2, 128, 0).is_none()).count();
        assert_eq!(tries, 3, "the fourth chunk tries again");
        assert_eq!(auto.learn(1, 2, 128, 9).map(PolicySpec::name), Some(names[1]));
        let tries = (0..100).take_while(|_| auto.learn(1, 2, 128, 0).is_none()).count();
        assert_eq!(tries, 7, "and waits twice as long after each miss");
        // Other heads stay on their rungs.
        assert_eq!(
            auto.learn(0, 2, 128, 0).map(PolicySpec::name),
            Some(names[names.len() - 2])
        );
    }

    #[test]
    fn what_never_pays_is_not_among_the_rungs() {
        let cost = CostModel {
            score_ns: 1e9,
            ..CostModel::default()
        };
        let auto = Auto::new(&[SHAPE; 2], &cost, 32_768);
        let names: Vec<&str> = auto.rungs.iter().map(PolicySpec::name).collect();
        assert_eq!(names, ["streaming", "full"]);
    }
}

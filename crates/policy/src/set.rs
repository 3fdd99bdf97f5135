use crate::{CostModel, Phase, Policy, PolicyError, PolicyRules, PolicyShape, PolicySpec, build};

/// The policies of one sequence in one phase, one for each layer and KV head. Heads may differ, and they are prepared
/// in parallel.
pub struct PolicySet {
    phase: Phase,
    /// Shapes by layer.
    shapes: Vec<PolicyShape>,
    cost: CostModel,
    /// `[layers][kv_heads]`
    layers: Vec<Vec<Policy>>,
}

impl PolicySet {
    /// Builds the policies of the rules for layers of these shapes. Each reads short sequences densely, up to
    /// [`dense_below`].
    ///
    /// # Errors
    /// [`PolicyError::UnsupportedPhase`], [`PolicyError::ChunkTooShort`], [`PolicyError::WrongTraits`].
    pub fn new(
        rules: &PolicyRules,
        phase: Phase,
        shapes: &[PolicyShape],
        cost: &CostModel,
    ) -> Result<Self, PolicyError> {
        if let Some(shape) = shapes.first() {
            rules.check(phase, shape.chunk_tokens)?;
        }
        let of_layer = |(layer, shape): (usize, &PolicyShape)| {
            let heads = 0..shape.kv_heads;
            heads
                .map(|kv_head| guarded(rules.policy(layer, kv_head), phase, shape, cost))
                .collect()
        };
        Ok(Self {
            phase,
            shapes: shapes.to_vec(),
            cost: *cost,
            layers: shapes.iter().enumerate().map(of_layer).collect::<Result<_, _>>()?,
        })
    }

    /// Replaces the policy of a layer and KV head by a new one without knowledge of the sequence.
    ///
    /// # Errors
    /// [`PolicyError::UnsupportedPhase`], [`PolicyError::WrongTraits`].
    pub fn replace(&mut self, layer: usize, kv_head: usize, spec: &PolicySpec) -> Result<(), PolicyError> {
        self.layers[layer][kv_head] = guarded(spec, self.phase, &self.shapes[layer], &self.cost)?;
        Ok(())
    }

    /// A layer's policies, one for each KV head.
    pub fn layer(&self, layer: usize) -> &[Policy] {
        &self.layers[layer]
    }

    /// A layer's policies, one for each KV head.
    pub fn layer_mut(&mut self, layer: usize) -> &mut [Policy] {
        &mut self.layers[layer]
    }

    /// All policies, layer by layer.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Policy> {
        self.layers.iter_mut().flatten()
    }

    /// All policies, layer by layer.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.layers.iter().flatten()
    }

    /// True if all policies depend on keys alone, without learned state.
    pub fn follows_from_keys(&self) -> bool {
        self.iter().all(|policy| policy.traits().follows_from_keys)
    }

    /// Removes tokens at and after `tokens`, in all policies.
    pub fn truncate(&mut self, tokens: usize) {
        self.iter_mut().for_each(|policy| policy.truncate(tokens));
    }
}

fn guarded(spec: &PolicySpec, phase: Phase, shape: &PolicyShape, cost: &CostModel) -> Result<Policy, PolicyError> {
    Ok(build(spec, phase)?.dense_below(dense_below(spec, phase, shape, cost)))
}

/// Length from which the policy selects: the policy's `from`, or its break-even length. Shorter sequences are read
/// densely. A policy without a break-even length always selects, because speed is not its purpose.
pub fn dense_below(spec: &PolicySpec, phase: Phase, shape: &PolicyShape, cost: &CostModel) -> usize {
    let break_even = || cost.break_even_tokens(spec, phase, shape).unwrap_or(0);
    spec.from_tokens().unwrap_or_else(break_even)
}

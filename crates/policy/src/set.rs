use crate::{CostModel, Phase, Policy, PolicyError, PolicyRules, PolicyShape, PolicySpec, build};

/// The policies of one sequence in one phase, one for each layer and KV head: heads may differ, and they are prepared in
/// parallel.
pub struct PolicySet {
    phase: Phase,
    shape: PolicyShape,
    cost: CostModel,
    /// `[layers, kv_heads]`
    heads: Vec<Policy>,
}

impl PolicySet {
    /// Makes the policies that the rules name. Each reads short sequences densely, up to [`dense_below`].
    ///
    /// # Errors
    /// [`PolicyError::UnsupportedPhase`], [`PolicyError::ChunkTooShort`], [`PolicyError::WrongTraits`].
    pub fn new(rules: &PolicyRules, phase: Phase, shape: &PolicyShape, cost: &CostModel) -> Result<Self, PolicyError> {
        rules.check(phase, shape.chunk_tokens)?;
        let places = (0..shape.layers).flat_map(|layer| (0..shape.kv_heads).map(move |kv_head| (layer, kv_head)));
        let heads = places.map(|(layer, kv_head)| guarded(rules.policy(layer, kv_head), phase, shape, cost));
        Ok(Self {
            phase,
            shape: *shape,
            cost: *cost,
            heads: heads.collect::<Result<_, _>>()?,
        })
    }

    /// Gives a layer and KV head another policy, which begins without knowledge of the sequence.
    ///
    /// # Errors
    /// [`PolicyError::UnsupportedPhase`], [`PolicyError::WrongTraits`].
    pub fn replace(&mut self, layer: usize, kv_head: usize, spec: &PolicySpec) -> Result<(), PolicyError> {
        let policy = guarded(spec, self.phase, &self.shape, &self.cost)?;
        self.heads[layer * self.shape.kv_heads + kv_head] = policy;
        Ok(())
    }

    /// A layer's policies, one for each KV head.
    pub fn layer(&self, layer: usize) -> &[Policy] {
        &self.heads[layer * self.shape.kv_heads..][..self.shape.kv_heads]
    }

    /// A layer's policies, one for each KV head.
    pub fn layer_mut(&mut self, layer: usize) -> &mut [Policy] {
        &mut self.heads[layer * self.shape.kv_heads..][..self.shape.kv_heads]
    }

    /// All policies, `[layers, kv_heads]`.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Policy> {
        self.heads.iter_mut()
    }

    /// All policies, `[layers, kv_heads]`.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.heads.iter()
    }

    /// True if every policy follows from keys: none has learned what keys do not give back.
    pub fn follows_from_keys(&self) -> bool {
        self.heads.iter().all(|policy| policy.traits().follows_from_keys)
    }

    /// Forgets tokens at and after `tokens`, in all policies.
    pub fn truncate(&mut self, tokens: usize) {
        self.heads.iter_mut().for_each(|policy| policy.truncate(tokens));
    }
}

fn guarded(spec: &PolicySpec, phase: Phase, shape: &PolicyShape, cost: &CostModel) -> Result<Policy, PolicyError> {
    Ok(build(spec, phase)?.dense_below(dense_below(spec, phase, shape, cost)))
}

/// Sequences shorter than this many tokens are read densely: what the policy's `from` says, or its break-even length. A
/// policy without a break-even length is not guarded: whoever asks for it has other reasons than speed.
pub fn dense_below(spec: &PolicySpec, phase: Phase, shape: &PolicyShape, cost: &CostModel) -> usize {
    let break_even = || cost.break_even_tokens(spec, phase, shape).unwrap_or(0);
    spec.from_tokens().unwrap_or_else(break_even)
}

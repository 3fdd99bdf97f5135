use crate::{Phase, PolicyError, PolicyRules, SparsePolicy, build};

/// The policies of one sequence in one phase: one for each layer and KV head, so that heads may differ and be prepared
/// in parallel.
pub struct PolicySet {
    kv_heads: usize,
    /// `[layers, kv_heads]`
    heads: Vec<Box<dyn SparsePolicy>>,
}

impl PolicySet {
    /// Makes the policies that the rules name.
    ///
    /// # Errors
    /// [`PolicyError::UnsupportedPhase`].
    pub fn new(rules: &PolicyRules, phase: Phase, layers: usize, kv_heads: usize) -> Result<Self, PolicyError> {
        rules.check(phase)?;
        let places = (0..layers).flat_map(|layer| (0..kv_heads).map(move |kv_head| (layer, kv_head)));
        let heads = places.map(|(layer, kv_head)| build(rules.policy(layer, kv_head), phase));
        Ok(Self {
            kv_heads,
            heads: heads.collect::<Result<_, _>>()?,
        })
    }

    /// A layer's policies, one for each KV head.
    pub fn layer(&self, layer: usize) -> &[Box<dyn SparsePolicy>] {
        &self.heads[layer * self.kv_heads..][..self.kv_heads]
    }

    /// A layer's policies, one for each KV head.
    pub fn layer_mut(&mut self, layer: usize) -> &mut [Box<dyn SparsePolicy>] {
        &mut self.heads[layer * self.kv_heads..][..self.kv_heads]
    }

    /// All policies, `[layers, kv_heads]`.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn SparsePolicy>> {
        self.heads.iter_mut()
    }

    /// All policies, `[layers, kv_heads]`.
    pub fn iter(&self) -> impl Iterator<Item = &dyn SparsePolicy> {
        self.heads.iter().map(|policy| &**policy)
    }

    /// Forgets what the policies stored about tokens at and after `tokens`.
    pub fn truncate(&mut self, tokens: usize) {
        self.heads.iter_mut().for_each(|policy| policy.truncate(tokens));
    }
}

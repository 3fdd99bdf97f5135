use std::ops::{Range, RangeInclusive};

use riffle_attention::{Format, LANES};

use crate::KvError;
use crate::pool::PlaneKind;

/// Tokens in a page unless the caller chooses.
pub const DEFAULT_PAGE_TOKENS: usize = 256;

/// The largest page.
pub const MAX_PAGE_TOKENS: usize = 1024;

/// Limit on the distinct layer shapes of one cache.
pub const MAX_LAYER_KINDS: usize = 6;

/// Limit on the layers of a cache whose layers have several shapes.
pub const MAX_MIXED_LAYERS: usize = 256;

/// The heads and widths of a layer of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerShape {
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a key: a multiple of 16.
    pub key_width: usize,
    /// Elements of a value: a multiple of 16.
    pub value_width: usize,
    /// True if a value is a prefix of its key, as in multi-head latent attention: the cache stores only keys.
    pub is_latent: bool,
}

impl LayerShape {
    /// A layer with keys and values of the same width.
    pub const fn new(kv_heads: usize, head_dim: usize) -> Self {
        Self {
            kv_heads,
            key_width: head_dim,
            value_width: head_dim,
            is_latent: false,
        }
    }

    /// Elements of a value stored beside its key: none in a latent layer.
    pub fn held_value_width(&self) -> usize {
        if self.is_latent { 0 } else { self.value_width }
    }

    fn validate(&self) -> Result<(), KvError> {
        // The limits keep every product below within 64 bits.
        check("kv_heads", self.kv_heads, 1..=1 << 16, "from 1 to 65536")?;
        for (what, width) in [("key_width", self.key_width), ("value_width", self.value_width)] {
            if !width.is_multiple_of(LANES) || !(LANES..=1 << 14).contains(&width) {
                return Err(KvError::Shape {
                    what,
                    value: width,
                    requirement: "a multiple of 16 from 16 to 16384",
                });
            }
        }
        if self.is_latent && self.value_width > self.key_width {
            return Err(KvError::Shape {
                what: "value_width",
                value: self.value_width,
                requirement: "at most the key width where values are the beginning of keys",
            });
        }
        Ok(())
    }
}

/// The shapes of all layers of a cache, of at most [`MAX_LAYER_KINDS`] kinds.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerShapes {
    count: usize,
    /// The different shapes, in the order of the layers.
    kinds: [LayerShape; MAX_LAYER_KINDS],
    /// Kind of each layer; all 0 if layers are alike.
    kind_of: [u8; MAX_MIXED_LAYERS],
    /// Page-size number of each kind: kinds that differ only in KV heads share a page size.
    size_of: [u8; MAX_LAYER_KINDS],
}

impl LayerShapes {
    /// `count` layers of one shape.
    pub const fn alike(count: usize, shape: LayerShape) -> Self {
        let mut kinds = [LayerShape::new(0, 0); MAX_LAYER_KINDS];
        kinds[0] = shape;
        Self {
            count,
            kinds,
            kind_of: [0; MAX_MIXED_LAYERS],
            size_of: [0; MAX_LAYER_KINDS],
        }
    }

    /// Layers of these shapes.
    ///
    /// # Errors
    /// [`KvError::Shape`] if there are no layers, too many kinds, or too many different layers.
    pub fn new(layers: &[LayerShape]) -> Result<Self, KvError> {
        check("layers", layers.len(), 1..=1 << 16, "from 1 to 65536")?;
        let mut shapes = Self::alike(layers.len(), layers[0]);
        if layers.iter().all(|layer| *layer == layers[0]) {
            return Ok(shapes);
        }
        check(
            "layers",
            layers.len(),
            1..=MAX_MIXED_LAYERS,
            "at most 256 where layers differ",
        )?;
        let mut kinds = vec![layers[0]];
        for (layer, shape) in layers.iter().enumerate() {
            shape.validate()?;
            let kind = kinds.iter().position(|kind| kind == shape).unwrap_or(kinds.len());
            if kind == kinds.len() {
                check("layer kinds", kind + 1, 1..=MAX_LAYER_KINDS, "at most 6")?;
                kinds.push(*shape);
            }
            shapes.kind_of[layer] = kind as u8;
        }
        let mut widths: Vec<(usize, usize)> = Vec::new();
        for (kind, shape) in kinds.iter().enumerate() {
            let own = (shape.key_width, shape.held_value_width());
            let size = widths.iter().position(|widths| *widths == own).unwrap_or(widths.len());
            if size == widths.len() {
                widths.push(own);
            }
            shapes.kinds[kind] = *shape;
            shapes.size_of[kind] = size as u8;
        }
        Ok(shapes)
    }

    /// Number of layers.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The shape of an existing layer.
    pub fn get(&self, layer: usize) -> LayerShape {
        self.kinds[self.kind(layer)]
    }

    /// The shapes in the order of the layers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = LayerShape> + '_ {
        (0..self.count).map(|layer| self.get(layer))
    }

    /// The shape of all layers; `None` if layers differ.
    pub fn uniform(&self) -> Option<LayerShape> {
        (self.kinds[1].kv_heads == 0).then_some(self.kinds[0])
    }

    fn kind(&self, layer: usize) -> usize {
        assert!(layer < self.count, "a cache has the layers that it is asked for");
        usize::from(self.kind_of.get(layer).copied().unwrap_or(0))
    }
}

impl std::fmt::Debug for LayerShapes {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.uniform() {
            Some(shape) => write!(out, "{} × {shape:?}", self.count),
            None => out.debug_list().entries(self.iter()).finish(),
        }
    }
}

/// The layers, page size and formats of a cache, which determine its size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheShape {
    /// Layers with keys and values.
    pub layers: LayerShapes,
    /// Tokens in a page: a multiple of 16 from 16 to [`MAX_PAGE_TOKENS`].
    pub page_tokens: usize,
    /// Element format of keys.
    pub key_format: Format,
    /// Element format of values.
    pub value_format: Format,
}

impl CacheShape {
    /// Checks that this shape is valid.
    ///
    /// # Errors
    /// [`KvError::Shape`] names the invalid part.
    pub fn validate(&self) -> Result<(), KvError> {
        check("layers", self.layers.count, 1..=1 << 16, "from 1 to 65536")?;
        self.kinds().iter().try_for_each(LayerShape::validate)?;
        if self.page_tokens == 0 || !self.page_tokens.is_multiple_of(LANES) || self.page_tokens > MAX_PAGE_TOKENS {
            return Err(KvError::Shape {
                what: "page_tokens",
                value: self.page_tokens,
                requirement: "a multiple of 16 from 16 to 1024",
            });
        }
        Ok(())
    }

    /// The shape of an existing layer.
    pub fn layer(&self, layer: usize) -> LayerShape {
        self.layers.get(layer)
    }

    /// Number of page tables: one per layer and KV head.
    pub fn tables(&self) -> usize {
        self.first_table(self.layers.count)
    }

    /// The page tables of an existing layer, one per KV head.
    pub fn tables_of(&self, layer: usize) -> Range<usize> {
        let first = self.first_table(layer);
        first..first + self.layer(layer).kv_heads
    }

    /// The layer and the KV head of an existing page table.
    pub fn place_of(&self, table: usize) -> (usize, usize) {
        if let Some(shape) = self.layers.uniform() {
            return (table / shape.kv_heads, table % shape.kv_heads);
        }
        let (mut layer, mut kv_head) = (0, table);
        while kv_head >= self.layer(layer).kv_heads {
            kv_head -= self.layer(layer).kv_heads;
            layer += 1;
        }
        (layer, kv_head)
    }

    /// Bytes of K and V per token over all layers and KV heads, with full pages.
    pub fn bytes_per_token(&self) -> u64 {
        self.over_layers(|layer| self.pair_bytes(layer, 1))
    }

    /// Bytes of K and V of one page of a (layer, KV head).
    pub fn page_bytes(&self, layer: usize) -> u64 {
        self.pair_bytes(self.layer(layer), self.page_tokens)
    }

    /// Bytes of K and V of one page of every (layer, KV head).
    pub fn row_bytes(&self) -> u64 {
        self.over_layers(|layer| self.pair_bytes(layer, self.page_tokens))
    }

    /// Pages of `tokens` tokens over all layers and KV heads.
    pub fn pages_for(&self, tokens: usize) -> usize {
        self.tables().saturating_mul(tokens.div_ceil(self.page_tokens))
    }

    /// Bytes of `tokens` tokens over all layers and KV heads, in whole pages.
    pub fn bytes_for(&self, tokens: usize) -> u64 {
        (tokens.div_ceil(self.page_tokens) as u64).saturating_mul(self.row_bytes())
    }

    /// The most tokens whose pages fit in `budget_bytes` if every layer holds them.
    pub fn tokens_for(&self, budget_bytes: u64) -> usize {
        let rows = budget_bytes / self.row_bytes();
        usize::try_from(rows).map_or(usize::MAX, |rows| rows.saturating_mul(self.page_tokens))
    }

    /// Number of page sizes: different pairs of key width and value width.
    pub(crate) fn sizes(&self) -> usize {
        let sizes = self.layers.size_of[..self.kinds().len()].iter();
        1 + usize::from(sizes.copied().max().unwrap_or(0))
    }

    /// The size of a layer's pages, below [`sizes`](Self::sizes).
    pub(crate) fn size_of(&self, layer: usize) -> usize {
        usize::from(self.layers.size_of[self.layers.kind(layer)])
    }

    /// The size of a page table's pages.
    pub(crate) fn size_of_table(&self, table: usize) -> usize {
        self.size_of(self.place_of(table).0)
    }

    /// Layers whose pages have this size.
    pub(crate) fn layers_of_size(&self, size: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.layers.count).filter(move |layer| self.size_of(*layer) == size)
    }

    /// Bytes of the keys, or of the values, of a page of a size.
    pub(crate) fn plane_bytes(&self, size: usize, kind: PlaneKind) -> u64 {
        self.format(kind).plane_bytes(self.page_tokens, self.width(size, kind)) as u64
    }

    /// Bytes of a page of a size.
    pub(crate) fn size_bytes(&self, size: usize) -> u64 {
        PlaneKind::BOTH.map(|kind| self.plane_bytes(size, kind)).iter().sum()
    }

    /// Elements of a key, or of a value, in pages of a size: 0 for values of latent layers.
    pub(crate) fn width(&self, size: usize, kind: PlaneKind) -> usize {
        let kind_of_layer = self.layers.size_of.iter().position(|of| usize::from(*of) == size);
        let shape = self.layers.kinds[kind_of_layer.expect("a size is that of a kind of layers")];
        match kind {
            PlaneKind::Keys => shape.key_width,
            PlaneKind::Values => shape.held_value_width(),
        }
    }

    pub(crate) fn format(&self, kind: PlaneKind) -> Format {
        match kind {
            PlaneKind::Keys => self.key_format,
            PlaneKind::Values => self.value_format,
        }
    }

    fn first_table(&self, layer: usize) -> usize {
        match self.layers.uniform() {
            Some(shape) => layer * shape.kv_heads,
            None => (0..layer).map(|layer| self.layer(layer).kv_heads).sum(),
        }
    }

    fn kinds(&self) -> &[LayerShape] {
        let kinds = self.layers.kinds.iter().rposition(|kind| kind.kv_heads > 0);
        &self.layers.kinds[..kinds.map_or(1, |last| last + 1)]
    }

    /// The sum of `bytes` over all (layer, KV head).
    fn over_layers(&self, bytes: impl Fn(LayerShape) -> u64) -> u64 {
        let of_layer = |layer: LayerShape| layer.kv_heads as u64 * bytes(layer);
        match self.layers.uniform() {
            Some(shape) => self.layers.count as u64 * of_layer(shape),
            None => self.layers.iter().map(of_layer).sum(),
        }
    }

    fn pair_bytes(&self, layer: LayerShape, tokens: usize) -> u64 {
        let keys = self.key_format.plane_bytes(tokens, layer.key_width);
        (keys + self.value_format.plane_bytes(tokens, layer.held_value_width())) as u64
    }
}

fn check(
    what: &'static str,
    value: usize,
    allowed: RangeInclusive<usize>,
    requirement: &'static str,
) -> Result<(), KvError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(KvError::Shape {
        what,
        value,
        requirement,
    })
}

/// The largest number up to `limit` for which `fits` is true; 0 if there is none. `fits` must be true for all smaller
/// numbers too.
pub fn largest(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_fitting_number_is_found_exactly() {
        assert_eq!(largest(100, |n| n <= 37), 37);
        assert_eq!(largest(usize::MAX, |_| true), usize::MAX);
        assert_eq!(largest(100, |_| false), 0);
    }
}

//! Running sums over audited queries.

use std::collections::HashSet;

use riffle_attention::Span;
use riffle_engine::{AuditedQuery, HeadAudit};

use super::{AttentionMap, AuditOptions, AuditedHead, AuditedRows};

/// Maximum number of cells along each side of a map.
const CELLS: usize = 64;
/// Stretches of queries at most.
const STRETCHES: usize = 64;
/// Groups of neighbouring queries that an audit samples from each chunk.
const RUNS_OF_A_CHUNK: usize = 8;

/// Sizes of an audited model and text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) tokens: usize,
    pub(super) chunk_tokens: usize,
}

impl Shape {
    /// Cells of a map, few enough that nearly every row has a sampled query.
    fn cells(&self) -> usize {
        let runs = (self.tokens / self.chunk_tokens).max(1) * RUNS_OF_A_CHUNK;
        runs.min(CELLS).min(self.tokens)
    }

    /// Bytes of the sums of all heads.
    pub(super) fn bytes(&self) -> u64 {
        let cells = self.cells();
        let each = 4 * self.tokens + 2 * 8 * cells * cells + 8 * cells;
        (self.layers * self.heads) as u64 * each as u64
    }
}

pub(super) struct Sums {
    shape: Shape,
    options: AuditOptions,
    cells: usize,
    heads: Vec<Head>,
    /// Kept mass of the samples of each stretch.
    stretches: Vec<Vec<f32>>,
}

/// One query head.
struct Head {
    /// Mass of each key from the queries of the current chunk.
    chunk_mass: Vec<f32>,
    /// Index of the current chunk.
    chunk: usize,
    /// Sampled queries of the current chunk.
    chunk_queries: usize,
    heavy_before: Option<HashSet<usize>>,
    jaccards: Vec<f64>,
    /// Results of the queries after the first chunk.
    late: Late,
    /// Queries of each row of the map.
    row_queries: Vec<u32>,
    shares: Vec<f64>,
    /// Mass of keys that are not local, by cell.
    far: Vec<f64>,
    /// Pairs read and causal pairs, by cell.
    read: Vec<(u32, u32)>,
}

#[derive(Default)]
struct Late {
    queries: usize,
    sinks: f64,
    local: f64,
    heavy: f64,
}

impl Sums {
    pub(super) fn new(shape: Shape, options: AuditOptions) -> Self {
        let cells = shape.cells();
        let head = || Head {
            chunk_mass: vec![0.0; shape.tokens],
            chunk: 0,
            chunk_queries: 0,
            heavy_before: None,
            jaccards: Vec::new(),
            late: Late::default(),
            row_queries: vec![0; cells],
            shares: vec![0.0; cells * cells],
            far: vec![0.0; cells],
            read: vec![(0, 0); cells * cells],
        };
        Self {
            shape,
            cells,
            options,
            heads: (0..shape.layers * shape.heads).map(|_| head()).collect(),
            stretches: vec![Vec::new(); STRETCHES.min(cells)],
        }
    }

    /// Adds a query. The queries of a head arrive in order of position.
    pub(super) fn add(&mut self, query: &AuditedQuery<'_>) {
        let (tokens, options) = (self.shape.tokens, &self.options);
        if query.position >= tokens {
            return;
        }
        let stretch = query.position * self.stretches.len() / tokens;
        self.stretches[stretch].push(query.kept_mass as f32);
        let head = &mut self.heads[query.layer * self.shape.heads + query.head];
        let chunk = query.position / self.shape.chunk_tokens;
        if chunk != head.chunk {
            head.end_chunk(self.shape.chunk_tokens, options);
            head.chunk = chunk;
        }
        head.chunk_queries += 1;
        head.chunk_mass
            .iter_mut()
            .zip(query.mass)
            .for_each(|(sum, mass)| *sum += mass);
        let mass_of = |keys: &[f32]| keys.iter().map(|mass| f64::from(*mass)).sum::<f64>();
        let own = query.position + 1;
        let older = Span::new(0, own.saturating_sub(options.local_tokens));
        if chunk > 0 {
            head.late.queries += 1;
            head.late.sinks += mass_of(&query.mass[..options.sink_tokens.min(own)]);
            head.late.local += mass_of(&query.mass[own.saturating_sub(options.local_tokens)..]);
        }
        let row = query.position * self.cells / tokens;
        head.row_queries[row] += 1;
        for cell in 0..=row {
            let keys = cell_span(cell, self.cells, tokens).intersect(&Span::new(0, query.position + 1));
            let at = row * self.cells + cell;
            head.shares[at] += mass_of(&query.mass[keys.range()]);
            let far = keys.intersect(&older);
            if !far.is_empty() {
                head.far[cell] += mass_of(&query.mass[far.range()]);
            }
            let read: usize = query.read.iter().map(|span| span.intersect(&keys).len()).sum();
            head.read[at].0 += read as u32;
            head.read[at].1 += keys.len() as u32;
        }
    }

    /// Every head of the engine's report, with its attention statistics.
    pub(super) fn heads(&mut self, audits: &[HeadAudit]) -> Vec<AuditedHead> {
        for head in &mut self.heads {
            head.end_chunk(self.shape.chunk_tokens, &self.options);
        }
        let head_of = |audit: &HeadAudit| {
            let head = &self.heads[audit.layer * self.shape.heads + audit.head];
            let late = |mass: f64| mass / head.late.queries.max(1) as f64;
            let queries: u32 = head.row_queries.iter().sum();
            let share = |mass: &f64| rounded(mass / f64::from(queries.max(1)));
            let far_shares = head.far.iter().map(share).collect();
            AuditedHead {
                layer: audit.layer,
                head: audit.head,
                kv_head: audit.kv_head,
                samples: audit.samples,
                mean_mass: audit.mean_mass,
                first_percentile_mass: audit.first_percentile_mass,
                mean_output_error: audit.mean_output_error,
                density: audit.density,
                sink_mass: late(head.late.sinks),
                local_mass: late(head.late.local),
                heavy_mass: late(head.late.heavy),
                heavy_jaccard: mean(&head.jaccards),
                far_shares,
            }
        };
        audits.iter().map(head_of).collect()
    }

    pub(super) fn rows(&mut self) -> Vec<AuditedRows> {
        let (count, tokens) = (self.stretches.len(), self.shape.tokens);
        let stretches = self
            .stretches
            .iter_mut()
            .enumerate()
            .filter(|(_, kept)| !kept.is_empty());
        let rows = stretches.map(|(number, kept)| {
            kept.sort_by(f32::total_cmp);
            let span = cell_span(number, count, tokens);
            AuditedRows {
                from_position: span.start,
                to_position: span.end,
                samples: kept.len() as u64,
                mean_mass: kept.iter().map(|mass| f64::from(*mass)).sum::<f64>() / kept.len() as f64,
                first_percentile_mass: f64::from(kept[kept.len() / 100]),
                lowest_mass: f64::from(kept[0]),
            }
        });
        rows.collect()
    }

    /// The map of the requested head, or of the head that keeps the least mass.
    pub(super) fn map(&self, audits: &[HeadAudit]) -> Option<AttentionMap> {
        let far = |layer: usize, head: usize| {
            let late = &self.heads[layer * self.shape.heads + head].late;
            (late.queries as f64 - late.sinks - late.local) / late.queries.max(1) as f64
        };
        // Heads that differ only by rounding count as equal.
        let steps = |mass: f64| (mass * 1000.0).round() as i64;
        let says_most = || {
            let order = |a: &&HeadAudit, b: &&HeadAudit| {
                let by_mass = steps(a.mean_mass).cmp(&steps(b.mean_mass));
                by_mass.then(far(b.layer, b.head).total_cmp(&far(a.layer, a.head)))
            };
            audits.iter().min_by(order).map(|audit| (audit.layer, audit.head))
        };
        let (layer, number) = self.options.map.or_else(says_most)?;
        let head = &self.heads[layer * self.shape.heads + number];
        let share = |(at, share): (usize, &f64)| rounded(share / f64::from(head.row_queries[at / self.cells].max(1)));
        Some(AttentionMap {
            layer,
            head: number,
            cells: self.cells,
            shares: head.shares.iter().enumerate().map(share).collect(),
            read: head
                .read
                .iter()
                .map(|&(read, causal)| rounded(f64::from(read) / f64::from(causal.max(1))))
                .collect(),
        })
    }
}

impl Head {
    /// Compares the heavy hitters of the ending chunk with the previous chunk's, among keys older than both.
    fn end_chunk(&mut self, chunk_tokens: usize, options: &AuditOptions) {
        if self.chunk_queries == 0 {
            return;
        }
        let heavy = options.heavy_tokens;
        let of_keys = |keys: usize| heaviest(&self.chunk_mass[..keys], heavy);
        if self.chunk > 0 {
            let own = of_keys(self.chunk_mass.len());
            self.late.heavy += own.iter().map(|key| f64::from(self.chunk_mass[*key])).sum::<f64>();
            let older_than_both = (self.chunk - 1) * chunk_tokens;
            if let Some(before) = self.heavy_before.as_ref().filter(|before| before.len() == heavy) {
                self.jaccards.push(jaccard(before, &of_keys(older_than_both)));
            }
        }
        // With fewer than twice as many candidates, the sets would agree by chance.
        let older = self.chunk * chunk_tokens;
        self.heavy_before = (older >= 2 * heavy).then(|| of_keys(older));
        self.chunk_mass.fill(0.0);
        self.chunk_queries = 0;
    }
}

/// The keys with the most mass; equal keys in order of position.
fn heaviest(mass: &[f32], count: usize) -> HashSet<usize> {
    let mut keys: Vec<usize> = (0..mass.len()).collect();
    let by_mass = |a: &usize, b: &usize| mass[*b].total_cmp(&mass[*a]).then(a.cmp(b));
    if keys.len() > count {
        keys.select_nth_unstable_by(count - 1, by_mass);
        keys.truncate(count);
    }
    keys.into_iter().collect()
}

fn jaccard(a: &HashSet<usize>, b: &HashSet<usize>) -> f64 {
    let both = a.intersection(b).count();
    both as f64 / (a.len() + b.len() - both).max(1) as f64
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The tokens of one of `cells` equal sections.
fn cell_span(cell: usize, cells: usize, tokens: usize) -> Span {
    Span::new((cell * tokens).div_ceil(cells), ((cell + 1) * tokens).div_ceil(cells))
}

/// Rounds a share to six digits, because records have thousands of shares.
fn rounded(share: f64) -> f64 {
    (share * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        layers: 1,
        heads: 1,
        tokens: 128,
        chunk_tokens: 32,
    };

    fn options() -> AuditOptions {
        AuditOptions {
            text: "text".to_owned(),
            sink_tokens: 2,
            local_tokens: 4,
            heavy_tokens: 4,
            map: None,
        }
    }

    fn report() -> HeadAudit {
        HeadAudit {
            layer: 0,
            kv_head: 0,
            head: 0,
            samples: 0,
            mean_mass: 1.0,
            first_percentile_mass: 1.0,
            mean_output_error: 0.0,
            density: 1.0,
        }
    }

    /// Sums over one query at the end of each chunk. The query's mass is on `keys`.
    fn sums_of(chunks: &[&[(usize, f32)]], read: &[Span]) -> Sums {
        let mut sums = Sums::new(SHAPE, options());
        for (chunk, keys) in chunks.iter().enumerate() {
            let position = chunk * 32 + 31;
            let mut mass = vec![0.0; position + 1];
            keys.iter().for_each(|(key, share)| mass[*key] = *share);
            let kept = read.iter().flat_map(|span| &mass[span.range()]).sum::<f32>();
            sums.add(&AuditedQuery {
                layer: 0,
                kv_head: 0,
                head: 0,
                position,
                kept_mass: f64::from(kept),
                mass: &mass,
                read,
            });
        }
        sums
    }

    #[test]
    fn sinks_local_and_heavy_mass_are_those_of_queries_behind_the_first_chunk() {
        let first: &[(usize, f32)] = &[(0, 1.0)];
        let second: &[(usize, f32)] = &[(0, 0.25), (1, 0.125), (20, 0.125), (30, 0.125), (63, 0.25), (62, 0.125)];
        let mut sums = sums_of(&[first, second], &[Span::new(0, 32)]);
        let head = &sums.heads(&[report()])[0];
        assert_eq!((head.sink_mass, head.local_mass), (0.375, 0.375));
        // The four largest of six keys; of two equal keys, the first.
        assert_eq!(head.heavy_mass, 0.25 + 0.25 + 0.125 + 0.125);
        assert_eq!(head.heavy_jaccard, None);
        // The shares average two queries in cells of four tokens; tokens 62 and 63 are local.
        let far = &head.far_shares;
        assert_eq!([far[0], far[5], far[7]], [0.6875, 0.0625, 0.0625]);
        assert_eq!(far.iter().sum::<f64>(), 0.8125);
        let rows = sums.rows();
        let kept: Vec<_> = rows.iter().map(|row| (row.samples, row.lowest_mass)).collect();
        assert_eq!(kept, [(1, 1.0), (1, 0.625)]);
        assert_eq!(rows[1].to_position, 64);
    }

    #[test]
    fn stability_compares_keys_older_than_both_chunks() {
        let on = |keys: [usize; 4]| keys.map(|key| (key, 0.25));
        let (a, b, c) = (on([0, 1, 2, 3]), on([0, 1, 2, 9]), on([0, 1, 40, 41]));
        // Chunks 1 and 2 see keys before 32: {0,1,2,3} and {0,1,2,9}, three of five alike. Chunks 2 and 3 see keys
        // before 64: {0,1,2,9} and {0,1,40,41}, two of six.
        let mut sums = sums_of(&[&on([0, 1, 2, 3]), &a, &b, &c], &[]);
        let jaccard = sums.heads(&[report()])[0].heavy_jaccard.unwrap();
        assert!((jaccard - (3.0 / 5.0 + 2.0 / 6.0) / 2.0).abs() < 1e-12, "{jaccard}");
    }

    #[test]
    fn the_map_holds_what_each_stretch_of_queries_attends_to_and_what_was_read() {
        let chunks: &[&[(usize, f32)]] = &[&[(0, 1.0)], &[(0, 0.5), (63, 0.5)], &[(0, 1.0)], &[(10, 1.0)]];
        let sums = sums_of(chunks, &[Span::new(0, 6)]);
        let map = sums.map(&[report()]).unwrap();
        assert_eq!(map.cells, 32);
        // Query 63 is the last of row 15, a cell is 4 tokens.
        let row = &map.shares[15 * 32..16 * 32];
        assert_eq!((row[0], row[15], row.iter().sum::<f64>()), (0.5, 0.5, 1.0));
        assert_eq!(&map.read[15 * 32..15 * 32 + 3], &[1.0, 0.5, 0.0]);
        assert!(map.shares[16 * 32..17 * 32].iter().all(|share| *share == 0.0));
        assert_eq!(map.shares[31 * 32 + 2], 1.0);
    }
}

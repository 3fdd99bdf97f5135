//! Draws the pairs that each policy reads of a small text, as SVG for the book:
//! `cargo run --release -p riffle-policy --example pictures -- FOLDER`.
//!
//! The generated text has 512 tokens. All queries attend to the first tokens, and neighbours attend to each other. Two
//! facts stand in the middle and at the end; each is asked for once.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use riffle_attention::{PageView, Plane, PlaneMut, QueryTile, Selection, Span, write_keys, write_values};
use riffle_policy::{ColumnMass, Phase, Policy, PolicySpec, SelectContext, build};

const TOKENS: usize = 512;
const CHUNK: usize = 128;
const TILE: usize = 16;
const PAGE: usize = 64;
const CHANNELS: usize = 32;
/// Tokens of the prompt in pictures of decode policies.
const PROMPT: usize = 384;
/// Tokens per side of a cell, and its pixels.
const CELL_TOKENS: usize = 8;
const CELL_PIXELS: usize = 5;
/// Left and top edge of the triangle, in pixels.
const LEFT: usize = 34;
const TOP: usize = 8;
/// Shades for the share of a cell that is read.
const SHADES: usize = 4;

/// Position of each fact, and the queries that ask for it.
const FACTS: [(usize, std::ops::Range<usize>); 2] = [(90, 232..240), (205, 492..504)];

/// Policies with parameters for a text this short.
const PREFILL: [&str; 10] = [
    "full",
    "streaming:sinks=8,window=64",
    "tri-shape:sinks=8,window=64,tail=32",
    "log-stride:window=32,landmarks=0",
    "h2o-chunk:local=32,heavy=32",
    "vertical-slash:budget=0.15,slash_block=8,sinks=8,recent=24,last=32",
    "flex:gamma=0.8,min_budget=16,block=16,last=32",
    "xattention:stride=4,block=16,threshold=0.6,tail=32",
    "peaks:block=16,tail=0",
    "blasst:block=16",
];
const DECODE: [&str; 6] = [
    "quest:dense_layers=0,block=16,topk=3,threshold=0,sinks=1,recent=2",
    "twilight:dense_layers=0,block=16,least=4,p=0.85,sinks=1,recent=1",
    "signs:peak=1,block=1",
    "certified:epsilon=0.05",
    "h2o:budget=96,recent=32,sinks=4,observed=32",
    "snapkv:budget=96,window=16,sinks=4",
];

/// Queries and keys of one head, `[TOKENS, CHANNELS]` each, and the pages of the keys.
struct Scene {
    queries: Vec<f32>,
    keys: Vec<f32>,
    planes: Vec<(Vec<f32>, Vec<f32>)>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: pictures FOLDER")?;
    std::fs::create_dir_all(&folder)?;
    let scene = Scene::new();
    for (phase, specs) in [(Phase::Prefill, &PREFILL[..]), (Phase::Decode, &DECODE[..])] {
        for text in specs {
            let spec: PolicySpec = text.parse()?;
            let mut policy = build(&spec, phase)?;
            let read = match phase {
                Phase::Prefill => scene.read_prompt(&mut policy),
                Phase::Decode => scene.write_answer(&mut policy),
            };
            let path = Path::new(&folder).join(format!("{}.svg", spec.name()));
            std::fs::write(&path, picture(&scene, &spec, phase, &read))?;
        }
    }
    Ok(())
}

impl Scene {
    fn new() -> Self {
        let mut state = 1u32;
        // A small generator: the pictures are the same on every machine.
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let (mut queries, mut keys) = (Vec::new(), Vec::new());
        for token in 0..TOKENS {
            let mut query: Vec<f32> = (0..CHANNELS).map(|_| 0.15 * noise()).collect();
            let mut key: Vec<f32> = (0..CHANNELS).map(|_| 0.15 * noise()).collect();
            // Neighbours are similar: pairs of channels rotate with the position.
            for (pair, turn) in [0.02f32, 0.05, 0.11, 0.19].into_iter().enumerate() {
                let angle = turn * token as f32;
                let at = 8 + 2 * pair;
                (query[at], query[at + 1]) = (1.3 * angle.cos(), 1.3 * angle.sin());
                // The first tokens and the facts differ from their neighbours.
                let near = if token < 4 || FACTS.iter().any(|(place, _)| *place == token) {
                    0.0
                } else {
                    1.0
                };
                (key[at], key[at + 1]) = (near * angle.cos(), near * angle.sin());
            }
            query[0] = 1.0;
            key[0] = if token < 4 { 6.0 } else { 0.0 };
            for (fact, (place, asked)) in FACTS.iter().enumerate() {
                key[1 + fact] = if token == *place { 6.0 } else { 0.0 };
                query[1 + fact] = if asked.contains(&token) { 1.6 } else { 0.0 };
            }
            queries.extend(query);
            keys.extend(key);
        }
        let planes = keys.chunks(PAGE * CHANNELS).map(|keys| {
            let (mut key_plane, mut value_plane) = (vec![0.0; keys.len()], vec![0.0; keys.len()]);
            // Pages of multiples of 16 tokens, like the planes of a cache.
            let written = write_keys(&mut PlaneMut::F32(&mut key_plane), CHANNELS, 0, PAGE, keys, CHANNELS)
                .and_then(|()| write_values(&mut PlaneMut::F32(&mut value_plane), CHANNELS, 0, PAGE, keys, CHANNELS));
            written.expect("planes of the keys' size");
            (key_plane, value_plane)
        });
        Self {
            planes: planes.collect(),
            queries,
            keys,
        }
    }

    fn tile(&self, rows: Span) -> QueryTile<'_> {
        QueryTile {
            data: &self.queries[rows.start * CHANNELS..rows.end * CHANNELS],
            rows: rows.len(),
            row_stride: CHANNELS,
            group: 1,
            head_dim: CHANNELS,
            start: rows.start,
        }
    }

    /// The pages of the first `tokens` tokens.
    fn pages(&self, tokens: usize) -> Vec<PageView<'_>> {
        let planes = self.planes.iter().enumerate().take(tokens.div_ceil(PAGE));
        planes
            .map(|(number, (keys, values))| PageView {
                start: number * PAGE,
                tokens: PAGE.min(tokens - number * PAGE),
                keys: Plane::F32(keys),
                values: Plane::F32(values),
            })
            .collect()
    }

    /// True attention of a query over the keys that `reads` allows, `[query + 1]`.
    fn attention(&self, query: usize, reads: impl Fn(usize) -> bool) -> Vec<f64> {
        let vector = |all: &'_ [f32], at: usize| all[at * CHANNELS..][..CHANNELS].to_vec();
        let asked = vector(&self.queries, query);
        let weight = |key: usize| {
            let products = asked.iter().zip(vector(&self.keys, key));
            let logit: f64 = products.map(|(q, k)| f64::from(q * k)).sum();
            if reads(key) { logit.exp() } else { 0.0 }
        };
        let weights: Vec<f64> = (0..=query).map(weight).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    /// Shows a policy the mass of the queries that it requests.
    fn show(&self, policy: &mut Policy, context: &SelectContext<'_>, read: &BTreeSet<(usize, usize)>, dense: bool) {
        let queries = Span::new(policy.observes_from(context), context.tokens);
        if queries.start >= queries.end {
            return;
        }
        let mut mass = vec![0.0; context.tokens];
        for query in queries.range() {
            let attention = self.attention(query, |key| dense || read.contains(&(query, key)));
            for (sum, weight) in mass.iter_mut().zip(attention) {
                *sum += weight as f32;
            }
        }
        policy.observe(&ColumnMass {
            queries,
            group: 1,
            mass: &mass,
        });
    }

    /// The pairs of query and key that a policy reads for a prompt of the whole text.
    fn read_prompt(&self, policy: &mut Policy) -> BTreeSet<(usize, usize)> {
        let mut read = BTreeSet::new();
        for start in (0..TOKENS).step_by(CHUNK) {
            let chunk = Span::new(start, start + CHUNK);
            let pages = self.pages(chunk.end);
            let context = context(Phase::Prefill, chunk, TOKENS, &pages);
            policy.prepare(&self.tile(chunk), &context);
            for first in chunk.range().step_by(TILE) {
                let tile = Span::new(first, first + TILE);
                let selection = policy.select(&self.tile(tile), &context);
                let own = policy.select_own(&context);
                take(&mut read, tile, &selection);
                take(&mut read, tile, &own);
            }
            self.show(policy, &context, &read, false);
        }
        read
    }

    /// The pairs that a policy reads while the end of the text is generated, after a dense prompt.
    fn write_answer(&self, policy: &mut Policy) -> BTreeSet<(usize, usize)> {
        let mut read = BTreeSet::new();
        for start in (0..PROMPT).step_by(CHUNK) {
            let chunk = Span::new(start, start + CHUNK);
            let context = context(Phase::Prefill, chunk, PROMPT, &[]);
            take(&mut read, chunk, &Selection::full(chunk.end));
            self.show(policy, &context, &read, true);
        }
        for token in PROMPT..TOKENS {
            let row = Span::new(token, token + 1);
            let pages = self.pages(row.end);
            let context = context(Phase::Decode, row, row.end, &pages);
            policy.prepare(&self.tile(row), &context);
            let selection = policy.select(&self.tile(row), &context);
            take(&mut read, row, &selection);
            self.show(policy, &context, &read, false);
        }
        read
    }
}

fn context<'a>(phase: Phase, chunk: Span, total_tokens: usize, pages: &'a [PageView<'a>]) -> SelectContext<'a> {
    SelectContext {
        phase,
        layer: 2,
        layers: 4,
        kv_head: 0,
        chunk_start: chunk.start,
        tokens: chunk.end,
        total_tokens,
        page_tokens: PAGE,
        scale: 1.0,
        soft_cap: None,
        pages,
        signs: None,
    }
}

/// Adds the pairs that a selection names.
fn take(read: &mut BTreeSet<(usize, usize)>, rows: Span, selection: &Selection) {
    for query in rows.range() {
        let keys = (0..=query).filter(|key| selection.contains(query, *key));
        read.extend(keys.map(|key| (query, key)));
    }
}

/// The cells of each shade as a path in units of cells, with adjacent cells of a row joined. A cell with more read
/// pairs is darker.
fn shades(read: &BTreeSet<(usize, usize)>, cells: usize) -> Vec<String> {
    let mut paths = vec![String::new(); SHADES];
    let shade = |row: usize, column: usize| {
        let pairs = (row * CELL_TOKENS..(row + 1) * CELL_TOKENS)
            .flat_map(|query| (column * CELL_TOKENS..(column + 1) * CELL_TOKENS).map(move |key| (query, key)));
        let causal: Vec<(usize, usize)> = pairs.filter(|(query, key)| key <= query).collect();
        let share = causal.iter().filter(|pair| read.contains(pair)).count() as f64 / causal.len() as f64;
        (share * SHADES as f64).ceil() as usize
    };
    for row in 0..cells {
        let of_row: Vec<usize> = (0..=row).map(|column| shade(row, column)).collect();
        let mut column = 0;
        for run in of_row.chunk_by(|left, right| left == right) {
            if run[0] > 0 {
                let _ = write!(paths[run[0] - 1], "M{column} {row}h{0}v1h-{0}z", run.len());
            }
            column += run.len();
        }
    }
    paths
}

/// A circle at the query of each fact: filled if the fact is read.
fn facts(scene: &Scene, read: &BTreeSet<(usize, usize)>) -> String {
    let mut circles = String::new();
    for (place, asked) in &FACTS {
        let mass = |query: usize| scene.attention(query, |_| true)[*place];
        assert!(asked.clone().all(|query| mass(query) > 0.2), "the fact is looked at");
        let found = asked.clone().filter(|query| read.contains(&(*query, *place))).count() == asked.len();
        let middle = (asked.start + asked.end) / 2;
        let _ = writeln!(
            circles,
            "<circle cx=\"{}\" cy=\"{}\" r=\"7\" fill=\"{}\" stroke=\"{}\" stroke-width=\"2.5\"/>",
            LEFT + place * CELL_PIXELS / CELL_TOKENS,
            TOP + middle * CELL_PIXELS / CELL_TOKENS,
            if found { "#3fa34d" } else { "none" },
            if found { "#3fa34d" } else { "#d9480f" }
        );
    }
    circles
}

/// The picture: queries from top to bottom, keys from left to right. Text and lines have the page's text colour.
fn picture(scene: &Scene, spec: &PolicySpec, phase: Phase, read: &BTreeSet<(usize, usize)>) -> String {
    let cells = TOKENS / CELL_TOKENS;
    let side = cells * CELL_PIXELS;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"policy\" role=\"img\" aria-label=\"What {} reads\" viewBox=\"0 0 {} {}\" width=\"{}\">\n",
        spec.name(),
        LEFT + side + 8,
        TOP + side + 26,
        LEFT + side + 8
    );
    let _ = writeln!(
        svg,
        "<path d=\"M{LEFT} {TOP}v{side}h{side}z\" fill=\"currentColor\" fill-opacity=\"0.07\"/>"
    );
    for (level, path) in shades(read, cells).into_iter().enumerate() {
        let _ = writeln!(
            svg,
            "<path transform=\"translate({LEFT} {TOP}) scale({CELL_PIXELS})\" shape-rendering=\"crispEdges\" fill=\"#3d85c6\" fill-opacity=\"{:.2}\" d=\"{path}\"/>",
            0.25 + 0.6 * (level + 1) as f64 / SHADES as f64
        );
    }
    svg += &facts(scene, read);
    if phase == Phase::Decode {
        let line = TOP + PROMPT * CELL_PIXELS / CELL_TOKENS;
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {line}h{side}\" stroke=\"currentColor\" stroke-dasharray=\"4 3\" fill=\"none\"/>"
        );
    }
    let text = |x: usize, y: usize, more: &str, words: &str| {
        format!("<text x=\"{x}\" y=\"{y}\" font-size=\"12\" fill=\"currentColor\" {more}>{words}</text>\n")
    };
    svg += &text(LEFT, TOP + side + 18, "", "keys, from the first token to the last →");
    let (x, y) = (22, TOP + side / 2);
    svg += &text(
        x,
        y,
        &format!("transform=\"rotate(-90 {x} {y})\" text-anchor=\"middle\""),
        "← queries",
    );
    let causal = TOKENS * (TOKENS + 1) / 2;
    let prompt = PROMPT * (PROMPT + 1) / 2;
    let (all, done) = match phase {
        Phase::Prefill => (causal, read.len()),
        Phase::Decode => (causal - prompt, read.len() - prompt),
    };
    let words = format!("{:.0}% of the pairs", 100.0 * done as f64 / all as f64);
    svg += &text(LEFT + side, TOP + 14, "text-anchor=\"end\"", &words);
    svg + "</svg>\n"
}

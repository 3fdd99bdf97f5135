use super::*;

/// Head sizes, the number of tokens, and the tokens' values.
struct Case {
    shape: GatedDeltaNetShape,
    rows: usize,
    mixed: Vec<f32>,
    strength: Vec<f32>,
    decay: Vec<f32>,
}

fn noise(count: usize, seed: usize) -> impl Iterator<Item = f32> {
    (0..count).map(move |i| {
        let bits = (i + seed * 1_000_003).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        bits as f32 / (1 << 23) as f32 - 1.0
    })
}

impl Case {
    /// `strongest` is the largest decay of a token.
    fn new(
        key_heads: usize,
        value_heads: usize,
        key_dim: usize,
        value_dim: usize,
        rows: usize,
        strongest: f32,
    ) -> Case {
        let shape = GatedDeltaNetShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            kernel: 4,
        };
        Case {
            mixed: noise(rows * shape.channels(), 1).collect(),
            strength: noise(rows * value_heads, 2).map(|x| 0.5 + 0.5 * x).collect(),
            decay: noise(rows * value_heads, 3)
                .map(|x| -strongest * (0.5 + 0.5 * x))
                .collect(),
            shape,
            rows,
        }
    }

    fn rule(&self) -> Rule {
        Rule::delta(&self.shape, false)
    }

    fn memory(&self) -> Vec<Columns> {
        vec![Columns::ZERO; self.rule().memory().pieces()]
    }

    /// Reads tokens `first..first + rows` with their own positions; returns `[value_head, rows, value_dim]`.
    fn read(&self, memory: &mut [Columns], first: usize, rows: usize) -> Vec<f32> {
        self.read_as(memory, first, rows, false)
    }

    /// As [`Self::read`], in chunks or one by one.
    fn read_as(&self, memory: &mut [Columns], first: usize, rows: usize, one_by_one: bool) -> Vec<f32> {
        let mut read = vec![0.0; rows * self.shape.value_width()];
        self.rule()
            .apply(&self.tokens(first, rows, one_by_one), memory, &mut read);
        read
    }

    fn tokens(&self, first: usize, rows: usize, one_by_one: bool) -> HeadTokens<'_> {
        let heads = self.shape.value_heads;
        HeadTokens {
            start_position: first,
            one_by_one,
            rows,
            mixed: &self.mixed[first * self.shape.channels()..],
            strength: &self.strength[first * heads..],
            decay: &self.decay[first * heads..],
        }
    }

    /// Reads all tokens in pieces of `piece`; returns the joined results and the final memory.
    fn read_in_pieces(&self, piece: usize) -> (Vec<f32>, Vec<Columns>) {
        let (value_dim, mut memory) = (self.shape.value_dim, self.memory());
        let mut whole = vec![0.0; self.rows * self.shape.value_width()];
        for first in (0..self.rows).step_by(piece) {
            let rows = piece.min(self.rows - first);
            let part = self.read(&mut memory, first, rows);
            for (head, part) in part.chunks_exact(rows * value_dim).enumerate() {
                whole[(head * self.rows + first) * value_dim..][..part.len()].copy_from_slice(part);
            }
        }
        (whole, memory)
    }

    /// The recurrence in f64: reads `[value_head, rows, value_dim]` and memories `[value_head, key_dim, value_dim]`.
    fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let GatedDeltaNetShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = self.shape;
        let (mut reads, mut memories) = (Vec::new(), Vec::new());
        for head in 0..value_heads {
            let key_head = head / (value_heads / key_heads);
            let mut memory = vec![0.0f64; key_dim * value_dim];
            for (index, row) in self.mixed.chunks_exact(self.shape.channels()).enumerate() {
                let part = |from: usize, width: usize| row[from..from + width].iter().map(|x| f64::from(*x));
                let unit = |from: usize| -> Vec<f64> {
                    let length = (part(from, key_dim).map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    part(from, key_dim).map(|x| x / length).collect()
                };
                let query = unit(key_head * key_dim);
                let key = unit((key_heads + key_head) * key_dim);
                let values: Vec<f64> = part(2 * key_heads * key_dim + head * value_dim, value_dim).collect();
                let remains = f64::from(self.decay[index * value_heads + head]).exp();
                memory.iter_mut().for_each(|x| *x *= remains);
                for column in 0..value_dim {
                    let held: f64 = (0..key_dim).map(|i| key[i] * memory[i * value_dim + column]).sum();
                    let write = f64::from(self.strength[index * value_heads + head]) * (values[column] - held);
                    (0..key_dim).for_each(|i| memory[i * value_dim + column] += key[i] * write);
                    let read: f64 = (0..key_dim).map(|i| query[i] * memory[i * value_dim + column]).sum();
                    reads.push(read / (key_dim as f64).sqrt());
                }
            }
            memories.extend(memory);
        }
        (reads, memories)
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case::new(1, 1, 4, 3, 5, 0.5),
        Case::new(2, 4, 12, 20, 200, 0.1),
        Case::new(1, 3, 7, 65, 129, 1.0),
        Case::new(2, 2, 128, 128, 130, 0.01),
        // Memories that vanish within a token, and some that never decay.
        Case::new(1, 2, 16, 16, 150, 60.0),
        Case::new(1, 1, 16, 64, 300, 0.0),
    ]
}

#[test]
fn chunks_and_single_tokens_equal_the_recurrence_in_f64() {
    for case in cases() {
        let (reads, memories) = case.reference();
        let GatedDeltaNetShape { key_dim, value_dim, .. } = case.shape;
        for piece in [case.rows, 1, 3, 17, 64, 100] {
            let (read, memory) = case.read_in_pieces(piece);
            let largest = read
                .iter()
                .zip(&reads)
                .map(|(a, b)| (f64::from(*a) - b).abs())
                .fold(0.0, f64::max);
            assert!(largest < 2e-6, "{:?} in {piece}: {largest:e}", case.shape);
            for (at, expected) in memories.iter().enumerate() {
                let (head, row, column) = (at / value_dim / key_dim, at / value_dim % key_dim, at % value_dim);
                let piece = head * case.rule().memory().column_pieces() + column / Columns::COUNT;
                let found = memory[piece * key_dim + row].0[column % Columns::COUNT];
                assert!(
                    (f64::from(found) - expected).abs() < 1e-5,
                    "{:?}: {found} {expected}",
                    case.shape
                );
            }
        }
    }
}

/// Prints a rate; run it alone: `cargo test --release -p riffle-model --lib recurrence -- --ignored --nocapture`.
#[test]
#[ignore = "a rate"]
fn the_additive_rule_reads_a_prompt_of_the_largest_mamba2() {
    const TOKENS: usize = 4096;
    let shape = Mamba2Shape {
        heads: 80,
        head_dim: 64,
        state_width: 128,
        groups: 1,
        kernel: 4,
    };
    let rule = Rule::additive(&shape);
    let mixed: Vec<f32> = noise(TOKENS * shape.channels(), 1).collect();
    let steps: Vec<f32> = noise(TOKENS * shape.heads, 2).map(|x| 0.5 + 0.4 * x).collect();
    let decay: Vec<f32> = steps.iter().map(|step| -0.1 * step).collect();
    for one_by_one in [false, true] {
        let tokens = HeadTokens {
            start_position: 0,
            one_by_one,
            rows: TOKENS,
            mixed: &mixed,
            strength: &steps,
            decay: &decay,
        };
        let mut read = vec![0.0; TOKENS * shape.inner_width()];
        let start = std::time::Instant::now();
        rule.apply(&tokens, &mut vec![Columns::ZERO; rule.memory().pieces()], &mut read);
        let rate = TOKENS as f64 / start.elapsed().as_secs_f64();
        println!("one by one {one_by_one}: {rate:.0} tokens/s in a layer");
    }
}

#[test]
fn no_factor_of_a_chunk_that_forgets_fast_is_subnormal() {
    for strongest in [1.0, 3.0, 60.0] {
        let case = Case::new(1, 1, 16, 16, CHUNK, strongest);
        let (rule, mut chunk, mut memory) = (case.rule(), Chunk::default(), case.memory());
        let tokens = case.tokens(0, CHUNK, false);
        let part = HeadPart {
            tokens: &tokens,
            head: 0,
            first: 0,
            count: CHUNK,
        };
        rule.gather(&mut chunk, part);
        let mut read = vec![0.0; CHUNK * case.shape.value_width()];
        rule.at_once(&mut chunk, part, &mut memory, &mut read);
        let matrices = [&chunk.keys_across, &chunk.system, &chunk.scores, &chunk.writes, &memory];
        let values = matrices.into_iter().flat_map(|pieces| Columns::values(pieces));
        let subnormal = values
            .chain(&chunk.remains)
            .filter(|value| value.is_subnormal())
            .count();
        assert_eq!(subnormal, 0, "of a chunk with decays up to {strongest}");
    }
}

#[test]
fn pieces_of_whole_chunks_and_any_number_of_threads_give_the_same_bits() {
    for case in cases() {
        let whole = case.read_in_pieces(case.rows);
        assert!(case.read_in_pieces(64) == whole && case.read_in_pieces(128) == whole);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert!(pool.install(|| case.read_in_pieces(case.rows)) == whole);
    }
}

#[test]
fn tokens_read_one_by_one_have_the_bits_of_tokens_that_come_alone() {
    for case in cases() {
        let (alone, memory_alone) = case.read_in_pieces(1);
        let mut memory = case.memory();
        let together = case.read_as(&mut memory, 0, case.rows, true);
        assert!(together == alone && memory == memory_alone, "{:?}", case.shape);
        let in_chunks = case.read_in_pieces(case.rows);
        assert!(
            case.rows < 64 || in_chunks != (alone, memory_alone),
            "chunks are another way"
        );
    }
}

#[test]
fn tiled_heads_read_the_keys_of_another_head() {
    // Value heads 0 and 2 then share key head 0; otherwise 0 and 1 do.
    let case = Case::new(2, 4, 8, 8, 70, 0.2);
    let tokens = HeadTokens {
        start_position: 0,
        one_by_one: false,
        rows: case.rows,
        mixed: &case.mixed,
        strength: &case.strength,
        decay: &case.decay,
    };
    let mut tiled = vec![0.0; case.rows * case.shape.value_width()];
    Rule::delta(&case.shape, true).apply(&tokens, &mut case.memory(), &mut tiled);
    let grouped = case.read(&mut case.memory(), 0, case.rows);
    let head = |reads: &[f32], head: usize| reads[head * case.rows * 8..][..case.rows * 8].to_vec();
    for same in [0, 3] {
        assert!(head(&tiled, same) == head(&grouped, same));
    }
    for other in [1, 2] {
        assert!(head(&tiled, other) != head(&grouped, other));
    }
}

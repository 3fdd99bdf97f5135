use alloc::vec::Vec;

use super::ahead::{Ahead, Fetch};
use super::{KEY_BLOCK, LARGEST_BYTE, LARGEST_INTEGER, Slot, halves};
use crate::format::QUANT_BLOCK;
use crate::simd::{Kernel, Level, Simd};

/// Queries as integers relative to the largest of each row: of 15 bits and a sign, so that the integer dot product loses
/// nothing that single precision would keep of an 8-bit key, and of 7 bits and a sign.
#[derive(Debug, Default)]
pub(crate) struct Int8Queries {
    /// Of each tile, `[head_dim / 4, 2, R]`: four integers in two words, in the order of the instructions that multiply them.
    words: Vec<i32>,
    /// Of each tile, `[head_dim / 4, R]`: four integers of 7 bits in a word.
    bytes: Vec<i32>,
    /// Of each tile, `[blocks, R]`: what the offsets of keys add to a dot product with a block of 32.
    offsets: Vec<Offsets>,
    /// Of each tile, `[R]`: what one of the integers stands for, with 15 bits and with 7.
    units: Vec<[f32; 2]>,
}

#[derive(Debug, Clone, Copy)]
struct Offsets {
    /// Of 8-bit keys, and of 4-bit keys.
    words: [i32; 2],
    /// Of 4-bit keys.
    bytes: i32,
}

/// The integers of one tile.
#[derive(Clone, Copy)]
pub(crate) struct Int8Tile<'a> {
    words: &'a [i32],
    bytes: &'a [i32],
    offsets: &'a [Offsets],
    units: &'a [[f32; 2]],
}

impl Int8Queries {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.bytes.clear();
        self.offsets.clear();
        self.units.clear();
    }

    /// Quantises a tile, `[head_dim, width]`, for the instructions of `level`, behind those before it.
    pub(crate) fn push(&mut self, level: Level, queries: &[f32], width: usize) {
        match width {
            1 => self.push_rows::<1>(level, queries),
            2 => self.push_rows::<2>(level, queries),
            3 => self.push_rows::<3>(level, queries),
            4 => self.push_rows::<4>(level, queries),
            6 => self.push_rows::<6>(level, queries),
            _ => self.push_rows::<8>(level, queries),
        }
    }

    /// The tile of `width` rows before which tiles of `before` elements were pushed.
    #[inline(always)]
    pub(crate) fn tile(&self, before: usize, width: usize, head_dim: usize) -> Int8Tile<'_> {
        let blocks = head_dim.div_ceil(QUANT_BLOCK);
        Int8Tile {
            words: &self.words[before / 2..][..head_dim / 2 * width],
            bytes: &self.bytes[before / 4..][..head_dim / 4 * width],
            offsets: &self.offsets[before / head_dim * blocks..][..blocks * width],
            units: &self.units[before / head_dim..][..width],
        }
    }

    fn push_rows<const R: usize>(&mut self, level: Level, queries: &[f32]) {
        let queries = queries.as_chunks::<R>().0;
        level.run(PackInt8::<R> { queries, out: self });
    }
}

/// Quantises queries.
struct PackInt8<'a, const R: usize> {
    /// `[head_dim, R]`.
    queries: &'a [[f32; R]],
    out: &'a mut Int8Queries,
}

impl<const R: usize> Kernel for PackInt8<'_, R> {
    type Output = ();
    const DOTS: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (out, queries) = (self.out, self.queries);
        let (first_word, first_byte) = (out.words.len(), out.bytes.len());
        out.words.resize(first_word + queries.len() / 2 * R, 0);
        out.bytes.resize(first_byte + queries.len() / 4 * R, 0);
        let largest: [f32; R] = core::array::from_fn(|r| {
            queries
                .iter()
                .fold(0.0, |largest: f32, query| largest.max(query[r].abs()))
        });
        // Below 1e-30 a query adds nothing to a logit, and its inverse would overflow.
        let inverse = largest.map(|largest| if largest > 1e-30 { 1.0 / largest } else { 0.0 });
        out.units
            .extend(largest.map(|largest| [largest / LARGEST_INTEGER, largest / LARGEST_BYTE]));
        let words = out.words[first_word..].chunks_mut(QUANT_BLOCK / 2 * R);
        let bytes = out.bytes[first_byte..].chunks_mut(QUANT_BLOCK / 4 * R);
        for ((block, words), bytes) in queries.chunks(QUANT_BLOCK).zip(words).zip(bytes) {
            for r in 0..R {
                let (mut sum, mut byte_sum) = (0, 0);
                let sixteens = words.chunks_exact_mut(8 * R).zip(bytes.chunks_exact_mut(4 * R));
                for (sixteen, (words, bytes)) in block.as_chunks::<16>().0.iter().zip(sixteens) {
                    let exact = simd.load(&core::array::from_fn(|d| sixteen[d][r]));
                    let relative = simd.mul(exact, simd.splat(inverse[r]));
                    let integers = simd.to_i32(simd.mul(relative, simd.splat(LARGEST_INTEGER)));
                    let small = simd.to_i32(simd.mul(relative, simd.splat(LARGEST_BYTE)));
                    sum += simd.reduce_add_i32(integers);
                    byte_sum += simd.reduce_add_i32(small);
                    let (mut packed, mut packed_bytes) = ([0; 16], [0; 16]);
                    simd.pack_words(integers, &mut packed);
                    simd.pack_bytes([small; 4], &mut packed_bytes);
                    for four in 0..4 {
                        words[2 * four * R + r] = packed[4 * four];
                        words[(2 * four + 1) * R + r] = packed[4 * four + 1];
                        bytes[four * R + r] = packed_bytes[4 * four];
                    }
                }
                out.offsets.push(Offsets {
                    words: [-128 * sum, -8 * sum],
                    bytes: -8 * byte_sum,
                });
            }
        }
    }
}

/// 8-bit keys.
pub(crate) const Q8: u8 = 0;
/// 4-bit keys, queries of 15 bits.
pub(crate) const Q4: u8 = 1;
/// 4-bit keys, queries of 7 bits.
pub(crate) const Q4_COARSE: u8 = 2;

/// Logits of a tile over quantised keys by integer dot products; `KEYS` is [`Q8`], [`Q4`] or [`Q4_COARSE`].
pub(crate) struct ScoreInt8<'a, const R: usize, const KEYS: u8> {
    pub(crate) queries: Int8Tile<'a>,
    /// The block's stripes in the layout of a quantised key plane.
    pub(crate) keys: &'a [u8],
    pub(crate) ahead: Ahead<'a>,
    pub(crate) slots: &'a [Slot],
    pub(crate) head_dim: usize,
    pub(crate) scores: &'a mut [[f32; KEY_BLOCK]; R],
}

impl<const R: usize, const KEYS: u8> Kernel for ScoreInt8<'_, R, KEYS> {
    type Output = ();
    const DOTS: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let blocks = self.head_dim.div_ceil(QUANT_BLOCK);
        let mut fetch = self.ahead.over(self.slots.len() * blocks);
        let mut slot = 0;
        // As many stripes side by side as have room for their sums in registers: they share the queries' integers.
        while S::WIDE && R == 1 && slot + 4 <= self.slots.len() {
            score_stripes::<S, R, KEYS, 4>(simd, &mut self, slot, &mut fetch);
            slot += 4;
        }
        while S::WIDE && R <= 6 && slot + 2 <= self.slots.len() {
            score_stripes::<S, R, KEYS, 2>(simd, &mut self, slot, &mut fetch);
            slot += 2;
        }
        while slot < self.slots.len() {
            score_stripes::<S, R, KEYS, 1>(simd, &mut self, slot, &mut fetch);
            slot += 1;
        }
    }
}

/// `N` stripes from `slot` on.
#[inline(always)]
fn score_stripes<S: Simd, const R: usize, const KEYS: u8, const N: usize>(
    simd: S,
    task: &mut ScoreInt8<'_, R, KEYS>,
    slot: usize,
    fetch: &mut Fetch,
) {
    let bytes_per_dim = if KEYS == Q8 { 16 } else { 8 };
    let len = 32 * task.head_dim.div_ceil(QUANT_BLOCK) + bytes_per_dim * task.head_dim;
    let data: [&[u8]; N] = core::array::from_fn(|n| &task.keys[task.slots[slot + n].stripe * len..][..len]);
    let sums = stripes::<S, R, KEYS, N>(simd, task.queries, data, fetch);
    for r in 0..R {
        let unit = simd.splat(task.queries.units[r][usize::from(KEYS == Q4_COARSE)]);
        let out = &mut task.scores[r].as_chunks_mut::<16>().0[slot..slot + N];
        for n in 0..N {
            simd.store(simd.mul(sums[r][n], unit), &mut out[n]);
        }
    }
}

/// The logits with `N` stripes, in units of the rows' integers.
#[inline(always)]
fn stripes<S: Simd, const R: usize, const KEYS: u8, const N: usize>(
    simd: S,
    queries: Int8Tile<'_>,
    mut data: [&[u8]; N],
    fetch: &mut Fetch,
) -> [[S::V; N]; R] {
    let bytes_per_dim = if KEYS == Q8 { 16 } else { 8 };
    let (mut words, mut small) = (queries.words.as_chunks::<R>().0, queries.bytes.as_chunks::<R>().0);
    let mut sums = [[simd.splat(0.0); N]; R];
    for offsets in queries.offsets.as_chunks::<R>().0 {
        fetch.step(simd, N);
        let dims = (2 * words.len()).min(QUANT_BLOCK);
        let (block_words, block_small);
        (block_words, words) = words.split_at(dims / 2);
        (block_small, small) = small.split_at(dims / 4);
        let mut scales = [simd.splat(0.0); N];
        let mut bytes: [&[[u8; 64]]; N] = [&[]; N];
        for n in 0..N {
            let (scale, rest) = data[n]
                .split_first_chunk::<32>()
                .expect("a block begins with its scales");
            let (here, rest) = rest.split_at(dims * bytes_per_dim);
            (scales[n], bytes[n], data[n]) = (simd.load_f16(&halves(scale)), here.as_chunks::<64>().0, rest);
        }
        let dots: [[S::I; N]; R] = match KEYS {
            Q8 => {
                let mut dots = offsets_of::<S, R, N>(simd, offsets, 0);
                for (four, words) in block_words.as_chunks::<2>().0.iter().enumerate().take(bytes[0].len()) {
                    let bytes = core::array::from_fn(|n| simd.factors(simd.load_bytes(&bytes[n][four])));
                    add_words::<S, R, N>(simd, &mut dots, bytes, words);
                }
                core::array::from_fn(|r| core::array::from_fn(|n| simd.sums_to_i32(dots[r][n])))
            }
            Q4 => {
                let mut dots = offsets_of::<S, R, N>(simd, offsets, 1);
                for (eight, words) in block_words.as_chunks::<4>().0.iter().enumerate().take(bytes[0].len()) {
                    let bytes: [S::B; N] = core::array::from_fn(|n| simd.load_bytes(&bytes[n][eight]));
                    let low = core::array::from_fn(|n| simd.factors(simd.low_nibbles(bytes[n])));
                    add_words::<S, R, N>(simd, &mut dots, low, &[words[0], words[1]]);
                    let high = core::array::from_fn(|n| simd.factors(simd.high_nibbles(bytes[n])));
                    add_words::<S, R, N>(simd, &mut dots, high, &[words[2], words[3]]);
                }
                core::array::from_fn(|r| core::array::from_fn(|n| simd.sums_to_i32(dots[r][n])))
            }
            _ => {
                let mut dots: [[S::ByteSums; N]; R] =
                    core::array::from_fn(|r| [simd.byte_sums_from(offsets[r].bytes); N]);
                for (eight, words) in block_small.as_chunks::<2>().0.iter().enumerate().take(bytes[0].len()) {
                    let bytes: [S::B; N] = core::array::from_fn(|n| simd.load_bytes(&bytes[n][eight]));
                    let low = core::array::from_fn(|n| simd.low_nibbles(bytes[n]));
                    add_bytes::<S, R, N>(simd, &mut dots, low, &words[0]);
                    let high = core::array::from_fn(|n| simd.high_nibbles(bytes[n]));
                    add_bytes::<S, R, N>(simd, &mut dots, high, &words[1]);
                }
                core::array::from_fn(|r| core::array::from_fn(|n| simd.byte_sums_to_i32(dots[r][n])))
            }
        };
        for r in 0..R {
            for n in 0..N {
                sums[r][n] = simd.fma(simd.i32_to_f32(dots[r][n]), scales[n], sums[r][n]);
            }
        }
    }
    sums
}

#[inline(always)]
fn offsets_of<S: Simd, const R: usize, const N: usize>(
    simd: S,
    offsets: &[Offsets; R],
    format: usize,
) -> [[S::Sums; N]; R] {
    core::array::from_fn(|r| [simd.sums_from(offsets[r].words[format]); N])
}

#[inline(always)]
fn add_bytes<S: Simd, const R: usize, const N: usize>(
    simd: S,
    dots: &mut [[S::ByteSums; N]; R],
    bytes: [S::B; N],
    words: &[i32; R],
) {
    for r in 0..R {
        for n in 0..N {
            dots[r][n] = simd.dot_bytes(dots[r][n], bytes[n], words[r]);
        }
    }
}

#[inline(always)]
fn add_words<S: Simd, const R: usize, const N: usize>(
    simd: S,
    dots: &mut [[S::Sums; N]; R],
    bytes: [S::Factors; N],
    words: &[[i32; R]; 2],
) {
    for r in 0..R {
        for n in 0..N {
            dots[r][n] = simd.dot4(dots[r][n], bytes[n], [words[0][r], words[1][r]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::layout::{key_at, write_keys};
    use crate::testing::noise;
    use crate::{Format, Plane, PlaneMut};

    /// Two stripes of three.
    const SLOTS: [Slot; 2] = [Slot { stripe: 0, tokens: 16 }, Slot { stripe: 2, tokens: 16 }];

    fn quantised_keys<const FOUR_BITS: bool>(head_dim: usize) -> Vec<u8> {
        let format = if FOUR_BITS { Format::Q4_0 } else { Format::Q8_0 };
        let plane = if FOUR_BITS { PlaneMut::Q4_0 } else { PlaneMut::Q8_0 };
        let mut keys = vec![0; format.plane_len(48, head_dim)];
        let source = noise(3, 48 * head_dim);
        write_keys(&mut plane(&mut keys), head_dim, 0, 48, &source, head_dim).unwrap();
        keys
    }

    fn logits<const R: usize, const KEYS: u8>(
        level: Level,
        queries: &[[f32; R]],
        keys: &[u8],
    ) -> [[f32; KEY_BLOCK]; R] {
        let (mut packed, mut scores) = (Int8Queries::default(), [[0.0; KEY_BLOCK]; R]);
        level.run(PackInt8::<R> {
            queries,
            out: &mut packed,
        });
        level.run(ScoreInt8::<R, KEYS> {
            queries: packed.tile(0, R, queries.len()),
            keys,
            ahead: Ahead::default(),
            slots: &SLOTS,
            head_dim: queries.len(),
            scores: &mut scores,
        });
        scores
    }

    fn logits_agree<const R: usize, const KEYS: u8>(head_dim: usize) {
        let keys = if KEYS == Q8 {
            quantised_keys::<false>(head_dim)
        } else {
            quantised_keys::<true>(head_dim)
        };
        let queries = noise(7, head_dim * R);
        let queries = queries.as_chunks().0;
        let expected = logits::<R, KEYS>(Level::SCALAR, queries, &keys);
        for level in Level::all() {
            let scores = logits::<R, KEYS>(level, queries, &keys);
            for (r, (scores, expected)) in scores.iter().zip(&expected).enumerate() {
                for (score, expected) in scores.iter().zip(expected) {
                    let name = level.name();
                    assert!(
                        (score - expected).abs() < 1e-5,
                        "{name}, {R} rows, row {r}: {score} for {expected}"
                    );
                }
            }
        }
        let plane = if KEYS == Q8 { Plane::Q8_0 } else { Plane::Q4_0 };
        for (at, token) in [(0, 0), (15, 15), (16, 32), (31, 47)] {
            let key = key_at(&plane(&keys), head_dim, token);
            for r in 0..R {
                let products = key.iter().zip(queries).map(|(k, q)| f64::from(*k) * f64::from(q[r]));
                let exact: f64 = products.sum();
                // The root of the mean square of a key is 0.58, of an error 0.29 of an integer.
                let allowed = if KEYS == Q4_COARSE { 7e-3 } else { 1e-4 };
                assert!((f64::from(expected[r][at]) - exact).abs() < allowed * (head_dim as f64).sqrt());
            }
        }
    }

    fn logits_of_all_widths_agree<const KEYS: u8>(head_dim: usize) {
        logits_agree::<1, KEYS>(head_dim);
        logits_agree::<2, KEYS>(head_dim);
        logits_agree::<3, KEYS>(head_dim);
        logits_agree::<4, KEYS>(head_dim);
        logits_agree::<6, KEYS>(head_dim);
        logits_agree::<8, KEYS>(head_dim);
    }

    #[test]
    fn integer_logits_are_the_same_with_every_instruction_set_and_number_of_rows() {
        for head_dim in [16, 48, 80, 128, 256] {
            logits_of_all_widths_agree::<Q8>(head_dim);
            logits_of_all_widths_agree::<Q4>(head_dim);
            logits_of_all_widths_agree::<Q4_COARSE>(head_dim);
        }
    }

    #[test]
    fn the_largest_integers_do_not_overflow() {
        // All bytes 255 against integers of the largest magnitude, over as many tokens as a block has.
        for level in Level::all() {
            struct Largest;
            impl Kernel for Largest {
                type Output = [f32; 16];
                const DOTS: bool = true;
                #[inline(always)]
                fn run<S: Simd>(self, simd: S) -> [f32; 16] {
                    let mut words = [0; 16];
                    simd.pack_words(simd.splat_i32(-32512), &mut words);
                    let bytes = simd.factors(simd.load_bytes(&[255; 64]));
                    let mut sums = simd.sums_from(0);
                    for _ in 0..KEY_BLOCK / 4 {
                        sums = simd.dot4(sums, bytes, [words[0], words[1]]);
                    }
                    let mut out = [0.0; 16];
                    simd.store(simd.i32_to_f32(simd.sums_to_i32(sums)), &mut out);
                    out
                }
            }
            assert_eq!(level.run(Largest), [-255.0 * 32512.0 * 128.0; 16], "{}", level.name());
        }
    }

    #[test]
    fn queries_too_small_to_count_give_no_logits() {
        for level in Level::all() {
            let mut packed = Int8Queries::default();
            level.run(PackInt8::<1> {
                queries: &[[1e-39]; 32],
                out: &mut packed,
            });
            assert!(packed.words.iter().all(|words| *words == 0), "{}", level.name());
        }
    }
}

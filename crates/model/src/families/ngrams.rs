//! The settings and tensors of Qwen4-Exp's tables of hashed n-grams.

use std::ops::Range;

use riffle_linear::PackedMatrix;

use super::qwen4_exp::count;
use crate::blocks::NgramHashes;
use crate::config::LARGEST_COUNT;
use crate::fields::Fields;
use crate::weights::Checkpoint;
use crate::{ModelConfig, ModelError, NgramShape};

/// States hold tokens as f32, plus one.
const MOST_TOKENS: usize = (1 << 24) - 1;

/// The settings of tables of n-grams.
pub(super) struct NgramSettings {
    pub(super) shape: NgramShape,
    /// Taps of the convolution.
    pub(super) kernel: usize,
    /// Tokens of the longest n-gram.
    most: usize,
    /// Heads for each length.
    heads: usize,
    /// Fewest rows of a head.
    least_rows: usize,
    /// The number of rows of a table is a multiple of this number.
    multiple: usize,
    seed: u64,
    vocab_size: usize,
    end_of_text: u32,
}

impl NgramSettings {
    pub(super) fn read(fields: &Fields, config: &ModelConfig) -> Result<NgramSettings, ModelError> {
        let (most, heads) = (count(fields, "ngram_size")?, count(fields, "heads_per_ngram")?);
        let kernel = count(fields, "ple_conv_kernel_size")?;
        let all_heads = (most - 1).saturating_mul(heads);
        let inputs = match fields.optional_size("ple_embed_dim")? {
            Some(inputs) => inputs.min(LARGEST_COUNT),
            None => config.hidden_size,
        };
        if all_heads == 0 || !inputs.is_multiple_of(all_heads) {
            let problem = format!("{inputs} is not a multiple of the {all_heads} heads of n-grams");
            return Err(fields.error("ple_embed_dim", problem));
        }
        if config.vocab_size > MOST_TOKENS {
            let problem = format!("is more than {MOST_TOKENS}, the limit of models with tables of n-grams");
            return Err(fields.error("vocab_size", problem));
        }
        let end_of_text = match fields.optional_token_id("ngram_end_of_text")? {
            Some(end) => Some(end),
            None => fields.token_ids("eos_token_id")?.first().copied(),
        };
        let Some(end_of_text) = end_of_text else {
            return Err(fields.error("eos_token_id", "is missing; n-grams end at this token"));
        };
        // The convolution therefore reaches further back than the longest n-gram.
        let window = (kernel - 1).saturating_mul(most);
        if kernel < 2 || window > LARGEST_COUNT {
            let problem = format!(
                "must be at least 2, and at most {} with ngram_size {most}",
                LARGEST_COUNT / most + 1
            );
            return Err(fields.error("ple_conv_kernel_size", problem));
        }
        let least_rows = fields.size("ngram_vocab_size_base")?;
        if u32::try_from(least_rows).is_err() {
            let problem = format!("{least_rows} is not plausible, {} is the limit", u32::MAX);
            return Err(fields.error("ngram_vocab_size_base", problem));
        }
        Ok(NgramSettings {
            shape: NgramShape {
                channels: config.streams * config.hidden_size,
                inputs,
                window,
            },
            kernel,
            most,
            heads,
            least_rows,
            multiple: count(fields, "make_ngram_vocab_size_divisible_by")?,
            seed: fields.optional_count("seed")?.unwrap_or(1234) as u64,
            vocab_size: config.vocab_size,
            end_of_text,
        })
    }

    /// The hashes of table `number`. A file's own hashes, in tensors or in metadata, replace the computed ones.
    pub(super) fn hashes(
        &self,
        fields: &Fields,
        weights: &mut Checkpoint,
        name: &str,
        number: usize,
    ) -> Result<NgramHashes, ModelError> {
        let heads = (self.most - 1) * self.heads;
        let sizes = primes_from(self.least_rows, number * heads..(number + 1) * heads);
        let offsets = sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end - size)
        });
        let offsets = offsets.collect();
        let mut find = |setting: &str, tensor: &str, others: Vec<i64>| match listed(fields, setting, others.len())? {
            Some(listed) => Ok(listed),
            None => stored(weights, &format!("{name}.{tensor}"), others),
        };
        Ok(NgramHashes {
            factors: find("ngram_factors", "layer_multipliers", self.factors(number))?,
            offsets: find("ngram_offsets", "ngram_heads_offsets", offsets)?,
            sizes: find("ngram_sizes", "ngram_heads_vocab_sizes", sizes)?,
            end_of_text: self.end_of_text,
        })
    }

    /// The table below `name`: one tensor, or several that follow each other.
    pub(super) fn table(
        &self,
        fields: &Fields,
        weights: &mut Checkpoint,
        name: &str,
        hashes: &NgramHashes,
    ) -> Result<PackedMatrix, ModelError> {
        let ends = hashes.sizes.iter().zip(&hashes.offsets);
        let ends: Option<Vec<i64>> = ends.map(|(size, offset)| offset.checked_add(*size)).collect();
        let end = ends.and_then(|ends| ends.into_iter().max()).unwrap_or(i64::MAX);
        let padded = (end as usize).checked_next_multiple_of(self.multiple);
        let is_sound = hashes.sizes.iter().all(|size| *size > 0) && hashes.offsets.iter().all(|offset| *offset >= 0);
        let (Some(padded), true) = (padded, is_sound) else {
            let problem = format!("does not go with the hashes of {name}");
            return Err(fields.error("ngram_vocab_size_base", problem));
        };
        let shards: Vec<(String, usize)> = (0..)
            .map(|shard| format!("{name}.ngram_embedding.shard_{shard}.weight"))
            .map_while(|name| {
                let rows = *weights.info(&name)?.shape.first()?;
                Some((name, rows))
            })
            .collect();
        let width = self.shape.inputs / hashes.sizes.len();
        if shards.is_empty() {
            let named = fields.optional_size("ngram_table_rows")?;
            let rows = named.filter(|rows| *rows as i64 >= end).unwrap_or(padded);
            return weights.matrix(&format!("{name}.ngram_embedding.weight"), rows, width);
        }
        let rows: usize = shards.iter().map(|(_, rows)| rows).sum();
        if rows != padded {
            let problem = format!("gives {padded} rows for {name}, the files hold {rows}");
            return Err(fields.error("ngram_vocab_size_base", problem));
        }
        weights.joined(&shards, width)
    }

    /// Odd factors whose products with tokens do not overflow.
    fn factors(&self, number: usize) -> Vec<i64> {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        const TABLES_APART: u64 = 10_007;
        let largest = i64::MAX as u64 / self.vocab_size.max(1) as u64;
        let half = (largest / 2).max(1);
        let seed = self.seed.wrapping_add(TABLES_APART * number as u64);
        let factor = |place: u64| 2 * (scrambled(seed.wrapping_add(STEP.wrapping_mul(place + 1))) % half) + 1;
        (0..self.most as u64).map(|place| factor(place) as i64).collect()
    }
}

/// One step of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
fn scrambled(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Some of the primes from `least` on, in order.
fn primes_from(least: usize, numbers: Range<usize>) -> Vec<i64> {
    let is_prime = |value: &usize| {
        let mut divisors = (2..).take_while(|divisor| divisor * divisor <= *value);
        *value > 1 && divisors.all(|divisor| !value.is_multiple_of(divisor))
    };
    let primes = (least..).filter(is_prime).skip(numbers.start);
    primes.take(numbers.len()).map(|prime| prime as i64).collect()
}

/// The integers of a setting that GGUF files have.
fn listed(fields: &Fields, setting: &str, count: usize) -> Result<Option<Vec<i64>>, ModelError> {
    let Some(listed) = fields.get(setting).and_then(serde_json::Value::as_array) else {
        return Ok(None);
    };
    let listed: Option<Vec<i64>> = listed.iter().map(serde_json::Value::as_i64).collect();
    match listed.filter(|listed| listed.len() == count) {
        Some(listed) => Ok(Some(listed)),
        None => Err(fields.error(setting, format!("must list {count} whole numbers"))),
    }
}

/// The integers of a tensor, or others if files do not hold it.
fn stored(weights: &mut Checkpoint, name: &str, others: Vec<i64>) -> Result<Vec<i64>, ModelError> {
    let Some(part) = weights.part(name) else {
        return Ok(others);
    };
    weights.check(name, &[others.len()])?;
    let bytes = weights.small_bytes(&part)?;
    let (words, rest) = bytes.as_chunks::<8>();
    if words.len() != others.len() || !rest.is_empty() {
        return Err(ModelError::CorruptWeights {
            path: weights.file_of(name).unwrap_or("".as_ref()).to_owned(),
            problem: format!("tensor {name} does not hold 64-bit integers"),
        });
    }
    let values = words.iter().map(|word| i64::from_le_bytes(*word)).collect();
    weights.forget(|other| other == name);
    Ok(values)
}

//! Selects the quantisation for a machine.

use crate::quantisation::{is_legacy, is_plain};
use crate::tried::{TRIED, TriedModel};

/// A GGUF model in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offer {
    /// Quantisation in the model's name, in capitals.
    pub quantisation: Option<String>,
    /// Path of the file to open in the repository.
    pub file: String,
    /// Number of files; more than one for a split model.
    pub files: usize,
    /// Bytes of all files of the model.
    pub bytes: u64,
}

/// The machine for which a model is selected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Memory for a model, in bytes.
    pub memory_bytes: u64,
    /// Memory read rate of all cores together, in bytes per second.
    pub bytes_per_s: f64,
}

/// Minimum memory of a context of some thousand tokens, of scratch and of the program, in bytes.
const LEAST_OVERHEAD_BYTES: u64 = 256 << 20;
/// Context, scratch and program of larger models take this fraction of the weights: an eighth.
const OVERHEAD_DIVISOR: u64 = 8;
/// Tokens per second below which a larger quantisation is too slow: about twice the reading speed of people.
const COMFORTABLE: f64 = 10.0;
/// Quantisations with a small loss and small size.
const COMPROMISE: [&str; 4] = ["Q4_K_M", "Q4_K_XL", "Q4_K_S", "Q4_K_L"];

impl Offer {
    /// A model with these files.
    pub fn new(quantisation: Option<String>, file: String, files: usize, bytes: u64) -> Self {
        Self {
            quantisation,
            file,
            files,
            bytes,
        }
    }

    /// Estimated memory of the model with a context of some thousand tokens, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        memory_bytes(self.bytes)
    }

    fn is(&self, is_it: impl Fn(&str) -> bool) -> bool {
        self.quantisation.as_deref().is_some_and(is_it)
    }
}

/// Estimated memory of weights of `weight_bytes` with a context of some thousand tokens, in bytes.
pub(crate) fn memory_bytes(weight_bytes: u64) -> u64 {
    let beside = (weight_bytes / OVERHEAD_DIVISOR).max(LEAST_OVERHEAD_BYTES);
    weight_bytes.saturating_add(beside)
}

impl Machine {
    /// True if the model fits with a context of some thousand tokens.
    pub fn fits(&self, offer: &Offer) -> bool {
        offer.memory_bytes() <= self.memory_bytes
    }

    /// Estimated tokens per second of an answer: every token reads all weights once.
    pub fn tokens_per_s(&self, weight_bytes: u64) -> f64 {
        self.bytes_per_s / weight_bytes.max(1) as f64
    }

    /// Index of the offer with the best quality for this machine: the largest that fits and answers fast enough. If
    /// only slower ones fit, it is the common compromise or the largest below it; if none fits, the smallest.
    /// Unquantised weights and older block types are the last resort. `None` without offers.
    pub fn best(&self, offers: &[Offer]) -> Option<usize> {
        let newer = |offer: &Offer| !offer.is(is_plain) && !offer.is(is_legacy);
        let quantised = |offer: &Offer| !offer.is(is_plain);
        let all = |_: &Offer| true;
        let passes: [&dyn Fn(&Offer) -> bool; 3] = [&newer, &quantised, &all];
        passes
            .iter()
            .find_map(|among| self.best_among(offers, *among))
            .or_else(|| (0..offers.len()).min_by_key(|&at| offers[at].bytes))
    }

    /// The largest model of [`TRIED`](crate::TRIED) that fits and answers fast enough, or else the smallest that
    /// fits. `None` if none fits.
    pub fn best_tried(&self) -> Option<&'static TriedModel> {
        let fits = |model: &&TriedModel| model.memory_bytes() <= self.memory_bytes;
        let is_comfortable = |model: &&TriedModel| self.tokens_per_s(model.file_bytes) >= COMFORTABLE;
        let largest = TRIED.iter().rev().filter(fits).find(is_comfortable);
        largest.or_else(|| TRIED.iter().find(fits))
    }

    fn best_among(&self, offers: &[Offer], among: &dyn Fn(&Offer) -> bool) -> Option<usize> {
        let mut fitting: Vec<usize> = (0..offers.len())
            .filter(|&at| among(&offers[at]) && self.fits(&offers[at]))
            .collect();
        fitting.sort_by_key(|&at| (std::cmp::Reverse(offers[at].bytes), at));
        let comfortable = |&&at: &&usize| self.tokens_per_s(offers[at].bytes) >= COMFORTABLE;
        let compromise = |&&at: &&usize| {
            let names = |found: &str| {
                COMPROMISE
                    .iter()
                    .any(|wanted| crate::quantisation::names(wanted, found))
            };
            offers[at].is(names)
        };
        let largest = fitting.iter().find(comfortable);
        // If all offers are slow, larger ones than the compromise would be even slower.
        let slower = || {
            let below = |&&at: &&usize| has_few_bits(&offers[at]);
            fitting.iter().find(compromise).or_else(|| fitting.iter().find(below))
        };
        largest.or_else(slower).or(fitting.last()).copied()
    }
}

/// True for a quantisation of about four bits or fewer.
fn has_few_bits(offer: &Offer) -> bool {
    offer.is(|found| {
        let bits = found.trim_start_matches("UD-").trim_start_matches(['I', 'T', 'Q']);
        matches!(bits.as_bytes().first(), Some(b'1'..=b'4'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn offers(of: &[(&str, u64)]) -> Vec<Offer> {
        of.iter()
            .map(|(name, megabytes)| {
                Offer::new(
                    Some((*name).to_owned()).filter(|name| !name.is_empty()),
                    format!("m-{name}.gguf"),
                    1,
                    megabytes * 1_000_000,
                )
            })
            .collect()
    }

    fn best(of: &[(&str, u64)], gigabytes: u64, gigabytes_per_s: f64) -> &'static str {
        let offers = offers(of);
        let machine = Machine {
            memory_bytes: gigabytes * GB,
            bytes_per_s: gigabytes_per_s * 1e9,
        };
        let best = machine.best(&offers).expect("an offer");
        Box::leak(offers[best].quantisation.clone().unwrap_or_default().into_boxed_str())
    }

    /// The quantisations of a model of four thousand million weights.
    const FOUR: [(&str, u64); 9] = [
        ("BF16", 8050),
        ("IQ4_XS", 2270),
        ("Q3_K_M", 2080),
        ("Q4_0", 2380),
        ("Q4_K_M", 2500),
        ("Q6_K", 3310),
        ("Q8_0", 4280),
        ("UD-Q2_K_XL", 1730),
        ("UD-Q4_K_XL", 2550),
    ];

    #[test]
    fn the_largest_that_fits_and_is_fast_enough_is_chosen() {
        assert_eq!(best(&FOUR, 64, 200.0), "Q8_0", "unquantised weights are not");
        assert_eq!(best(&FOUR, 4, 200.0), "Q6_K");
        assert_eq!(
            best(&FOUR, 64, 30.0),
            "UD-Q4_K_XL",
            "Q6_K would answer at 9 tokens a second"
        );
        assert_eq!(best(&FOUR, 3, 200.0), "UD-Q4_K_XL");
    }

    #[test]
    fn of_slow_ones_the_compromise_is_chosen_and_never_a_larger_one() {
        assert_eq!(best(&FOUR, 64, 5.0), "UD-Q4_K_XL");
        let without = FOUR.iter().filter(|(name, _)| !name.contains("Q4_K")).copied();
        assert_eq!(best(&without.collect::<Vec<_>>(), 64, 5.0), "IQ4_XS");
        assert_eq!(best(&[("Q8_0", 4280), ("Q6_K", 3310)], 64, 5.0), "Q6_K");
    }

    #[test]
    fn the_tried_model_to_begin_with_fits_and_is_fast_enough() {
        let named = |gigabytes: u64, gigabytes_per_s: f64| {
            let machine = Machine {
                memory_bytes: gigabytes * GB,
                bytes_per_s: gigabytes_per_s * 1e9,
            };
            machine.best_tried().map(|model| model.name)
        };
        assert_eq!(named(64, 51.0), Some("qwen3:8b"));
        assert_eq!(named(4, 51.0), Some("qwen3.5:4b"));
        assert_eq!(named(64, 0.5), Some("smollm2:135m"), "none is fast enough");
        assert_eq!(named(0, 51.0), None);
    }

    #[test]
    fn a_small_memory_takes_fewer_bits_and_the_smallest_where_none_fits() {
        assert_eq!(best(&FOUR, 2, 200.0), "UD-Q2_K_XL");
        assert_eq!(best(&FOUR, 1, 200.0), "UD-Q2_K_XL");
        assert_eq!(best(&[("BF16", 500), ("Q4_0", 300)], 8, 50.0), "Q4_0");
        assert_eq!(best(&[("BF16", 500), ("F32", 1000)], 8, 2.0), "BF16");
        assert_eq!(best(&[("", 500)], 8, 50.0), "");
        let machine = Machine {
            memory_bytes: 1,
            bytes_per_s: 1.0,
        };
        assert_eq!(machine.best(&[]), None);
    }
}

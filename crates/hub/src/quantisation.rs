//! Quantisations in the names of GGUF files.

use riffle_files::gguf_shard;

use crate::paths::file_name;

/// The quantisations in order of preference, for a name without one and a caller that does not select by memory. The
/// common compromise comes first, then larger and smaller quantisations. Types of at most about two bits per weight
/// come last.
pub const PREFERENCE: &[&str] = &[
    "Q4_K_M",
    "Q4_K_XL",
    "Q4_K_S",
    "Q4_K_L",
    "Q4_K",
    "Q4_0",
    "Q4_1",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "MXFP4_MOE",
    "NVFP4",
    "Q5_K_M",
    "Q5_K_XL",
    "Q5_K_S",
    "Q5_K_L",
    "Q5_0",
    "Q5_1",
    "Q6_K",
    "Q6_K_XL",
    "Q6_K_L",
    "Q8_0",
    "Q8_K_XL",
    "Q3_K_L",
    "Q3_K_XL",
    "Q3_K_M",
    "IQ3_M",
    "IQ3_S",
    "Q3_K_S",
    "IQ3_XXS",
    "Q2_K",
    "Q2_K_XL",
    "Q2_K_L",
    "IQ2_M",
    "IQ2_S",
    "IQ2_XS",
    "BF16",
    "F16",
    "F32",
    "IQ2_XXS",
    "TQ2_0",
    "TQ1_0",
    "Q2_0",
    "IQ1_M",
    "IQ1_S",
    "Q1_0",
];

/// The prefix of mixes that select a type for each tensor (`UD-Q4_K_XL`).
const MIX: &str = "UD-";

/// True if `wanted` names the quantisation `found`. The prefix of a mix is optional.
pub(crate) fn names(wanted: &str, found: &str) -> bool {
    wanted == found || found.strip_prefix(MIX) == Some(wanted)
}

/// True for unquantised weights.
pub(crate) fn is_plain(quantisation: &str) -> bool {
    matches!(quantisation, "BF16" | "F16" | "F32" | "FP16" | "FP32")
}

/// True for the older types, which lose more than newer ones of the same size.
pub(crate) fn is_legacy(quantisation: &str) -> bool {
    matches!(quantisation, "Q4_0" | "Q4_1" | "Q5_0" | "Q5_1") || quantisation.starts_with("Q4_0_")
}

/// The quantisation in the name of a GGUF file, in capitals: the last part between `-`, `.` and `_` that is one, with
/// the prefix of a mix. `None` if the name has none.
pub(crate) fn of_file(path: &str) -> Option<String> {
    let stem = file_name(path).to_ascii_uppercase();
    let stem = stem.strip_suffix(".GGUF")?;
    let stem = gguf_shard(stem).map_or(stem, |shard| shard.stem);
    let starts = stem
        .char_indices()
        .filter(|&(at, _)| at == 0 || stem[..at].ends_with(['-', '.', '_']));
    let mut found = None;
    for (at, _) in starts {
        let end = stem[at..].find(['-', '.']).map_or(stem.len(), |length| at + length);
        let word = &stem[at..end];
        if is_quantisation(word) && found.is_none_or(|(last, _)| at >= last) {
            // A word inside a longer match is skipped: in Q4_K_M, neither K_M nor M counts.
            let is_mix = stem[..at]
                .strip_suffix(MIX)
                .is_some_and(|name| name.is_empty() || name.ends_with(['-', '.', '_']));
            found = Some((end, &stem[at - if is_mix { MIX.len() } else { 0 }..end]));
        }
    }
    found.map(|(_, word)| word.to_owned())
}

/// True if a word in capitals names a quantisation.
fn is_quantisation(word: &str) -> bool {
    if ["F32", "F16", "BF16", "FP16", "FP32", "MXFP4", "MXFP4_MOE", "NVFP4"].contains(&word) {
        return true;
    }
    let Some(rest) = ["IQ", "TQ", "Q"].iter().find_map(|start| word.strip_prefix(start)) else {
        return false;
    };
    let mut parts = rest.split('_');
    let bits = parts.next().unwrap_or_default();
    let is_kind = |part: &str| {
        matches!(
            part,
            "0" | "1" | "K" | "S" | "M" | "L" | "XS" | "XXS" | "XL" | "NL" | "4" | "8"
        )
    };
    matches!(bits, "1" | "2" | "3" | "4" | "5" | "6" | "8") && rest.contains('_') && parts.all(is_kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_tells_its_quantisation() {
        for (file, quantisation) in [
            ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", Some("Q4_K_M")),
            ("Llama-3.2-1B-Instruct.Q8_0.gguf", Some("Q8_0")),
            ("Llama-3.2-1B-Instruct-IQ3_XXS.gguf", Some("IQ3_XXS")),
            ("Qwen3-0.6B-UD-Q4_K_XL.gguf", Some("UD-Q4_K_XL")),
            ("UD-IQ3_XXS.gguf", Some("UD-IQ3_XXS")),
            ("UD-Q2_K_XL/m-UD-Q2_K_XL-00001-of-00003.gguf", Some("UD-Q2_K_XL")),
            ("cloud-Q4_K_M.gguf", Some("Q4_K_M")),
            ("model_q4_0.gguf", Some("Q4_0")),
            ("model-BF16.gguf", Some("BF16")),
            ("Q6_K/model-Q6_K-00002-of-00003.gguf", Some("Q6_K")),
            ("Q4_0/model.gguf", None),
            ("gemma-3-270m.gguf", None),
            ("Q4_K_M.gguf", Some("Q4_K_M")),
            ("model.Q4_0_4_8.gguf", Some("Q4_0_4_8")),
            ("model-Q4_0.safetensors", None),
            ("q4-model.gguf", None),
        ] {
            assert_eq!(of_file(file).as_deref(), quantisation, "{file}");
        }
    }

    #[test]
    fn every_quantisation_of_the_preference_is_found_in_a_name() {
        for &quantisation in PREFERENCE {
            assert_eq!(
                of_file(&format!("m-{quantisation}.gguf")).as_deref(),
                Some(quantisation)
            );
        }
    }
}

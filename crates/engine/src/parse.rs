//! Parses values typed by people.

use riffle_attention::Format;

use crate::EngineError;

/// The formats that [`parse_kv_type`] accepts, separated by `|`.
pub const KV_TYPES: &str = Format::NAMES;

/// Formats of keys and values: `f16` for both, or `f32:bf16` for keys and values, in lower or upper case.
///
/// # Errors
/// [`EngineError::Option`] lists the formats.
pub fn parse_kv_type(text: &str) -> Result<(Format, Format), EngineError> {
    let format = |name: &str| {
        Format::ALL
            .into_iter()
            .find(|format| format.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                EngineError::option(
                    "kv_type",
                    format!("{text:?}"),
                    format!(
                        "it must be one of {}, or two of them as KEYS:VALUES",
                        Format::ALL.map(Format::name).join(", ")
                    ),
                )
            })
    };
    match text.split_once(':') {
        Some((keys, values)) => Ok((format(keys)?, format(values)?)),
        None => format(text).map(|format| (format, format)),
    }
}

/// Bytes: `4096`, `900K`, `1.5G`; units are powers of 1024. `option` is the name of the option.
///
/// # Errors
/// [`EngineError::Option`] shows the spelling.
pub fn parse_bytes(option: &'static str, text: &str) -> Result<u64, EngineError> {
    let bad = || {
        EngineError::option(
            option,
            format!("{text:?}"),
            "it must be a number of bytes with an optional unit, e.g. 900M or 1.5G",
        )
    };
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[number.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(bad()),
    };
    let value: f64 = number.parse().map_err(|_| bad())?;
    let bytes = value * (1u64 << shift) as f64;
    if value >= 0.0 && bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err(bad())
    }
}

/// Bytes in an option's spelling, rounded up: `201M`.
pub(crate) fn typed_bytes(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(shift, _)| bytes >= 10 << shift);
    match unit {
        Some((shift, name)) => format!("{}{name}", bytes.div_ceil(1 << shift)),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_advised_are_enough_when_they_are_typed() {
        for bytes in [0, 1, 10_239, 10_240, 10_241, 205_000_001, 3 << 40, u64::MAX >> 12] {
            assert!(
                parse_bytes("memory_budget_bytes", &typed_bytes(bytes)).unwrap() >= bytes,
                "{bytes}"
            );
        }
        assert_eq!(typed_bytes(205 << 20), "205M");
    }
}

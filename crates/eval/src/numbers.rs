//! Formats numbers for people.

/// A number for an axis or a table: at most three significant digits, with separated thousands.
pub(crate) fn short(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "–".to_owned();
    }
    if size >= 1e6 {
        return format!("{}M", trimmed(value / 1e6, 3));
    }
    if size >= 1e4 {
        return format!("{}K", trimmed(value / 1e3, 3));
    }
    trimmed(value, 3)
}

/// A count of tokens: 4096 is 4K.
pub(crate) fn tokens(value: f64) -> String {
    let count = value.round() as u64;
    match count {
        0..1024 => count.to_string(),
        _ if count.is_multiple_of(1 << 20) => format!("{}M", count >> 20),
        _ if count.is_multiple_of(1 << 10) => format!("{}K", count >> 10),
        _ => short(value),
    }
}

fn trimmed(value: f64, digits: usize) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let before = value.abs().log10().floor() as i32 + 1;
    let decimals = (digits as i32 - before).clamp(0, 6) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A share as a percentage, to a tenth of a point.
pub(crate) fn percent(share: f64) -> String {
    match share {
        _ if !share.is_finite() => "–".to_owned(),
        // A small share must not appear as zero.
        _ if share > 0.0 && share < 5e-4 => "<0.1%".to_owned(),
        _ => format!("{}%", trimmed((share * 1000.0).round() / 10.0, 4)),
    }
}

/// Milliseconds, or seconds for long times.
pub(crate) fn milliseconds(time_ms: f64) -> String {
    if time_ms >= 10_000.0 {
        format!("{} s", trimmed(time_ms / 1e3, 3))
    } else {
        format!("{} ms", trimmed(time_ms, 3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (0.0123, "0.0123"),
            (12.34, "12.3"),
            (9999.0, "9999"),
            (12_345.0, "12.3K"),
            (2.5e6, "2.5M"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        assert_eq!(
            [
                tokens(512.0),
                tokens(4096.0),
                tokens(131_072.0),
                tokens(1048576.0),
                tokens(44_725.0)
            ],
            ["512", "4K", "128K", "1M", "44.7K"]
        );
    }

    #[test]
    fn shares_and_times_carry_their_unit() {
        assert_eq!(
            [0.12345, 1.0, 0.0, 5e-5, f64::NAN].map(percent),
            ["12.3%", "100%", "0%", "<0.1%", "–"]
        );
        assert_eq!([milliseconds(0.5), milliseconds(12_300.0)], ["0.5 ms", "12.3 s"]);
    }
}

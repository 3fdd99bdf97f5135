//! Numbers in styles other than digits.

/// A number in lower-case Roman numerals.
pub(crate) fn roman(number: usize) -> String {
    const PARTS: [(usize, &str); 13] = [
        (1000, "m"),
        (900, "cm"),
        (500, "d"),
        (400, "cd"),
        (100, "c"),
        (90, "xc"),
        (50, "l"),
        (40, "xl"),
        (10, "x"),
        (9, "ix"),
        (5, "v"),
        (4, "iv"),
        (1, "i"),
    ];
    let mut left = number.min(10_000);
    let mut text = String::new();
    for (value, part) in PARTS {
        text.push_str(&part.repeat(left / value));
        left %= value;
    }
    text
}

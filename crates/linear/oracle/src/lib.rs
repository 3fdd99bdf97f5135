//! Holds nothing: `tests/candle.rs` compares `riffle-linear` with candle.

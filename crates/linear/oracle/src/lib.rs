//! An empty library: `tests/candle.rs` compares `riffle-linear` with candle.

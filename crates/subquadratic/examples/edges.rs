//! Pairs of query and key that the pattern reads per head, against dense causal attention.
//!
//! `cargo run --release -p riffle-subquadratic --example edges`

use riffle_subquadratic::{SparseAttentionConfig, SubquadraticError, SubquadraticSparseAttention};

fn main() -> Result<(), SubquadraticError> {
    let attention = SubquadraticSparseAttention::new(SparseAttentionConfig::default())?;
    for tokens in [512, 1024, 2048, 4096, 8192, 16_384, 32_768] {
        let (sparse, dense) = (attention.estimate_sparse_edges(tokens), tokens * (tokens + 1) / 2);
        println!(
            "{tokens:>7} tokens: {sparse:>9} of {dense:>11} ({:.1}×)",
            dense as f64 / sparse as f64
        );
    }
    Ok(())
}

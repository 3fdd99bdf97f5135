//! Sparse attention policies: which tokens a query reads

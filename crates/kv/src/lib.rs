//! Paged KV cache of (layer, KV head) pages

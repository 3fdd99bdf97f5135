//! A KV cache file of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = riffle_fuzz::folder().join("cache.kv");
    riffle_fuzz::without_panic(|| _ = riffle_fuzz::restore(&path, bytes));
});

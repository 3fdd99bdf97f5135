//! A GGUF file of any bytes: header, tensors, tokenizer, chat template, and the model if it loads.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = riffle_fuzz::folder().join("model.gguf");
    std::fs::write(&path, bytes).expect("the input is written");
    riffle_fuzz::without_panic(|| _ = riffle_fuzz::use_model(&path));
});

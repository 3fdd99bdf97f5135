//! The text files of a model directory beside valid weights.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = riffle_fuzz::folder();
    std::fs::write(folder.join("model.safetensors"), riffle_fuzz::TINY_WEIGHTS).expect("the input is written");
    riffle_fuzz::write_directory(&folder, bytes);
    riffle_fuzz::without_panic(|| _ = riffle_fuzz::use_model(&folder));
});

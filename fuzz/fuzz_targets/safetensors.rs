//! A safetensors file of any bytes beside a valid config.json.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = riffle_fuzz::folder();
    std::fs::write(folder.join("config.json"), riffle_fuzz::tiny_config()).expect("the input is written");
    std::fs::write(folder.join("model.safetensors"), bytes).expect("the input is written");
    riffle_fuzz::without_panic(|| _ = riffle_fuzz::use_model(&folder));
});

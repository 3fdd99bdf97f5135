//! An adapter (LoRA) of any bytes beside a valid model: a GGUF file, or the two files of PEFT.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = riffle_fuzz::folder();
    std::fs::write(folder.join("config.json"), riffle_fuzz::tiny_config()).expect("the input is written");
    std::fs::write(folder.join("model.safetensors"), riffle_fuzz::TINY_WEIGHTS).expect("the input is written");
    let adapter = riffle_fuzz::write_adapter_input(&folder, bytes);
    riffle_fuzz::without_panic(|| _ = riffle_fuzz::use_adapter(&folder, &adapter));
});

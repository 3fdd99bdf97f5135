//! Model files: reading, refusal and computation.

mod adapters;
mod contents;
mod errors;
mod experts;
mod export;
mod families;
mod fingerprint;
mod folders;
mod gguf;
mod gguf_settings;
mod gguf_tokenizers;
mod hostile_templates;
mod logits;
mod memory;
mod pre_tokenizers;
mod predictor;
mod refused_tokenizers;
mod rope_scaling;
mod safetensors;
mod settings;
#[path = "../testing/mod.rs"]
mod testing;
mod text;
mod tokenizer_files;
mod tokenizers;

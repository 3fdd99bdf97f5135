//! Language models: files, architectures, tokenizers, chat templates

/// Names of tokenizer files. If a folder or repository has several, the first of this list is used.
pub const TOKENIZER_FILES: [&str; 3] = ["tokenizer.json", "tokenizer.model", "tekken.json"];

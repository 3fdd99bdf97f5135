/// Names of the files that hold a model's tokenizer. Of several in a folder or a repository the first of this list counts.
pub const TOKENIZER_FILES: [&str; 3] = ["tokenizer.json", "tokenizer.model", "tekken.json"];

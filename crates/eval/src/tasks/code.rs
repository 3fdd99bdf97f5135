//! A package of generated source files: each file defines a type, and another file uses it.

use rand_chacha::ChaCha8Rng;

use super::corpus::Corpus;
use crate::EvalError;

/// A source file that defines a type with one constructor. The constructor's name is random.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Module {
    /// Such as `olive_harbor`.
    pub(super) name: String,
    /// Such as `river_stone`.
    pub(super) constructor: String,
    /// Words for the fields and the method of the module's class.
    words: [String; 3],
}

impl Module {
    /// Modules with distinct names and constructors.
    ///
    /// # Errors
    /// [`EvalError::Option`] for a text with too few words.
    pub(super) fn draw(corpus: &Corpus, random: &mut ChaCha8Rng, count: usize) -> Result<Vec<Self>, EvalError> {
        let pairs = corpus.word_pairs(random, 2 * count)?;
        let names = pairs.chunks_exact(2).map(|pair| (pair[0].join("_"), pair[1].join("_")));
        let module = |(name, constructor)| Self {
            name,
            constructor,
            words: std::array::from_fn(|_| corpus.distinct_words(random, 1).remove(0)),
        };
        Ok(names.map(module).collect())
    }

    /// The file that defines the type.
    pub(super) fn file(&self) -> String {
        let Self {
            name,
            constructor,
            words: [count, names, method],
        } = self;
        let type_name = camel(name);
        format!(
            "// src/{name}.rs\n\n#[derive(Debug, Clone)]\npub struct {type_name} {{\n    {count}_count: usize,\n    {names}_names: Vec<String>,\n}}\n\n\
             impl {type_name} {{\n    pub fn {constructor}({count}_count: usize) -> Self {{\n        Self {{ {count}_count, {names}_names: Vec::new() }}\n    }}\n\n    \
             pub fn {method}_total(&mut self, name: &str) -> usize {{\n        self.{names}_names.push(name.to_owned());\n        \
             self.{count}_count * self.{names}_names.len()\n    }}\n}}\n\n"
        )
    }

    /// A file that uses the type, up to the name of the constructor.
    pub(super) fn use_until_constructor(&self) -> String {
        let (name, type_name) = (&self.name, camel(&self.name));
        format!(
            "// src/use_{name}.rs\n\nuse crate::{name}::{type_name};\n\npub fn total() -> usize {{\n    let mut made = {type_name}::"
        )
    }

    /// The rest of that file, after the constructor's name.
    pub(super) fn use_after_constructor(&self) -> String {
        format!("(3);\n    made.{}_total(\"first\")\n}}\n\n", self.words[2])
    }
}

/// `OliveHarbor` of `olive_harbor`.
fn camel(snake: &str) -> String {
    let word = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    };
    snake.split('_').map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constructor_stands_in_its_own_file_and_not_in_the_question() {
        let module = Module {
            name: "olive_harbor".to_owned(),
            constructor: "river_stone".to_owned(),
            words: ["sheep", "king", "house"].map(str::to_owned),
        };
        let file = module.file();
        assert!(file.starts_with("// src/olive_harbor.rs\n"), "{file}");
        for line in [
            "pub struct OliveHarbor {",
            "    sheep_count: usize,",
            "    pub fn river_stone(sheep_count: usize) -> Self {",
            "    pub fn house_total(&mut self, name: &str) -> usize {",
        ] {
            assert!(file.lines().any(|found| found == line), "no {line:?} in {file}");
        }
        assert_eq!(file.matches('{').count(), file.matches('}').count());
        let asked = module.use_until_constructor();
        assert!(
            asked.ends_with("let mut made = OliveHarbor::") && !asked.contains("river"),
            "{asked}"
        );
        assert!(
            module
                .use_after_constructor()
                .starts_with("(3);\n    made.house_total(")
        );
    }
}

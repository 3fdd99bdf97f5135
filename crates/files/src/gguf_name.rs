//! Names of GGUF files, which distinguish the models of a folder or repository.

/// One of several files of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufShard<'a> {
    /// The name before the numbers.
    pub stem: &'a str,
    /// Number of the file, from 1.
    pub number: u32,
    /// Files of the model.
    pub count: u32,
}

/// The path of a language model's file without `.gguf`. `None` for other files, including picture projectors
/// (`mmproj…`) and importance tables (`…imatrix…`).
pub fn gguf_stem(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let is_model = name.ends_with(".gguf") && !name.starts_with("mmproj") && !name.contains("imatrix");
    path.get(..path.len().saturating_sub(".gguf".len()))
        .filter(|_| is_model)
}

/// Parses a stem such as `…-00001-of-00003`; `None` for other names.
pub fn gguf_shard(stem: &str) -> Option<GgufShard<'_>> {
    let at = stem.len().checked_sub("-00001-of-00003".len())?;
    let (stem, numbers) = (stem.get(..at)?, stem.get(at..)?);
    let (number, count) = numbers
        .strip_prefix('-')?
        .split_once("-of-")
        .or_else(|| numbers.strip_prefix('-')?.split_once("-OF-"))?;
    let digits = |text: &str| {
        if text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit()) {
            text.parse::<u32>().ok()
        } else {
            None
        }
    };
    let (number, count) = (digits(number)?, digits(count)?);
    (1 <= number && number <= count).then_some(GgufShard { stem, number, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_tells_its_place_among_shards() {
        let shard = gguf_shard("model-00002-of-00003");
        assert_eq!(
            shard,
            Some(GgufShard {
                stem: "model",
                number: 2,
                count: 3
            })
        );
        for stem in [
            "model",
            "model-00000-of-00003",
            "model-00004-of-00003",
            "model-0002-of-0003",
            "é-00002-of-0000",
            "-of-",
        ] {
            assert_eq!(gguf_shard(stem), None, "{stem}");
        }
    }

    #[test]
    fn only_the_files_of_language_models_have_a_stem() {
        assert_eq!(gguf_stem("Q8_0/Model-Q8_0.GGUF"), Some("Q8_0/Model-Q8_0"));
        for path in [
            "",
            "gguf",
            "model.safetensors",
            "b/mmproj-F16.gguf",
            "MMPROJ.gguf",
            "imatrix.gguf",
            "m.imatrix.gguf",
        ] {
            assert_eq!(gguf_stem(path), None, "{path}");
        }
    }
}

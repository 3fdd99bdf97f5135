//! The CUDA C++ of every kernel, and its compiled variants.

use std::fmt::Write as _;

/// A source file with the constants of its compilation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleSource {
    file: &'static str,
    defines: Vec<(&'static str, u32)>,
}

impl ModuleSource {
    /// `file` of `kernels/` with these constants defined.
    pub fn new(file: &'static str, defines: &[(&'static str, u32)]) -> Self {
        let defines = defines.to_vec();
        Self { file, defines }
    }

    /// The module with this [`name`](Self::name); `None` if no file has it.
    pub fn parse(name: &'static str) -> Option<Self> {
        let mut parts = name.split_whitespace();
        let file = parts.next().filter(|file| find(file).is_some())?;
        let defines = parts.map(|part| {
            let (key, value) = part.split_once('=')?;
            Some((key, value.parse().ok()?))
        });
        let defines = defines.collect::<Option<_>>()?;
        Some(Self { file, defines })
    }

    /// The name in errors and in `kernels/variants.txt`, such as `decode.cu HEAD_DIM=128`.
    pub fn name(&self) -> String {
        let mut name = self.file.to_owned();
        for (key, value) in &self.defines {
            write!(name, " {key}={value}").expect("strings take everything");
        }
        name
    }

    /// The architecture for a device of this compute capability. Later devices lack the warpgroup products of 9.0, so
    /// those are compiled for that architecture alone.
    pub fn architecture(&self, capability: (u32, u32)) -> String {
        let own = if self.file.starts_with("warpgroup_") { "a" } else { "" };
        format!("sm_{}{}{own}", capability.0, capability.1)
    }

    /// The source as one text without quoted includes: `head`, the definitions, the file and its includes, each file
    /// once.
    pub fn text(&self, head: &str) -> String {
        let mut text = format!("{head}\n");
        for (key, value) in &self.defines {
            writeln!(text, "#define {key} {value}").expect("strings take everything");
        }
        include(self.file, &mut Vec::new(), &mut text);
        text
    }
}

/// Every variant that is compiled in advance to check registers and spills, by [`ModuleSource::name`].
pub fn variants() -> impl Iterator<Item = &'static str> {
    include_str!("../../kernels/variants.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn include(file: &str, included: &mut Vec<String>, text: &mut String) {
    if included.iter().any(|name| name == file) {
        return;
    }
    included.push(file.to_owned());
    let folder = file.rfind('/').map_or("", |at| &file[..=at]);
    let source = find(file).unwrap_or_else(|| panic!("kernels/{file} is part of the crate"));
    for line in source.lines() {
        let quoted = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        match quoted {
            // The inactive branch of device.cuh includes nothing, so a file counts as included only when it is read.
            Some(name) => include(&format!("{folder}{name}"), included, text),
            None if line.starts_with("#pragma once") => {}
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../kernels/", $name)))),*];
    };
}

files!(
    "device.cuh",
    "intrinsics.cuh",
    "emulated/fibers.h",
    "emulated/intrinsics.h",
    "emulated/warpgroup.h",
    "elementwise.cu",
    "rows.cu",
    "weights.cuh",
    "pages.cuh",
    "reads.cuh",
    "softmax.cuh",
    "stripes.cuh",
    "prefill.cuh",
    "prefill.cu",
    "warpgroup.cuh",
    "warpgroup_prefill.cu",
    "decode.cu",
    "keys.cuh",
    "scoring.cu",
    "append.cu",
    "column_mass.cu",
    "means.cu",
    "delta.cu",
    "quantised_linear.cu",
    "float_linear.cu",
    "arrange.cu",
);

/// Kernels of tests.
const TEST_FILES: &[(&str, &str)] = &[
    #[cfg(test)]
    ("hazards.cu", include_str!("../../kernels/hazards.cu")),
];

fn find(file: &str) -> Option<&'static str> {
    FILES
        .iter()
        .chain(TEST_FILES)
        .find(|(name, _)| *name == file)
        .map(|(_, source)| *source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_hold_each_file_once_and_no_quoted_include() {
        for (file, _) in FILES.iter().filter(|(file, _)| file.ends_with(".cu")) {
            let text = ModuleSource::new(file, &[("HEAD_DIM", 64)]).text("#define RIFFLE_EMULATED");
            assert!(text.starts_with("#define RIFFLE_EMULATED\n#define HEAD_DIM 64\n"));
            assert!(!text.contains("#include \""));
            assert_eq!(text.matches("struct Barrier {").count(), 1);
        }
    }

    #[test]
    fn every_variant_is_a_module() {
        for variant in variants() {
            assert_eq!(ModuleSource::parse(variant).unwrap().name(), variant);
        }
    }
}

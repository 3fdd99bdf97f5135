//! Reports of records: tables, pictures, and one page of all records.

mod device_tables;
mod headline;
mod page;
mod pictures;
mod speed_tables;
mod tables;

use std::path::{Path, PathBuf};

use riffle_policy::PolicySpec;

use crate::files::{REPORT, write_file};
use crate::pictures::Picture;
use crate::record::{Record, Results, RunSettings};
use crate::{EvalError, Table};

impl Results {
    /// Title of this kind in `riffle eval report`.
    pub fn title(&self) -> &'static str {
        match self {
            Self::Needle(_) => "Needles in a haystack",
            Self::Ruler(_) => "RULER",
            Self::Perplexity(_) => "Perplexity",
            Self::Comparison(_) => "Policies compared",
            Self::Audit(_) => "Audit of attention",
            Self::Context(_) => "Cost of context",
            Self::Batch(_) => "Sequences in one pass",
            Self::Model(_) => "Rates of a model",
            Self::Draft(_) => "Drafts",
            Self::Policies(_) => "Cost of policies",
            Self::Attention(_) => "Attention kernels",
            Self::Device(_) => "Attention kernels of a device",
            Self::Kv(_) => "KV tiers",
        }
    }

    /// Tables of these results.
    pub fn tables(&self) -> Vec<Table> {
        tables::from_results(self)
    }
}

impl Record {
    /// Tables of the record's results.
    pub fn tables(&self) -> Vec<Table> {
        self.results.tables()
    }

    /// Pictures of the record's results. Their names are unique within the record.
    pub fn pictures(&self) -> Vec<(String, Picture)> {
        pictures::draw(self)
    }

    /// [Writes](Picture::write) every picture as `folder/NAME-PICTURE.svg`.
    ///
    /// # Errors
    /// [`EvalError::Output`] names the file.
    pub fn write_pictures(&self, folder: &Path) -> Result<Vec<PathBuf>, EvalError> {
        let mut files = Vec::new();
        for (name, picture) in self.pictures() {
            files.extend(picture.write(&folder.join(format!("{}-{name}", self.header.name)))?);
        }
        Ok(files)
    }
}

/// Writes a page of records as `folder/report.html`. It needs no other files, follows the reader's light or dark
/// theme, and names the missing kinds of measurement.
///
/// # Errors
/// [`EvalError::Output`] if the page cannot be written.
pub fn write_report(records: &[Record], folder: &Path) -> Result<PathBuf, EvalError> {
    let path = folder.join("report.html");
    write_file(&path, REPORT, page::html(records).as_bytes())?;
    Ok(path)
}

/// Name of a run in tables and legends.
fn label(settings: &RunSettings) -> String {
    let (prefill, decode) = (short_policy(&settings.prefill), short_policy(&settings.decode));
    let mut name = match (&*prefill, &*decode) {
        (prefill, decode) if prefill == decode => prefill.to_owned(),
        (prefill, "full") => format!("prefill {prefill}"),
        ("full", decode) => format!("decode {decode}"),
        (prefill, decode) => format!("prefill {prefill}, decode {decode}"),
    };
    let (keys, values) = (&*settings.key_format, &*settings.value_format);
    if (keys, values) != ("f16", "f16") {
        name += &if keys == values {
            format!(", KV {keys}")
        } else {
            format!(", KV {keys}:{values}")
        };
    }
    if let Some(attention) = &settings.attention {
        name += &format!(", attention {attention}");
    }
    if settings.tiers != "ram" {
        name += &format!(", {}", settings.tiers);
    }
    if let Some(selection) = &settings.token_selection {
        name += &format!(", tokens {selection}");
    }
    if let Some(compress) = &settings.compress {
        name += &format!(", compressed by {compress}");
    }
    name
}

/// A policy without its default parameters, and without parameters that make it act at any length.
fn short_policy(policy: &str) -> String {
    let Some((name, parameters)) = policy.split_once(':') else {
        return policy.to_owned();
    };
    let baseline = || crate::parse_policy(name).ok().map(|rules| rules.base);
    let Some(default) = name.parse::<PolicySpec>().ok().or_else(baseline) else {
        return policy.to_owned();
    };
    let default = default.to_string();
    let default: Vec<&str> = default.split([':', ',']).collect();
    let usual = |pair: &str| default.contains(&pair) || pair == "from=0";
    let own: Vec<&str> = parameters.split(',').filter(|pair| !usual(pair)).collect();
    if own.is_empty() {
        name.to_owned()
    } else {
        format!("{name}:{}", own.join(","))
    }
}

#[cfg(test)]
mod tests;

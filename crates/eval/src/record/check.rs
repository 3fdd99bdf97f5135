//! Checks that a measurement can have made a record, because page and pictures rely on it.

use super::{ComparisonTable, NeedleTable, PerplexityTable, Record, Results, RulerTable};
use crate::statistics::Interval;
use crate::{AuditTable, BatchTable, ContextTable};

/// Depths of needles: each is a row of a picture.
pub(crate) const MOST_DEPTHS: usize = 512;
/// Layers, heads of a layer, and cells along a side of a map.
const MOST_PLACES: usize = 4096;
/// Limit for tokens, bytes and similar counts, so that their sums do not overflow.
const MOST: u64 = 1 << 48;

/// Result of a check; its error describes the fault in words.
type Checked = Result<(), String>;

impl Record {
    /// # Errors
    /// Names the first impossible number.
    pub(super) fn check(&self) -> Checked {
        let name = &self.header.name;
        if !is_file_name(name) {
            return Err(format!("its name {name:?} is not a file name"));
        }
        if let Some(model) = &self.header.model {
            count("model.layers", model.layers)?;
            bytes("model.weights_bytes", model.weights_bytes)?;
        }
        match &self.results {
            Results::Needle(table) => needle(table),
            Results::Ruler(table) => ruler(table),
            Results::Perplexity(table) => perplexity(table),
            Results::Comparison(table) => comparison(table),
            Results::Audit(table) => audit(table),
            Results::Context(table) => context(table),
            Results::Batch(table) => batch(table),
            Results::Model(table) => table.rates.iter().try_for_each(|rate| count("depth", rate.depth)),
            Results::Draft(table) => table.rows.iter().try_for_each(|row| count("depth", row.depth)),
            // Tables show these numbers one by one, so every value is fine.
            Results::Policies(_) | Results::Attention(_) | Results::Device(_) | Results::Kv(_) => Ok(()),
        }
    }
}

/// True if a record and its file may have this name.
pub(super) fn is_file_name(name: &str) -> bool {
    let is_plain = !name.contains(['/', '\\']) && !name.chars().any(char::is_control);
    is_plain && !name.is_empty() && !name.starts_with('.')
}

fn needle(table: &NeedleTable) -> Checked {
    for sample in &table.samples {
        count("context_tokens", sample.context_tokens)?;
        share("depth", sample.depth)?;
        if sample.correct > sample.expected.len() {
            return Err(format!(
                "correct is {} of {} expected values",
                sample.correct,
                sample.expected.len()
            ));
        }
        if sample.depth_index >= MOST_DEPTHS {
            return Err(format!(
                "depth_index is {}, but must be below {MOST_DEPTHS}",
                sample.depth_index
            ));
        }
    }
    Ok(())
}

fn ruler(table: &RulerTable) -> Checked {
    table.samples.iter().try_for_each(|sample| {
        count("context_tokens", sample.context_tokens)?;
        share("score", sample.score)
    })
}

fn perplexity(table: &PerplexityTable) -> Checked {
    count("tokens", table.tokens)?;
    count("window_tokens", table.window_tokens)?;
    count("stride_tokens", table.stride_tokens)?;
    for row in &table.rows {
        share("density", row.density)?;
        share("budget", row.budget.unwrap_or(0.0))?;
        share("fit.density", row.fit.as_ref().map_or(0.0, |fit| fit.density))?;
        for bucket in std::iter::once(&row.all).chain(&row.buckets) {
            count("to_position", bucket.to_position)?;
            not_negative("nll", bucket.nll)?;
            not_negative("perplexity", bucket.perplexity)?;
            not_negative("kl", bucket.kl)?;
            share("flips", bucket.flips)?;
        }
    }
    Ok(())
}

fn comparison(table: &ComparisonTable) -> Checked {
    for row in &table.rows {
        count("context_tokens", row.context_tokens)?;
        interval("score", &row.score)?;
        shares("scores", &row.scores)?;
        share("density", row.density)?;
        share("budget", row.budget.unwrap_or(0.0))?;
        share("fit.density", row.fit.as_ref().map_or(0.0, |fit| fit.density))?;
        not_negative("prefill_ms", row.prefill_ms.unwrap_or(0.0))?;
        not_negative("decode_ms", row.decode_ms)?;
        not_negative("decode_bytes", row.decode_bytes)?;
    }
    Ok(())
}

fn audit(table: &AuditTable) -> Checked {
    count("tokens", table.tokens)?;
    share("density", table.density)?;
    let columns = table.heads.first().map_or(0, |head| head.far_shares.len());
    for head in &table.heads {
        place("layer", head.layer)?;
        place("head", head.head)?;
        if head.far_shares.len() != columns {
            return Err("far_shares of its heads differ in length".to_owned());
        }
        share("mean_mass", head.mean_mass)?;
        shares("far_shares", &head.far_shares)?;
    }
    let layers = table.heads.iter().map(|head| head.layer + 1).max().unwrap_or(0);
    let heads = table.heads.iter().map(|head| head.head + 1).max().unwrap_or(0);
    if layers * heads > 64 * table.heads.len() {
        return Err(format!(
            "{} heads cannot be of {layers} layers of {heads}",
            table.heads.len()
        ));
    }
    for row in &table.rows {
        count("to_position", row.to_position)?;
        share("mean_mass", row.mean_mass)?;
    }
    let Some(map) = &table.map else { return Ok(()) };
    place("map.cells", map.cells)?;
    if [map.shares.len(), map.read.len()] != [map.cells * map.cells; 2] {
        return Err(format!(
            "a map of {0} × {0} cells holds another number of them",
            map.cells
        ));
    }
    shares("map.shares", &map.shares)
}

fn context(table: &ContextTable) -> Checked {
    for row in &table.rows {
        count("context_tokens", row.context_tokens)?;
        share("density", row.density)?;
        not_negative("prefill_tokens_per_s", row.prefill_tokens_per_s)?;
        not_negative("decode_tokens_per_s", row.decode_tokens_per_s)?;
        // The parts are checked before their sum.
        for (name, part) in [
            ("weights_bytes", row.weights_bytes),
            ("kv_device_bytes", row.kv_device_bytes),
            ("kv_ram_bytes", row.kv_ram_bytes),
            ("kv_disk_bytes", row.kv_disk_bytes),
            ("kv_bookkeeping_bytes", row.kv_bookkeeping_bytes),
            ("recurrent_bytes", row.recurrent_bytes),
            ("workspace_bytes", row.workspace_bytes),
        ] {
            bytes(name, part)?;
        }
        bytes("peak_resident_bytes", row.peak_resident_bytes.unwrap_or(0))?;
    }
    Ok(())
}

fn batch(table: &BatchTable) -> Checked {
    for row in &table.rows {
        count("sequences", row.sequences)?;
        not_negative("prefill_tokens_per_s", row.prefill_tokens_per_s)?;
        not_negative("decode_tokens_per_s", row.decode_tokens_per_s)?;
        bytes("kv_bytes", row.kv_bytes)?;
        if let Some(waiting) = &row.waiting {
            count("waiting.prompt_tokens", waiting.prompt_tokens)?;
            not_negative("waiting.longest_gap_ms", waiting.longest_gap_ms)?;
            not_negative("waiting.median_gap_ms", waiting.median_gap_ms)?;
            not_negative("waiting.longest_piece_ms", waiting.longest_piece_ms)?;
        }
    }
    Ok(())
}

fn count(name: &str, value: usize) -> Checked {
    bytes(name, value as u64)
}

fn bytes(name: &str, value: u64) -> Checked {
    check(name, value, value <= MOST, "too large")
}

fn place(name: &str, value: usize) -> Checked {
    check(name, value, value < MOST_PLACES, "too large")
}

fn share(name: &str, value: f64) -> Checked {
    // A sum of shares may be a rounding error above 1.
    check(
        name,
        value,
        (0.0..=1.0 + 1e-6).contains(&value),
        "not a share from 0 to 1",
    )
}

fn shares(name: &str, values: &[f64]) -> Checked {
    values.iter().try_for_each(|value| share(name, *value))
}

fn not_negative(name: &str, value: f64) -> Checked {
    check(name, value, value >= 0.0 && value.is_finite(), "not a number from 0 on")
}

fn interval(name: &str, value: &Interval) -> Checked {
    let Interval { mean, low, high, .. } = *value;
    for (end, value) in [("low", low), ("mean", mean), ("high", high)] {
        share(&format!("{name}.{end}"), value)?;
    }
    check(name, mean, low <= mean && mean <= high, "outside its interval")
}

fn check(name: &str, value: impl std::fmt::Display, is_right: bool, fault: &str) -> Checked {
    if is_right {
        Ok(())
    } else {
        Err(format!("{name} is {value}, {fault}"))
    }
}

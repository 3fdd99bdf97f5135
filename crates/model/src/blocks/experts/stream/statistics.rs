//! Counts of experts found in memory and of experts read.

/// Counts since the model was loaded. An expert that a batch chooses in a layer counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ExpertStatistics {
    /// Chosen experts that were in memory because of an earlier use.
    pub hits: u64,
    /// Chosen experts that early routing had loaded, or was loading.
    pub early: u64,
    /// Chosen experts that had to be read on demand.
    pub misses: u64,
    /// Bytes read from the files.
    pub read_bytes: u64,
    /// Nanoseconds for which computing waited for the files.
    pub waited_ns: u64,
}

impl ExpertStatistics {
    /// The counts since `before`.
    pub fn since(&self, before: &ExpertStatistics) -> ExpertStatistics {
        ExpertStatistics {
            hits: self.hits - before.hits,
            early: self.early - before.early,
            misses: self.misses - before.misses,
            read_bytes: self.read_bytes - before.read_bytes,
            waited_ns: self.waited_ns - before.waited_ns,
        }
    }

    /// The share of chosen experts that were in memory or loading; 1 if none was chosen.
    pub fn found_share(&self) -> f64 {
        let found = self.hits + self.early;
        match found + self.misses {
            0 => 1.0,
            chosen => found as f64 / chosen as f64,
        }
    }
}

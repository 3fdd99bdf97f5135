//! Records: results of a measurement with its command and machine, as files for reports.

mod budget;
mod check;
mod commit;
mod header;
mod tables;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use budget::BudgetFit;
pub(crate) use budget::{BudgetMiss, keeps};
pub(crate) use check::MOST_DEPTHS;
#[cfg(test)]
pub(crate) use header::testing;
pub use header::{Header, MachineInfo, ModelSummary, RunSettings, SCHEMA, TextSummary, now_utc};
pub use tables::{
    AskPlace, ComparisonRow, ComparisonTable, NeedleCell, NeedleKind, NeedleSample, NeedleTable, PerplexityBucket,
    PerplexityPosition, PerplexityRow, PerplexityTable, RulerCell, RulerSample, RulerTable,
};

use crate::files::{RECORD, check_file, write_file};
use crate::{
    AttentionReport, AuditTable, BatchTable, ContextTable, DeviceReport, DraftRates, EvalError, KvRates, ModelRates,
    PolicyRates, Table, to_csv,
};

/// Limit on the bytes of a record.
const LARGEST_RECORD_BYTES: u64 = 256 << 20;

/// A measurement, stored as `DIR/NAME.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Command, time, model and machine of the measurement.
    #[serde(flatten)]
    pub header: Header,
    /// Results, by kind of measurement.
    #[serde(flatten)]
    pub results: Results,
}

/// Results of a measurement. In JSON `kind` names the variant and `results` holds its fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "results", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Results {
    /// `riffle eval needle`.
    Needle(NeedleTable),
    /// `riffle eval ruler`.
    Ruler(RulerTable),
    /// `riffle eval perplexity`.
    Perplexity(PerplexityTable),
    /// `riffle eval compare`.
    Comparison(ComparisonTable),
    /// `riffle eval audit`.
    Audit(AuditTable),
    /// `riffle bench context`.
    Context(ContextTable),
    /// `riffle bench batch`.
    Batch(BatchTable),
    /// `riffle bench model`.
    Model(ModelRates),
    /// `riffle bench draft`.
    Draft(DraftRates),
    /// `riffle bench policies`.
    Policies(PolicyRates),
    /// `riffle bench attention`.
    Attention(AttentionReport),
    /// `riffle bench attention --device cuda`.
    Device(DeviceReport),
    /// `riffle bench kv`.
    Kv(KvRates),
}

impl Record {
    /// Checks before the work that the record `name` can be written to `folder`, and creates the folder.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub fn check_write(folder: &Path, name: &str) -> Result<(), EvalError> {
        check_file(&path_of(folder, name)?, RECORD)
    }

    /// Writes `folder/name.json` atomically and returns its path. It replaces only another record.
    ///
    /// # Errors
    /// [`EvalError::Option`] for an invalid file name; [`EvalError::File`] for results that cannot be read back, such
    /// as a number that is not finite; [`EvalError::Output`] if the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<PathBuf, EvalError> {
        let path = path_of(folder, &self.header.name)?;
        let text = serde_json::to_string_pretty(self).map_err(|error| EvalError::file(&path, &error.into()))?;
        Self::parse(&text, &path)?;
        write_file(&path, RECORD, (text + "\n").as_bytes())?;
        Ok(path)
    }

    /// The record's rows as CSV: questions, prompts, policies and positions, policies and tasks, heads, policies and
    /// lengths, numbers of sequences, depths, or cases.
    ///
    /// # Errors
    /// The errors of [`to_csv`].
    pub fn csv(&self) -> Result<String, EvalError> {
        match &self.results {
            Results::Needle(table) => to_csv(&table.samples),
            Results::Ruler(table) => to_csv(&table.samples),
            Results::Perplexity(table) => to_csv(table.by_position()),
            Results::Comparison(table) => to_csv(&table.rows),
            Results::Audit(table) => to_csv(&table.heads),
            Results::Context(table) => to_csv(&table.rows),
            Results::Batch(table) => to_csv(&table.rows),
            Results::Model(table) => to_csv(&table.rates),
            Results::Draft(table) => to_csv(&table.rows),
            Results::Policies(table) => to_csv(&table.rates),
            Results::Attention(table) => to_csv(&table.rates),
            Results::Device(table) => to_csv(&table.rates),
            Results::Kv(table) => to_csv(table.rows()),
        }
    }

    /// Formats the results as tables for people.
    pub fn text(&self) -> String {
        self.tables().iter().map(Table::to_text).collect::<Vec<_>>().join("\n")
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`EvalError::File`] if the file is unreadable, is not a record, or has an impossible number.
    pub fn read(path: &Path) -> Result<Self, EvalError> {
        let text = riffle_files::read_text(path, LARGEST_RECORD_BYTES);
        let text = text.map_err(|error| EvalError::file(path, &error.into()))?;
        Self::parse(&text, path)
    }

    pub(crate) fn parse(text: &str, path: &Path) -> Result<Self, EvalError> {
        let refused = |reason: String| EvalError::File {
            path: path.to_owned(),
            reason: format!("not a record of riffle eval or riffle bench ({reason})"),
        };
        /// The field that decides how to read the others.
        #[derive(Deserialize)]
        struct Schema {
            #[serde(default)]
            schema: u32,
        }
        if let Ok(Schema { schema }) = serde_json::from_str(text)
            && schema > SCHEMA
        {
            return Err(EvalError::File {
                path: path.to_owned(),
                reason: format!("a record of schema {schema}, this program reads up to {SCHEMA}: use a newer riffle"),
            });
        }
        let record: Self = serde_json::from_str(text).map_err(|error| refused(error.to_string()))?;
        record.check().map_err(refused)?;
        Ok(record)
    }

    /// Reads every record of a folder (`*.json`), by file name.
    ///
    /// # Errors
    /// [`EvalError::File`] for an unreadable folder; [`EvalError::Option`] for a folder without `.json` files.
    pub fn read_folder(folder: &Path) -> Result<RecordFolder, EvalError> {
        let entries = fs::read_dir(folder).map_err(|error| match error.kind() {
            ErrorKind::NotFound => EvalError::Option(format!(
                "{}: no such folder: give the DIR that riffle eval or riffle bench wrote records to with --out DIR",
                folder.display()
            )),
            ErrorKind::NotADirectory => {
                EvalError::Option(format!("{}: a file: give the folder that it lies in", folder.display()))
            }
            _ => EvalError::file(folder, &error),
        })?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| EvalError::file(folder, &error))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        if paths.is_empty() {
            return Err(EvalError::Option(format!(
                "{}: no records there (*.json): write some first, e.g. riffle eval needle --out {}",
                folder.display(),
                folder.display()
            )));
        }
        let mut found = RecordFolder::default();
        for path in &paths {
            match Self::read(path) {
                Ok(record) => found.records.push(record),
                Err(error) => found.skipped.push(error),
            }
        }
        Ok(found)
    }
}

/// Records read from the `.json` files of a folder.
#[derive(Debug, Default)]
pub struct RecordFolder {
    /// The records, ordered by file name.
    pub records: Vec<Record>,
    /// The error of each other file, with its name.
    pub skipped: Vec<EvalError>,
}

fn path_of(folder: &Path, name: &str) -> Result<PathBuf, EvalError> {
    if check::is_file_name(name) {
        Ok(folder.join(format!("{name}.json")))
    } else {
        Err(EvalError::Option(format!(
            "--name {name:?} is not a file name: use letters, digits and dashes"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written_and_says_its_kind() {
        let record = Record {
            header: testing::header("tiny"),
            results: Results::Comparison(ComparisonTable::default()),
        };
        let folder = tempfile::tempdir().unwrap();
        let path = record.write(folder.path()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["kind"], "comparison");
        assert_eq!(value["seed"], 7);
        assert_eq!(Record::read_folder(folder.path()).unwrap().records, [record]);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused_and_foreign_files_are_named() {
        let record = |name: &str| Record {
            header: testing::header(name),
            results: Results::Comparison(ComparisonTable::default()),
        };
        let folder = tempfile::tempdir().unwrap();
        for name in ["", "../up", ".hidden"] {
            assert!(record(name).write(folder.path()).is_err(), "{name:?}");
        }
        assert!(
            Record::read_folder(folder.path())
                .unwrap_err()
                .to_string()
                .contains("no records")
        );
        fs::write(folder.path().join("other.json"), "{\"a\": 1}").unwrap();
        record("ours").write(folder.path()).unwrap();
        let found = Record::read_folder(folder.path()).unwrap();
        assert_eq!(found.records, [record("ours")]);
        let message = found.skipped[0].to_string();
        assert!(
            message.contains("other.json") && message.contains("not a record"),
            "{message}"
        );
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("/dev/zero", folder.path().join("device.json")).unwrap();
            let skipped = Record::read_folder(folder.path()).unwrap().skipped;
            let messages: Vec<String> = skipped.iter().map(ToString::to_string).collect();
            let of_device = |message: &String| message.contains("device.json") && message.contains("a device");
            assert!(messages.iter().any(of_device), "{messages:?}");
        }
        // A record must not replace such a file.
        let message = record("other").write(folder.path()).unwrap_err().to_string();
        assert!(message.contains("is not a record"), "{message}");
        let text = fs::read_to_string(folder.path().join("other.json")).unwrap();
        assert_eq!(text, "{\"a\": 1}");
    }

    #[test]
    fn results_that_could_not_be_read_back_are_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut header = testing::header("endless");
        header.seconds = f64::NAN;
        let results = Results::Comparison(ComparisonTable::default());
        let message = Record { header, results }.write(folder.path()).unwrap_err().to_string();
        assert!(message.contains("endless.json"), "{message}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

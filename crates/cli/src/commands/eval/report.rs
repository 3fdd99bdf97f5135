//! `riffle eval report`: one page of all records.

use riffle_eval::{Record, RecordFolder, Table, write_report};

use crate::commands::print;
use crate::console;
use crate::eval_args::ReportArguments;
use crate::failure::Failure;

pub(super) fn report(arguments: &ReportArguments) -> Result<(), Failure> {
    let RecordFolder { records, skipped } = Record::read_folder(&arguments.folder)?;
    skipped
        .iter()
        .for_each(|reason| console::note(format_args!("left out: {reason}")));
    if records.is_empty() {
        return Err(Failure::new(format!(
            "{}: no records there",
            arguments.folder.display()
        )));
    }
    let page = write_report(&records, &arguments.folder)?;
    if arguments.pictures {
        for record in &records {
            let files = record.write_pictures(&arguments.folder)?;
            files.iter().for_each(|file| console::note(file.display()));
        }
    }
    if arguments.markdown {
        let tables = records.iter().flat_map(Record::tables);
        let texts: Vec<String> = tables.map(|table: Table| table.to_markdown()).collect();
        return print(&texts.join("\n"));
    }
    print(&format!("{}\n", page.display()))
}

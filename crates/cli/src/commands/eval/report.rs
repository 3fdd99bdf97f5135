//! `riffle eval report`: a page of everything that was measured.

use riffle_eval::{Record, Table, write_report};

use crate::commands::print;
use crate::console;
use crate::eval_args::ReportArguments;
use crate::failure::Failure;

pub(super) fn report(arguments: &ReportArguments) -> Result<(), Failure> {
    let page = write_report(&arguments.folder)?;
    let records = Record::read_folder(&arguments.folder)?;
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

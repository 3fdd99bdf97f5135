//! `riffle eval fleet`: many workers behind a router, simulated.

use riffle_eval::simulate_fleet;

use crate::commands::{print, print_json};
use crate::failure::Failure;
use crate::fleet_args::FleetArguments;

pub(super) fn fleet(arguments: &FleetArguments) -> Result<(), Failure> {
    let table = simulate_fleet(&arguments.options())?;
    match (arguments.json, arguments.markdown) {
        (true, _) => print_json(&table),
        (_, true) => print(&table.table().to_markdown()),
        _ => print(&table.table().to_text()),
    }
}

//! `riffle list`: the models in the hub's cache and in other programs.

use std::time::{SystemTime, UNIX_EPOCH};

use riffle_engine::human_bytes;
use riffle_hub::{OtherModel, OtherPrograms, Settings, StoredModel};
use serde_json::json;

use super::{print, print_json};
use crate::console;
use crate::failure::Failure;
use crate::hub_args::ListArguments;

pub(crate) fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let settings = Settings::from_environment()?;
    let models = riffle_hub::list(&settings.cache)?;
    let others = OtherPrograms::from_environment().list();
    if arguments.json {
        let own = models.iter().map(described);
        let all: Vec<_> = own.chain(others.iter().map(described_other)).collect();
        return print_json(&all);
    }
    if models.is_empty() {
        let cache = settings.cache.display();
        console::note(format!(
            "no models in {cache}; get one: riffle pull NAME; riffle pull --list shows some"
        ));
    }
    if models.is_empty() && others.is_empty() {
        return Ok(());
    }
    let now = SystemTime::now();
    let rows = models.iter().map(|model| row(model, now));
    let rows: Vec<[String; 6]> = rows
        .chain(others.iter().map(|model| row_of_other(model, now)))
        .collect();
    let header = ["NAME", "QUANTISATION", "SIZE", "STATE", "LAST USED", "FROM"].map(str::to_owned);
    print(&(super::aligned(&header, &rows, 2..3).join("\n") + "\n"))?;
    for model in &others {
        if let Err(problem) = &model.path {
            console::note(format!("{} of {}: {problem}", model.name, model.program));
        }
    }
    if !models.is_empty() {
        let bytes = models.iter().map(|model| model.bytes).sum();
        console::note(format!("{} in {}", human_bytes(bytes), settings.cache.display()));
    }
    Ok(())
}

/// The source of models in the hub's cache.
const HUB: &str = "hub";

fn row(model: &StoredModel, now: SystemTime) -> [String; 6] {
    [
        model.name.to_string(),
        model.format.clone().unwrap_or_else(|| "-".to_owned()),
        human_bytes(model.bytes),
        match &model.missing {
            None => "complete".to_owned(),
            Some(missing) => format!("incomplete: {missing}"),
        },
        used(model.used, now),
        HUB.to_owned(),
    ]
}

fn row_of_other(model: &OtherModel, now: SystemTime) -> [String; 6] {
    [
        model.name.clone(),
        model.format.clone().unwrap_or_else(|| "-".to_owned()),
        human_bytes(model.bytes),
        match &model.path {
            Ok(_) => "complete".to_owned(),
            Err(_) => "unusable".to_owned(),
        },
        used(model.used, now),
        model.program.to_string(),
    ]
}

fn used(used: Option<SystemTime>, now: SystemTime) -> String {
    used.map_or_else(|| "-".to_owned(), |used| ago(used, now))
}

fn seconds(used: Option<SystemTime>) -> Option<u64> {
    used.and_then(|used| used.duration_since(UNIX_EPOCH).ok())
        .map(|used| used.as_secs())
}

fn described(model: &StoredModel) -> serde_json::Value {
    json!({
        "name": model.name.to_string(),
        "quantisation": model.format,
        "bytes": model.bytes,
        "complete": model.missing.is_none(),
        "missing": model.missing,
        "last_used_unix_s": seconds(model.used),
        "path": model.path,
        "from": HUB,
    })
}

fn described_other(model: &OtherModel) -> serde_json::Value {
    json!({
        "name": model.name,
        "quantisation": model.format,
        "bytes": model.bytes,
        "complete": model.path.is_ok(),
        "missing": model.path.as_ref().err(),
        "last_used_unix_s": seconds(model.used),
        "path": model.path.as_ref().ok(),
        "from": model.program.to_string(),
    })
}

/// Age in the largest unit with a value above one.
fn ago(then: SystemTime, now: SystemTime) -> String {
    let seconds = now.duration_since(then).map_or(0, |time| time.as_secs());
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let unit = units.into_iter().find(|(length, _)| seconds >= 2 * length);
    unit.map_or_else(
        || "just now".to_owned(),
        |(length, unit)| format!("{} {unit} ago", seconds / length),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_said_in_a_fitting_unit() {
        for (seconds, text) in [
            (0, "just now"),
            (119, "just now"),
            (120, "2 minutes ago"),
            (7199, "119 minutes ago"),
            (7200, "2 hours ago"),
            (172_800, "2 days ago"),
        ] {
            let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
            assert_eq!(ago(now - Duration::from_secs(seconds), now), text);
        }
        assert_eq!(
            ago(UNIX_EPOCH + Duration::from_secs(9), UNIX_EPOCH),
            "just now",
            "a clock that was set back"
        );
    }
}

//! `riffle list`: the models in the hub's cache.

use std::time::{SystemTime, UNIX_EPOCH};

use riffle_engine::human_bytes;
use riffle_hub::{Settings, StoredModel};
use serde_json::json;

use super::{print, print_json};
use crate::console;
use crate::failure::Failure;
use crate::hub_args::ListArguments;

pub(crate) fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let settings = Settings::from_environment()?;
    let models = riffle_hub::list(&settings.cache)?;
    if arguments.json {
        let models: Vec<_> = models.iter().map(described).collect();
        return print_json(&models);
    }
    if models.is_empty() {
        console::note(format!(
            "no models in {}; get one: riffle pull NAME",
            settings.cache.display()
        ));
        return Ok(());
    }
    let now = SystemTime::now();
    let rows: Vec<[String; 5]> = models.iter().map(|model| row(model, now)).collect();
    let header = ["NAME", "QUANTISATION", "SIZE", "STATE", "LAST USED"].map(str::to_owned);
    let widths: [usize; 5] = std::array::from_fn(|column| {
        let cells = rows.iter().chain([&header]).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in [header].iter().chain(&rows) {
        let [name, format, size, state, used] = row;
        let [name_width, format_width, size_width, state_width, _] = widths;
        text +=
            &format!("{name:name_width$}  {format:format_width$}  {size:>size_width$}  {state:state_width$}  {used}\n");
    }
    print(&text)?;
    let bytes = models.iter().map(|model| model.bytes).sum();
    console::note(format!("{} in {}", human_bytes(bytes), settings.cache.display()));
    Ok(())
}

fn row(model: &StoredModel, now: SystemTime) -> [String; 5] {
    [
        model.name.to_string(),
        model.format.clone().unwrap_or_else(|| "-".to_owned()),
        human_bytes(model.bytes),
        match &model.missing {
            None => "complete".to_owned(),
            Some(missing) => format!("incomplete: {missing}"),
        },
        model.used.map_or_else(|| "-".to_owned(), |used| ago(used, now)),
    ]
}

fn described(model: &StoredModel) -> serde_json::Value {
    let used = model.used.and_then(|used| used.duration_since(UNIX_EPOCH).ok());
    json!({
        "name": model.name.to_string(),
        "quantisation": model.format,
        "bytes": model.bytes,
        "complete": model.missing.is_none(),
        "missing": model.missing,
        "last_used_unix_s": used.map(|used| used.as_secs()),
        "path": model.path,
    })
}

/// How long ago something was, in the largest unit of which there is more than one.
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

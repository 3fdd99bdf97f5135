//! The adapters (LoRA) of a request: one by its name as the model, or several by index,
//! `"lora": [{"id": 0, "scale": 0.5}]`.

use riffle_model::AdapterScales;
use serde_json::Value;

use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Fields, Warnings, unexpected};
use crate::request_notes::RequestNotes;

/// Largest scale.
const MOST_SCALE: f64 = 100.0;

/// Takes the fields `model` and `lora`: the model's name in the answer, and the scales if the request chooses
/// adapters.
pub(super) fn take_model_and_adapters(
    app: &App,
    fields: &mut Fields,
) -> Result<(String, Option<AdapterScales>), Failure> {
    let asked = app.take_model(fields)?.unwrap_or_default();
    let (place, warnings) = (fields.name("lora"), fields.warnings().clone());
    let given = fields.value("lora");
    let given = given
        .map(|value| scales_of(app, &value, &place, &warnings))
        .transpose()?;
    let model = match app.adapter(&asked) {
        Some(_) => asked.as_str(),
        None => app.options.model_name.as_str(),
    };
    RequestNotes::set_model(model);
    match (app.adapter(&asked), given) {
        (None, given) => Ok((app.options.model_name.clone(), given)),
        (Some(_), Some(_)) => Err(Failure::field(
            place,
            format!("the model {asked:?} is an adapter already: leave one of the two out"),
        )),
        (Some(number), None) => {
            let mut scales = vec![0.0; number];
            scales.push(1.0);
            Ok((asked, Some(AdapterScales::new(&scales))))
        }
    }
}

/// The scales in a list of adapters. Omitted adapters get 0.
pub(crate) fn scales_of(app: &App, value: &Value, place: &str, warnings: &Warnings) -> Result<AdapterScales, Failure> {
    let Value::Array(items) = value else {
        return Err(unexpected(place, "a list of {\"id\": 0, \"scale\": 1}", value));
    };
    let loaded = app.engine.adapters().len();
    let mut scales = vec![0.0; loaded];
    for item in items {
        let mut item = Fields::from_value(item.clone(), place, warnings)?;
        let name = item.name("id");
        let id = item.count("id", 0..=i64::from(i32::MAX))?;
        let id = id.ok_or_else(|| Failure::field(&name, "this field is required"))?;
        let Some(scale) = scales.get_mut(id) else {
            let has = match loaded {
                0 => "the server was started without adapters (--lora)".to_owned(),
                _ => format!("the server has {loaded}, from 0"),
            };
            return Err(Failure::field(name, format!("there is no adapter {id}: {has}")));
        };
        *scale = item.number("scale", -MOST_SCALE..=MOST_SCALE)?.unwrap_or(1.0);
        item.finish()?;
    }
    Ok(AdapterScales::new(&scales))
}

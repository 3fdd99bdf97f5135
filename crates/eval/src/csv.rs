//! Rows of any measurement as comma-separated values.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::EvalError;

/// The rows as CSV (RFC 4180, lines ended by `\n`). Each field has a column with its JSON name; nested fields have
/// names such as `score.mean`. A missing field is empty; a list is JSON.
///
/// # Errors
/// [`EvalError::Option`] for rows without fields.
pub fn to_csv<T: Serialize>(rows: impl IntoIterator<Item = T>) -> Result<String, EvalError> {
    let mut columns: Vec<String> = Vec::new();
    let mut table: Vec<Map<String, Value>> = Vec::new();
    for row in rows {
        let value = serde_json::to_value(row).map_err(|error| EvalError::Option(error.to_string()))?;
        let Value::Object(fields) = value else {
            return Err(EvalError::Option(format!("no fields to write as CSV: {value}")));
        };
        let mut flat = Map::new();
        flatten("", fields, &mut flat);
        columns.extend(
            flat.keys()
                .filter(|name| !columns.contains(name))
                .cloned()
                .collect::<Vec<_>>(),
        );
        table.push(flat);
    }
    let line = |texts: Vec<String>| texts.join(",") + "\n";
    let mut csv = line(columns.iter().map(|name| quoted(name)).collect());
    for row in &table {
        csv += &line(
            columns
                .iter()
                .map(|name| row.get(name).map_or(String::new(), field))
                .collect(),
        );
    }
    Ok(csv)
}

fn flatten(prefix: &str, fields: Map<String, Value>, flat: &mut Map<String, Value>) {
    for (name, value) in fields {
        let name = format!("{prefix}{name}");
        match value {
            Value::Object(fields) => flatten(&format!("{name}."), fields, flat),
            value => drop(flat.insert(name, value)),
        }
    }
}

fn field(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => quoted(text),
        value => quoted(&value.to_string()),
    }
}

fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_with_other_fields_share_one_head_and_awkward_texts_are_quoted() {
        let rows = [
            json!({ "name": "a, \"b\"\nc", "score": { "mean": 0.5, "low": null } }),
            json!({ "name": "plain", "list": [1, 2] }),
        ];
        assert_eq!(
            to_csv(rows).unwrap(),
            "name,score.mean,score.low,list\n\"a, \"\"b\"\"\nc\",0.5,,\nplain,,,\"[1,2]\"\n"
        );
        assert!(to_csv([3]).is_err());
    }
}

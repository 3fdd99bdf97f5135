//! Nesting depth of a schema's values, which limits the indentation of their lines.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::References;
use crate::forms::bounds::nesting;

/// Levels of arrays and objects in the deepest value of a schema; `None` without a bound.
///
/// # Errors
/// For references beyond a bound.
pub(in crate::forms) fn levels(schema: &Value) -> Result<Option<usize>, String> {
    let references = References::new(schema)?;
    let mut levels = Levels {
        references: &references,
        known: HashMap::new(),
    };
    Ok(levels.levels(schema))
}

struct Levels<'a> {
    references: &'a References<'a>,
    /// Levels by the address of a schema; `None` while the schema is examined, because a recursive value has no bound.
    known: HashMap<*const Value, Option<usize>>,
}

impl<'a> Levels<'a> {
    fn levels(&mut self, schema: &'a Value) -> Option<usize> {
        let Value::Object(fields) = schema else {
            return (*schema == Value::Bool(false)).then_some(0);
        };
        let place = std::ptr::from_ref(schema);
        if let Some(levels) = self.known.get(&place) {
            return *levels;
        }
        self.known.insert(place, None);
        // A value satisfies all keywords, so the tightest bound counts.
        let bounds = fields.iter().map(|(keyword, value)| match (keyword.as_str(), value) {
            ("const", data) => Some(nesting(data)),
            ("enum", Value::Array(data)) => data.iter().map(nesting).max(),
            ("anyOf" | "oneOf", Value::Array(parts)) => self.deepest(parts),
            ("allOf", Value::Array(parts)) => parts.iter().filter_map(|part| self.levels(part)).min(),
            ("$ref", Value::String(reference)) => self.deepest(self.references.targets(reference)),
            ("type", kinds) => self.of_kinds(kinds, fields),
            _ => None,
        });
        let levels = bounds.flatten().min();
        self.known.insert(place, levels);
        levels
    }

    /// The levels of the deepest of several schemas; `None` for no schema.
    fn deepest(&mut self, schemas: impl IntoIterator<Item = &'a Value>) -> Option<usize> {
        let levels: Option<Vec<usize>> = schemas.into_iter().map(|schema| self.levels(schema)).collect();
        levels?.into_iter().max()
    }

    fn of_kinds(&mut self, kinds: &Value, fields: &'a Map<String, Value>) -> Option<usize> {
        let kinds = match kinds {
            Value::Array(kinds) => kinds.as_slice(),
            kind => std::slice::from_ref(kind),
        };
        let levels: Option<Vec<usize>> = kinds
            .iter()
            .map(|kind| match kind.as_str()? {
                "array" => self.of_items(fields),
                "object" => self.of_properties(fields),
                _ => Some(0),
            })
            .collect();
        levels?.into_iter().max()
    }

    fn of_items(&mut self, fields: &'a Map<String, Value>) -> Option<usize> {
        let items = ["items", "prefixItems", "additionalItems"].map(|keyword| fields.get(keyword));
        let lists = items.into_iter().flatten().flat_map(|items| match items {
            Value::Array(list) => list.as_slice(),
            item => std::slice::from_ref(item),
        });
        let is_open = match fields.get("items") {
            None => true,
            Some(items) => items.is_array() && !fields.contains_key("additionalItems"),
        };
        if is_open {
            None
        } else {
            self.deepest(lists).map(|levels| levels + 1)
        }
    }

    fn of_properties(&mut self, fields: &'a Map<String, Value>) -> Option<usize> {
        let named = ["properties", "patternProperties"].map(|keyword| fields.get(keyword)?.as_object());
        let named = named.into_iter().flatten().flat_map(Map::values);
        let others = fields.get("additionalProperties")?;
        self.deepest(named.chain([others])).map(|levels| levels + 1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn levels_are_those_of_the_deepest_value_and_unbounded_where_a_schema_leaves_it_open() {
        let closed =
            |properties: Value| json!({"type": "object", "properties": properties, "additionalProperties": false});
        let text = json!({"type": "string"});
        let list = json!({"type": "array", "items": closed(json!({"a": text}))});
        for (schema, expected) in [
            (json!({"type": ["integer", "null"]}), Some(0)),
            (json!({"enum": [1, {"a": [2]}]}), Some(2)),
            (closed(json!({})), Some(1)),
            (closed(json!({"a": text, "b": list})), Some(3)),
            (json!({"anyOf": [text, list]}), Some(2)),
            (
                json!({"$defs": {"l": list}, "allOf": [{"$ref": "#/$defs/l"}, {"minItems": 1}]}),
                Some(2),
            ),
            (json!({"type": "array", "prefixItems": [text], "items": false}), Some(1)),
            (json!({"type": "object", "additionalProperties": list}), Some(3)),
            (json!({"type": "object"}), None),
            (json!({"type": "array"}), None),
            (json!({"type": "array", "items": [text]}), None),
            (json!({"properties": {"a": text}, "additionalProperties": false}), None),
            (json!({"anyOf": [text, {}]}), None),
            (closed(json!({"next": {"$ref": "#"}})), None),
        ] {
            assert_eq!(levels(&schema), Ok(expected), "{schema}");
        }
    }
}

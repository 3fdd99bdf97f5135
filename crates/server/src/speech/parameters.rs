//! Values of parameters that a model writes as plain text, by the types in a tool's schema.

use serde_json::Value;

/// Longest chain of references and alternatives to follow.
const DEEPEST: usize = 16;

/// Types that a schema allows.
#[derive(Debug, Clone, Copy, Default)]
struct Types {
    text: bool,
    null: bool,
    /// Numbers, truth values, lists and objects, which are written as JSON.
    other: bool,
}

/// The value of a parameter written as `text`, and its source as JSON. `parameters` is the schema of all parameters of
/// the tool; an undeclared parameter is a text.
pub(super) fn typed(text: &str, parameters: Option<&Value>, name: &str) -> (Value, String) {
    let as_text = || (Value::from(text), Value::from(text).to_string());
    let schema = parameters.and_then(|root| Some((root, root.get("properties")?.get(name)?)));
    let Some((root, schema)) = schema else {
        return as_text();
    };
    let types = types_of(schema, root, DEEPEST);
    let written = text.trim();
    let as_json = || {
        let value: Value = serde_json::from_str(written).ok()?;
        Some((value, written.to_owned()))
    };
    let as_word = || match written {
        "True" => Some((Value::Bool(true), "true".to_owned())),
        "False" => Some((Value::Bool(false), "false".to_owned())),
        "None" => Some((Value::Null, "null".to_owned())),
        _ => None,
    };
    match types {
        Types {
            text: true, null: true, ..
        } if written == "null" => (Value::Null, "null".to_owned()),
        Types {
            text: true,
            other: false,
            ..
        } => as_text(),
        // Both types are allowed, so a value that is no JSON stays text.
        Types {
            text: true,
            other: true,
            ..
        } => as_json().unwrap_or_else(as_text),
        _ => as_json().or_else(as_word).unwrap_or_else(as_text),
    }
}

fn types_of(schema: &Value, root: &Value, depth: usize) -> Types {
    let all = Types {
        text: true,
        null: true,
        other: true,
    };
    let Some(object) = schema.as_object().filter(|_| depth > 0) else {
        return all;
    };
    if let Some(target) = object.get("$ref").and_then(Value::as_str) {
        let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return target.map_or(all, |target| types_of(target, root, depth - 1));
    }
    let mut types = Types::default();
    match object.get("type") {
        Some(Value::String(name)) => types.add_named(name),
        Some(Value::Array(names)) => names
            .iter()
            .filter_map(Value::as_str)
            .for_each(|name| types.add_named(name)),
        _ => {
            let values = object.get("enum").and_then(Value::as_array).map(Vec::as_slice);
            let constant = object.get("const").map(std::slice::from_ref);
            let alternatives = ["anyOf", "oneOf", "allOf"]
                .iter()
                .filter_map(|key| object.get(*key)?.as_array());
            match values.or(constant) {
                Some(values) => values.iter().for_each(|value| types.add_value(value)),
                None => alternatives
                    .flatten()
                    .for_each(|schema| types.add(types_of(schema, root, depth - 1))),
            }
        }
    }
    match types {
        Types {
            text: false,
            null: false,
            other: false,
        } => all,
        types => types,
    }
}

impl Types {
    fn add_named(&mut self, name: &str) {
        match name {
            "string" => self.text = true,
            "null" => self.null = true,
            _ => self.other = true,
        }
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::String(_) => self.text = true,
            Value::Null => self.null = true,
            _ => self.other = true,
        }
    }

    fn add(&mut self, types: Self) {
        self.text |= types.text;
        self.null |= types.null;
        self.other |= types.other;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_has_the_type_that_its_schema_declares() {
        let cases = [
            (json!({"type": "string"}), "5", json!("5")),
            (json!({"enum": ["1", "2"]}), "1", json!("1")),
            (json!({"const": "true"}), "true", json!("true")),
            (json!({"type": ["string", "null"]}), "null", json!(null)),
            (json!({"type": ["string", "null"]}), "{}", json!("{}")),
            (
                json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
                "7",
                json!("7"),
            ),
            (json!({"$ref": "#/$defs/Text"}), "1.10", json!("1.10")),
            (json!({"type": "integer"}), "5", json!(5)),
            (json!({"type": "boolean"}), "True", json!(true)),
            (json!({"type": "array"}), "[1, 2]", json!([1, 2])),
            (json!({"type": "object"}), "{\"a\": 1}", json!({"a": 1})),
            (json!({"type": "integer"}), "many", json!("many")),
            (json!({}), "[1]", json!([1])),
            (json!({}), "word", json!("word")),
            (json!({"$ref": "#/properties/p"}), "x", json!("x")),
        ];
        for (schema, text, value) in cases {
            let parameters = json!({"properties": {"p": schema}, "$defs": {"Text": {"type": "string"}}});
            assert_eq!(typed(text, Some(&parameters), "p").0, value, "{schema} {text}");
        }
        assert_eq!(typed("1", Some(&json!({"properties": {}})), "p").0, json!("1"));
    }
}

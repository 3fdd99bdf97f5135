//! Lets optional names of open objects stand in any order.
//!
//! llguidance takes declared names in their order, and then any other name. A model that writes a declared name later
//! could only make it longer, such as `"city "`. So a name after the required ones gets its own pattern, because
//! patterns have no order.

use std::cell::Cell;

use serde_json::{Map, Value, json};

use crate::forms::bounds::NAME_PATTERNS;

/// Maximum number of optional names before the last required one that may have two places. Each of their subsets is an
/// alternative.
const MOST_LEADING: usize = 3;

/// Remaining patterns for names; every pair in an object is compared.
pub(super) struct Patterns(Cell<usize>);

impl Patterns {
    pub(super) fn new() -> Self {
        Self(Cell::new(NAME_PATTERNS))
    }

    fn take(&self, patterns: usize) -> bool {
        let left = self.0.get().checked_sub(patterns);
        self.0.set(left.unwrap_or(self.0.get()));
        left.is_some()
    }

    /// Reorders an object that allows undeclared names, so that its optional names may come in any order. It does not
    /// change if there are more names than patterns.
    pub(super) fn reorder(&self, fields: Map<String, Value>) -> Value {
        let Some(names) = Names::of_open_object(&fields) else {
            return Value::Object(fields);
        };
        let leading = names.leading.len();
        let others = names.optional.len() - leading;
        // Half of the alternatives have each leading name as a pattern.
        let (subsets, patterns) = match leading {
            1..=MOST_LEADING => (1 << leading, (others << leading) + (leading << (leading - 1))),
            _ => (1, names.optional.len()),
        };
        match () {
            () if self.take(patterns) => names.alternatives(&fields, subsets),
            () if self.take(names.optional.len()) => names.alternatives(&fields, 1),
            () => Value::Object(fields),
        }
    }
}

/// The declared names of an object.
struct Names {
    required: Vec<String>,
    optional: Vec<String>,
    /// Optional names before the last required one.
    leading: Vec<String>,
}

impl Names {
    /// Names of an open object with optional properties; `None` for any other schema.
    fn of_open_object(fields: &Map<String, Value>) -> Option<Self> {
        let is_open = fields.get("additionalProperties")? != &Value::Bool(false);
        let counts = ["maxProperties", "minProperties", "patternProperties"];
        if !is_open || counts.iter().any(|keyword| fields.contains_key(*keyword)) {
            return None;
        }
        let properties = fields.get("properties")?.as_object()?;
        let required: Vec<String> = match fields.get("required") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let optional: Vec<String> = properties
            .keys()
            .filter(|name| !required.contains(name))
            .cloned()
            .collect();
        let undeclared = required.iter().any(|name| !properties.contains_key(name));
        let last = if undeclared {
            properties.len()
        } else {
            properties.keys().rposition(|name| required.contains(name)).unwrap_or(0)
        };
        let leading = properties
            .keys()
            .take(last)
            .filter(|name| !required.contains(name))
            .cloned()
            .collect();
        (!optional.is_empty()).then_some(Self {
            required,
            optional,
            leading,
        })
    }

    /// The object, or its alternatives: one for each set of leading names in their places.
    fn alternatives(&self, fields: &Map<String, Value>, subsets: usize) -> Value {
        let with_leading = |subset: usize| {
            let leading = self.leading.iter().enumerate();
            let in_place = leading
                .filter(|(number, _)| subset >> number & 1 == 1)
                .map(|(_, name)| name.as_str());
            self.with_in_place(fields, &in_place.collect::<Vec<_>>())
        };
        if subsets == 1 {
            return Value::Object(with_leading(0));
        }
        let mut around = fields.clone();
        for keyword in ["type", "properties", "required", "additionalProperties"] {
            around.remove(keyword);
        }
        let object = |subset: usize| {
            let mut object = with_leading(subset);
            object.retain(|keyword, _| !around.contains_key(keyword));
            object
        };
        let alternatives: Vec<Value> = (0..subsets).map(|subset| Value::Object(object(subset))).collect();
        around.insert("anyOf".to_owned(), json!(alternatives));
        Value::Object(around)
    }

    /// The object in which the names `in_place` are required in their places, and the other optional names are
    /// patterns.
    fn with_in_place(&self, fields: &Map<String, Value>, in_place: &[&str]) -> Map<String, Value> {
        let (mut properties, mut patterns) = (Map::new(), Map::new());
        for (name, schema) in fields["properties"].as_object().into_iter().flatten() {
            let stays = !self.optional.contains(name) || in_place.contains(&name.as_str());
            if stays {
                properties.insert(name.clone(), schema.clone())
            } else {
                patterns.insert(format!("^(?:{})$", escaped(name)), schema.clone())
            };
        }
        let required = self.required.iter().map(String::as_str).chain(in_place.iter().copied());
        let mut object = fields.clone();
        object.insert("required".to_owned(), required.collect());
        object.insert("properties".to_owned(), Value::Object(properties));
        object.insert("patternProperties".to_owned(), Value::Object(patterns));
        object
    }
}

/// The pattern that matches exactly this text.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '_' => pattern.push(character),
            _ if character.is_ascii_punctuation() => pattern.extend(['\\', character]),
            _ => pattern.push(character),
        }
    }
    pattern
}

//! Damage to JSON files: values of another type, impossible numbers, endless nesting.

use serde_json::{Value, json};

use super::mutation::{Harm, Mutated, any_bytes, cut, havoc};
use riffle_testing::damage::Damage;

/// Damages a JSON text.
pub(crate) fn damaged(damage: &mut Damage, text: &[u8]) -> Mutated {
    match damage.below(10) {
        0 => cut(damage, text),
        1 => any_bytes(damage, text, Harm::Content),
        2 => havoc(damage, text, Harm::Content),
        3 => nested(damage, text),
        _ => changed_value(damage, text),
    }
}

/// Replaces a value by a deep list or object.
fn nested(damage: &mut Damage, text: &[u8]) -> Mutated {
    let depth = damage.choose(&[100, 1000, 200_000]);
    let (open, close) = damage.choose(&[("[", "]"), ("{\"a\":", "}")]);
    let mut value: Value = serde_json::from_slice(text).expect("the intact file is JSON");
    let path = some_path(damage, &value);
    *value.pointer_mut(&path).expect("the path was just found") = json!("NESTED");
    let deep = format!("{}1{}", open.repeat(depth), close.repeat(depth));
    Mutated {
        bytes: value.to_string().replacen("\"NESTED\"", &deep, 1).into_bytes(),
        harm: Harm::Content,
        what: format!("{path} nested {depth} deep"),
    }
}

fn changed_value(damage: &mut Damage, text: &[u8]) -> Mutated {
    let mut value: Value = serde_json::from_slice(text).expect("the intact file is JSON");
    let path = some_path(damage, &value);
    let place = value.pointer_mut(&path).expect("the path was just found");
    let (new, harm) = other_value(damage, place);
    let shown = new.to_string();
    *place = new;
    Mutated {
        bytes: value.to_string().into_bytes(),
        harm,
        what: format!("{path} set to {}", shown.chars().take(60).collect::<String>()),
    }
}

/// Another value for `old`, and the harm. A reader can detect another type. A null counts as a missing value, and a
/// list or object with other values may be legal.
fn other_value(damage: &mut Damage, old: &Value) -> (Value, Harm) {
    let numbers = [
        json!(-1),
        json!(0),
        json!(0.5),
        json!(1e300),
        json!(4_294_967_296_u64),
        json!(u64::MAX),
    ];
    match damage.below(8) {
        0 => (Value::Null, Harm::Content),
        1 => (json!({}), Harm::Content),
        2 => (json!([]), Harm::Content),
        3 => (json!("\u{1b}[31m\u{202e}".repeat(200)), type_harm(old, "string")),
        4 => (json!(true), type_harm(old, "boolean")),
        5 => (json!("3"), type_harm(old, "string")),
        _ => {
            let number = numbers[damage.below(numbers.len())].clone();
            (number, type_harm(old, "number"))
        }
    }
}

fn type_harm(old: &Value, new: &str) -> Harm {
    let known = match old {
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Bool(_) => "boolean",
        // Several types may legally replace a null or a container.
        Value::Null | Value::Array(_) | Value::Object(_) => return Harm::Content,
    };
    if known == new { Harm::Content } else { Harm::Structure }
}

/// A random JSON pointer; values near the root are as likely as deep ones.
fn some_path(damage: &mut Damage, value: &Value) -> String {
    let mut path = String::new();
    let mut here = value;
    loop {
        let key = match here {
            Value::Object(fields) if !fields.is_empty() => {
                let key = fields.keys().nth(damage.below(fields.len())).expect("below the count");
                key.replace('~', "~0").replace('/', "~1")
            }
            Value::Array(items) if !items.is_empty() => damage.below(items.len()).to_string(),
            _ => return path,
        };
        path = format!("{path}/{key}");
        here = value.pointer(&path).expect("the path was just made");
        if here.is_object() && damage.below(4) == 0 {
            return path;
        }
    }
}

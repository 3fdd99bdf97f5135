//! Numbers that llguidance would change: it computes with doubles and 64-bit integers.

use serde_json::{Map, Number, Value, json};

use super::{Parts, parts};

/// The largest double below 2^63, where the grammar's integers end.
const LARGEST: i128 = (1 << 63) - 1024;

/// The largest bound without an opposite bound.
const MOST_OPEN: f64 = 1e16;

/// Narrows bounds to exact numbers.
///
/// # Errors
/// A constant without an exact representation, and bounds without a representable number between them.
pub(super) fn hold(schema: &mut Value) -> Result<(), String> {
    match schema {
        Value::Array(list) => list.iter_mut().try_for_each(hold),
        Value::Object(fields) => {
            check_data(fields)?;
            hold_bounds(fields)?;
            for (keyword, value) in fields.iter_mut() {
                match parts(keyword, value) {
                    Parts::One(part) => hold(part)?,
                    Parts::List(list) => list.iter_mut().try_for_each(hold)?,
                    Parts::Named(named) => named.values_mut().try_for_each(hold)?,
                    Parts::None => {}
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Refuses constants that an answer cannot repeat digit by digit.
fn check_data(fields: &Map<String, Value>) -> Result<(), String> {
    for keyword in ["const", "enum"] {
        if let Some(data) = fields.get(keyword) {
            check_value(keyword, data)?;
        }
    }
    Ok(())
}

fn check_value(keyword: &str, data: &Value) -> Result<(), String> {
    match data {
        Value::Number(number) if !is_held(number) => Err(format!(
            "{keyword}: the number {number} cannot be held exactly (a double rounds it): use a string, or an integer up to 2^53"
        )),
        Value::Array(items) => items.iter().try_for_each(|item| check_value(keyword, item)),
        Value::Object(entries) => entries.values().try_for_each(|value| check_value(keyword, value)),
        _ => Ok(()),
    }
}

/// True if llguidance repeats a number digit by digit.
fn is_held(number: &Number) -> bool {
    match integer(number) {
        Some(value) => value.abs() <= LARGEST && double(value) as i128 == value,
        None => {
            let value = number.as_f64().unwrap_or(f64::NAN);
            value.fract() != 0.0 || value.abs() <= 2f64.powi(53)
        }
    }
}

fn integer(number: &Number) -> Option<i128> {
    number
        .as_i64()
        .map(i128::from)
        .or_else(|| number.as_u64().map(i128::from))
}

fn double(value: i128) -> f64 {
    value as f64
}

/// Narrows the bounds of a schema to doubles that the grammar supports.
fn hold_bounds(fields: &mut Map<String, Value>) -> Result<(), String> {
    for (keyword, inclusive, is_lower) in [
        ("minimum", "minimum", true),
        ("exclusiveMinimum", "minimum", true),
        ("maximum", "maximum", false),
        ("exclusiveMaximum", "maximum", false),
    ] {
        let Some(Value::Number(given)) = fields.get(keyword) else {
            continue;
        };
        let near = match integer(given) {
            Some(value) => narrowed(value, is_lower),
            None => given.as_f64().unwrap_or(0.0),
        };
        let Some(held) = clamped(near, is_lower) else {
            return Err(format!(
                "{keyword}: no number beyond {given} can be held exactly: the largest is {LARGEST}"
            ));
        };
        let is_changed = match integer(given) {
            Some(value) => held as i128 != value,
            None => given.as_f64() != Some(held),
        };
        if is_changed {
            // A narrowed bound is within an excluded one.
            fields.remove(keyword);
            set_tighter(fields, inclusive, held, is_lower);
        }
    }
    let lower = [bound(fields, "minimum"), bound(fields, "exclusiveMinimum")]
        .into_iter()
        .flatten()
        .reduce(f64::max);
    let upper = [bound(fields, "maximum"), bound(fields, "exclusiveMaximum")]
        .into_iter()
        .flatten()
        .reduce(f64::min);
    match (lower, upper) {
        (Some(lower), Some(upper)) if lower > upper && lower.abs().max(upper.abs()) > 2f64.powi(53) => {
            Err("minimum and maximum: no number between them can be held exactly (a double rounds them)".to_owned())
        }
        // llguidance writes an open end with one more digit, which would exceed 64 bits.
        (Some(lower), None) if lower > MOST_OPEN => {
            fields.insert("maximum".to_owned(), json!(double(LARGEST)));
            Ok(())
        }
        (None, Some(upper)) if upper < -MOST_OPEN => {
            fields.insert("minimum".to_owned(), json!(-double(LARGEST)));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn bound(fields: &Map<String, Value>, keyword: &str) -> Option<f64> {
    fields.get(keyword)?.as_f64()
}

/// Sets an inclusive bound unless there is a tighter one.
fn set_tighter(fields: &mut Map<String, Value>, keyword: &str, held: f64, is_lower: bool) {
    let tightest = match bound(fields, keyword) {
        Some(other) if is_lower => other.max(held),
        Some(other) => other.min(held),
        None => held,
    };
    // A double of this size is an integer.
    fields.insert(keyword.to_owned(), json!(tightest));
}

/// The nearest double within an integer bound.
fn narrowed(value: i128, is_lower: bool) -> f64 {
    let near = double(value);
    match (near as i128).cmp(&value) {
        std::cmp::Ordering::Less if is_lower => near.next_up(),
        std::cmp::Ordering::Greater if !is_lower => near.next_down(),
        _ => near,
    }
}

/// A bound within the integers of the grammar; `None` if no number remains.
fn clamped(held: f64, is_lower: bool) -> Option<f64> {
    let largest = double(LARGEST);
    match is_lower {
        true if held > largest => None,
        false if held < -largest => None,
        _ => Some(held.clamp(-largest, largest)),
    }
}

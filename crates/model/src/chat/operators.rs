//! The filters that `guard.rs` wraps around operands.

use std::sync::Arc;

use minijinja::value::{ObjectRepr, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::containers::List;
use super::meter::{ITEM_BYTES, Look, Meter};
use super::{guard, python};

pub(super) fn add(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    let mut add = |name: &'static str, operand: fn(&Meter, Value) -> Result<Value, Error>| {
        let meter = Arc::clone(meter);
        environment.add_filter(name, move |value: Value| operand(&meter, value));
    };
    add(guard::ADDEND, addend);
    add(guard::TEXT, text);
    add(guard::COMPARED, compared);
    add(guard::SOUGHT, sought);
    add(guard::SEARCHED, searched);
    add(guard::SETTLED, settled);
    add(guard::ITERATED, iterated);
    add(guard::SPREAD, spread);
    add(guard::INDEXED, indexed);
    add(guard::KEY, key);
    add(guard::BUILT, built);
    let meter = Arc::clone(meter);
    environment.add_filter(guard::TIMES, move |left: Value, right: Value| {
        times(&meter, &left, &right)
    });
}

/// An operand of `+` or of a slice. Its text is copied; its items are paid for when the result is settled.
fn addend(meter: &Meter, value: Value) -> Result<Value, Error> {
    meter.charge(value.as_bytes().map_or(0, <[u8]>::len) as u64)?;
    Ok(value)
}

/// An operand of `~`, which is printed.
fn text(meter: &Meter, value: Value) -> Result<Value, Error> {
    meter.look_at(&value, Look::Text)?;
    Ok(python::printed(&value).map_or(value, Value::from))
}

fn compared(meter: &Meter, value: Value) -> Result<Value, Error> {
    meter.look_at(&value, Look::Compare)?;
    Ok(value)
}

/// The operand before `in`.
fn sought(meter: &Meter, value: Value) -> Result<Value, Error> {
    look_for(meter, &value)?;
    Ok(value)
}

/// Charges for the value to search for: a list is printed before it is searched for in a text.
pub(super) fn look_for(meter: &Meter, value: &Value) -> Result<(), Error> {
    let look = match value.as_object() {
        Some(_) => Look::Text,
        None => Look::Compare,
    };
    meter.look_at(value, look).map(|_| ())
}

/// The operand after `in`.
fn searched(meter: &Meter, value: Value) -> Result<Value, Error> {
    search(meter, &value)?;
    Ok(value)
}

/// Charges for the value to search in: a map looks up a key, and other values are compared.
pub(super) fn search(meter: &Meter, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Map => meter.charge(0),
        _ => meter.look_at(value, Look::Compare).map(|_| ()),
    }
}

fn settled(meter: &Meter, value: Value) -> Result<Value, Error> {
    meter.settle(value)
}

/// The values of a loop. Lists are read item by item; keys of a map are copied, characters of a text counted.
fn iterated(meter: &Meter, value: Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::Seq {
        meter.charge(0)?;
        return Ok(List::growing(&value).unwrap_or(value));
    }
    spread(meter, value)
}

/// The arguments of a call.
fn spread(meter: &Meter, value: Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => meter.charge(text.len() as u64)?,
        None => meter.charge_times(value.len().unwrap_or(0) as u64, ITEM_BYTES)?,
    }
    Ok(value)
}

/// The operand before `[number]`.
fn indexed(meter: &Meter, value: Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => meter.charge_search(text.len())?,
        // Lists are indexed in one step, ranges are walked.
        None if value.kind() == ValueKind::Iterable => {
            meter.charge_times(value.len().unwrap_or(0) as u64, ITEM_BYTES)?;
        }
        None => meter.charge(0)?,
    }
    Ok(value)
}

/// A map's key, which is hashed.
pub(super) fn key(meter: &Meter, value: Value) -> Result<Value, Error> {
    if value.as_object().is_some() {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a {} cannot be the key of a map", value.kind()),
        ));
    }
    meter.look_at(&value, Look::Compare)?;
    Ok(value)
}

/// A literal list, tuple or map.
fn built(meter: &Meter, value: Value) -> Result<Value, Error> {
    meter.look_at(&value, Look::Shape)?;
    match value.kind() {
        ValueKind::Map => meter.dict(&value),
        _ => meter.settle(value),
    }
}

/// `left * right`: numbers, or a repeated text or list.
fn times(meter: &Meter, left: &Value, right: &Value) -> Result<Value, Error> {
    let repeated = |value: &Value| {
        value.as_str().is_some()
            || value
                .as_object()
                .is_some_and(|object| matches!(object.repr(), ObjectRepr::Seq | ObjectRepr::Iterable))
    };
    if repeated(left) {
        return repeat(meter, left, right);
    }
    if repeated(right) {
        return repeat(meter, right, left);
    }
    let impossible = || {
        Error::new(
            ErrorKind::InvalidOperation,
            format!(
                "tried to use * operator on unsupported types {} and {}",
                left.kind(),
                right.kind()
            ),
        )
    };
    let float = |value: &Value| f64::try_from(value.clone()).map_err(|_| impossible());
    let is_float = |value: &Value| value.kind() == ValueKind::Number && !value.is_integer();
    if is_float(left) || is_float(right) {
        return Ok(Value::from(float(left)? * float(right)?));
    }
    let integer = |value: &Value| i128::try_from(value.clone()).map_err(|_| impossible());
    let product = integer(left)?.checked_mul(integer(right)?).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("unable to calculate {left} * {right}"),
        )
    })?;
    Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from))
}

fn repeat(meter: &Meter, value: &Value, count: &Value) -> Result<Value, Error> {
    let count = count.as_usize().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            "strings and lists can only be multiplied with whole numbers from 0",
        )
    })?;
    if let Some(text) = value.as_str() {
        meter.charge_times(text.len() as u64, count as u64)?;
        return Ok(Value::from(text.repeat(count)));
    }
    let length = value.len().unwrap_or(0);
    meter.charge_times((length as u64).saturating_mul(ITEM_BYTES), count as u64)?;
    let items = value.try_iter()?.collect::<Vec<Value>>();
    let items: Vec<Value> = if items.is_empty() {
        items
    } else {
        std::iter::repeat_n(items, count).flatten().collect()
    };
    Ok(if value.is_tuple() {
        Value::from(Tuple::from(items))
    } else {
        meter.list(items)?
    })
}

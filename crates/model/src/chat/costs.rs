//! The price of each filter, test, function and method of a chat template, paid before it runs.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::functions::Cost;
use super::meter::{ENTRY_BYTES, Extent, ITEM_BYTES, Look, Meter};
use super::operators;

/// Spaces of indentation per level.
const INDENT: u64 = 1000;
/// Columns of a number or text in `format`.
const FORMAT_WIDTH: u64 = 10_000;
/// The most characters for `trim` and `strip`; each is compared with each character of the text.
const STRIPPED_CHARACTERS: u64 = 256;
/// Bounds and step of a range.
const RANGE: u64 = 1 << 31;

/// Charges a filter; the first argument is the value before `|`.
pub(super) fn charge_filter(meter: &Meter, name: &str, cost: Cost, args: &[Value]) -> Result<(), Error> {
    charge_search(meter, args)?;
    let Some((subject, options)) = args.split_first() else {
        return Ok(());
    };
    match cost {
        Cost::Small => {}
        Cost::Copy(factor) => {
            let bytes = meter.look_at(subject, Look::Text)?.bytes;
            meter.charge_times(bytes, factor)?;
        }
        Cost::Items => charge_items(meter, name, args)?,
        Cost::Deep => {
            let mut extent = Extent::default();
            for arg in args {
                extent.add(meter.look_at(arg, Look::Text)?);
            }
            charge_deep(meter, name, &extent, args)?;
        }
    }
    match name {
        // Except for lists, the items are copied to find the last one.
        "first" | "last" if subject.kind() != ValueKind::Seq => charge_items(meter, name, args),
        "replace" => charge_replace(meter, args),
        "split" => charge_split(meter, args),
        "lines" => charge_parts(meter, subject, "\n"),
        "trim" => strippable(meter, name, options),
        "indent" => {
            let width = largest_number(meter, options)?;
            meter.at_most(name, width, INDENT)?;
            let lines = subject.as_str().map_or(0, |text| text.matches('\n').count()) as u64 + 2;
            meter.charge_times(lines, width)
        }
        "batch" | "slice" => meter.charge_times(largest_number(meter, options)?, ENTRY_BYTES),
        _ => Ok(()),
    }
}

/// Charges filters that read their arguments completely.
fn charge_deep(meter: &Meter, name: &str, extent: &Extent, args: &[Value]) -> Result<(), Error> {
    match name {
        "tojson" => {
            let indent = largest_number(meter, &args[1..])?;
            meter.at_most(name, indent, INDENT)?;
            let separators = meter.look_within_options(&args[1..])?;
            let each = ENTRY_BYTES
                .saturating_add(indent.saturating_mul(extent.depth + 1))
                .saturating_add(separators);
            meter.charge_times(extent.nodes, each)?;
            meter.charge(extent.bytes)
        }
        "pprint" => meter.charge_times(extent.nodes, 4 * (extent.depth + 1)),
        "escape" | "e" => meter.charge_times(extent.bytes, 6),
        // Each part is added to the sum of earlier ones.
        "sum" => meter.charge_times(extent.nodes, extent.bytes / 8),
        "join" => {
            let joiners: u64 = args[1..].iter().map(text_bytes).max().unwrap_or(0);
            let joiners = joiners.max(meter.look_within_options(&args[1..])?);
            meter.charge_times(items(&args[0]), joiners.saturating_add(ITEM_BYTES))
        }
        "format" => charge_format(meter, name, &args[0], extent, &args[1..]),
        _ => meter.charge_times(extent.nodes, ENTRY_BYTES),
    }
}

/// Charges a test; the first argument is the value before `is`.
pub(super) fn charge_test(meter: &Meter, name: &str, args: &[Value]) -> Result<(), Error> {
    charge_search(meter, args)?;
    if let ("in", [value, container, ..]) = (name, args) {
        operators::look_for(meter, value)?;
        operators::search(meter, container)?;
    } else if args.len() > 1 {
        for arg in args {
            meter.look_at(arg, Look::Compare)?;
        }
    } else if matches!(name, "lower" | "upper") {
        meter.charge_times(args.first().map_or(0, text_bytes), 3)?;
    }
    Ok(())
}

/// Charges a function.
pub(super) fn charge_function(meter: &Meter, name: &str, args: &[Value]) -> Result<(), Error> {
    charge_search(meter, args)?;
    match name {
        "range" => meter.at_most(name, largest_number(meter, args)?, RANGE),
        "dict" | "namespace" => {
            for arg in args {
                meter.charge_times(items(arg), ENTRY_BYTES)?;
                meter.look_at(arg, Look::Shape)?;
            }
            Ok(())
        }
        _ => {
            for arg in args {
                meter.look_at(arg, Look::Text)?;
            }
            Ok(())
        }
    }
}

/// Charges a Python method of a text, list or map.
pub(super) fn charge_method(meter: &Meter, value: &Value, method: &str, args: &[Value]) -> Result<(), Error> {
    charge_search(meter, std::slice::from_ref(value))?;
    charge_search(meter, args)?;
    let all = || {
        let mut all = vec![value.clone()];
        all.extend_from_slice(args);
        all
    };
    match (value.kind(), method) {
        (ValueKind::String, "upper" | "lower" | "capitalize") => meter.charge_times(text_bytes(value), 3),
        (ValueKind::String, "strip" | "lstrip" | "rstrip") => {
            meter.charge(text_bytes(value))?;
            strippable(meter, method, args)
        }
        (ValueKind::String, "replace") => charge_replace(meter, &all()),
        (ValueKind::String, "split") => charge_split(meter, &all()),
        (ValueKind::String, "splitlines") => charge_parts(meter, value, "\n"),
        (ValueKind::String, "format" | "join") => {
            let mut extent = Extent::default();
            for arg in args {
                extent.add(meter.look_at(arg, Look::Text)?);
            }
            match method {
                "format" => charge_format(meter, "format", value, &extent, args),
                _ => meter.charge_times(args.first().map_or(0, items), text_bytes(value).saturating_add(1)),
            }
        }
        (ValueKind::Map, "get") => match args.first() {
            Some(key) => operators::key(meter, key.clone()).map(|_| ()),
            None => Ok(()),
        },
        (ValueKind::Map, _) => meter.charge_times(items(value), ITEM_BYTES),
        _ => {
            for value in all() {
                meter.look_at(&value, Look::Compare)?;
            }
            Ok(())
        }
    }
}

/// Charges for reading every text argument once.
fn charge_search(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    for arg in args {
        meter.charge_search(text_bytes(arg) as usize)?;
    }
    meter.charge(ITEM_BYTES)
}

/// Lists of the items of every argument, or of the characters of a text.
fn charge_items(meter: &Meter, name: &str, args: &[Value]) -> Result<(), Error> {
    let each = match name {
        // A list or pair per item.
        "batch" | "items" | "slice" | "zip" => ENTRY_BYTES,
        _ => 2 * ITEM_BYTES,
    };
    for arg in args {
        meter.charge_times(items(arg), each)?;
    }
    Ok(())
}

fn charge_replace(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    let [text, from, to, ..] = args else { return Ok(()) };
    // Numbers are replaced like their short text.
    let from = from.as_str().unwrap_or("");
    let parts = match text.as_str() {
        Some(text) if !from.is_empty() => text.matches(from).count() as u64,
        Some(text) => text.len() as u64 + 1,
        None => 64,
    };
    let replacement = meter.look_at(to, Look::Text)?.bytes;
    meter.charge(text_bytes(text))?;
    meter.charge_times(parts, replacement)
}

fn charge_split(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    let [text, options @ ..] = args else { return Ok(()) };
    match options.first().and_then(Value::as_str) {
        Some(separator) if !separator.is_empty() => charge_parts(meter, text, separator),
        Some(_) => meter.charge_times(text_bytes(text) + 2, 3 * ITEM_BYTES),
        None => {
            let words = text.as_str().map_or(0, |text| text.split_whitespace().count());
            meter.charge(text_bytes(text))?;
            meter.charge_times(words as u64, 3 * ITEM_BYTES)
        }
    }
}

fn charge_parts(meter: &Meter, text: &Value, separator: &str) -> Result<(), Error> {
    let parts = text.as_str().map_or(0, |text| text.matches(separator).count()) as u64 + 1;
    meter.charge(text_bytes(text))?;
    meter.charge_times(parts, 3 * ITEM_BYTES)
}

/// Charges for a format: each placeholder may print the longest argument in the widest column.
fn charge_format(meter: &Meter, name: &str, format: &Value, extent: &Extent, args: &[Value]) -> Result<(), Error> {
    let Some(format) = format.as_str() else { return Ok(()) };
    let mut width = 0;
    for digits in format.split(|c: char| !c.is_ascii_digit()) {
        let number = if digits.is_empty() {
            0
        } else {
            digits.parse().unwrap_or(u64::MAX)
        };
        width = width.max(number);
    }
    if format.contains('*') {
        width = width.max(largest_number(meter, args)?);
    }
    meter.at_most(name, width, FORMAT_WIDTH)?;
    let places = format.bytes().filter(|byte| matches!(byte, b'%' | b'{')).count() as u64;
    meter.charge(format.len() as u64)?;
    // A fill character has up to four bytes.
    let each = extent.bytes.saturating_mul(6).saturating_add(4 * width);
    meter.charge_times(places, each)
}

fn strippable(meter: &Meter, name: &str, options: &[Value]) -> Result<(), Error> {
    let characters = options
        .first()
        .and_then(Value::as_str)
        .map_or(0, |text| text.chars().count());
    meter.at_most(name, characters as u64, STRIPPED_CHARACTERS)
}

/// The largest integer among the arguments, including named ones, without its sign.
fn largest_number(meter: &Meter, args: &[Value]) -> Result<u64, Error> {
    let number = |value: &Value| match value.kind() {
        ValueKind::Number | ValueKind::Bool => i128::try_from(value.clone()).map_or(u64::MAX, |number| {
            u64::try_from(number.unsigned_abs()).unwrap_or(u64::MAX)
        }),
        _ => 0,
    };
    let mut largest = 0;
    for arg in args {
        largest = largest.max(number(arg));
        if arg.is_kwargs() {
            meter.charge_times(items(arg), ENTRY_BYTES)?;
            let pairs = arg.as_object().and_then(|object| object.try_iter_pairs());
            largest = pairs
                .into_iter()
                .flatten()
                .fold(largest, |most, (_, value)| most.max(number(&value)));
        }
    }
    Ok(largest)
}

impl Meter {
    /// Bytes of the texts within named arguments.
    fn look_within_options(&self, options: &[Value]) -> Result<u64, Error> {
        let mut bytes = 0_u64;
        for option in options.iter().filter(|option| option.is_kwargs()) {
            bytes = bytes.saturating_add(self.look_at(option, Look::Text)?.bytes);
        }
        Ok(bytes)
    }
}

fn text_bytes(value: &Value) -> u64 {
    value.as_bytes().map_or(0, <[u8]>::len) as u64
}

/// Items of a list, entries of a map, characters of a text.
fn items(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => text.len() as u64,
        None => value.len().unwrap_or(0) as u64,
    }
}

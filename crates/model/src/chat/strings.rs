//! Methods of Python's `str` that `minijinja-contrib` lacks or implements differently.

use minijinja::{Error, ErrorKind, Value};

use super::meter::{ITEM_BYTES, Meter};

/// The result of a method of a text; `None` for other methods.
pub(super) fn call_method(meter: &Meter, text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let wanted = |args: &[Value]| args.first().and_then(Value::as_str).map(str::to_owned);
    let call = || -> Result<Value, Error> {
        meter.charge_times(text.len() as u64 + ITEM_BYTES, 3)?;
        match (method, wanted(args), args) {
            ("title", None, []) => Ok(title(text).into()),
            ("removeprefix", Some(part), [_]) => Ok(text.strip_prefix(&part).unwrap_or(text).into()),
            ("removesuffix", Some(part), [_]) => Ok(text.strip_suffix(&part).unwrap_or(text).into()),
            ("partition", Some(separator), [_]) if !separator.is_empty() => Ok(match text.split_once(&separator) {
                Some((before, after)) => parts([before, &separator, after]),
                None => parts([text, "", ""]),
            }),
            ("rpartition", Some(separator), [_]) if !separator.is_empty() => Ok(match text.rsplit_once(&separator) {
                Some((before, after)) => parts([before, &separator, after]),
                None => parts(["", "", text]),
            }),
            ("rsplit", Some(separator), [_] | [_, _]) if !separator.is_empty() => {
                let most = args.get(1).map_or(Ok(-1), |most| i64::try_from(most.clone()))?;
                meter.charge_times(text.matches(&separator).count() as u64, 3 * ITEM_BYTES)?;
                Ok(rsplit(text, &separator, usize::try_from(most).ok()).into())
            }
            _ => Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("{method} takes no such arguments"),
            )),
        }
    };
    let is_known = matches!(
        method,
        "title" | "removeprefix" | "removesuffix" | "partition" | "rpartition" | "rsplit"
    );
    is_known.then(call)
}

fn parts(parts: [&str; 3]) -> Value {
    parts.map(str::to_owned).to_vec().into()
}

/// Capitalises every letter after a non-letter.
fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut is_inside = false;
    for letter in text.chars() {
        if is_inside {
            titled.extend(letter.to_lowercase());
        } else {
            titled.extend(letter.to_uppercase());
        }
        is_inside = letter.is_lowercase() || letter.is_uppercase();
    }
    titled
}

/// Splits a text at most `most` times, from its end.
fn rsplit(text: &str, separator: &str, most: Option<usize>) -> Vec<String> {
    let parts = most.map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<String> = text.rsplitn(parts, separator).map(str::to_owned).collect();
    parts.reverse();
    parts
}

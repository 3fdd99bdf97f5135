//! Filters, tests, functions and methods of chat templates. Each pays for its work before it starts.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters, functions, tests};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::limits::STEPS;
use super::meter::{ENTRY_BYTES, Look, Meter};
use super::python::{self, Style};
use super::{containers, costs, guard, namespace, operators, strings};
use crate::calendar::format_time;

/// The cost of a call in addition to the search through its texts.
#[derive(Clone, Copy)]
pub(super) enum Cost {
    /// Nothing else: the result is an argument, a part of one, or a number.
    Small,
    /// A text as long as the first argument, times a factor.
    Copy(u64),
    /// A list of the first argument's items or characters.
    Items,
    /// The text of all arguments, including nested values.
    Deep,
}

const TIME_FORMAT_BYTES: u64 = 1000;

/// An environment whose work is charged to `meter`. A `sentinel` in texts is never escaped.
pub(super) fn environment(meter: &Arc<Meter>, sentinel: Option<char>) -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_debug(false);
    environment.set_fuel(Some(STEPS));
    add_filters(&mut environment, meter, sentinel);
    add_tests(&mut environment, meter);
    add_functions(&mut environment, meter);
    operators::add(&mut environment, meter);
    let printing = Arc::clone(meter);
    environment.set_formatter(move |out, state, value| {
        let extent = printing.look_at(value, Look::Text)?;
        if !matches!(state.auto_escape(), minijinja::AutoEscape::None) {
            printing.charge_times(extent.bytes, 6)?;
        }
        match python::printed(value) {
            Some(text) => escape_formatter(out, state, &Value::from(text)),
            None => escape_formatter(out, state, value),
        }
    });
    let meter = Arc::clone(meter);
    environment.set_unknown_method_callback(move |state, value, method, args| {
        if let Some(result) = containers::call_method(&meter, value, method, args) {
            return result;
        }
        if let Some(result) = value
            .as_str()
            .and_then(|text| strings::call_method(&meter, text, method, args))
        {
            return meter.settle(result?);
        }
        costs::charge_method(&meter, value, method, args)?;
        let result = unknown_method_callback(state, value, method, args)?;
        if method == "get" {
            return Ok(result);
        }
        made(&meter, result)
    });
    environment
}

fn add_filters(environment: &mut Environment<'_>, meter: &Arc<Meter>, sentinel: Option<char>) {
    for (names, function, cost) in text_filters(sentinel).into_iter().chain(list_filters()) {
        for &name in names {
            let (meter, function) = (Arc::clone(meter), function.clone());
            environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                costs::charge_filter(&meter, name, cost, &args)?;
                let result = function.call(state, &args)?;
                match cost {
                    Cost::Small => Ok(result),
                    // Merged maps could refer to one another endlessly.
                    _ if name == "chain" && result.kind() == ValueKind::Map => made(&meter, meter.dict(&result)?),
                    _ if matches!(name, "batch" | "slice") => made(&meter, meter.settle_within(result)?),
                    _ if deepens(name) => made(&meter, result),
                    _ => meter.settle(result),
                }
            });
        }
    }
}

/// True if a filter wraps its argument, or another filter's result, in a list.
fn deepens(name: &str) -> bool {
    matches!(name, "dictsort" | "groupby" | "items" | "map" | "zip")
}

/// Names of a filter, its function and its cost.
type Filter = (&'static [&'static str], Value, Cost);

/// Filters of texts and numbers.
fn text_filters(sentinel: Option<char>) -> Vec<Filter> {
    use Cost::{Copy, Deep, Small};
    use Value as V;
    vec![
        (&["safe"], V::from_function(filters::safe), Deep),
        (&["escape", "e"], V::from_function(filters::escape), Deep),
        (&["lower"], V::from_function(filters::lower), Copy(3)),
        (&["upper"], V::from_function(filters::upper), Copy(3)),
        (&["title"], V::from_function(filters::title), Copy(3)),
        (&["capitalize"], V::from_function(filters::capitalize), Copy(3)),
        (&["replace"], V::from_function(filters::replace), Copy(1)),
        (&["trim"], V::from_function(filters::trim), Copy(1)),
        (&["join"], V::from_function(join), Deep),
        (&["split"], V::from_function(filters::split), Copy(1)),
        (&["lines"], V::from_function(filters::lines), Copy(1)),
        (&["default", "d"], V::from_function(filters::default), Small),
        (&["round"], V::from_function(filters::round), Small),
        (&["abs"], V::from_function(filters::abs), Small),
        (&["int"], V::from_function(filters::int), Small),
        (&["float"], V::from_function(filters::float), Small),
        (&["string"], V::from_function(string), Deep),
        (&["bool"], V::from_function(filters::bool), Small),
        (&["indent"], V::from_function(filters::indent), Copy(1)),
        (&["pprint"], V::from_function(filters::pprint), Deep),
        (&["format"], V::from_function(filters::format), Deep),
        (
            &["tojson"],
            V::from_function(move |value: &Value, options: Kwargs| to_json(value, options, sentinel)),
            Deep,
        ),
    ]
}

/// Filters of lists and maps.
fn list_filters() -> Vec<Filter> {
    use Cost::{Deep, Items, Small};
    use Value as V;
    vec![
        (&["length", "count"], V::from_function(filters::length), Small),
        (&["dictsort"], V::from_function(filters::dictsort), Deep),
        (&["items"], V::from_function(filters::items), Items),
        (&["reverse"], V::from_function(filters::reverse), Items),
        (&["attr"], V::from_function(filters::attr), Small),
        (&["first"], V::from_function(filters::first), Small),
        (&["last"], V::from_function(filters::last), Small),
        (&["min"], V::from_function(filters::min), Deep),
        (&["max"], V::from_function(filters::max), Deep),
        (&["sort"], V::from_function(filters::sort), Deep),
        (&["list"], V::from_function(filters::list), Items),
        (&["batch"], V::from_function(filters::batch), Items),
        (&["slice"], V::from_function(filters::slice), Items),
        (&["sum"], V::from_function(filters::sum), Deep),
        (&["select"], V::from_function(filters::select), Items),
        (&["reject"], V::from_function(filters::reject), Items),
        (&["selectattr"], V::from_function(filters::selectattr), Items),
        (&["rejectattr"], V::from_function(filters::rejectattr), Items),
        (&["map"], V::from_function(filters::map), Items),
        (&["groupby"], V::from_function(filters::groupby), Deep),
        (&["unique"], V::from_function(filters::unique), Deep),
        (&["chain"], V::from_function(filters::chain), Items),
        (&["zip"], V::from_function(filters::zip), Items),
    ]
}

fn add_tests(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    let mut add = |names: &[&'static str], function: Value| {
        for &name in names {
            let (meter, function) = (Arc::clone(meter), function.clone());
            environment.add_test(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                costs::charge_test(&meter, name, &args)?;
                function.call(state, &args)
            });
        }
    };
    use Value as V;
    add(&["undefined"], V::from_function(tests::is_undefined));
    add(&["defined"], V::from_function(tests::is_defined));
    add(&["none"], V::from_function(tests::is_none));
    add(&["safe", "escaped"], V::from_function(tests::is_safe));
    add(&["boolean"], V::from_function(tests::is_boolean));
    add(&["odd"], V::from_function(tests::is_odd));
    add(&["even"], V::from_function(tests::is_even));
    add(&["divisibleby"], V::from_function(tests::is_divisibleby));
    add(&["number"], V::from_function(tests::is_number));
    add(&["integer", "int"], V::from_function(tests::is_integer));
    add(&["float"], V::from_function(tests::is_float));
    add(&["string"], V::from_function(tests::is_string));
    add(&["sequence"], V::from_function(tests::is_sequence));
    add(&["iterable"], V::from_function(tests::is_iterable));
    add(&["mapping"], V::from_function(tests::is_mapping));
    add(&["startingwith"], V::from_function(tests::is_startingwith));
    add(&["endingwith"], V::from_function(tests::is_endingwith));
    add(&["lower"], V::from_function(tests::is_lower));
    add(&["upper"], V::from_function(tests::is_upper));
    add(&["sameas"], V::from_function(tests::is_sameas));
    add(&["eq", "equalto", "=="], V::from_function(tests::is_eq));
    add(&["ne", "!="], V::from_function(tests::is_ne));
    add(&["lt", "lessthan", "<"], V::from_function(tests::is_lt));
    add(&["le", "<="], V::from_function(tests::is_le));
    add(&["gt", "greaterthan", ">"], V::from_function(tests::is_gt));
    add(&["ge", ">="], V::from_function(tests::is_ge));
    add(&["in"], V::from_function(tests::is_in));
    add(&["true"], V::from_function(tests::is_true));
    add(&["false"], V::from_function(tests::is_false));
    add(&["filter"], V::from_function(tests::is_filter));
    add(&["test"], V::from_function(tests::is_test));
}

fn add_functions(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    let mut add = |name: &'static str, function: Value| {
        let meter = Arc::clone(meter);
        environment.add_function(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            costs::charge_function(&meter, name, &args)?;
            function.call(state, &args)
        });
    };
    add("range", Value::from_function(functions::range));
    let dicts = Arc::clone(meter);
    let dict = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let made = Value::from_function(functions::dict).call(state, &args.into_values())?;
        dicts.dict(&made)
    };
    add("dict", Value::from_function(dict));
    let namespaces = Arc::clone(meter);
    let namespace = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let made = Value::from_function(functions::namespace).call(state, &args.into_values())?;
        Ok::<_, Error>(namespaces.registry.namespace(&made))
    };
    add("namespace", Value::from_function(namespace));
    add("raise_exception", Value::from_function(raise_exception));
    let setting = Arc::clone(meter);
    environment.add_function(guard::SET_ATTRIBUTE, move |target: Value, name: &str, value: Value| {
        setting.charge(ENTRY_BYTES + name.len() as u64)?;
        setting.look_at(&value, Look::Shape)?;
        namespace::set_attribute(&target, name, value)
    });
    let meter = Arc::clone(meter);
    environment.add_function("strftime_now", move |format: String| strftime_now(&meter, &format));
}

/// A result that contains its arguments: a plain list of limited depth.
fn made(meter: &Meter, result: Value) -> Result<Value, Error> {
    let result = meter.settle(result)?;
    if matches!(result.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        meter.look_at(&result, Look::Shape)?;
    }
    Ok(result)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The time in UTC, since the machine's time zone is not the model's concern.
fn strftime_now(meter: &Meter, format: &str) -> Result<String, Error> {
    meter.at_most("strftime_now", format.len() as u64, TIME_FORMAT_BYTES)?;
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs());
    format_time(format, seconds).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now cannot format {format:?}"),
        )
    })
}

/// `str(value)`.
fn string(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    match python::printed(value) {
        Some(text) => Ok(Value::from(text)),
        None => filters::string(state, value),
    }
}

/// Jinja's `join`, with items printed as in Python.
fn join(state: &mut State<'_, '_>, value: Value, options: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let items = match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            // The filter itself looks up attributes of maps.
            let printed = value.try_iter()?.map(|item| match item.kind() {
                ValueKind::Number | ValueKind::Seq => python::printed(&item).map_or(item, Value::from),
                _ => item,
            });
            Value::from(printed.collect::<Vec<Value>>())
        }
        _ => value,
    };
    let mut args = vec![items];
    args.extend(options.into_values());
    Value::from_function(filters::join).call(state, &args)
}

/// `json.dumps` with the arguments templates pass.
fn to_json(value: &Value, options: Kwargs, sentinel: Option<char>) -> Result<String, Error> {
    let mut style = Style {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent: options.get::<Option<usize>>("indent")?,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        sentinel,
        ..Style::default()
    };
    if style.indent.is_some() {
        style.item_separator = ",".into();
    }
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings"))?;
        (style.item_separator, style.key_separator) = (item, key);
    }
    options.assert_all_used()?;
    python::json(value, &style)
}

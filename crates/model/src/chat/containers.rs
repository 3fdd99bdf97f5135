//! Lists and maps of a template. They are mutable as in Python: all names of a list see appended items.
//!
//! A list may contain itself, as a namespace may: the [`Registry`](super::namespace::Registry) holds them all until
//! the render has ended. Each method pays for its work before it starts.
//!
//! Three things differ from Python. `loop.length` and `loop.last` use the list's length at the start of the loop.
//! Lists from `groupby` are immutable. A map may change while a loop runs over it, which Python refuses.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Serde, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::meter::{ENTRY_BYTES, ITEM_BYTES, Look, Meter};
use super::namespace::{Holder, Registry};
use super::operators;

/// Python's `list`.
#[derive(Debug, Default)]
pub(super) struct List {
    items: Mutex<Vec<Value>>,
}

/// Python's `dict`, in insertion order.
#[derive(Debug, Default)]
pub(super) struct Dict {
    entries: Mutex<Entries>,
}

/// Bytes per item of a growing list: the old and the doubled allocation exist at once.
const GROWN_BYTES: u64 = 3 * ITEM_BYTES;

/// Largest map that is searched one by one; longer maps have an index.
const SEARCHED: usize = 8;

#[derive(Debug, Default)]
struct Entries {
    pairs: Vec<(Value, Value)>,
    /// The index of each key, for maps of more than [`SEARCHED`] entries.
    places: BTreeMap<Value, usize>,
}

impl Entries {
    fn place(&self, key: &Value) -> Option<usize> {
        if self.pairs.len() > SEARCHED {
            self.places.get(key).copied()
        } else {
            self.pairs.iter().position(|(held, _)| held.cmp(key).is_eq())
        }
    }

    fn get(&self, key: &Value) -> Option<Value> {
        let (_, value) = self.pairs.get(self.place(key)?)?;
        Some(value.clone())
    }

    /// Sets a key, which keeps its position, and returns the former value.
    fn insert(&mut self, key: Value, value: Value) -> Option<Value> {
        if let Some((_, held)) = self.place(&key).and_then(|place| self.pairs.get_mut(place)) {
            return Some(std::mem::replace(held, value));
        }
        let place = self.pairs.len();
        self.pairs.push((key.clone(), value));
        match place {
            ..SEARCHED => {}
            SEARCHED => self.index(),
            _ => drop(self.places.insert(key, place)),
        }
        None
    }

    fn remove(&mut self, key: &Value) -> Option<Value> {
        let (_, value) = self.pairs.remove(self.place(key)?);
        self.index();
        Some(value)
    }

    fn index(&mut self) {
        let keys = self.pairs.iter().map(|(key, _)| key.clone());
        self.places = if self.pairs.len() > SEARCHED {
            keys.zip(0..).collect()
        } else {
            BTreeMap::new()
        };
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let place = key.as_usize()?;
        self.locked(|items| items.get(place).cloned())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.length())
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.locked(|entries| entries.get(key))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let pairs: Vec<(Value, Value)> = self.locked(|entries| entries.pairs.clone());
        Enumerator::KeyValueIter(Box::new(pairs.into_iter()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.locked(|entries| entries.pairs.len()))
    }
}

impl Holder for List {
    fn empty(&self, values: &mut Vec<Value>) {
        values.append(&mut self.locked(std::mem::take));
    }
}

impl Holder for Dict {
    fn empty(&self, values: &mut Vec<Value>) {
        let entries = self.locked(std::mem::take);
        values.extend(entries.pairs.into_iter().map(|(_, value)| value));
    }
}

impl List {
    /// The items for a loop, including items appended while it runs.
    pub(super) fn growing(value: &Value) -> Option<Value> {
        let list = value.downcast_object::<List>()?;
        Some(Value::make_iterable(move || Growing {
            list: Arc::clone(&list),
            place: 0,
        }))
    }

    fn length(&self) -> usize {
        self.locked(|items| items.len())
    }

    fn locked<T>(&self, work: impl FnOnce(&mut Vec<Value>) -> T) -> T {
        work(&mut self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Iterates over a list up to its current length.
struct Growing {
    list: Arc<List>,
    place: usize,
}

impl Iterator for Growing {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let item = self.list.locked(|items| items.get(self.place).cloned());
        self.place += 1;
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.list.length().saturating_sub(self.place);
        (left, Some(left))
    }
}

impl Dict {
    fn locked<T>(&self, work: impl FnOnce(&mut Entries) -> T) -> T {
        work(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Registry {
    fn list(&self, items: Vec<Value>) -> Value {
        let list = Arc::new(List {
            items: Mutex::new(items),
        });
        self.keep(Arc::clone(&list) as Arc<dyn Holder>);
        Value::from_dyn_object(list)
    }

    fn dict(&self, pairs: impl Iterator<Item = (Value, Value)>) -> Value {
        let mut entries = Entries::default();
        for (key, value) in pairs {
            entries.insert(key, value);
        }
        let dict = Arc::new(Dict {
            entries: Mutex::new(entries),
        });
        self.keep(Arc::clone(&dict) as Arc<dyn Holder>);
        Value::from_dyn_object(dict)
    }

    /// Converts messages and variables to values whose lists and maps are mutable within the render.
    pub(super) fn input(&self, value: serde_json::Value) -> Value {
        match value {
            serde_json::Value::Array(items) => self.list(items.into_iter().map(|item| self.input(item)).collect()),
            serde_json::Value::Object(map) => {
                let pairs = map
                    .into_iter()
                    .map(|(key, value)| (Value::from(key), self.input(value)));
                self.dict(pairs)
            }
            other => Value::from(Serde(other)),
        }
    }
}

impl Meter {
    /// A list of items that are already paid for.
    pub(super) fn list(&self, items: Vec<Value>) -> Result<Value, Error> {
        self.charge(ENTRY_BYTES)?;
        Ok(self.registry.list(items))
    }

    /// Converts an immutable or lazy sequence to a list. Lazy sequences refer to one another, and would be walked
    /// repeatedly. Tuples stay.
    pub(super) fn settle(&self, value: Value) -> Result<Value, Error> {
        let Some(object) = value.as_object() else {
            return Ok(value);
        };
        let is_sequence = matches!(object.repr(), ObjectRepr::Seq | ObjectRepr::Iterable);
        if !is_sequence || object.downcast_ref::<List>().is_some() || object.downcast_ref::<Tuple>().is_some() {
            return Ok(value);
        }
        self.list(self.items(&value)?)
    }

    /// A separate map with the entries of another.
    pub(super) fn dict(&self, map: &Value) -> Result<Value, Error> {
        self.charge_times(map.len().unwrap_or(0) as u64 + 1, ENTRY_BYTES)?;
        let pairs = map.as_object().and_then(|object| object.try_iter_pairs());
        Ok(self.registry.dict(pairs.into_iter().flatten()))
    }

    /// A list of mutable lists.
    pub(super) fn settle_within(&self, value: Value) -> Result<Value, Error> {
        let items = self.items(&value)?;
        let settled = items.into_iter().map(|item| self.settle(item));
        self.list(settled.collect::<Result<_, _>>()?)
    }

    /// The items of a list, keys of a map or characters of a text.
    fn items(&self, value: &Value) -> Result<Vec<Value>, Error> {
        let length = value.len().unwrap_or(0);
        // The items are held twice for a moment.
        self.charge_times(length as u64, 2 * ITEM_BYTES)?;
        let mut items = Vec::with_capacity(length);
        for item in value.try_iter()?.checked() {
            if items.len() >= length {
                self.charge(GROWN_BYTES)?;
            }
            items.push(item?);
        }
        Ok(items)
    }
}

/// A method that changes, copies or searches a list or map; `None` if the value has no such method.
pub(super) fn call_method(meter: &Meter, value: &Value, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    if let Some(list) = value.downcast_object_ref::<List>() {
        return call_of_list(meter, list, method, args).transpose();
    }
    let dict = value.downcast_object_ref::<Dict>()?;
    call_of_dict(meter, dict, value, method, args).transpose()
}

fn call_of_list(meter: &Meter, list: &List, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if method == "sort" {
        return sort(meter, list, args).map(Some);
    }
    let length = list.length();
    let moved = || meter.charge_search(length.saturating_mul(ITEM_BYTES as usize));
    match (method, args) {
        (_, [.., named]) if named.is_kwargs() && is_of_list(method) => return Err(arguments(method, args)),
        ("append", [item]) => {
            meter.charge(GROWN_BYTES)?;
            meter.look_at(item, Look::Shape)?;
            list.locked(|items| items.push(item.clone()));
        }
        ("extend", [others]) => {
            let mut others = meter.items(others)?;
            for item in &others {
                meter.charge(GROWN_BYTES)?;
                meter.look_at(item, Look::Shape)?;
            }
            list.locked(|items| items.append(&mut others));
        }
        ("insert", [place, item]) => {
            meter.charge(GROWN_BYTES)?;
            moved()?;
            meter.look_at(item, Look::Shape)?;
            let place = whole(method, place)?;
            let place = place_from_end(place, length).unwrap_or(0).min(length);
            list.locked(|items| items.insert(place.min(items.len()), item.clone()));
        }
        ("pop", [] | [_]) => {
            moved()?;
            let place = args.first().map_or(Ok(-1), |place| whole(method, place))?;
            return pop(list, place_from_end(place, length)).map(Some);
        }
        ("remove", [item]) => {
            moved()?;
            let place = place_of(meter, list, item)?;
            pop(list, Some(place))?;
        }
        ("index", [item]) => return place_of(meter, list, item).map(|place| Some(Value::from(place))),
        ("reverse", []) => {
            moved()?;
            list.locked(|items| items.reverse());
        }
        ("clear", []) => drop(list.locked(std::mem::take)),
        ("copy", []) => {
            meter.charge_times(length as u64, ITEM_BYTES)?;
            return meter.list(list.locked(|items| items.clone())).map(Some);
        }
        _ if is_of_list(method) => return Err(arguments(method, args)),
        _ => return Ok(None),
    }
    Ok(Some(Value::from(())))
}

fn is_of_list(method: &str) -> bool {
    matches!(
        method,
        "append" | "extend" | "insert" | "pop" | "remove" | "index" | "reverse" | "clear" | "copy"
    )
}

fn pop(list: &List, place: Option<usize>) -> Result<Value, Error> {
    let item = list.locked(|items| Some(items.remove(place.filter(|place| *place < items.len())?)));
    item.ok_or_else(|| {
        problem(match list.length() {
            0 => "pop from empty list".to_owned(),
            _ => "pop index out of range".to_owned(),
        })
    })
}

/// The index of the first item equal to `item`.
fn place_of(meter: &Meter, list: &List, item: &Value) -> Result<usize, Error> {
    // A copy, because the comparison reads lists, and this one may contain itself.
    let items = list.locked(|items| items.clone());
    meter.charge_times(items.len() as u64, ITEM_BYTES)?;
    for (place, held) in items.iter().enumerate() {
        meter.look_at(held, Look::Compare)?;
        meter.look_at(item, Look::Compare)?;
        if held == item {
            return Ok(place);
        }
    }
    Err(problem("the item is not in the list".to_owned()))
}

/// `list.sort(reverse=…)`: equal items keep their order.
fn sort(meter: &Meter, list: &List, args: &[Value]) -> Result<Value, Error> {
    let named = match args {
        [] => None,
        [named] if named.is_kwargs() => Some(Kwargs::try_from(named.clone())?),
        _ => return Err(arguments("sort", args)),
    };
    let mut is_reversed = false;
    if let Some(named) = named {
        is_reversed = named
            .get::<Option<Value>>("reverse")?
            .is_some_and(|value| value.is_true());
        named.assert_all_used()?;
    }
    let mut items = list.locked(|items| items.clone());
    meter.charge_times(items.len() as u64, ITEM_BYTES)?;
    let rounds = u64::from(items.len().checked_ilog2().unwrap_or(0)) + 1;
    for item in &items {
        let extent = meter.look_at(item, Look::Text)?;
        meter.charge_times(extent.bytes, rounds)?;
    }
    let mut kinds = items.iter().map(sortable_kind);
    let first = kinds.next().flatten();
    if !items.is_empty() && (first.is_none() || kinds.any(|kind| kind != first)) {
        return Err(problem(
            "the items of the list cannot be sorted: not all are of one kind".to_owned(),
        ));
    }
    items.sort_by(|left, right| {
        if is_reversed {
            order(right, left)
        } else {
            order(left, right)
        }
    });
    list.locked(|held| *held = items);
    Ok(Value::from(()))
}

/// The order of two values of the same kind.
fn order(left: &Value, right: &Value) -> Ordering {
    let number = |value: &Value| (value.kind() == ValueKind::Bool).then(|| Value::from(i64::from(value.is_true())));
    let (left_number, right_number) = (number(left), number(right));
    let left = left_number.as_ref().unwrap_or(left);
    left.cmp(right_number.as_ref().unwrap_or(right))
}

/// The kind of a value that Python can order; booleans are numbers.
fn sortable_kind(value: &Value) -> Option<ValueKind> {
    match value.kind() {
        ValueKind::Bool => Some(ValueKind::Number),
        kind @ (ValueKind::Number | ValueKind::String | ValueKind::Seq) => Some(kind),
        _ => None,
    }
}

fn call_of_dict(
    meter: &Meter,
    dict: &Dict,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    let is_named = args.iter().any(Value::is_kwargs);
    match (method, args) {
        ("pop" | "setdefault", _) if is_named => return Err(arguments(method, args)),
        ("update", [] | [_] | [_, _]) => {
            let is_named_last = args.get(1).is_none_or(Value::is_kwargs);
            if !is_named_last {
                return Err(arguments(method, args));
            }
            for others in args {
                for (key, value) in pairs_of(meter, others)? {
                    set(meter, dict, key, value)?;
                }
            }
        }
        ("pop", [key] | [key, _]) => {
            let key = operators::key(meter, key.clone())?;
            let length = dict.locked(|entries| entries.pairs.len());
            meter.charge_times(length as u64, ITEM_BYTES)?;
            let former = dict.locked(|entries| entries.remove(&key));
            return match former.or_else(|| args.get(1).cloned()) {
                Some(value) => Ok(Some(value)),
                None => Err(problem(format!("the map has no key {key:?} to pop"))),
            };
        }
        ("setdefault", [key] | [key, _]) => {
            let key = operators::key(meter, key.clone())?;
            if let Some(value) = dict.locked(|entries| entries.get(&key)) {
                return Ok(Some(value));
            }
            let value = args.get(1).cloned().unwrap_or_else(|| Value::from(()));
            set(meter, dict, key, value.clone())?;
            return Ok(Some(value));
        }
        ("clear", []) => drop(dict.locked(std::mem::take)),
        ("copy", []) => return meter.dict(value).map(Some),
        ("update" | "pop" | "setdefault" | "clear" | "copy", _) => return Err(arguments(method, args)),
        _ => return Ok(None),
    }
    Ok(Some(Value::from(())))
}

fn set(meter: &Meter, dict: &Dict, key: Value, value: Value) -> Result<(), Error> {
    meter.charge(2 * ENTRY_BYTES)?;
    let key = operators::key(meter, key)?;
    meter.look_at(&value, Look::Shape)?;
    let former = dict.locked(|entries| entries.insert(key, value));
    drop(former);
    Ok(())
}

/// The entries of a map, or the pairs of a list.
fn pairs_of(meter: &Meter, value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    if value.kind() == ValueKind::Map {
        meter.charge_times(value.len().unwrap_or(0) as u64, ENTRY_BYTES)?;
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
        return Ok(pairs.into_iter().flatten().collect());
    }
    let pairs = meter.items(value)?.into_iter().map(|pair| {
        let pair = <[Value; 2]>::try_from(meter.items(&pair)?);
        pair.map(|[key, value]| (key, value))
            .map_err(|_| problem("a map is updated by a map or by pairs of a key and a value".to_owned()))
    });
    pairs.collect()
}

/// An integer that can be an index.
fn whole(method: &str, value: &Value) -> Result<i64, Error> {
    i64::try_from(value.clone()).map_err(|_| problem(format!("{method} needs a whole number, not a {}", value.kind())))
}

/// An index; a negative one counts from the end. `None` if it is before the first item.
fn place_from_end(place: i64, length: usize) -> Option<usize> {
    if place >= 0 {
        return Some(usize::try_from(place).unwrap_or(usize::MAX));
    }
    length.checked_sub(usize::try_from(place.unsigned_abs()).unwrap_or(usize::MAX))
}

fn arguments(method: &str, args: &[Value]) -> Error {
    problem(format!("{method} does not take {} arguments of this kind", args.len()))
}

fn problem(text: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}

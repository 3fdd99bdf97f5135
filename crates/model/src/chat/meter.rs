//! Counts the bytes that one render of a chat template writes, copies and compares.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use minijinja::value::{ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::limits::{BASE_BYTES, BYTES_PER_INPUT_BYTE, DEPTH, TemplateLimit};
use super::namespace::{Namespace, Registry};

/// Bytes of one item of a list, and of a map's entry with its key.
pub(super) const ITEM_BYTES: u64 = 24;
pub(super) const ENTRY_BYTES: u64 = 100;

/// Bytes searched or compared for the price of one written byte.
const COMPARED_FOR_ONE: u64 = 16;

/// Longest text of one byte in a printed list: `\u{1b}`.
const ESCAPED_BYTES: u64 = 6;

/// Longest text of a number: a 64-bit float of 309 digits with its fraction.
const NUMBER_BYTES: u64 = 350;

/// The purpose of visiting a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Checks a value's depth, before the value becomes part of another one.
    Shape,
    /// Counts a value's text, before the value is printed, serialised, sorted or hashed.
    Text,
    /// Comparison with another value, or a search in a text.
    Compare,
}

/// Size of a value, including nested values.
#[derive(Clone, Copy, Default)]
pub(super) struct Extent {
    /// Lists, maps, texts and numbers; shared values count each time.
    pub(super) nodes: u64,
    /// Bytes of the value's text.
    pub(super) bytes: u64,
    /// Levels of lists and maps.
    pub(super) depth: u64,
}

impl Extent {
    pub(super) fn add(&mut self, other: Extent) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.depth = self.depth.max(other.depth);
    }
}

/// The budget of one render. The thread that waits for the render can stop it.
#[derive(Debug)]
pub(super) struct Meter {
    limit: u64,
    left: AtomicU64,
    stopped: AtomicBool,
    passed: OnceLock<TemplateLimit>,
    /// The namespaces, lists and maps of the render.
    pub(super) registry: Registry,
}

impl Meter {
    /// A budget for messages and variables of `input_bytes`.
    pub(super) fn new(input_bytes: u64) -> Meter {
        let limit = BASE_BYTES.saturating_add(input_bytes.saturating_mul(BYTES_PER_INPUT_BYTE));
        Meter {
            limit,
            left: AtomicU64::new(limit),
            stopped: AtomicBool::new(false),
            passed: OnceLock::new(),
            registry: Registry::default(),
        }
    }

    /// Makes the next charge fail.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// The first limit that was exceeded.
    pub(super) fn passed(&self) -> Option<&TemplateLimit> {
        self.passed.get()
    }

    /// Takes `bytes` from the budget. Fails if the budget is spent, a limit was exceeded before, or the render is
    /// being stopped.
    pub(super) fn charge(&self, bytes: u64) -> Result<(), Error> {
        if self.stopped.load(Ordering::Relaxed) || self.passed.get().is_some() {
            return Err(refusal());
        }
        // Only one thread renders, so the remaining budget cannot change meanwhile.
        let left = self.left.load(Ordering::Relaxed);
        match left.checked_sub(bytes.saturating_add(1)) {
            Some(left) => {
                self.left.store(left, Ordering::Relaxed);
                Ok(())
            }
            None => Err(self.refuse(TemplateLimit::Bytes { limit: self.limit })),
        }
    }

    /// Charges `count` times `each` bytes.
    pub(super) fn charge_times(&self, count: u64, each: u64) -> Result<(), Error> {
        self.charge(count.saturating_mul(each))
    }

    /// Charges a search through `bytes`, or a comparison of them.
    pub(super) fn charge_search(&self, bytes: usize) -> Result<(), Error> {
        self.charge(bytes as u64 / COMPARED_FOR_ONE)
    }

    /// Ends the render because of a limit.
    pub(super) fn refuse(&self, limit: TemplateLimit) -> Error {
        // The first limit is the reason; later ones are consequences.
        let _ = self.passed.set(limit);
        refusal()
    }

    /// Refuses an argument above `limit`.
    pub(super) fn at_most(&self, function: &str, found: u64, limit: u64) -> Result<(), Error> {
        if found <= limit {
            return Ok(());
        }
        Err(self.refuse(TemplateLimit::Argument {
            function: function.to_owned(),
            found,
            limit,
        }))
    }

    /// Walks through a value and charges for its contents, within the budget.
    pub(super) fn look_at(&self, value: &Value, look: Look) -> Result<Extent, Error> {
        self.look_deeper(value, look, 0)
    }

    fn look_deeper(&self, value: &Value, look: Look, depth: usize) -> Result<Extent, Error> {
        let bytes = match value.kind() {
            ValueKind::String | ValueKind::Bytes => {
                let length = value.as_bytes().map_or(0, <[u8]>::len) as u64;
                match look {
                    Look::Shape => 0,
                    Look::Compare => length / COMPARED_FOR_ONE,
                    // A top-level text is neither quoted nor escaped.
                    Look::Text if depth == 0 => length,
                    Look::Text => length.saturating_mul(ESCAPED_BYTES),
                }
            }
            ValueKind::Number if look == Look::Text && !value.is_integer() => NUMBER_BYTES,
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => return self.look_within(value, look, depth),
            _ => 2 * ITEM_BYTES,
        };
        self.charge(bytes)?;
        Ok(Extent {
            nodes: 1,
            bytes,
            depth: 0,
        })
    }

    fn look_within(&self, value: &Value, look: Look, depth: usize) -> Result<Extent, Error> {
        let Some(object) = value.as_object() else {
            return Ok(Extent::default());
        };
        if look == Look::Shape && object.type_name().ends_with("::Loop") {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "a list, map or namespace cannot hold a loop",
            ));
        }
        // A namespace may change and contain its container: only its current value counts.
        if look == Look::Shape && object.downcast_ref::<Namespace>().is_some() {
            self.charge(ITEM_BYTES)?;
            return Ok(Extent {
                nodes: 1,
                bytes: ITEM_BYTES,
                depth: 0,
            });
        }
        if depth == DEPTH {
            return Err(self.refuse(TemplateLimit::Depth { limit: DEPTH }));
        }
        self.charge(ITEM_BYTES)?;
        let mut extent = Extent {
            nodes: 1,
            bytes: ITEM_BYTES,
            depth: 0,
        };
        if object.repr() == ObjectRepr::Map {
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                extent.add(self.look_deeper(&key, look, depth + 1)?);
                extent.add(self.look_deeper(&value, look, depth + 1)?);
            }
        } else {
            for item in object.try_iter().into_iter().flatten() {
                extent.add(self.look_deeper(&item, look, depth + 1)?);
            }
        }
        extent.depth += 1;
        Ok(extent)
    }
}

fn refusal() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a limit was passed")
}

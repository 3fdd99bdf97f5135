//! A batch in a model on a device, and its rows for attention.

use std::any::Any;
use std::ops::Range;

use riffle_model::{Forward, ModelError};

use crate::DeviceError;

/// A batch on a device, where hidden states stay. A caller that attends on the device takes a layer's queries, keys and
/// values from the [`rows`](Self::rows):
///
/// 1. [`project_rows`](Self::project_rows) projects rows of a layer,
/// 2. [`bring_queries`](Self::bring_queries) copies their queries to main memory, where policies choose by them
///    ([`host_rows`](Self::host_rows)),
/// 3. a call of a [`PageRoom`](crate::PageRoom) writes the result to the rows, or
///    [`send_attended`](Self::send_attended) copies it from main memory,
/// 4. [`Forward::finish`] continues from the rows.
pub trait DeviceForward: Forward {
    /// Queries, keys and values of the layer projected last, and its attention output.
    fn rows(&self) -> &dyn DeviceRows;

    /// Projects some rows of a layer, in the order of [`Forward::project`]. Returns false for a recurrent layer,
    /// which has no attention.
    ///
    /// # Errors
    /// [`ModelError::NoSuchLayer`], [`ModelError::RowsOutOfOrder`], or a failed device.
    fn project_rows(&mut self, layer: usize, rows: Range<usize>) -> Result<bool, ModelError>;

    /// Copies the queries of some rows of the batch to main memory.
    ///
    /// # Errors
    /// A failed device.
    fn bring_queries(&mut self, rows: Range<usize>) -> Result<(), DeviceError>;

    /// The projected rows, with queries [copied](Self::bring_queries) to main memory.
    fn host_rows(&mut self) -> HostRows<'_>;

    /// Copies [`HostRows::attended`] for some rows of the batch to the device.
    ///
    /// # Errors
    /// A failed device.
    fn send_attended(&mut self, rows: Range<usize>) -> Result<(), DeviceError>;
}

/// Queries, keys, values and attention output of one layer's batch on the device. A device accepts only its own rows.
pub trait DeviceRows: Any + Send + Sync {
    /// Rotates the queries of some rows in place, with the same bits as `riffle_attention::rotate_heads`.
    ///
    /// # Errors
    /// A failed device.
    fn rotate_queries(&self, rows: Range<usize>) -> Result<(), DeviceError>;

    /// Rotates the attention output of some rows back, for rotated values.
    ///
    /// # Errors
    /// A failed device.
    fn rotate_attended(&self, rows: Range<usize>) -> Result<(), DeviceError>;
}

/// Copies of the projected rows in main memory.
pub struct HostRows<'a> {
    /// `[rows, heads, head_dim]`.
    pub queries: &'a [f32],
    /// `[rows, heads, head_dim]`: buffer for attention output; [`DeviceForward::send_attended`] copies it to the
    /// device.
    pub attended: &'a mut [f32],
    /// The same rows on the device.
    pub rows: &'a dyn DeviceRows,
}

/// Some rows of a batch on the device.
#[derive(Clone)]
pub struct BatchRows<'a> {
    /// The rows of the whole batch.
    pub rows: &'a dyn DeviceRows,
    /// The selected rows.
    pub range: Range<usize>,
}

impl<'a> BatchRows<'a> {
    /// Rows `range` of a batch.
    pub fn new(rows: &'a dyn DeviceRows, range: Range<usize>) -> Self {
        Self { rows, range }
    }
}

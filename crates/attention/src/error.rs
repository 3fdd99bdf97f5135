use core::fmt;

/// The reason a call was refused. A refused call writes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttendError {
    /// A key width or a value width is zero or not a multiple of [`LANES`](crate::LANES).
    HeadDim {
        /// The width given.
        head_dim: usize,
    },
    /// Two arguments disagree about a size.
    Mismatch {
        /// The sizes compared, for example `"head_dim of queries and of K/V"`.
        what: &'static str,
        /// The size the call needs.
        expected: usize,
        /// The size received.
        found: usize,
    },
    /// A slice is shorter than its shape.
    Short {
        /// Name of the slice.
        what: &'static str,
        /// Elements (bytes for quantised planes) the shape needs.
        needed: usize,
        /// Elements the slice holds.
        found: usize,
    },
    /// Pages are out of order or overlap.
    PageOrder {
        /// Absolute start of the misplaced page.
        start: usize,
    },
    /// A value that must be finite (and positive if it is a size) is not.
    NotFinite {
        /// Name of the value.
        what: &'static str,
    },
    /// A shape with more elements than memory can address.
    TooLarge {
        /// Name of the shape.
        what: &'static str,
    },
    /// An invalid setting.
    Setting {
        /// The setting and its allowed values.
        what: &'static str,
    },
}

impl fmt::Display for AttendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeadDim { head_dim } => write!(
                f,
                "head_dim {head_dim} is not a positive multiple of {}; pad heads with zeros",
                crate::LANES
            ),
            Self::Mismatch { what, expected, found } => {
                write!(f, "{what} differ: need {expected}, got {found}")
            }
            Self::Short { what, needed, found } => {
                write!(f, "{what} holds {found} elements but its shape needs {needed}")
            }
            Self::PageOrder { start } => write!(
                f,
                "page starting at {start} overlaps or precedes the page before it; sort pages by start"
            ),
            Self::NotFinite { what } => write!(f, "{what} must be finite and positive"),
            Self::TooLarge { what } => write!(f, "{what} has more elements than can be addressed"),
            Self::Setting { what } => write!(f, "bad setting: {what}"),
        }
    }
}

impl core::error::Error for AttendError {}

/// Checks that two numbers of a shape agree.
pub(crate) fn expect_equal(what: &'static str, expected: usize, found: usize) -> Result<(), AttendError> {
    if expected == found {
        Ok(())
    } else {
        Err(AttendError::Mismatch { what, expected, found })
    }
}

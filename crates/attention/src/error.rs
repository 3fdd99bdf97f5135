use core::fmt;

/// Why a call was refused. Nothing has been written when one is returned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttendError {
    /// A key width or a value width is zero or not a multiple of [`LANES`](crate::LANES).
    HeadDim {
        /// The width given.
        head_dim: usize,
    },
    /// Two parts of a call disagree about a size.
    Mismatch {
        /// The sizes that were compared, for example `"head_dim of queries and of K/V"`.
        what: &'static str,
        /// The size the call needs.
        expected: usize,
        /// The size it got.
        found: usize,
    },
    /// A slice is shorter than the shape it is read with.
    Short {
        /// Which slice.
        what: &'static str,
        /// Elements (bytes for quantised planes) the shape needs.
        needed: usize,
        /// Elements the slice holds.
        found: usize,
    },
    /// Pages are out of order or overlap.
    PageOrder {
        /// Absolute start of the page that comes too early.
        start: usize,
    },
    /// A value that must be finite (and positive where a size is meant) is not.
    NotFinite {
        /// Which value.
        what: &'static str,
    },
    /// A shape whose element count does not fit in memory's address space.
    TooLarge {
        /// Which shape.
        what: &'static str,
    },
    /// A setting that makes no sense.
    Setting {
        /// Which setting, and what it must be.
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

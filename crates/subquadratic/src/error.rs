use core::fmt;

use riffle_attention::AttendError;

/// The reason a call was refused. A refused call leaves caches and tensors unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubquadraticError {
    /// Two arguments disagree about a size.
    Mismatch {
        /// The compared sizes, for example `"heads of k and v"`.
        what: &'static str,
        /// The size the call needs.
        expected: usize,
        /// The size received.
        found: usize,
    },
    /// A shape with more elements than memory can address.
    TooLarge {
        /// Name of the shape.
        what: &'static str,
    },
    /// A cache of fixed capacity has no room for the tokens appended.
    Full {
        /// Tokens the cache can hold.
        capacity: usize,
        /// Tokens after the append.
        wanted: usize,
    },
    /// Every token of a full cache is protected from eviction.
    AllProtected {
        /// Tokens the cache can hold.
        capacity: usize,
    },
    /// An invalid setting.
    Setting {
        /// The setting and its allowed values.
        what: &'static str,
    },
    /// The kernels refused a call.
    Attend(AttendError),
}

impl fmt::Display for SubquadraticError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch { what, expected, found } => write!(f, "{what} differ: need {expected}, got {found}"),
            Self::TooLarge { what } => write!(f, "{what} has more elements than can be addressed"),
            Self::Full { capacity, wanted } => write!(
                f,
                "cache holds {capacity} tokens and {wanted} are wanted; evict, reset or make it larger"
            ),
            Self::AllProtected { capacity } => write!(
                f,
                "all {capacity} cached tokens are protected; shrink the protected set or enlarge the cache"
            ),
            Self::Setting { what } => write!(f, "bad setting: {what}"),
            Self::Attend(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for SubquadraticError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Attend(error) => error.source(),
            _ => None,
        }
    }
}

impl From<AttendError> for SubquadraticError {
    fn from(error: AttendError) -> Self {
        Self::Attend(error)
    }
}

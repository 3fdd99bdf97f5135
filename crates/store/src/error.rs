/// Why an address is not that of a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A kind of store that is not known.
    #[error("{0}:// is no store of blocks: use s3://BUCKET/PREFIX, valkey://HOST or redis://HOST")]
    Scheme(String),
    /// Something in the address is wrong.
    #[error("{address}: {problem}")]
    Address {
        /// The address without passwords.
        address: String,
        /// The problem and its remedy.
        problem: String,
    },
    /// A kind of store that was left out when the program was built.
    #[error("{what} was left out when this program was built: build it with the feature `{feature}` of riffle-store")]
    NotBuilt {
        /// Which kind.
        what: &'static str,
        /// The feature that brings it.
        feature: &'static str,
    },
}

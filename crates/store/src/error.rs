/// The reason an address is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An unknown kind of store.
    #[error("{0}:// is no store of blocks: use s3://BUCKET/PREFIX, valkey://HOST or redis://HOST")]
    Scheme(String),
    /// An invalid address.
    #[error("{address}: {problem}")]
    Address {
        /// The address without passwords.
        address: String,
        /// The problem and its remedy.
        problem: String,
    },
    /// A kind of store that this build excludes.
    #[error("{what} was left out when this program was built: build it with the feature `{feature}` of riffle-store")]
    NotBuilt {
        /// The kind.
        what: &'static str,
        /// The feature that enables this kind of store.
        feature: &'static str,
    },
}

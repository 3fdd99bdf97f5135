//! Stores in which several processes or machines share KV blocks: S3-compatible buckets, Valkey and Redis.
//!
//! [`open`] turns an address into a [`BlockStore`]; [`riffle_kv::SharedBlocks`] checks blocks, counts, reads ahead and
//! writes in the background. Every operation here ends by its time limit and runs on the calling thread. It uses no
//! more memory than the caller allows. Passwords and keys come from the address or, better, from the usual environment
//! variables, and never appear in messages.
//!
//! ```
//! let environment = |name: &str| (name == "VALKEY_PASSWORD").then(|| "secret".to_owned());
//! let opened = riffle_store::open("valkey://cache.example.org/2?prefix=team&expiry=1d&budget=20G", &environment)?;
//! assert_eq!(opened.store.address(), "valkey://cache.example.org:6379/2?prefix=team");
//! assert_eq!(opened.budget_bytes, Some(20 << 30));
//! # Ok::<(), riffle_store::OpenError>(())
//! ```

mod address;
mod error;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "tls")]
mod tls;
mod valkey;

use std::sync::Arc;
use std::time::Duration;

use riffle_kv::BlockStore;

use address::Address;
pub use error::OpenError;

/// Default time for which blocks are kept.
pub const DEFAULT_EXPIRY: Duration = Duration::from_secs(7 * 24 * 3600);

/// Looks up an environment variable.
pub type Environment<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// A store, and the settings of its address.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The store, not contacted yet.
    pub store: Arc<dyn BlockStore>,
    /// `budget=BYTES`: the most bytes of all its blocks.
    pub budget_bytes: Option<u64>,
    /// `expiry=TIME`: the time for which blocks are kept.
    pub expiry: Duration,
    /// `machines=any`: true to accept pages of machines that round differently.
    pub any_machine: bool,
}

/// True if a text is the address of a store rather than a path.
pub fn is_address(text: &str) -> bool {
    text.contains("://")
}

/// Creates a store from an address, without connecting.
///
/// - `s3://BUCKET[/PREFIX]`, with `region=` and `endpoint=` for services other than Amazon's. Keys come from
///   `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, a web identity, or the machine's role.
/// - `valkey://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, with `prefix=`. `redis://` means the same. `valkeys://` and
///   `rediss://` are encrypted. Without a password in the address, `VALKEY_PASSWORD` or `REDIS_PASSWORD` is used.
///
/// All take `expiry=` (`12h`, `7d`), `budget=` (`200G`) and `machines=any`.
///
/// # Errors
/// [`OpenError`] for any other address.
pub fn open(address: &str, environment: &Environment<'_>) -> Result<Opened, OpenError> {
    let mut address = Address::parse(address)?;
    let budget_bytes = address.take("budget", address::bytes)?;
    let expiry = address.take("expiry", address::duration)?.unwrap_or(DEFAULT_EXPIRY);
    let any_machine = match address.take("machines", |value| Some(value.to_owned()))?.as_deref() {
        None | Some("same") => false,
        Some("any") => true,
        Some(other) => return Err(address.wrong(format!("machines={other}: give any or same"))),
    };
    let store: Arc<dyn BlockStore> = match address.scheme.as_str() {
        "valkey" | "redis" | "valkeys" | "rediss" => Arc::new(valkey::Valkey::open(&mut address, environment, expiry)?),
        #[cfg(feature = "s3")]
        "s3" => Arc::new(s3::Bucket::open(&mut address, environment)?),
        #[cfg(not(feature = "s3"))]
        "s3" => {
            return Err(OpenError::NotBuilt {
                what: "s3://",
                feature: "s3",
            });
        }
        other => return Err(OpenError::Scheme(other.to_owned())),
    };
    address.check_all_taken()?;
    Ok(Opened {
        store,
        budget_bytes,
        expiry,
        any_machine,
    })
}

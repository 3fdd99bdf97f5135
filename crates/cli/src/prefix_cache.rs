//! `--prefix-cache`: a folder, a store that other machines share, or both.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use riffle_engine::{DEFAULT_PREFIX_CACHE_BYTES, PrefixCacheOptions, SharedStoreOptions};

use crate::commands::check_folder;
use crate::failure::Failure;
use crate::numbers;

/// Options of every command that keeps beginnings of prompts.
#[derive(Debug, Clone, Args)]
pub(crate) struct PrefixCacheArguments {
    /// Keep beginnings of prompts in this folder or store, to read each once; one of each may be given
    ///
    /// Other processes find them there too. A store serves several machines: s3://BUCKET/PREFIX, valkey://HOST[:PORT]
    /// or redis://HOST[:PORT], with ?expiry=7d&budget=200G. Keys and passwords come from AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, VALKEY_PASSWORD or REDIS_PASSWORD.
    #[arg(
        long,
        value_name = "PLACE",
        help_heading = "Sessions and caches",
        hide_short_help = true
    )]
    pub(crate) prefix_cache: Vec<OsString>,
    /// Maximum bytes of pages in the folder; the least recently used go first [default: 8G]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes, requires = "prefix_cache", help_heading = "Sessions and caches", hide_short_help = true)]
    pub(crate) prefix_cache_budget: Option<u64>,
    /// Seconds to wait for another machine to store a block of the prompt, before reading it here
    ///
    /// This helps a machine that mainly answers, if another one reads the same prompts.
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "prefix_cache",
        help_heading = "Sessions and caches",
        hide_short_help = true
    )]
    pub(crate) prefix_cache_wait: Option<u64>,
}

/// Prompt caches: a folder, and a shared store.
#[derive(Debug, Clone, Default)]
pub(crate) struct PrefixCaches {
    pub(crate) folder: Option<PrefixCacheOptions>,
    pub(crate) store: Option<SharedStoreOptions>,
}

impl PrefixCaches {
    pub(crate) fn is_empty(&self) -> bool {
        self.folder.is_none() && self.store.is_none()
    }
}

impl PrefixCacheArguments {
    /// The places, checked without a connection to a store.
    pub(crate) fn places(&self) -> Result<PrefixCaches, Failure> {
        let mut places = PrefixCaches::default();
        for place in &self.prefix_cache {
            match place.to_str().filter(|text| text.contains("://")) {
                Some(address) if places.store.is_none() => places.store = Some(self.store(address)?),
                None if places.folder.is_none() => {
                    let folder = PathBuf::from(place);
                    check_folder("--prefix-cache", Some(&folder))?;
                    places.folder = Some(PrefixCacheOptions {
                        folder,
                        budget_bytes: self.prefix_cache_budget.unwrap_or(DEFAULT_PREFIX_CACHE_BYTES),
                    });
                }
                _ => {
                    return Err(Failure::new(
                        "--prefix-cache takes one folder and one store at most: leave the others out",
                    ));
                }
            }
        }
        if places.folder.is_none() && self.prefix_cache_budget.is_some() {
            return Err(Failure::new(
                "--prefix-cache-budget is that of a folder: write a store's into its address, for example ?budget=200G",
            ));
        }
        if places.store.is_none() && self.prefix_cache_wait.is_some() {
            return Err(Failure::new(
                "--prefix-cache-wait needs a store that others publish to: --prefix-cache valkey://HOST or s3://BUCKET",
            ));
        }
        Ok(places)
    }

    #[cfg(feature = "share")]
    fn store(&self, address: &str) -> Result<SharedStoreOptions, Failure> {
        let opened = riffle_store::open(address, &|name| std::env::var(name).ok())
            .map_err(|error| Failure::new(format!("--prefix-cache: {error}")))?;
        Ok(SharedStoreOptions {
            store: opened.store,
            use_as: riffle_kv::SharedOptions {
                wait: std::time::Duration::from_secs(self.prefix_cache_wait.unwrap_or(0)),
                budget_bytes: opened.budget_bytes,
                expiry: Some(opened.expiry),
                ..riffle_kv::SharedOptions::default()
            },
            any_machine: opened.any_machine,
        })
    }

    #[cfg(not(feature = "share"))]
    fn store(&self, _: &str) -> Result<SharedStoreOptions, Failure> {
        Err(Failure::new(
            "--prefix-cache: stores were left out when this program was built: build it with the feature `share`",
        ))
    }
}

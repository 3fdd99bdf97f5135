//! S3 buckets and compatible services, through the crate `object_store`.

mod crypto;
mod http;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, Error, GetOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use riffle_kv::{BlockStore, StoreError, StoredItem};

use crate::address::Address;
use crate::{Environment, OpenError};
use crypto::Crypto;
use http::{Connector, Limits};

/// Names checked concurrently.
const NAMES: usize = 16;
/// Largest answer other than a block, in bytes.
const ANSWER_BYTES: usize = 16 << 20;

/// A bucket, or a prefix in it.
#[derive(Debug)]
pub(crate) struct Bucket {
    address: String,
    prefix: String,
    store: Arc<AmazonS3>,
}

impl Bucket {
    pub(crate) fn open(address: &mut Address, environment: &Environment<'_>) -> Result<Self, OpenError> {
        let named = format!("s3://{}/{}", address.host, address.path);
        let mut builder = AmazonS3Builder::new().with_bucket_name(&address.host);
        for (name, key) in variables() {
            if let Some(value) = environment(name).filter(|value| !value.is_empty()) {
                builder = builder.with_config(key, value);
            }
        }
        if let Some(region) = address.take("region", |region| Some(region.to_owned()))? {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = address.take("endpoint", |endpoint| Some(endpoint.to_owned()))? {
            builder = builder.with_endpoint(endpoint);
        }
        // An address with http:// requests an unencrypted connection.
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
            builder = builder.with_allow_http(true);
        }
        let connector = Connector::new().map_err(|error| address.wrong(error.to_string()))?;
        let store = builder
            .with_http_connector(connector)
            .with_crypto_provider(Arc::new(Crypto))
            .with_retry(RetryConfig {
                backoff: BackoffConfig {
                    init_backoff: Duration::from_millis(50),
                    ..BackoffConfig::default()
                },
                max_retries: 1,
                retry_timeout: Duration::from_secs(5),
            })
            .build()
            .map_err(|error| address.wrong(error.to_string()))?;
        Ok(Self {
            address: named,
            prefix: address.path.clone(),
            store: Arc::new(store),
        })
    }

    fn path(&self, name: &str) -> Path {
        match self.prefix.as_str() {
            "" => Path::from(name),
            prefix => Path::from(format!("{prefix}/{name}")),
        }
    }

    fn is_there(&self, name: &str, until: Instant) -> Result<bool, StoreError> {
        let path = self.path(name);
        let head = run(until, ANSWER_BYTES, async {
            let options = GetOptions {
                head: true,
                ..GetOptions::default()
            };
            self.store.get_opts(&path, options).await
        });
        Ok(found(head)?.is_some())
    }
}

impl BlockStore for Bucket {
    fn address(&self) -> &str {
        &self.address
    }

    fn names_per_question(&self) -> usize {
        NAMES
    }

    fn contains(&self, names: &[String], until: Instant) -> Result<Vec<bool>, StoreError> {
        let mut there = Vec::with_capacity(names.len());
        for names in names.chunks(NAMES) {
            let answers: Vec<Result<bool, StoreError>> = std::thread::scope(|scope| {
                let ask = |name| move || self.is_there(name, until);
                let (first, others) = match names.split_first() {
                    Some(split) => split,
                    None => return Vec::new(),
                };
                let asked: Vec<_> = others.iter().map(|name| scope.spawn(ask(name))).collect();
                let mut answers = vec![self.is_there(first, until)];
                let failed = || Err(StoreError::Wrong("a question ended in a panic".to_owned()));
                answers.extend(asked.into_iter().map(|asked| asked.join().unwrap_or_else(|_| failed())));
                answers
            });
            there.extend(answers.into_iter().collect::<Result<Vec<bool>, StoreError>>()?);
        }
        Ok(there)
    }

    fn get(&self, name: &str, most_bytes: usize, until: Instant) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.path(name);
        let bytes = run(until, most_bytes, async { self.store.get(&path).await?.bytes().await });
        Ok(found(bytes)?.map(Vec::from))
    }

    fn put(&self, name: &str, bytes: Vec<u8>, until: Instant) -> Result<(), StoreError> {
        let path = self.path(name);
        run(until, ANSWER_BYTES, async { self.store.put(&path, bytes.into()).await })?
            .map_err(|error| refused(&error))?;
        Ok(())
    }

    fn list(&self, until: Instant, each: &mut dyn FnMut(StoredItem)) -> Result<(), StoreError> {
        let prefix = (!self.prefix.is_empty()).then(|| Path::from(self.prefix.as_str()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let listed = run(until, ANSWER_BYTES, async {
            let mut items = self.store.list(prefix.as_ref());
            while let Some(item) = items.next().await {
                let item = item?;
                let written = Duration::from_secs(u64::try_from(item.last_modified.timestamp()).unwrap_or(0));
                each(StoredItem {
                    name: item.location.filename().unwrap_or_default().to_owned(),
                    bytes: item.size,
                    age: now.saturating_sub(written),
                });
            }
            Ok(())
        });
        listed?.map_err(|error| refused(&error))
    }

    fn remove(&self, names: &[String], until: Instant) -> Result<(), StoreError> {
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        let removed = run(until, ANSWER_BYTES, async {
            let mut removed = self.store.delete_stream(futures_util::stream::iter(paths).boxed());
            while let Some(path) = removed.next().await {
                match path {
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        removed?.map_err(|error| refused(&error))
    }
}

/// The environment variables of AWS's own tools that apply here.
fn variables() -> [(&'static str, AmazonS3ConfigKey); 13] {
    use AmazonS3ConfigKey as Key;
    [
        ("AWS_ACCESS_KEY_ID", Key::AccessKeyId),
        ("AWS_SECRET_ACCESS_KEY", Key::SecretAccessKey),
        ("AWS_SESSION_TOKEN", Key::Token),
        ("AWS_DEFAULT_REGION", Key::DefaultRegion),
        ("AWS_REGION", Key::Region),
        ("AWS_ENDPOINT_URL", Key::Endpoint),
        ("AWS_ENDPOINT_URL_S3", Key::Endpoint),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", Key::WebIdentityTokenFile),
        ("AWS_ROLE_ARN", Key::RoleArn),
        ("AWS_ROLE_SESSION_NAME", Key::RoleSessionName),
        (
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            Key::ContainerCredentialsRelativeUri,
        ),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", Key::ContainerCredentialsFullUri),
        (
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
            Key::ContainerAuthorizationTokenFile,
        ),
    ]
}

/// Runs work of the crate on this thread, within its limits.
fn run<T>(
    until: Instant,
    most_bytes: usize,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<Result<T, Error>, StoreError> {
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| StoreError::Refused(error.to_string()))?;
    let limits = Limits::set(until, most_bytes);
    let timed = runtime.block_on(async { tokio::time::timeout_at(until.into(), work).await });
    let late = || StoreError::TimedOut(until.saturating_duration_since(began));
    match timed {
        Err(_) => Err(late()),
        Ok(Err(_)) if Instant::now() >= until => Err(late()),
        Ok(Err(_)) if limits.was_too_long() => Err(StoreError::Wrong(format!("more than {most_bytes} bytes"))),
        Ok(answer) => Ok(answer),
    }
}

/// Turns a store's "not found" into `None`.
fn found<T>(answer: Result<Result<T, Error>, StoreError>) -> Result<Option<T>, StoreError> {
    match answer? {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(refused(&error)),
    }
}

/// One line with the innermost reason, because the crate's own text is repetitive.
fn refused(error: &Error) -> StoreError {
    let mut reason: &dyn std::error::Error = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    let reason: String = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let short: String = reason.chars().take(300).collect();
    match error {
        Error::PermissionDenied { .. } => StoreError::Refused(format!("no permission: {short}")),
        Error::Unauthenticated { .. } => StoreError::Refused(format!("wrong or no keys: {short}")),
        _ => StoreError::Unreachable(short),
    }
}

//! Servers with the Redis protocol: Valkey, Redis and others.

mod connection;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use riffle_kv::{BlockStore, StoreError, StoredItem};

use crate::address::Address;
use crate::{Environment, OpenError};
use connection::{Connection, Reply, Server};

const PORT: u16 = 6379;
/// Default prefix of names.
const DEFAULT_PREFIX: &str = "riffle";
/// Maximum number of names of one request.
const NAMES: usize = 512;
/// Maximum number of idle connections.
const MOST_IDLE: usize = 16;
/// Largest answer other than a block, in bytes.
const ANSWER_BYTES: usize = 1 << 20;

/// A server, with its idle connections.
#[derive(Debug)]
pub(crate) struct Valkey {
    address: String,
    server: Server,
    prefix: String,
    /// Time for which the server keeps a block after its last write or read.
    expiry: Duration,
    idle: Mutex<Vec<Connection>>,
}

impl Valkey {
    pub(crate) fn open(
        address: &mut Address,
        environment: &Environment<'_>,
        expiry: Duration,
    ) -> Result<Self, OpenError> {
        let encrypted = matches!(address.scheme.as_str(), "valkeys" | "rediss");
        if encrypted && !cfg!(feature = "tls") {
            return Err(OpenError::NotBuilt {
                what: "an encrypted connection",
                feature: "tls",
            });
        }
        let prefix = address.take("prefix", |prefix| (!prefix.is_empty()).then(|| prefix.to_owned()))?;
        let prefix = prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        if prefix.contains(['*', '?', '[', ']', '\\']) {
            return Err(address.wrong("prefix= may not have any of * ? [ ] \\"));
        }
        let database = match address.path.as_str() {
            "" => 0,
            path => path
                .parse::<u32>()
                .map_err(|_| address.wrong("what follows the host is the number of a database, such as /0"))?,
        };
        let first = |names: [&str; 2]| {
            names
                .into_iter()
                .find_map(environment)
                .filter(|value| !value.is_empty())
        };
        let server = Server {
            host: address.host.clone(),
            port: address.port.unwrap_or(PORT),
            encrypted,
            user: address
                .user
                .clone()
                .or_else(|| first(["VALKEY_USERNAME", "REDIS_USERNAME"])),
            password: address
                .password
                .clone()
                .or_else(|| first(["VALKEY_PASSWORD", "REDIS_PASSWORD"])),
            database,
        };
        Ok(Self {
            address: format!(
                "{}://{}:{}/{database}?prefix={prefix}",
                address.scheme, server.host, server.port
            ),
            server,
            prefix,
            expiry,
            idle: Mutex::default(),
        })
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}:{name}", self.prefix).into_bytes()
    }

    /// Sends commands together and reads their replies in order. A connection that the server has closed is replaced.
    fn ask(&self, commands: &[Vec<&[u8]>], most_bytes: usize, until: Instant) -> Result<Vec<Reply>, StoreError> {
        let idle = lock(&self.idle).pop();
        if let Some(mut connection) = idle {
            match connection.ask(commands, most_bytes, until) {
                Ok(replies) => return self.give_back(connection, replies),
                Err(StoreError::Unreachable(_)) if Instant::now() < until => {}
                Err(error) => return Err(error),
            }
        }
        let mut connection = Connection::open(&self.server, until)?;
        let replies = connection.ask(commands, most_bytes, until)?;
        self.give_back(connection, replies)
    }

    fn give_back(&self, connection: Connection, replies: Vec<Reply>) -> Result<Vec<Reply>, StoreError> {
        let mut idle = lock(&self.idle);
        if idle.len() < MOST_IDLE {
            idle.push(connection);
        }
        Ok(replies)
    }

    fn ask_one(&self, command: Vec<&[u8]>, most_bytes: usize, until: Instant) -> Result<Reply, StoreError> {
        let mut replies = self.ask(&[command], most_bytes, until)?;
        match replies.pop() {
            Some(Reply::Error(problem)) => Err(StoreError::Refused(problem)),
            Some(reply) => Ok(reply),
            None => Err(StoreError::Wrong("no reply".to_owned())),
        }
    }

    /// Lengths and remaining milliseconds of keys.
    fn describe(&self, keys: &[Vec<u8>], until: Instant, each: &mut dyn FnMut(StoredItem)) -> Result<(), StoreError> {
        let lengths = keys.iter().map(|key| vec![&b"STRLEN"[..], key.as_slice()]);
        let times = keys.iter().map(|key| vec![&b"PTTL"[..], key.as_slice()]);
        let commands: Vec<Vec<&[u8]>> = lengths.chain(times).collect();
        let replies = self.ask(&commands, ANSWER_BYTES, until)?;
        let (lengths, times) = replies.split_at(keys.len());
        for ((key, length), time) in keys.iter().zip(lengths).zip(times) {
            let (Reply::Integer(bytes), Reply::Integer(left_ms)) = (length, time) else {
                continue;
            };
            let name = key.strip_prefix(&*self.key("")).map(String::from_utf8_lossy);
            let (Some(name), Ok(bytes @ 1..)) = (name, u64::try_from(*bytes)) else {
                continue;
            };
            // Without an expiry, the server does not report the last use.
            let left = Duration::from_millis(u64::try_from(*left_ms).unwrap_or(0));
            each(StoredItem {
                name: name.into_owned(),
                bytes,
                age: self.expiry.saturating_sub(left),
            });
        }
        Ok(())
    }
}

impl BlockStore for Valkey {
    fn address(&self) -> &str {
        &self.address
    }

    fn names_per_question(&self) -> usize {
        NAMES
    }

    fn contains(&self, names: &[String], until: Instant) -> Result<Vec<bool>, StoreError> {
        let mut there = Vec::with_capacity(names.len());
        for names in names.chunks(NAMES) {
            let keys: Vec<Vec<u8>> = names.iter().map(|name| self.key(name)).collect();
            let commands: Vec<Vec<&[u8]>> = keys.iter().map(|key| vec![&b"EXISTS"[..], key.as_slice()]).collect();
            for reply in self.ask(&commands, ANSWER_BYTES, until)? {
                match reply {
                    Reply::Integer(count) => there.push(count > 0),
                    Reply::Error(problem) => return Err(StoreError::Refused(problem)),
                    _ => return Err(StoreError::Wrong("EXISTS gave no number".to_owned())),
                }
            }
        }
        Ok(there)
    }

    fn get(&self, name: &str, most_bytes: usize, until: Instant) -> Result<Option<Vec<u8>>, StoreError> {
        let (key, expiry) = (self.key(name), self.expiry.as_millis().to_string());
        // GETEX restarts the expiry, so blocks in use stay.
        let command = vec![&b"GETEX"[..], &key[..], &b"PX"[..], expiry.as_bytes()];
        match self.ask_one(command, most_bytes, until)? {
            Reply::Bytes(bytes) => Ok(Some(bytes)),
            Reply::Nothing => Ok(None),
            _ => Err(StoreError::Wrong("GETEX gave no bytes".to_owned())),
        }
    }

    fn put(&self, name: &str, bytes: Vec<u8>, until: Instant) -> Result<(), StoreError> {
        let (key, expiry) = (self.key(name), self.expiry.as_millis().to_string());
        let command = vec![&b"SET"[..], &key[..], &bytes[..], &b"PX"[..], expiry.as_bytes()];
        match self.ask_one(command, ANSWER_BYTES, until)? {
            Reply::Text(text) if text == "OK" => Ok(()),
            _ => Err(StoreError::Wrong("SET was not answered by OK".to_owned())),
        }
    }

    fn list(&self, until: Instant, each: &mut dyn FnMut(StoredItem)) -> Result<(), StoreError> {
        let pattern = self.key("*");
        let mut cursor = b"0".to_vec();
        loop {
            let command = vec![
                &b"SCAN"[..],
                &cursor[..],
                &b"MATCH"[..],
                &pattern[..],
                &b"COUNT"[..],
                &b"1000"[..],
            ];
            let Reply::Many(parts) = self.ask_one(command, ANSWER_BYTES, until)? else {
                return Err(StoreError::Wrong("SCAN gave no list".to_owned()));
            };
            let mut parts = parts.into_iter();
            let (Some(Reply::Bytes(next)), Some(Reply::Many(keys))) = (parts.next(), parts.next()) else {
                return Err(StoreError::Wrong("SCAN gave another list".to_owned()));
            };
            let keys = keys.into_iter().filter_map(|key| match key {
                Reply::Bytes(key) => Some(key),
                _ => None,
            });
            let keys: Vec<Vec<u8>> = keys.collect();
            self.describe(&keys, until, each)?;
            if next == b"0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    fn remove(&self, names: &[String], until: Instant) -> Result<(), StoreError> {
        for names in names.chunks(NAMES) {
            let keys: Vec<Vec<u8>> = names.iter().map(|name| self.key(name)).collect();
            let command = std::iter::once(&b"UNLINK"[..]).chain(keys.iter().map(Vec::as_slice));
            self.ask_one(command.collect(), ANSWER_BYTES, until)?;
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

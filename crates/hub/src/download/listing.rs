//! Files of a repository, as the hub lists them.

use std::collections::HashMap;

use serde::Deserialize;

use super::OnProgress;
use super::address::Address;
use super::client::{Answer, Client, Trouble};
use super::sum::Sum;
use super::watch::Watch;
use crate::cache::is_commit;
use crate::paths::is_plain_path;
use crate::progress::Progress;
use crate::{HubError, ModelName};

/// A repository's files at one commit.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    files: Vec<Listed>,
}

/// A downloadable file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// Expected checksum of the bytes.
    pub(crate) sum: Sum,
}

/// A file in the hub's listing.
#[derive(Debug)]
struct Listed {
    path: String,
    bytes: u64,
    /// `None` if the hub states no checksum.
    sum: Option<Sum>,
}

/// Limits on a repository's files, on the pages of its list, and on the bytes of one answer. A page has 1,000
/// entries.
const MOST_FILES: usize = 200_000;
const MOST_PAGES: usize = 500;
const LARGEST_ANSWER: usize = 32 << 20;

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<LargeFile>,
}

/// A file stored by Git LFS.
#[derive(Deserialize)]
struct LargeFile {
    oid: String,
    size: u64,
}

impl Listing {
    /// Requests the latest commit and its files from the hub.
    pub(crate) fn ask(
        client: &Client,
        name: &ModelName,
        progress: &mut Progress,
        on_progress: &mut OnProgress<'_>,
    ) -> Result<Self, HubError> {
        let mut tell = |progress: &Progress| on_progress(progress);
        let mut watch = Watch::new(progress.clone(), &mut tell);
        let commit = client.with_tries(&mut watch, &mut |watch| latest_commit(client, watch))?;
        let mut next = Some(client.api(&format!("tree/{commit}?recursive=true&expand=false")));
        let mut files = Vec::new();
        let mut pages = 0;
        let too_long = |problem: String| HubError::NoModel {
            repository: name.repository(),
            problem,
        };
        while let Some(address) = next {
            let (page, following) = client.with_tries(&mut watch, &mut |watch| page(client, &address, watch))?;
            next = following;
            files.extend(page);
            pages += 1;
            if files.len() > MOST_FILES {
                return Err(too_long(format!("it has more than {MOST_FILES} files")));
            }
            if pages == MOST_PAGES && next.is_some() {
                return Err(too_long(format!(
                    "the list of its files has more than {MOST_PAGES} pages"
                )));
            }
        }
        Ok(Self { commit, files })
    }

    pub(crate) fn paths(&self) -> Vec<&str> {
        self.files.iter().map(|file| file.path.as_str()).collect()
    }

    /// Bytes of all files whose paths `is_meant` accepts.
    pub(crate) fn bytes_of(&self, is_meant: impl Fn(&str) -> bool) -> u64 {
        let meant = self.files.iter().filter(|file| is_meant(&file.path));
        meant.fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// The files with these paths, in the same order.
    ///
    /// # Errors
    /// [`HubError::NoModel`] for a missing path, or a file without a checksum.
    pub(crate) fn files(&self, name: &ModelName, paths: &[String]) -> Result<Vec<RemoteFile>, HubError> {
        let by_path: HashMap<&str, &Listed> = self.files.iter().map(|file| (file.path.as_str(), file)).collect();
        let no_model = |problem: String| HubError::NoModel {
            repository: name.repository(),
            problem,
        };
        let found = paths.iter().map(|path| {
            let file = by_path.get(path.as_str());
            let file = file.ok_or_else(|| no_model(format!("{path} is missing there")))?;
            let sum = file.sum.clone();
            Ok(RemoteFile {
                path: file.path.clone(),
                bytes: file.bytes,
                sum: sum.ok_or_else(|| no_model(format!("the hub states no sum of {path}")))?,
            })
        });
        found.collect()
    }
}

fn latest_commit(client: &Client, watch: &mut Watch<'_>) -> Result<String, Trouble> {
    let answer = client.ask(&client.api("revision/main"), 0, watch)?;
    let revision: Revision = json(&answer, watch)?;
    if is_commit(&revision.sha) {
        Ok(revision.sha)
    } else {
        Err(answer.refused("it names no commit; HF_ENDPOINT may not be a hub".to_owned()))
    }
}

/// A page of the list, and the address of the next one.
fn page(client: &Client, address: &Address, watch: &mut Watch<'_>) -> Result<(Vec<Listed>, Option<Address>), Trouble> {
    let answer = client.ask(address, 0, watch)?;
    let entries: Vec<Entry> = json(&answer, watch)?;
    let mut files = Vec::new();
    for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
        if !is_plain_path(&entry.path) {
            return Err(answer.refused(format!(
                "it lists a file named {:?}, which could lie outside of the model's folder",
                entry.path
            )));
        }
        if client.is_token_in(&entry.path) {
            return Err(answer.refused("it lists a file whose name holds your token".to_owned()));
        }
        let (bytes, sum) = match entry.lfs {
            Some(large) => (large.size, Sum::sha256(&large.oid)),
            None => (entry.size, Sum::git(&entry.oid)),
        };
        files.push(Listed {
            path: entry.path,
            bytes,
            sum,
        });
    }
    let next = answer.head.header("link").and_then(next_of);
    let next = next.and_then(|next| answer.address.join(next));
    match next {
        Some(next) if !client.is_hub(&next) => Err(answer.refused(format!("its list goes on at {}", next.host()))),
        next => Ok((files, next)),
    }
}

/// The address in `<…>; rel="next"`.
fn next_of(link: &str) -> Option<&str> {
    link.split(',').find_map(|part| {
        let (address, about) = part.trim().strip_prefix('<')?.split_once('>')?;
        about.contains("rel=\"next\"").then_some(address)
    })
}

fn json<T: for<'a> Deserialize<'a>>(answer: &Answer, watch: &mut Watch<'_>) -> Result<T, Trouble> {
    let body = answer.read(LARGEST_ANSWER, watch)?;
    let stated: Option<usize> = answer
        .head
        .header("content-length")
        .and_then(|length| length.parse().ok());
    if stated.is_some_and(|stated| stated > body.len()) {
        return Err(answer.trouble("the connection was cut".to_owned()));
    }
    let is_no_hub = "it is not what a hub answers; HF_ENDPOINT may not be a hub";
    serde_json::from_slice(&body).map_err(|error| answer.refused(format!("{is_no_hub} ({error})")))
}

//! A server for the hub's protocol, with injected faults.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The commit of every repository on this server.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Git LFS stores files of at least this length.
const LARGE: usize = 1000;

/// A request of a client.
#[derive(Debug, Clone)]
pub struct HubRequest {
    /// Path of the request, with the query.
    pub path: String,
    /// Headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
}

impl HubRequest {
    /// A header by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// True if the request asks for the content of a file.
    pub fn is_for(&self, file: &str) -> bool {
        self.path.ends_with(&format!("/{file}")) && !self.path.contains("/api/")
    }
}

/// Fault of an answer.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Closes the connection after this many bytes of the body.
    Cut(usize),
    /// Sends no more data after this many bytes and keeps the connection open.
    Silence(usize),
    /// Sends pieces of this many bytes, ten milliseconds apart.
    Slow(usize),
    /// Sends another status, with headers.
    Status(u16, Vec<(&'static str, String)>),
    /// Sends the whole file instead of the requested range.
    NoRange,
    /// Sends a range that starts at another byte.
    OtherRange(u64),
    /// Sends other bytes of the same length.
    OtherBytes,
    /// Sends a body whose length differs from the listing.
    OtherLength(usize),
    /// Sends this body with status 200.
    Body(String),
    /// Sends this body with status 200 and a link to more.
    Linked(String, String),
    /// Sends a line that is not HTTP.
    Noise,
}

/// Selects the fault of a numbered request.
pub type Faults = Box<dyn FnMut(&HubRequest, usize) -> Option<Fault> + Send>;

/// Contents and behaviour of the server.
pub struct State {
    /// The one repository, as `owner/model`.
    pub repository: String,
    /// Files of the repository, by path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// All requests so far.
    pub log: Vec<HubRequest>,
    /// Called for each request with its number from 0.
    pub faults: Faults,
    /// Redirect target for large files.
    pub storage: Option<String>,
    /// Entries of a page of the list.
    pub page: usize,
}

/// A hub on its own port, until the process ends.
pub struct Hub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Hub {
    /// Starts a hub with one repository of these files.
    pub fn start(files: &[(&str, Vec<u8>)]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State {
            repository: "owner/model".to_owned(),
            files: files
                .iter()
                .map(|(path, bytes)| ((*path).to_owned(), bytes.clone()))
                .collect(),
            log: Vec::new(),
            faults: Box::new(|_, _| None),
            storage: None,
            page: 1000,
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || {
                    // A closed connection ends its thread.
                    let _ = converse(&stream, &state, address);
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, state }
    }

    /// The server's address.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The server's state, to read and to change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Forgets earlier requests; `faults` selects the faults of later answers.
    pub fn faults(&self, faults: impl FnMut(&HubRequest, usize) -> Option<Fault> + Send + 'static) {
        let mut state = self.state();
        state.log.clear();
        state.faults = Box::new(faults);
    }

    /// Requests for a file so far.
    pub fn asked_for(&self, file: &str) -> Vec<HubRequest> {
        let state = self.state();
        state.log.iter().filter(|asked| asked.is_for(file)).cloned().collect()
    }
}

/// Bytes without a pattern, so that a shift changes them.
pub fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// The name of a file's blob in a cache.
pub fn sum(content: &[u8]) -> String {
    let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if content.len() >= LARGE {
        digits(&Sha256::digest(content))
    } else {
        let header = format!("blob {}\0", content.len());
        digits(&Sha1::new().chain_update(header).chain_update(content).finalize())
    }
}

fn converse(stream: &TcpStream, state: &Mutex<State>, address: SocketAddr) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream);
    loop {
        let Some(asked) = request(&mut lines)? else {
            return Ok(());
        };
        let (fault, answer) = {
            let mut state = state.lock().expect("no panic");
            let number = state.log.len();
            state.log.push(asked.clone());
            let fault = (state.faults)(&asked, number);
            (fault.clone(), answer(&state, &asked, fault.as_ref(), address))
        };
        match fault {
            Some(Fault::Noise) => return (&*stream).write_all(b"what?\r\n\r\n"),
            Some(Fault::Cut(after)) => return send(stream, &answer, after),
            Some(Fault::Silence(after)) => {
                send(stream, &answer, after)?;
                thread::sleep(Duration::from_secs(20));
                return Ok(());
            }
            Some(Fault::Slow(piece)) => send_slowly(stream, &answer, piece)?,
            _ => send(stream, &answer, usize::MAX)?,
        }
    }
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

fn send(mut stream: &TcpStream, answer: &Answer, body_bytes: usize) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Status\r\n", answer.status);
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", answer.body.len());
    // One write for header and body, because the client would delay a separate body.
    let mut sent = head.into_bytes();
    sent.extend_from_slice(&answer.body[..body_bytes.min(answer.body.len())]);
    stream.write_all(&sent)
}

fn send_slowly(mut stream: &TcpStream, answer: &Answer, piece: usize) -> std::io::Result<()> {
    send(stream, answer, 0)?;
    for bytes in answer.body.chunks(piece) {
        thread::sleep(Duration::from_millis(10));
        stream.write_all(bytes)?;
    }
    Ok(())
}

fn request(lines: &mut impl BufRead) -> std::io::Result<Option<HubRequest>> {
    let mut line = String::new();
    if lines.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            return Ok(Some(HubRequest { path, headers }));
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
}

fn answer(state: &State, asked: &HubRequest, fault: Option<&Fault>, address: SocketAddr) -> Answer {
    let plain = |status, body: String| Answer {
        status,
        headers: Vec::new(),
        body: body.into_bytes(),
    };
    match fault {
        Some(Fault::Status(status, headers)) => {
            let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            return Answer {
                headers: headers.collect(),
                ..plain(*status, "{\"error\":\"a fault\"}".to_owned())
            };
        }
        Some(Fault::Body(body)) => return plain(200, body.clone()),
        Some(Fault::Linked(body, link)) => {
            let link = format!("<{link}>; rel=\"next\"");
            return Answer {
                headers: vec![("link".to_owned(), link)],
                ..plain(200, body.clone())
            };
        }
        _ => {}
    }
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    if path == format!("/api/models/{}/revision/main", state.repository) {
        return plain(200, format!("{{\"sha\":\"{COMMIT}\",\"id\":\"{}\"}}", state.repository));
    }
    if path == format!("/api/models/{}/tree/{COMMIT}", state.repository) {
        return list(state, query, address);
    }
    let file = path
        .strip_prefix(&format!("/{}/resolve/{COMMIT}/", state.repository))
        .or_else(|| path.strip_prefix("/storage/"));
    let file = file.map(|file| file.replace("%20", " ")).unwrap_or_default();
    let Some(content) = state.files.get(&file) else {
        let not_found = ("X-Error-Code".to_owned(), "RepoNotFound".to_owned());
        return Answer {
            headers: vec![not_found],
            ..plain(404, String::new())
        };
    };
    match &state.storage {
        Some(storage) if content.len() >= LARGE => Answer {
            headers: vec![
                (
                    "location".to_owned(),
                    format!("{storage}/storage/{file}?signature=secret"),
                ),
                ("x-linked-etag".to_owned(), format!("\"{}\"", sum(content))),
                ("x-linked-size".to_owned(), content.len().to_string()),
                ("x-repo-commit".to_owned(), COMMIT.to_owned()),
            ],
            ..plain(302, String::new())
        },
        _ => part(content, asked, fault),
    }
}

/// A file, or the requested range of it.
fn part(content: &[u8], asked: &HubRequest, fault: Option<&Fault>) -> Answer {
    let mut content = content.to_vec();
    match fault {
        Some(Fault::OtherBytes) => content.iter_mut().for_each(|byte| *byte ^= 1),
        Some(Fault::OtherLength(length)) => content.resize(*length, 0),
        _ => {}
    }
    let from = asked.header("range").and_then(|range| {
        let range = range.strip_prefix("bytes=")?;
        range.strip_suffix('-')?.parse::<usize>().ok()
    });
    let mut headers = vec![
        ("etag".to_owned(), format!("\"{}\"", sum(&content))),
        ("x-repo-commit".to_owned(), COMMIT.to_owned()),
    ];
    match from.filter(|_| !matches!(fault, Some(Fault::NoRange))) {
        None => Answer {
            status: 200,
            headers,
            body: content,
        },
        Some(from) if from >= content.len() => Answer {
            status: 416,
            headers,
            body: Vec::new(),
        },
        Some(from) => {
            let stated = match fault {
                Some(Fault::OtherRange(other)) => *other,
                _ => from as u64,
            };
            let range = format!("bytes {stated}-{}/{}", content.len() - 1, content.len());
            headers.push(("content-range".to_owned(), range));
            Answer {
                status: 206,
                headers,
                body: content.split_off(from),
            }
        }
    }
}

fn list(state: &State, query: &str, address: SocketAddr) -> Answer {
    let from = query.split('&').find_map(|part| part.strip_prefix("cursor="));
    let from: usize = from.and_then(|from| from.parse().ok()).unwrap_or(0);
    let entries = state.files.iter().skip(from).take(state.page).map(|(path, content)| {
        let (path, length, sum) = (serde_json::to_string(path).expect("JSON"), content.len(), sum(content));
        if length >= LARGE { format!(
            "{{\"type\":\"file\",\"path\":{path},\"size\":{length},\"oid\":\"pointer\",\"lfs\":{{\"oid\":\"{sum}\",\"size\":{length},\"pointerSize\":130}}}}"
        ) } else { format!("{{\"type\":\"file\",\"path\":{path},\"size\":{length},\"oid\":\"{sum}\"}}") }
    });
    let folder = "{\"type\":\"directory\",\"path\":\"folder\",\"size\":0,\"oid\":\"\"}".to_owned();
    let body = entries.chain([folder]).collect::<Vec<_>>().join(",");
    let next = from + state.page;
    let link = (next < state.files.len()).then(|| {
        let path = format!(
            "/api/models/{}/tree/{COMMIT}?recursive=true&cursor={next}",
            state.repository
        );
        ("link".to_owned(), format!("<http://{address}{path}>; rel=\"next\""))
    });
    Answer {
        status: 200,
        headers: link.into_iter().collect(),
        body: format!("[{body}]").into_bytes(),
    }
}

/// A home folder with models of Ollama, LM Studio and llama.cpp: valid ones with `content`, and damaged ones.
pub fn other_home(content: &[u8]) -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a folder");
    let write = |path: &str, bytes: &[u8]| {
        let path = home.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("a file");
    };
    let digits = |bytes: &[u8]| -> String { Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect() };
    let settings = br#"{"model_format":"gguf","file_type":"Q4_K_M"}"#;
    for blob in [content, settings, b"an adapter"] {
        write(&format!(".ollama/models/blobs/sha256-{}", digits(blob)), blob);
    }
    let layer = |kind: &str, sum: &str, size: usize| {
        format!(r#"{{"mediaType":"application/vnd.ollama.image.{kind}","digest":"{sum}","size":{size}}}"#)
    };
    let manifest = |path: &str, layers: &[String]| {
        let text = format!(
            r#"{{"schemaVersion":2,"config":{{"digest":"sha256:{}","size":{}}},"layers":[{}]}}"#,
            digits(settings),
            settings.len(),
            layers.join(",")
        );
        write(&format!(".ollama/models/manifests/{path}"), text.as_bytes());
    };
    let model = layer("model", &format!("sha256:{}", digits(content)), content.len());
    let library = |name: &str, layers: &[String]| manifest(&format!("registry.ollama.ai/library/{name}"), layers);
    let template = layer("template", &format!("sha256:{}", "0".repeat(64)), 10);
    library("llama3.2/1b", &[model.clone(), template]);
    manifest("registry.ollama.ai/somebody/tuned/latest", std::slice::from_ref(&model));
    let adapter = layer("adapter", &format!("sha256:{}", digits(b"an adapter")), 10);
    library("adapted/latest", &[model.clone(), adapter]);
    library(
        "missing/latest",
        &[layer("model", &format!("sha256:{}", "0".repeat(64)), 10)],
    );
    library(
        "cut/latest",
        &[layer(
            "model",
            &format!("sha256:{}", digits(content)),
            content.len() + 1,
        )],
    );
    library(
        "elsewhere/latest",
        &[layer("tensor", &format!("sha256:{}", "0".repeat(64)), 10)],
    );
    library("hostile/latest", &[layer("model", "sha256:../../../../etc/passwd", 10)]);
    write(
        ".ollama/models/manifests/registry.ollama.ai/library/damaged/latest",
        b"{\"layers\": [",
    );
    write_flat_stores(&write, content);
    home
}

/// Models of LM Studio and llama.cpp: files under names of repositories.
fn write_flat_stores(write: &dyn Fn(&str, &[u8]), content: &[u8]) {
    write(".lmstudio/models/publisher/model-GGUF/model-Q4_K_M.gguf", content);
    write(".lmstudio/models/publisher/model-GGUF/mmproj-model-F16.gguf", b"");
    write(".lmstudio/models/publisher/split/m-Q8_0-00001-of-00002.gguf", content);
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        write(&format!(".lmstudio/models/publisher/folder/{file}"), b"{}");
    }
    write(".cache/llama.cpp/manifest=owner=cached-GGUF=latest.json", b"{}");
    write(".cache/llama.cpp/owner_cached-GGUF_cached-Q8_0.gguf", content);
    write(".cache/llama.cpp/owner_cached-GGUF_cached-Q8_0.gguf.json", b"{}");
}

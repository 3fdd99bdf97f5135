//! Buckets on a test server with the used part of S3. `scripts/test/store-test` checks signatures with a real server.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use riffle_kv::{BlockStore, StoreError};

use crate::{failure_of, keeps_what_it_is_given, soon};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Silent,
    Drips,
    /// Announces more bytes than it sends, and closes.
    Breaks,
    Refuses,
    Fails,
    /// Nested elements in place of an answer.
    Nests(usize),
}

#[derive(Clone)]
struct FakeBucket {
    port: u16,
    fault: Arc<Mutex<Fault>>,
    items: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

struct Request {
    method: String,
    path: String,
    authorization: String,
    body: Vec<u8>,
}

impl FakeBucket {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            fault: Arc::new(Mutex::new(Fault::None)),
            items: Arc::default(),
        };
        let shared = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = shared.clone();
                thread::spawn(move || drop(shared.serve(&stream.unwrap())));
            }
        });
        server
    }

    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn store(&self) -> Arc<dyn BlockStore> {
        let address = format!(
            "s3://bucket/some/prefix?region=eu-north-1&endpoint=http://127.0.0.1:{}",
            self.port
        );
        let environment = |name: &str| match name {
            "AWS_ACCESS_KEY_ID" => Some("KEY".to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some("SECRET".to_owned()),
            _ => None,
        };
        riffle_store::open(&address, &environment).unwrap().store
    }

    fn serve(&self, stream: &TcpStream) -> std::io::Result<()> {
        let (mut reader, mut writer) = (BufReader::new(stream), stream);
        loop {
            let request = request(&mut reader)?;
            assert!(request.authorization.starts_with("AWS4-HMAC-SHA256 Credential=KEY/"));
            let (status, body) = self.answer(&request);
            let fault = *self.fault.lock().unwrap();
            let (status, body) = match fault {
                Fault::Refuses => ("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>".to_vec()),
                Fault::Fails => (
                    "500 Internal Server Error",
                    b"<Error><Code>InternalError</Code></Error>".to_vec(),
                ),
                Fault::Nests(levels) => (status, nested(levels)),
                _ => (status, body),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"1\"\r\nLast-Modified: {}\r\n\r\n",
                body.len(),
                "Wed, 25 Nov 2026 00:00:00 GMT",
            );
            let body = if request.method == "HEAD" { &[][..] } else { &body[..] };
            let answer = [head.as_bytes(), body].concat();
            match fault {
                Fault::Silent => thread::sleep(Duration::from_secs(5)),
                Fault::Drips => {
                    for byte in answer {
                        writer.write_all(&[byte])?;
                        thread::sleep(Duration::from_millis(30));
                    }
                }
                Fault::Breaks => {
                    writer.write_all(&answer[..answer.len() * 2 / 3])?;
                    return Ok(());
                }
                _ => writer.write_all(&answer)?,
            }
        }
    }

    fn answer(&self, request: &Request) -> (&'static str, Vec<u8>) {
        let mut items = self.items.lock().unwrap();
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let key = path.strip_prefix("/bucket").unwrap().trim_start_matches('/').to_owned();
        let missing = ("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>".to_vec());
        match request.method.as_str() {
            "PUT" => {
                items.insert(key, request.body.clone());
                ("200 OK", Vec::new())
            }
            "GET" if query.contains("list-type=2") => ("200 OK", listing(&items)),
            "GET" | "HEAD" => items.get(&key).map_or(missing, |bytes| ("200 OK", bytes.clone())),
            "POST" => {
                let body = String::from_utf8(request.body.clone()).unwrap();
                let mut answer = "<DeleteResult>".to_owned();
                for (key, _) in body.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>")) {
                    items.remove(key);
                    answer += &format!("<Deleted><Key>{key}</Key></Deleted>");
                }
                ("200 OK", (answer + "</DeleteResult>").into_bytes())
            }
            other => panic!("{other} {}", request.path),
        }
    }
}

/// A list with nested elements at its top and in place of texts.
fn nested(levels: usize) -> Vec<u8> {
    let deep = "<a>".repeat(levels) + &"</a>".repeat(levels);
    format!("<ListBucketResult>{deep}<Contents><Key>{deep}</Key></Contents></ListBucketResult>").into_bytes()
}

fn listing(items: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let (days, seconds) = (now / 86400, now % 86400);
    // The date of a number of days (Howard Hinnant's algorithm).
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (
        day_of_year - (153 * shifted + 2) / 5 + 1,
        if shifted < 10 { shifted + 3 } else { shifted - 9 },
    );
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let time = format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.000Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    let contents = items.iter().map(|(key, bytes)| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>\"1\"</ETag><Size>{}</Size></Contents>",
            bytes.len()
        )
    });
    let contents: String = contents.collect();
    format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>").into_bytes()
}

fn request(reader: &mut impl BufRead) -> std::io::Result<Request> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let mut words = line.split_whitespace();
    let mut request = Request {
        method: words.next().unwrap_or_default().to_owned(),
        path: words.next().unwrap_or_default().to_owned(),
        authorization: String::new(),
        body: Vec::new(),
    };
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = value.to_owned(),
            "content-length" => length = value.parse().unwrap(),
            _ => {}
        }
    }
    request.body = vec![0; length];
    reader.read_exact(&mut request.body)?;
    Ok(request)
}

#[test]
fn a_bucket_keeps_what_it_is_given_under_its_prefix() {
    let server = FakeBucket::start();
    let store = server.store();
    assert_eq!(store.address(), "s3://bucket/some/prefix");
    keeps_what_it_is_given(&*store);
    assert!(
        server
            .items
            .lock()
            .unwrap()
            .keys()
            .all(|key| key.starts_with("some/prefix/"))
    );
}

#[test]
fn every_operation_ends_by_its_limit_whatever_the_server_does() {
    let server = FakeBucket::start();
    let store = server.store();
    let names = ["a".to_owned(), "b".to_owned()];
    store.put("a", vec![1; 200_000], soon(2000)).unwrap();
    for fault in [Fault::Silent, Fault::Drips, Fault::Breaks, Fault::Refuses, Fault::Fails] {
        server.set(fault);
        let get = failure_of(|until| store.get("a", 1 << 20, until));
        let refused = matches!(get, StoreError::Refused(_));
        assert_eq!(refused, fault == Fault::Refuses, "{fault:?}: {get}");
        assert!(!get.to_string().contains('\n') && get.to_string().len() < 400, "{get}");
        failure_of(|until| store.put("b", vec![1; 200_000], until));
        if fault != Fault::Breaks {
            failure_of(|until| store.contains(&names, until));
        }
        failure_of(|until| store.list(until, &mut |_| {}));
        server.set(Fault::None);
        assert!(
            store.get("a", 1 << 20, soon(2000)).unwrap() == Some(vec![1; 200_000]),
            "{fault:?}"
        );
    }
}

#[test]
fn elements_within_elements_are_refused_before_they_take_the_stack() {
    let server = FakeBucket::start();
    let store = server.store();
    for levels in [10, 1000, 60_000] {
        server.set(Fault::Nests(levels));
        let error = failure_of(|until| store.list(until, &mut |_| {}));
        assert!(!error.to_string().contains('\n'), "{levels}: {error}");
        failure_of(|until| store.remove(&["a".to_owned()], until));
    }
}

#[test]
fn nobody_at_an_endpoint_is_found_out_within_the_limit() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let environment = |name: &str| {
        name.starts_with("AWS_")
            .then(|| "x".to_owned())
            .filter(|_| name.contains("ACCESS_KEY"))
    };
    let address = format!("s3://bucket?endpoint=http://127.0.0.1:{free}");
    let store = riffle_store::open(&address, &environment).unwrap().store;
    let error = failure_of(|until| store.get("a", 100, until));
    assert!(
        matches!(error, StoreError::Unreachable(_) | StoreError::TimedOut(_)),
        "{error}"
    );
}

//! Valkey and Redis on a test server with the used part of their protocol.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use riffle_kv::{BlockStore, StoreError};

use crate::{failure_of, keeps_what_it_is_given, nothing, soon};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Never answers.
    Silent,
    /// Sends a byte from time to time.
    Drips,
    /// Announces far more bytes than allowed.
    Huge,
    /// Speaks another protocol.
    Babbles,
    /// Sends half of the answer, then nothing.
    Breaks,
    /// Refuses to write.
    Full,
    /// Closes each connection after an answer.
    ClosesIdle,
    /// Nested lists, with this number of levels.
    Nests(usize),
    /// A list with this number of lists, each with as many texts.
    Spreads(usize),
}

#[derive(Clone)]
struct FakeValkey {
    port: u16,
    fault: Arc<Mutex<Fault>>,
    items: Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>,
    /// Selected databases.
    selected: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl FakeValkey {
    fn start(password: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            fault: Arc::new(Mutex::new(Fault::None)),
            items: Arc::default(),
            selected: Arc::default(),
        };
        let shared = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = shared.clone();
                thread::spawn(move || drop(shared.serve(&stream.unwrap(), password)));
            }
        });
        server
    }

    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn store(&self, rest: &str) -> Arc<dyn BlockStore> {
        riffle_store::open(&format!("valkey://127.0.0.1:{}{rest}", self.port), &nothing)
            .unwrap()
            .store
    }

    fn serve(&self, stream: &TcpStream, password: Option<&str>) -> std::io::Result<()> {
        let (mut reader, mut writer) = (BufReader::new(stream), stream);
        let mut knows = password.is_none();
        loop {
            let words = command(&mut reader)?;
            let reply = match words[0].as_slice() {
                b"AUTH" if words.last().map(Vec::as_slice) == password.map(str::as_bytes) => {
                    knows = true;
                    b"+OK\r\n".to_vec()
                }
                b"AUTH" => b"-WRONGPASS invalid username-password pair\r\n".to_vec(),
                _ if !knows => b"-NOAUTH Authentication required.\r\n".to_vec(),
                _ => self.answer(&words),
            };
            let fault = *self.fault.lock().unwrap();
            match fault {
                Fault::Silent => thread::sleep(Duration::from_secs(5)),
                Fault::Drips => {
                    for byte in reply {
                        writer.write_all(&[byte])?;
                        thread::sleep(Duration::from_millis(150));
                    }
                }
                Fault::Huge => {
                    writer.write_all(b"$9000000000\r\nxxxx")?;
                    thread::sleep(Duration::from_secs(2));
                }
                Fault::Babbles => writer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")?,
                Fault::Breaks => {
                    writer.write_all(&reply[..reply.len() / 2])?;
                    return Ok(());
                }
                Fault::Nests(levels) => writer.write_all("*1\r\n".repeat(levels).as_bytes())?,
                Fault::Spreads(count) => {
                    let texts = format!("*{count}\r\n{}", "+text\r\n".repeat(count));
                    writer.write_all(format!("*{count}\r\n{}", texts.repeat(count)).as_bytes())?;
                }
                Fault::Full => writer.write_all(b"-OOM command not allowed when used memory > 'maxmemory'.\r\n")?,
                Fault::None | Fault::ClosesIdle => writer.write_all(&reply)?,
            }
            if fault == Fault::ClosesIdle {
                return Ok(());
            }
        }
    }

    fn answer(&self, words: &[Vec<u8>]) -> Vec<u8> {
        let mut items = self.items.lock().unwrap();
        let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        match words[0].as_slice() {
            b"SELECT" => {
                self.selected.lock().unwrap().push(words[1].clone());
                b"+OK\r\n".to_vec()
            }
            b"EXISTS" => format!(":{}\r\n", u8::from(items.contains_key(&words[1]))).into_bytes(),
            b"GETEX" => items.get(&words[1]).map_or(b"$-1\r\n".to_vec(), |bytes| bulk(bytes)),
            b"SET" => {
                assert_eq!(words[3], b"PX");
                items.insert(words[1].clone(), words[2].clone());
                b"+OK\r\n".to_vec()
            }
            b"STRLEN" => format!(":{}\r\n", items.get(&words[1]).map_or(0, Vec::len)).into_bytes(),
            b"PTTL" => b":604799000\r\n".to_vec(),
            b"UNLINK" => {
                words[1..].iter().for_each(|key| drop(items.remove(key)));
                b":1\r\n".to_vec()
            }
            b"SCAN" => {
                // Two rounds, as from a server with many keys.
                let is_first = words[1] == b"0";
                let begin = words[3].strip_suffix(b"*").unwrap();
                let keys: Vec<&Vec<u8>> = items.keys().filter(|key| key.starts_with(begin)).collect();
                let (first, second) = keys.split_at(keys.len() / 2);
                let (next, keys) = if is_first {
                    (&b"7"[..], first)
                } else {
                    (&b"0"[..], second)
                };
                let head = [
                    b"*2\r\n".to_vec(),
                    bulk(next),
                    format!("*{}\r\n", keys.len()).into_bytes(),
                ]
                .concat();
                keys.iter().fold(head, |reply, key| [reply, bulk(key)].concat())
            }
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
}

fn command(reader: &mut impl BufRead) -> std::io::Result<Vec<Vec<u8>>> {
    let ended = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let number = |reader: &mut dyn BufRead| {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        line.get(1..)
            .and_then(|digits| digits.trim().parse::<usize>().ok())
            .ok_or_else(ended)
    };
    let words = number(reader)?;
    let mut command = Vec::new();
    for _ in 0..words {
        let length = number(reader)?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word)?;
        word.truncate(length);
        command.push(word);
    }
    Ok(command)
}

#[test]
fn a_server_keeps_what_it_is_given_under_its_prefix() {
    let server = FakeValkey::start(None);
    server
        .items
        .lock()
        .unwrap()
        .insert(b"other:key".to_vec(), b"of somebody else".to_vec());
    let store = server.store("/3?prefix=team");
    keeps_what_it_is_given(&*store);
    let items = server.items.lock().unwrap();
    assert!(
        items
            .keys()
            .all(|key| key.starts_with(b"team:") || key.starts_with(b"other:"))
    );
    assert!(items.contains_key(&b"other:key"[..]));
    assert!(server.selected.lock().unwrap().iter().all(|database| database == b"3"));
}

#[test]
fn a_password_comes_from_the_address_or_the_environment_and_is_in_no_message() {
    let server = FakeValkey::start(Some("open sesame"));
    let address = format!("redis://127.0.0.1:{}", server.port);
    let with = |address: &str, environment: &dyn Fn(&str) -> Option<String>| {
        let store = riffle_store::open(address, environment).unwrap().store;
        store.contains(&["a".to_owned()], soon(2000))
    };
    let in_address = format!("redis://me:open%20sesame@127.0.0.1:{}", server.port);
    assert_eq!(with(&in_address, &nothing), Ok(vec![false]));
    for name in ["VALKEY_PASSWORD", "REDIS_PASSWORD"] {
        let environment = |asked: &str| (asked == name).then(|| "open sesame".to_owned());
        assert_eq!(with(&address, &environment), Ok(vec![false]));
    }
    let wrong = |asked: &str| (asked == "VALKEY_PASSWORD").then(|| "hocus pocus".to_owned());
    for refused in [with(&address, &nothing), with(&address, &wrong)] {
        let error = refused.unwrap_err();
        assert!(
            matches!(error, StoreError::Refused(_)) && !error.to_string().contains("hocus"),
            "{error}"
        );
    }
    let opened = riffle_store::open(&in_address, &nothing).unwrap();
    assert!(!format!("{opened:?} {}", opened.store.address()).contains("sesame"));
}

#[test]
fn every_operation_ends_by_its_limit_whatever_the_server_does() {
    let server = FakeValkey::start(None);
    let store = server.store("");
    let names = ["a".to_owned()];
    store.put("a", vec![1; 200_000], soon(2000)).unwrap();
    for (fault, expected) in [
        (Fault::Silent, "no answer within"),
        (Fault::Drips, "no answer within"),
        (Fault::Huge, "wrong answer"),
        (Fault::Babbles, "wrong answer"),
        (Fault::Breaks, "cannot be reached"),
        (Fault::Full, "refused"),
    ] {
        server.set(fault);
        let failures = [
            failure_of(|until| store.get("a", 1 << 20, until)),
            failure_of(|until| store.put("b", vec![1; 200_000], until)),
            failure_of(|until| store.contains(&names, until)),
            failure_of(|until| store.list(until, &mut |_| {})),
            failure_of(|until| store.remove(&["z".to_owned()], until)),
        ];
        let get = failures[0].to_string();
        assert!(get.contains(expected), "{fault:?}: {get}");
        // A failed connection is not used again.
        server.set(Fault::None);
        assert!(
            store.get("a", 1 << 20, soon(2000)).unwrap() == Some(vec![1; 200_000]),
            "{fault:?}"
        );
    }
}

#[test]
fn lists_within_lists_are_refused_before_they_take_stack_or_memory() {
    let server = FakeValkey::start(None);
    let store = server.store("");
    for (fault, expected) in [
        (Fault::Nests(5), "not the protocol"),
        (Fault::Nests(100_000), "not the protocol"),
        // Two levels with 250,000 texts: each list has its maximal length.
        (Fault::Spreads(500), "lists of more than 1048576 bytes"),
    ] {
        server.set(fault);
        let failures = [
            failure_of(|until| store.list(until, &mut |_| {})),
            failure_of(|until| store.put("b", vec![1; 10], until)),
        ];
        for error in failures {
            assert!(error.to_string().contains(expected), "{fault:?}: {error}");
        }
    }
    server.set(Fault::Spreads(10));
    let error = failure_of(|until| store.list(until, &mut |_| {}));
    assert!(error.to_string().contains("SCAN gave another list"), "{error}");
}

#[test]
fn connections_that_the_server_closed_are_replaced() {
    let server = FakeValkey::start(None);
    let store = server.store("");
    store.put("a", vec![5; 10], soon(2000)).unwrap();
    server.set(Fault::ClosesIdle);
    for _ in 0..20 {
        assert_eq!(store.get("a", 100, soon(2000)).unwrap(), Some(vec![5; 10]));
    }
}

#[test]
fn nobody_at_an_address_is_found_out_at_once() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let store = riffle_store::open(&format!("valkey://127.0.0.1:{free}"), &nothing)
        .unwrap()
        .store;
    let error = failure_of(|until| store.get("a", 100, until));
    assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
}

#[test]
fn addresses_that_mean_nothing_are_refused_in_one_line() {
    for (address, expected) in [
        ("memcached://host", "memcached:// is no store"),
        ("valkey://host/first", "number of a database"),
        ("valkey://host?expiry=soon", "expiry=soon"),
        ("valkey://host?colour=red", "colour= is not known"),
        ("valkey://host?prefix=a*", "prefix="),
        ("valkey://host?machines=mine", "machines=mine"),
    ] {
        let error = riffle_store::open(address, &nothing).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    }
}

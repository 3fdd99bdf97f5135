//! Encrypted connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use riffle_server::{Limits, Server, ServerOptions, Stopper, Tls, TlsError, TlsIdentity};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

use crate::testing::{engine, options};

fn file(name: &str) -> String {
    std::fs::read_to_string(riffle_testing::fixture("tls").join(name)).unwrap()
}

fn identity(name: &str) -> TlsIdentity {
    TlsIdentity::from_pem(&file(&format!("{name}.pem")), &file(&format!("{name}.key"))).unwrap()
}

/// A server with TLS, with its certificates and keys.
struct Running {
    port: u16,
    tls: Tls,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn start(limits: Limits) -> Running {
    let options = ServerOptions {
        tls: Some(identity("server")),
        limits,
        ..options()
    };
    let server = Server::bind(&engine(), options).unwrap();
    Running {
        port: server.address().tcp().unwrap().port(),
        tls: server.tls().unwrap(),
        stopper: server.stopper(),
        thread: Some(std::thread::spawn(move || server.run().unwrap())),
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

impl Running {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// A client for the server under a name.
    fn client(&self, name: &'static str) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(file("authority.pem").as_bytes()).unwrap();
        roots.add(authority).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connection = ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap();
        StreamOwned::new(connection, self.connect())
    }

    /// The whole response to a request for `path`; an error if there is no encrypted connection.
    fn get(&self, name: &'static str, path: &str) -> std::io::Result<String> {
        let mut client = self.client(name);
        write!(
            client,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        client.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

#[test]
fn answers_are_streamed_over_an_encrypted_connection() {
    let server = start(Limits::default());
    let body = json!({"prompt": "In the beginning", "max_tokens": 40, "stream": true, "ignore_eos": true}).to_string();
    let mut client = server.client("localhost");
    let length = body.len();
    write!(
        client,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let events: Vec<Value> = answer
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    assert!(events.len() > 30 && answer.contains("data: [DONE]"), "{answer}");
}

#[test]
fn a_client_that_speaks_plain_http_is_told_so() {
    let server = start(Limits::default());
    let mut plain = server.connect();
    write!(plain, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("https://"),
        "{answer}"
    );
}

#[test]
fn handshakes_that_never_end_time_out_and_hold_up_nobody() {
    let server = start(Limits {
        arrival_time: Duration::from_millis(1500),
        connections: 8,
        ..Limits::default()
    });
    let began = Instant::now();
    // The beginning of a record, without the rest.
    let silent: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&[22, 3, 1, 2]).unwrap();
            stream
        })
        .collect();
    let health = server.get("localhost", "/health").unwrap();
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    for mut stream in silent {
        let mut rest = Vec::new();
        drop(stream.read_to_end(&mut rest));
    }
    assert!(began.elapsed() < Duration::from_secs(40));
}

#[test]
fn a_certificate_that_is_replaced_serves_connections_to_come() {
    let server = start(Limits::default());
    assert!(server.get("server.test", "/health").is_ok());
    assert!(server.get("second.test", "/health").is_err());
    let mut open = server.client("server.test");
    write!(open, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 12];
    open.read_exact(&mut first).unwrap();
    server.tls.replace(identity("second"));
    assert!(server.get("second.test", "/health").is_ok());
    assert!(server.get("server.test", "/health").is_err());
    write!(
        open,
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut rest = String::new();
    open.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("HTTP/1.1 200"), "{rest}");
}

#[test]
fn a_certificate_and_a_key_that_cannot_be_used_are_refused_with_the_reason() {
    let refusal = |certificate: &str, key: &str| {
        TlsIdentity::from_pem(certificate, key)
            .err()
            .map(|error| error.to_string())
    };
    let (certificate, key) = (file("server.pem"), file("server.key"));
    assert_eq!(refusal(&certificate, &key), None);
    let cases = [
        (refusal("", &key), "no certificate: PEM"),
        (refusal(&key, &key), "exchanged"),
        (refusal(&certificate.replace("MII", "&&&"), &key), "not valid"),
        (refusal(&certificate, ""), "no private key: PEM"),
        (refusal(&certificate, &certificate), "exchanged"),
        (refusal(&certificate, &file("locked.key")), "password"),
        (
            refusal(&certificate, &file("second.key")),
            "not the key of the certificate",
        ),
    ];
    for (found, wanted) in cases {
        let found = found.unwrap();
        assert!(found.contains(wanted), "{found} lacks {wanted}");
    }
    let mismatch = TlsIdentity::from_pem(&certificate, &file("second.key")).err();
    assert_eq!(mismatch, Some(TlsError::Mismatch));
}

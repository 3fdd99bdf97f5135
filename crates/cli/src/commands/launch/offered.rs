//! The models that a running server offers.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

use crate::failure::Failure;

/// Maximum number of bytes of a list of models.
const LONGEST_LIST: u64 = 4 << 20;

/// Time limit for the server's answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A model of a server.
#[derive(Debug, PartialEq)]
pub(super) struct Offered {
    pub(super) name: String,
    pub(super) context_tokens: usize,
}

/// The models of the server at `url`, in its order.
///
/// # Errors
/// An address without a server, or a server that answers differently from `riffle serve`.
pub(super) fn models(url: &str, key: Option<&str>) -> Result<Vec<Offered>, Failure> {
    let Some(rest) = url.strip_prefix("http://") else {
        return Err(Failure::new(format!(
            "--url is {url}, but it must begin with http://, such as http://127.0.0.1:8080"
        )));
    };
    let (host, base) = rest
        .split_once('/')
        .map_or((rest, String::new()), |(host, base)| (host, format!("/{base}")));
    let response = get(host, &format!("{base}/v1/models"), key).map_err(|error| {
        Failure::new(format!(
            "no server answers at {url} ({error}): start one with riffle serve, or give --serve MODEL"
        ))
    })?;
    let status = response.split(' ').nth(1).unwrap_or_default();
    if status == "401" {
        return Err(Failure::new(format!(
            "the server at {url} asks for a key: set {}",
            super::KEY
        )));
    }
    let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let models = serde_json::from_str(body).ok().and_then(|list: Value| offered(&list));
    models.ok_or_else(|| {
        Failure::new(format!(
            "{url} is no server of riffle: it answered with status {status}"
        ))
    })
}

fn get(host: &str, path: &str, key: Option<&str>) -> io::Result<String> {
    let with_port = if host
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let address = with_port.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let key = key.map_or_else(String::new, |key| format!("Authorization: Bearer {key}\r\n"));
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n{key}\r\n")?;
    let mut response = Vec::new();
    stream.take(LONGEST_LIST).read_to_end(&mut response)?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

fn offered(list: &Value) -> Option<Vec<Offered>> {
    let models = list["data"].as_array()?.iter();
    models
        .map(|model| {
            Some(Offered {
                name: model["id"].as_str()?.to_owned(),
                context_tokens: usize::try_from(model["max_model_len"].as_u64()?).ok()?,
            })
        })
        .collect()
}

//! The beginning of an encrypted connection.

use std::io;
use std::time::Duration;

use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::Tls;
use crate::listening::Stream;

/// Time that a handshake may take at most.
const LONGEST: Duration = Duration::from_secs(10);

/// Time that a client has to take the answer to a request that is not encrypted.
const FAREWELL: Duration = Duration::from_secs(1);

/// The answer to a client that speaks HTTP instead of HTTPS.
const PLAIN: &str = "this address is reached by https://, and the request came as plain http://\n";

/// Encrypts a connection. A client that speaks plain HTTP gets a response with status 400.
///
/// # Errors
/// A client that sends anything but a handshake, takes none of the server's certificates, or takes longer than `longest` or ten seconds.
pub(super) async fn encrypted(
    stream: Box<dyn Stream>,
    tls: &Tls,
    longest: Duration,
) -> io::Result<TlsStream<Box<dyn Stream>>> {
    let handshake = async {
        let mut begun = LazyConfigAcceptor::new(Acceptor::default(), stream);
        match (&mut begun).await {
            Ok(start) => start.into_stream(tls.config()).await,
            Err(error) => {
                if let Some(stream) = begun.take_io().filter(|_| is_no_tls(&error)) {
                    refuse_plain(stream).await?;
                }
                Err(error)
            }
        }
    };
    let handshake = tokio::time::timeout(longest.min(LONGEST), handshake);
    handshake.await.unwrap_or_else(|_| {
        let problem = "the handshake took too long";
        Err(io::Error::new(io::ErrorKind::TimedOut, problem))
    })
}

/// True if the first bytes begin no record of TLS.
fn is_no_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

async fn refuse_plain(mut stream: Box<dyn Stream>) -> io::Result<()> {
    let length = PLAIN.len();
    let response = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{PLAIN}"
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await?;
    // A connection that is closed with unread bytes takes its answer along.
    let mut rest = [0; 4096];
    let read = async { while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {} };
    drop(tokio::time::timeout(FAREWELL, read).await);
    Ok(())
}

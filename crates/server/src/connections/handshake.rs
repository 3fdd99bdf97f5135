//! Encrypts connections: TLS handshakes.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::Tls;

/// Time limit of a handshake.
const LONGEST: Duration = Duration::from_secs(10);

/// Time limit for a client to take the answer to a plain request.
const FAREWELL: Duration = Duration::from_secs(1);

/// The answer to a client that speaks HTTP instead of HTTPS.
const PLAIN: &str = "this address is reached by https://, and the request came as plain http://\n";

/// Encrypts a connection. A client that speaks plain HTTP gets a response with status 400.
///
/// # Errors
/// A client that sends anything but a handshake, accepts none of the server's certificates, or takes longer than
/// `longest` or ten seconds.
pub(super) async fn encrypted(stream: TcpStream, tls: &Tls, longest: Duration) -> io::Result<TlsStream<TcpStream>> {
    let handshake = async {
        let mut first = [0];
        stream.peek(&mut first).await?;
        // An HTTP method begins with a letter, a handshake with byte 22.
        if first[0].is_ascii_alphabetic() {
            refuse_plain(stream).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "plain HTTP was spoken"));
        }
        TlsAcceptor::from(tls.config()).accept(stream).await
    };
    let handshake = tokio::time::timeout(longest.min(LONGEST), handshake);
    handshake.await.unwrap_or_else(|_| {
        let problem = "the handshake took too long";
        Err(io::Error::new(io::ErrorKind::TimedOut, problem))
    })
}

async fn refuse_plain(mut stream: TcpStream) -> io::Result<()> {
    let length = PLAIN.len();
    let response = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{PLAIN}"
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing a connection with unread bytes would discard the answer.
    let mut rest = [0; 4096];
    let read = async { while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {} };
    drop(tokio::time::timeout(FAREWELL, read).await);
    Ok(())
}

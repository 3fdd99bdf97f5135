//! Addresses and sockets of a server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};

/// Prefix of the address of a UNIX socket.
const UNIX: &str = "unix:";

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address and a port. A port of 0 takes a free one.
    Tcp(SocketAddr),
    /// The file of a UNIX socket. A file without a listener is replaced.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The IP address and port; `None` for a UNIX socket.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// True if other machines can reach the address.
    pub fn is_open(&self) -> bool {
        self.tcp().is_some_and(|address| !address.ip().is_loopback())
    }

    /// True if only programs of this machine can reach the address, including web pages in its browsers.
    pub(crate) fn is_loopback(&self) -> bool {
        self.tcp().is_some_and(|address| address.ip().is_loopback())
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// A socket that accepts connections.
pub(crate) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener, SocketFile),
}

/// An accepted connection.
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    /// The address of the client; `unix` where it has none.
    pub(crate) peer: String,
}

/// The socket of a connection.
pub(crate) enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    /// The socket as bytes to and from a client.
    pub(crate) fn into_stream(self) -> Box<dyn Stream> {
        match self {
            Self::Tcp(stream) => Box::new(stream),
            #[cfg(unix)]
            Self::Unix(stream) => Box::new(stream),
        }
    }
}

/// Bytes to and from a client.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Listener {
    pub(crate) async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            ListenAddress::Unix(path) => Self::bind_unix(path),
        }
    }

    #[cfg(unix)]
    fn bind_unix(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
        // The file of a killed server remains.
        if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        Ok(Self::Unix(listener, SocketFile(path.to_owned())))
    }

    #[cfg(not(unix))]
    fn bind_unix(_: &Path) -> io::Result<Self> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this system has no UNIX sockets",
        ))
    }

    /// The address, with the chosen port.
    pub(crate) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            #[cfg(unix)]
            Self::Unix(_, file) => Ok(ListenAddress::Unix(file.0.clone())),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                drop(stream.set_nodelay(true));
                Ok(Connection {
                    socket: Socket::Tcp(stream),
                    peer: peer.to_string(),
                })
            }
            #[cfg(unix)]
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok(Connection {
                    socket: Socket::Unix(stream),
                    peer: "unix".to_owned(),
                })
            }
        }
    }
}

/// The file of a UNIX socket, removed with its listener.
#[cfg(unix)]
pub(crate) struct SocketFile(PathBuf);

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

//! One connection: sends commands and reads replies within a time limit.
//!
//! No client crate is used, for two reasons. The time limit must apply to a whole reply, even from a server that sends
//! one byte per second. A reply's declared length must be checked before allocation.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use riffle_kv::StoreError;

/// Address of a server, and the user's credentials.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) encrypted: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: u32,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.host, self.port, self.database)
    }
}

/// A server's reply to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Text(String),
    Error(String),
    Integer(i64),
    Bytes(Vec<u8>),
    Nothing,
    Many(Vec<Reply>),
}

/// Bytes read at a time.
const BUFFER_BYTES: usize = 64 << 10;
/// The longest line of a reply.
const LINE_BYTES: usize = 64 << 10;
/// Deepest nesting of lists, and the maximum number of entries of one list.
const MOST_DEPTH: usize = 4;
const MOST_ENTRIES: usize = 1 << 16;

/// Memory limit of all replies to one request.
struct Room {
    /// Largest reply in bytes.
    most_bytes: usize,
    left_bytes: usize,
}

impl Room {
    fn take(&mut self, bytes: usize) -> Result<(), StoreError> {
        let too_much = || StoreError::Wrong(format!("lists of more than {} bytes", self.most_bytes));
        self.left_bytes = self.left_bytes.checked_sub(bytes).ok_or_else(too_much)?;
        Ok(())
    }
}

pub(super) struct Connection {
    stream: Stream,
    buffer: Vec<u8>,
    /// The unread part of the buffer.
    unread: std::ops::Range<usize>,
    time: Duration,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Encrypted(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            #[cfg(feature = "tls")]
            Self::Encrypted(stream) => &stream.sock,
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(bytes),
            #[cfg(feature = "tls")]
            Self::Encrypted(stream) => stream.read(bytes),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            #[cfg(feature = "tls")]
            Self::Encrypted(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            #[cfg(feature = "tls")]
            Self::Encrypted(stream) => stream.flush(),
        }
    }
}

impl Connection {
    pub(super) fn open(server: &Server, until: Instant) -> Result<Self, StoreError> {
        let unreachable = |error: io::Error| StoreError::Unreachable(error.to_string());
        let began = Instant::now();
        let addresses = (server.host.as_str(), server.port)
            .to_socket_addrs()
            .map_err(unreachable)?;
        let mut last = StoreError::Unreachable(format!("{} has no address", server.host));
        for address in addresses {
            let time = left(until, began)?;
            match TcpStream::connect_timeout(&address, time) {
                Ok(socket) => return Self::over(socket, server, until),
                Err(error) if is_timeout(&error) => last = StoreError::TimedOut(time),
                Err(error) => last = unreachable(error),
            }
        }
        Err(last)
    }

    fn over(socket: TcpStream, server: &Server, until: Instant) -> Result<Self, StoreError> {
        // Small commands are sent at once; a failure here only costs speed.
        drop(socket.set_nodelay(true));
        let mut connection = Self {
            stream: encrypted(socket, server)?,
            buffer: vec![0; BUFFER_BYTES],
            unread: 0..0,
            time: Duration::ZERO,
        };
        let database = server.database.to_string();
        let mut commands: Vec<Vec<&[u8]>> = Vec::new();
        if let Some(password) = &server.password {
            let user = server.user.as_ref().map(|user| user.as_bytes());
            let words = [Some(&b"AUTH"[..]), user, Some(password.as_bytes())];
            commands.push(words.into_iter().flatten().collect());
        }
        if server.database != 0 {
            commands.push(vec![&b"SELECT"[..], database.as_bytes()]);
        }
        for reply in connection.ask(&commands, LINE_BYTES, until)? {
            if let Reply::Error(problem) = reply {
                return Err(StoreError::Refused(problem));
            }
        }
        Ok(connection)
    }

    /// Sends commands and reads a reply to each. After an error the connection is unusable.
    pub(super) fn ask(
        &mut self,
        commands: &[Vec<&[u8]>],
        most_bytes: usize,
        until: Instant,
    ) -> Result<Vec<Reply>, StoreError> {
        let began = Instant::now();
        self.time = until.saturating_duration_since(began);
        let mut head = Vec::new();
        for command in commands {
            write_to(&mut head, format_args!("*{}\r\n", command.len()));
            for word in command {
                write_to(&mut head, format_args!("${}\r\n", word.len()));
                // Words as large as blocks are sent directly, without a copy.
                if word.len() > BUFFER_BYTES {
                    self.send(&head, until)?;
                    head.clear();
                    self.send(word, until)?;
                } else {
                    head.extend_from_slice(word);
                }
                head.extend_from_slice(b"\r\n");
            }
        }
        self.send(&head, until)?;
        self.stream.flush().map_err(|error| self.failed(&error))?;
        // Besides the requested bytes: one line and one slot per reply.
        let mut room = Room {
            most_bytes,
            left_bytes: most_bytes + LINE_BYTES + commands.len() * size_of::<Reply>(),
        };
        commands
            .iter()
            .map(|_| self.reply(&mut room, MOST_DEPTH, until))
            .collect()
    }

    fn send(&mut self, mut bytes: &[u8], until: Instant) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let time = self.left(until)?;
            let written = self.stream.socket().set_write_timeout(Some(time));
            match written.and_then(|()| self.stream.write(bytes)) {
                Ok(0) => return Err(StoreError::Unreachable("the connection was closed".to_owned())),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(())
    }

    fn reply(&mut self, room: &mut Room, depth: usize, until: Instant) -> Result<Reply, StoreError> {
        let line = self.line(until)?;
        room.take(size_of::<Reply>() + line.len())?;
        let wrong = || StoreError::Wrong("not the protocol of Valkey or Redis".to_owned());
        let (kind, text) = line.split_at_checked(1).ok_or_else(wrong)?;
        let text = String::from_utf8_lossy(text).into_owned();
        let number = || text.parse::<i64>().map_err(|_| wrong());
        match kind {
            b"+" => Ok(Reply::Text(text)),
            b"-" => Ok(Reply::Error(text)),
            b":" => Ok(Reply::Integer(number()?)),
            b"$" => match usize::try_from(number()?) {
                Err(_) => Ok(Reply::Nothing),
                Ok(length) if length > room.most_bytes => Err(StoreError::Wrong(format!(
                    "{length} bytes, where at most {} can be",
                    room.most_bytes
                ))),
                Ok(length) => {
                    room.take(length)?;
                    Ok(Reply::Bytes(self.bytes(length, until)?))
                }
            },
            b"*" => match usize::try_from(number()?) {
                Err(_) => Ok(Reply::Nothing),
                Ok(entries) if entries > MOST_ENTRIES || depth == 0 => Err(wrong()),
                Ok(entries) => {
                    let entries = (0..entries).map(|_| self.reply(room, depth - 1, until));
                    Ok(Reply::Many(entries.collect::<Result<_, _>>()?))
                }
            },
            _ => Err(wrong()),
        }
    }

    /// A line without its end.
    fn line(&mut self, until: Instant) -> Result<Vec<u8>, StoreError> {
        let mut line = Vec::new();
        loop {
            let unread = &self.buffer[self.unread.clone()];
            match unread.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    line.extend_from_slice(&unread[..end]);
                    self.unread.start += end + 1;
                    line.pop_if(|byte| *byte == b'\r');
                    return Ok(line);
                }
                None => {
                    line.extend_from_slice(unread);
                    self.unread = 0..0;
                }
            }
            if line.len() > LINE_BYTES {
                return Err(StoreError::Wrong("a line without end".to_owned()));
            }
            self.receive(until)?;
        }
    }

    /// Bytes of known length, and the line end after them.
    fn bytes(&mut self, length: usize, until: Instant) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::with_capacity(length + 2);
        while bytes.len() < length + 2 {
            if self.unread.is_empty() {
                self.receive(until)?;
            }
            let count = self.unread.len().min(length + 2 - bytes.len());
            bytes.extend_from_slice(&self.buffer[self.unread.start..self.unread.start + count]);
            self.unread.start += count;
        }
        if bytes.ends_with(b"\r\n") {
            bytes.truncate(length)
        } else {
            return Err(StoreError::Wrong("bytes of another length than was said".to_owned()));
        }
        Ok(bytes)
    }

    fn receive(&mut self, until: Instant) -> Result<(), StoreError> {
        loop {
            let time = self.left(until)?;
            let ready = self.stream.socket().set_read_timeout(Some(time));
            match ready.and_then(|()| self.stream.read(&mut self.buffer)) {
                Ok(0) => return Err(StoreError::Unreachable("the connection was closed".to_owned())),
                Ok(count) => {
                    self.unread = 0..count;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    fn left(&self, until: Instant) -> Result<Duration, StoreError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(StoreError::TimedOut(self.time))
        } else {
            Ok(left)
        }
    }

    fn failed(&self, error: &io::Error) -> StoreError {
        if is_timeout(error) {
            StoreError::TimedOut(self.time)
        } else {
            StoreError::Unreachable(error.to_string())
        }
    }
}

#[cfg(feature = "tls")]
fn encrypted(socket: TcpStream, server: &Server) -> Result<Stream, StoreError> {
    if !server.encrypted {
        return Ok(Stream::Plain(socket));
    }
    let name = rustls::pki_types::ServerName::try_from(server.host.clone());
    let name = name.map_err(|error| StoreError::Refused(error.to_string()))?;
    let client = rustls::ClientConnection::new(crate::tls::config()?, name);
    let client = client.map_err(|error| StoreError::Refused(error.to_string()))?;
    Ok(Stream::Encrypted(Box::new(rustls::StreamOwned::new(client, socket))))
}

#[cfg(not(feature = "tls"))]
fn encrypted(socket: TcpStream, _: &Server) -> Result<Stream, StoreError> {
    Ok(Stream::Plain(socket))
}

fn write_to(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    // Writing into memory does not fail.
    drop(out.write_fmt(text));
}

fn left(until: Instant, began: Instant) -> Result<Duration, StoreError> {
    let now = Instant::now();
    match until.checked_duration_since(now).filter(|left| !left.is_zero()) {
        Some(left) => Ok(left),
        None => Err(StoreError::TimedOut(now - began)),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

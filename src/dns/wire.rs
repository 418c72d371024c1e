//! Sends one question to one DNS server: by UDP, and by TCP if the answer was truncated.
//!
//! hickory encodes and decodes messages, but does not send them here: its resolver follows, retries and caches, while a check
//! needs the answer of exactly one server, with its flags, in bounded time and memory.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_resolver::proto::op::{Edns, Message, MessageType, Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::fault::Failure;

/// How long until a question is sent again by UDP.
///
/// Larger: a lost packet takes more time. Smaller: distant servers are asked twice.
const RESEND: Duration = Duration::from_millis(800);

/// The maximum size of an answer by UDP; a larger one is truncated, and read by TCP. The value of DNS flag day 2020.
///
/// Larger: answers are fragmented, and then often lost. Smaller: more TCP.
const MAX_UDP: u16 = 1232;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) name: &'a Name,
    pub(super) kind: RecordType,
    /// Whether a resolver is to ask other servers. False for name servers.
    pub(super) recursion: bool,
    /// Whether a resolver returns answers whose DNSSEC signatures are wrong.
    pub(super) checking_disabled: bool,
    /// By UDP, and again by TCP.
    pub(super) time_limit: Duration,
}

/// Why a server did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryError {
    /// This machine has no route to the server, usually because it has no IPv6. The server may work.
    NoRoute,
    /// The server failed.
    Failed(Failure),
}

/// Asks one server.
pub(super) async fn ask(server: SocketAddr, ask: Ask<'_>) -> Result<Message, QueryError> {
    match exchange(server, ask, true).await {
        // Servers without EDNS refuse questions with it (RFC 6891, section 7).
        Ok(answer) if answer.metadata.response_code == ResponseCode::FormErr => exchange(server, ask, false).await,
        other => other,
    }
}

async fn exchange(server: SocketAddr, ask: Ask<'_>, edns: bool) -> Result<Message, QueryError> {
    let mut question = Message::query();
    question.metadata.recursion_desired = ask.recursion;
    question.metadata.checking_disabled = ask.checking_disabled;
    question.add_query(Query::query(ask.name.clone(), ask.kind));
    if edns {
        question.set_edns(Edns::new()).edns.as_mut().expect("set one call before").set_max_payload(MAX_UDP);
    }
    let bytes = question.to_vec().map_err(|_| QueryError::Failed(Failure::Malformed))?;
    let answer = within(ask.time_limit, by_udp(server, &question, &bytes)).await?;
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    let answer = within(ask.time_limit, by_tcp(server, &question, &bytes)).await?;
    // A truncated answer may look like one without records.
    if answer.metadata.truncation { Err(QueryError::Failed(Failure::Malformed)) } else { Ok(answer) }
}

async fn within(limit: Duration, answer: impl Future<Output = io::Result<Message>>) -> Result<Message, QueryError> {
    match timeout(limit, answer).await {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(error)) => Err(no_answer(&error)),
        Err(_) => Err(QueryError::Failed(Failure::Timeout)),
    }
}

fn no_answer(error: &io::Error) -> QueryError {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported => {
            QueryError::NoRoute
        }
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => QueryError::Failed(Failure::Malformed),
        io::ErrorKind::TimedOut => QueryError::Failed(Failure::Timeout),
        _ => QueryError::Failed(Failure::Unreachable),
    }
}

/// The socket has a random port of its own and accepts only packets of the server, so a forged answer has to guess the port
/// and the id.
async fn by_udp(server: SocketAddr, question: &Message, bytes: &[u8]) -> io::Result<Message> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    let mut buffer = [0; 4096];
    loop {
        socket.send(bytes).await?;
        // An expired timeout sends the question again; the caller's time limit ends the loop.
        if let Ok(answer) = timeout(RESEND, first_answer(&socket, question, &mut buffer)).await {
            return answer;
        }
    }
}

async fn first_answer(socket: &UdpSocket, question: &Message, buffer: &mut [u8]) -> io::Result<Message> {
    loop {
        let length = socket.recv(buffer).await?;
        if let Some(answer) = parsed(&buffer[..length], question)? {
            return Ok(answer);
        }
    }
}

async fn by_tcp(server: SocketAddr, question: &Message, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), bytes].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    parsed(&answer, question)?.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The answer to the question; `None` for any other message.
fn parsed(bytes: &[u8], question: &Message) -> io::Result<Option<Message>> {
    if bytes.get(..2) != Some(&question.metadata.id.to_be_bytes()) {
        return Ok(None);
    }
    let answer = Message::from_vec(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    // Some servers return errors without the question.
    let failed = answer.metadata.response_code != ResponseCode::NoError && answer.queries.is_empty();
    let fits = answer.metadata.message_type == MessageType::Response && (answer.queries == question.queries || failed);
    Ok(fits.then_some(answer))
}

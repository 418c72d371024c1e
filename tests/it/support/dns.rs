//! A real DNS server, on loopback, whose answers change from one query to the next.
//!
//! Every answer has a TTL of 0 unless the test says otherwise, so that each look-up is a query.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::proto::op::{Header, HeaderCounts, Metadata, ResponseCode};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use tokio::net::{TcpListener, UdpSocket};

/// How long a TCP connection to the server may be idle.
const IDLE: Duration = Duration::from_secs(5);

/// The answer to one look-up.
#[derive(Clone, Debug)]
pub(crate) enum Lookup {
    /// The addresses of both families.
    Addresses(Vec<IpAddr>),
    /// SERVFAIL.
    Failure,
    /// No answer at all.
    Silence,
}

impl Lookup {
    /// An answer with these addresses; none means that the name exists without one.
    pub(crate) fn of(addresses: &[&str]) -> Self {
        Self::Addresses(addresses.iter().map(|address| address.parse().expect("an IP address")).collect())
    }
}

/// The names that exist, and what was asked.
#[derive(Debug, Default)]
struct Zone {
    names: HashMap<Name, Vec<Lookup>>,
    queries: HashMap<(Name, RecordType), usize>,
    ttl: u32,
}

/// A running server; stopped on drop.
pub(crate) struct DnsServer {
    /// Where it answers, by UDP and TCP.
    pub(crate) address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    _server: Server<Handler>,
}

struct Handler(Arc<Mutex<Zone>>);

impl DnsServer {
    /// Starts a server that knows no name.
    pub(crate) async fn start() -> Self {
        let zone = Arc::<Mutex<Zone>>::default();
        let (udp, tcp) = Self::bind().await;
        let address = udp.local_addr().expect("a bound socket has an address");
        let mut server = Server::new(Handler(Arc::clone(&zone)));
        server.register_socket(udp);
        server.register_listener(tcp, IDLE, 1024);
        Self { address, zone, _server: server }
    }

    /// The same port for UDP and TCP.
    async fn bind() -> (UdpSocket, TcpListener) {
        loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.expect("there are free ports");
            let address = udp.local_addr().expect("a bound socket has an address");
            if let Ok(tcp) = TcpListener::bind(address).await {
                return (udp, tcp);
            }
        }
    }

    /// Answers look-ups of a name: the first one with the first answer, and so on. The last answer stays.
    pub(crate) fn answer(&self, name: &str, answers: &[Lookup]) {
        self.zone().names.insert(absolute(name), answers.to_vec());
    }

    /// How often a name was looked up.
    pub(crate) fn queries(&self, name: &str) -> usize {
        self.zone().queries.get(&(absolute(name), RecordType::A)).copied().unwrap_or_default()
    }

    /// How long answers from now on may be remembered, in seconds.
    pub(crate) fn set_ttl(&self, seconds: u32) {
        self.zone().ttl = seconds;
    }

    fn zone(&self) -> std::sync::MutexGuard<'_, Zone> {
        self.zone.lock().expect("nothing panics with the lock")
    }
}

fn absolute(name: &str) -> Name {
    let mut name = Name::from_ascii(name).expect("a name").to_lowercase();
    name.set_fqdn(true);
    name
}

impl Zone {
    fn look_up(&mut self, name: &Name, kind: RecordType) -> Result<Option<Vec<Record>>, ResponseCode> {
        let nth = self.queries.entry((name.clone(), kind)).or_default();
        *nth += 1;
        let answers = self.names.get(name).ok_or(ResponseCode::NXDomain)?;
        match answers.get(*nth - 1).or(answers.last()) {
            None => Ok(Some(Vec::new())),
            Some(Lookup::Silence) => Ok(None),
            Some(Lookup::Failure) => Err(ResponseCode::ServFail),
            Some(Lookup::Addresses(addresses)) => {
                let data = addresses.iter().filter_map(|address| match address {
                    IpAddr::V4(address) if kind == RecordType::A => Some(RData::A((*address).into())),
                    IpAddr::V6(address) if kind == RecordType::AAAA => Some(RData::AAAA((*address).into())),
                    _ => None,
                });
                Ok(Some(data.map(|data| Record::from_rdata(name.clone(), self.ttl, data)).collect()))
            }
        }
    }
}

#[async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut response: R) -> ResponseInfo {
        let info = request.request_info().expect("a resolver asks one question");
        let name: Name = Name::from(info.query.name()).to_lowercase();
        let found = self.0.lock().expect("nothing panics with the lock").look_up(&name, info.query.query_type());
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.authoritative = true;
        let records = match found {
            Ok(Some(records)) => records,
            Ok(None) => return Header { metadata, counts: HeaderCounts::default() }.into(),
            Err(code) => {
                metadata.response_code = code;
                Vec::new()
            }
        };
        let message = MessageResponseBuilder::from_message_request(request);
        let message = message.build(metadata, &records, [], [], []);
        response.send_response(message).await.expect("loopback takes an answer")
    }
}

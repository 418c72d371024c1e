//! Real DNS servers on loopback: authoritative ones at addresses of their own, and a resolver that asks for them.
//!
//! Servers are numbered: number `n` is at `127.0.0.n`, as `ns<n>` below each zone that it serves. All have the same
//! port. A server answers as one does that serves zones: with authority, with a referral to a zone below its own, or
//! not at all. The resolver sees what a server that works has, unless it remembers something else. Everything can
//! change from one query to the next. Each test has servers, names ([`Zones::name`]) and an address ([`Zones::address`])
//! of its own. Only the resolver of Pebble is shared: it answers for a name as the resolver of the test that serves
//! its zone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};
use std::time::Duration;

use async_trait::async_trait;
use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::proto::op::{Header, HeaderCounts, Metadata, ResponseCode};
use hickory_server::proto::rr::rdata::{A, NS, NULL};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use super::child::free_port;
pub(crate) use super::zone_records::NEGATIVE_TTL;
use super::zone_records::{TTL, absolute, parsed, soa};

/// How long a TCP connection to a server may be idle.
const IDLE: Duration = Duration::from_secs(5);

/// The numbers of the servers that run: the resolver, and four that serve zones.
const RESOLVER: u8 = 1;
const NUMBERS: [u8; 5] = [RESOLVER, 2, 3, 4, 5];

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// It answers SERVFAIL.
    Servfail,
    /// It answers nothing.
    Silent,
    /// It answers that it does not serve the zone.
    Refuses,
    /// It does not know the question.
    NotImplemented,
    /// It does not claim to be authoritative.
    Lame,
    /// It does not know EDNS, and refuses queries that have it.
    WithoutEdns,
}

/// The content of the zones, and what the servers do with it.
#[derive(Debug, Default)]
struct World {
    /// For each zone its servers and records.
    zones: BTreeMap<Name, (Vec<u8>, Vec<Record>)>,
    /// What one server has of a zone in place of that.
    older: HashMap<(u8, Name), Vec<Record>>,
    moods: HashMap<u8, Mood>,
    /// Servers that fail for one type of records.
    failing_types: HashSet<(u8, RecordType)>,
    /// What the resolver remembers, with its TTL.
    remembered: HashMap<(Name, RecordType), (Vec<Record>, u32)>,
    /// Zones whose signatures are wrong, and whether the resolver answers for them if it need not check.
    bogus: HashMap<Name, bool>,
    queries: Vec<(u8, Name, RecordType)>,
}

/// The world of each zone, for the shared resolver.
static WORLDS: Mutex<BTreeMap<Name, Weak<Mutex<World>>>> = Mutex::new(BTreeMap::new());

/// Running servers; stopped on drop.
pub(crate) struct Zones {
    /// The port of all servers.
    pub(crate) port: u16,
    /// No other test of this process has it. It begins at random, so that processes that run at once seldom share it.
    number: u16,
    world: Arc<Mutex<World>>,
    _servers: Vec<Server<Handler>>,
}

struct Handler {
    number: u8,
    /// `None`: the world that has the zone of the name.
    world: Option<Arc<Mutex<World>>>,
}

/// What a server sends back.
#[derive(Default)]
struct Answer {
    code: ResponseCode,
    authoritative: bool,
    answers: Vec<Record>,
    authorities: Vec<Record>,
    additionals: Vec<Record>,
}

impl Zones {
    /// Starts servers that serve no zone.
    pub(crate) async fn start() -> Self {
        static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(rand::random()));
        let world = Arc::<Mutex<World>>::default();
        let (port, servers) = serve(&NUMBERS, Some(&world)).await;
        Self { port, number: NEXT.fetch_add(1, Ordering::Relaxed), world, _servers: servers }
    }

    /// A name in a registered domain of the test's own: that of `forms.acme` is `forms.acme-17.org`.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{name}-{}.org", self.number)
    }

    /// An address of loopback of the test's own, for its names to point to.
    pub(crate) fn address(&self) -> Ipv4Addr {
        (0x7f01_0000 | u32::from(self.number)).into()
    }

    /// The resolver.
    pub(crate) fn resolver(&self) -> SocketAddr {
        (address_of(RESOLVER), self.port).into()
    }

    /// Serves a zone, with these records in place of earlier ones: a line for each, as `www A 192.0.2.1`. `@` is the
    /// zone itself; names in values are absolute. A zone without servers is only known to the resolver.
    pub(crate) fn serve(&self, zone: &str, servers: &[u8], records: &str) {
        let apex = absolute(zone);
        let mut all: Vec<Record> = parsed(&apex, records);
        for number in servers {
            let name = absolute(&format!("ns{number}.{zone}"));
            all.push(Record::from_rdata(apex.clone(), TTL, RData::NS(NS(name.clone()))));
            all.push(Record::from_rdata(name, TTL, RData::A(A(address_of(*number)))));
        }
        all.push(soa(&apex));
        WORLDS.lock().expect("nothing panics with the lock").insert(apex.clone(), Arc::downgrade(&self.world));
        self.world().zones.insert(apex, (servers.to_vec(), all));
    }

    /// Lets the name servers of a zone have these addresses.
    pub(crate) fn set_glue(&self, zone: &str, address: &str) {
        let address: Ipv4Addr = address.parse().expect("an address");
        let mut world = self.world();
        let (_, records) = world.zones.get_mut(&absolute(zone)).expect("a zone that is served");
        let is_of_server = |name: &Name| name.to_ascii().starts_with("ns");
        for record in records.iter_mut().filter(|record| is_of_server(&record.name)) {
            record.data = RData::A(A(address));
        }
    }

    /// Lets one server of a zone have other records than the others.
    pub(crate) fn serve_older(&self, server: u8, zone: &str, records: &str) {
        let apex = absolute(zone);
        let mut all = parsed(&apex, records);
        let mut world = self.world();
        let is_kept = |record: &&Record| {
            record.name.to_ascii().starts_with("ns")
                || [RecordType::NS, RecordType::SOA].contains(&record.record_type())
        };
        all.extend(world.zones[&apex].1.iter().filter(is_kept).cloned());
        world.older.insert((server, apex), all);
    }

    /// Lets one server have what the others have.
    pub(crate) fn transfer(&self, server: u8, zone: &str) {
        self.world().older.remove(&(server, absolute(zone)));
    }

    /// Lets a server do something else than to answer.
    pub(crate) fn set_mood(&self, server: u8, mood: Mood) {
        self.world().moods.insert(server, mood);
    }

    /// The same for the resolver.
    pub(crate) fn set_resolver_mood(&self, mood: Mood) {
        self.set_mood(RESOLVER, mood);
    }

    /// Lets the resolver answer again.
    pub(crate) fn end_resolver_mood(&self) {
        self.world().moods.remove(&RESOLVER);
    }

    /// Lets a server answer SERVFAIL to questions for one type.
    pub(crate) fn fail_for(&self, server: u8, kind: RecordType) {
        self.world().failing_types.insert((server, kind));
    }

    /// Lets the resolver remember records of a name, or with none that there are none.
    pub(crate) fn remember(&self, name: &str, records: &str, ttl: u32) {
        let name = absolute(name);
        let records = parsed(&name, records);
        for kind in [RecordType::A, RecordType::AAAA] {
            let of_kind = |record: &&Record| [kind, RecordType::CNAME].contains(&record.record_type());
            let records = records.iter().filter(of_kind).cloned().collect();
            self.world().remembered.insert((name.clone(), kind), (records, ttl));
        }
    }

    /// Adds what shows that a zone is signed.
    pub(crate) fn sign(&self, zone: &str) {
        let apex = absolute(zone);
        let data = RData::Unknown { code: RecordType::DS, rdata: NULL::with(vec![0xec, 0x45, 13, 2, 1, 2, 3, 4]) };
        let record = Record::from_rdata(apex.clone(), TTL, data);
        self.world().zones.get_mut(&apex).expect("a zone that is served").1.push(record);
    }

    /// Lets the resolver refuse the signatures of a zone. `lenient`: unless it need not check them.
    pub(crate) fn break_signatures(&self, zone: &str, lenient: bool) {
        self.world().bogus.insert(absolute(zone), lenient);
    }

    /// How many queries a server got.
    pub(crate) fn queries(&self, server: u8) -> usize {
        self.world().queries.iter().filter(|(number, ..)| *number == server).count()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("nothing panics with the lock")
    }
}

/// Where the resolver of every Pebble is. It outlives the runtimes of tests.
pub(super) async fn shared_resolver() -> SocketAddr {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("threads can be started"));
    static SHARED: OnceCell<(u16, Vec<Server<Handler>>)> = OnceCell::const_new();
    let start = async || RUNTIME.spawn(serve(&[RESOLVER], None)).await.expect("it starts");
    (address_of(RESOLVER), SHARED.get_or_init(start).await.0).into()
}

fn asked(request: &Request) -> (Name, RecordType) {
    let info = request.request_info().expect("one question");
    (Name::from(info.query.name()).to_lowercase(), info.query.query_type())
}

/// The world that has the closest zone above a name.
fn world_of(name: &Name) -> Option<Arc<Mutex<World>>> {
    let worlds = WORLDS.lock().expect("nothing panics with the lock");
    (0..=name.num_labels().into()).rev().find_map(|labels| worlds.get(&name.trim_to(labels))?.upgrade())
}

/// Starts servers that have the same port for UDP and TCP at all addresses.
async fn serve(numbers: &[u8], world: Option<&Arc<Mutex<World>>>) -> (u16, Vec<Server<Handler>>) {
    'ports: loop {
        let (port, mut servers) = (free_port(), Vec::new());
        for &number in numbers {
            let address = SocketAddr::from((address_of(number), port));
            let sockets = (UdpSocket::bind(address).await, TcpListener::bind(address).await);
            let (Ok(udp), Ok(tcp)) = sockets else { continue 'ports };
            let mut server = Server::new(Handler { number, world: world.cloned() });
            server.register_socket(udp);
            server.register_listener(tcp, IDLE, 1024);
            servers.push(server);
        }
        return (port, servers);
    }
}

fn address_of(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, number)
}

impl Answer {
    fn of(code: ResponseCode) -> Self {
        Self { code, ..Self::default() }
    }
}

impl World {
    /// The closest zone above a name that passes.
    fn zone_of(&self, name: &Name, passes: impl Fn(&Name, &[u8]) -> bool) -> Option<&Name> {
        let zones = self.zones.iter().filter(|(apex, (servers, _))| apex.zone_of(name) && passes(apex, servers));
        zones.map(|(apex, _)| apex).max_by_key(|apex| apex.num_labels())
    }

    fn records(&self, server: u8, apex: &Name) -> &[Record] {
        self.older.get(&(server, apex.clone())).unwrap_or_else(|| &self.zones[apex].1)
    }

    /// What is in a zone, without authority.
    fn look_up(&self, server: u8, apex: &Name, name: &Name, kind: RecordType) -> Answer {
        let records = self.records(server, apex);
        let fits = |record: &&Record| record.name == *name && [kind, RecordType::CNAME].contains(&record.record_type());
        let mut answer = Answer::of(ResponseCode::NoError);
        answer.answers = records.iter().filter(fits).cloned().collect();
        if answer.answers.is_empty() {
            answer.authorities = vec![soa(apex)];
            if !records.iter().any(|record| name.zone_of(&record.name)) {
                answer.code = ResponseCode::NXDomain;
            }
        }
        answer
    }

    /// The answer of a server that serves zones.
    fn serve(&self, server: u8, name: &Name, kind: RecordType) -> Answer {
        let Some(apex) = self.zone_of(name, |_, servers| servers.contains(&server)) else {
            return Answer::of(ResponseCode::Refused);
        };
        let below = self.zones.keys().filter(|other| *other != apex && apex.zone_of(other) && other.zone_of(name));
        if let Some(cut) = below.min_by_key(|cut| cut.num_labels()) {
            let mut referral = Answer::of(ResponseCode::NoError);
            let records = &self.zones[cut].1;
            let of_type = |kind| records.iter().filter(move |record| record.record_type() == kind).cloned();
            referral.authorities = of_type(RecordType::NS).filter(|record| record.name == *cut).collect();
            let names: Vec<_> = referral.authorities.iter().map(|record| record.data.clone()).collect();
            let is_glue = |record: &Record| names.contains(&RData::NS(NS(record.name.clone())));
            referral.additionals = of_type(RecordType::A).filter(is_glue).collect();
            return referral;
        }
        let answer = self.look_up(server, apex, name, kind);
        Answer { authoritative: self.moods.get(&server) != Some(&Mood::Lame), ..answer }
    }

    /// The answer of the resolver, which follows aliases.
    fn resolve(&self, name: &Name, kind: RecordType, checking_disabled: bool) -> Answer {
        let mut answer = Answer::of(ResponseCode::NoError);
        let mut name = name.clone();
        for _ in 0..16 {
            if let Some((records, ttl)) = self.remembered.get(&(name.clone(), kind)) {
                let known = answer.answers.len();
                answer.answers.extend(records.iter().cloned());
                answer.answers[known..].iter_mut().for_each(|record| record.ttl = *ttl);
                let mut soa = soa(&name);
                soa.ttl = *ttl;
                answer.authorities = if records.is_empty() { vec![soa] } else { Vec::new() };
                return answer;
            }
            let Some(apex) = self.zone_of(&name, |_, _| true).cloned() else {
                answer.code = ResponseCode::NXDomain;
                return answer;
            };
            let bogus = self.bogus.iter().find(|(zone, _)| zone.zone_of(&name));
            let is_refused = bogus.is_some_and(|(zone, lenient)| {
                let is_ds = kind == RecordType::DS && *zone == name;
                !(is_ds || (*lenient && checking_disabled))
            });
            let mut servers = self.zones[&apex].0.clone();
            let is_private = servers.is_empty();
            servers.retain(|server| self.moods.get(server).is_none_or(|mood| *mood == Mood::WithoutEdns));
            servers.retain(|server| !self.failing_types.contains(&(*server, kind)));
            let server = if is_private { Some(0) } else { servers.first().copied() };
            let Some(server) = server.filter(|_| !is_refused) else { return Answer::of(ResponseCode::ServFail) };
            let found = self.look_up(server, &apex, &name, kind);
            let alias = found.answers.iter().find_map(|record| match &record.data {
                RData::CNAME(alias) if kind != RecordType::CNAME => Some(alias.0.clone()),
                _ => None,
            });
            (answer.code, answer.authorities) = (found.code, found.authorities);
            answer.answers.extend(found.answers);
            match alias {
                Some(alias) => name = alias,
                None => return answer,
            }
        }
        Answer::of(ResponseCode::ServFail)
    }

    /// The answer of a server, whatever it is; `None` for silence.
    fn answer(&mut self, server: u8, request: &Request) -> Option<Answer> {
        let (name, kind) = asked(request);
        self.queries.push((server, name.clone(), kind));
        match self.moods.get(&server) {
            Some(Mood::Silent) => return None,
            Some(Mood::Servfail) => return Some(Answer::of(ResponseCode::ServFail)),
            Some(Mood::Refuses) => return Some(Answer::of(ResponseCode::Refused)),
            Some(Mood::NotImplemented) => return Some(Answer::of(ResponseCode::NotImp)),
            Some(Mood::WithoutEdns) if request.edns.is_some() => return Some(Answer::of(ResponseCode::FormErr)),
            Some(Mood::WithoutEdns | Mood::Lame) | None => {}
        }
        if self.failing_types.contains(&(server, kind)) {
            return Some(Answer::of(ResponseCode::ServFail));
        }
        let resolve = |world: &Self| world.resolve(&name, kind, request.metadata.checking_disabled);
        Some(if server == RESOLVER { resolve(self) } else { self.serve(server, &name, kind) })
    }
}

#[async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut response: R) -> ResponseInfo {
        let world = self.world.clone().or_else(|| world_of(&asked(request).0)).unwrap_or_default();
        let answer = world.lock().expect("nothing panics with the lock").answer(self.number, request);
        let mut metadata = Metadata::response_from_request(&request.metadata);
        let Some(Answer { code, authoritative, answers, authorities, additionals }) = answer else {
            return Header { metadata, counts: HeaderCounts::default() }.into();
        };
        (metadata.response_code, metadata.authoritative) = (code, authoritative);
        metadata.recursion_available = self.number == RESOLVER;
        let message = MessageResponseBuilder::from_message_request(request);
        let message = message.build(metadata, &answers, &authorities, [], &additionals);
        response.send_response(message).await.expect("loopback takes an answer")
    }
}

/// An address, parsed.
pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

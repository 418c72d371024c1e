//! Owners who want to cost time or memory, or to send queries where they can't send them themselves.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use formgate::dns::{Dns, Finding, Proof};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use super::scene::{Claim, OWN_LABEL, PROOF, SERVERS, ask, assert_fault, fault, look, ready, zones};

/// How long a look may take at most: what is promised, and the pauses of a loaded machine.
const PROMISED: Duration = Duration::from_secs(20);

#[tokio::test]
async fn servers_with_private_addresses_are_not_asked() {
    let zones = zones().await;
    zones.serve("acme.com", &SERVERS, OWN_LABEL);
    let finding = ask(&Dns::new(&[zones.resolver()]), &Claim::usual()).await;
    assert_eq!(finding, ready(Proof::OwnLabel), "the resolver answers for them");
    assert_eq!(SERVERS.map(|server| zones.queries(server)), [0, 0]);
}

#[tokio::test]
async fn a_chain_of_aliases_without_an_end_is_elsewhere() {
    let zones = zones().await;
    let chain: Vec<_> = (1..200).map(|n| format!("a{n} CNAME a{}.acme.com", n + 1)).collect();
    zones.serve("acme.com", &SERVERS, &format!("forms CNAME a1.acme.com\n{}", chain.join("\n")));
    assert_eq!(fault(look(&zones, &Claim::usual()).await).reason(), "elsewhere");
    assert!(zones.queries(SERVERS[0]) < 30, "{} queries", zones.queries(SERVERS[0]));
}

#[tokio::test]
async fn a_zone_with_hundreds_of_name_servers_is_asked_at_a_few() {
    let zones = zones().await;
    let servers: Vec<_> =
        (1..=300).map(|n| format!("@ NS n{n}.acme.com\nn{n} A 127.0.{}.{}", n / 250 + 1, n % 250 + 1)).collect();
    zones.serve("acme.com", &[3], &servers.join("\n"));
    let begun = Instant::now();
    // None of the first ones exists, so the resolver answers for the zone.
    assert_eq!(fault(look(&zones, &Claim::usual()).await).reason(), "no_records");
    assert!(begun.elapsed() < PROMISED);
    assert!(zones.queries(1) < 60, "{} queries", zones.queries(1));
}

#[tokio::test]
async fn hundreds_of_wrong_addresses_make_a_short_report() {
    let zones = zones().await;
    let addresses: Vec<_> = (1..=250).map(|n| format!("forms A 203.0.113.{n}")).collect();
    zones.serve("acme.com", &SERVERS, &addresses.join("\n"));
    assert_eq!(fault(look(&zones, &Claim::usual()).await).records().len(), 9);
}

#[tokio::test]
async fn a_name_of_a_hundred_labels_is_looked_at_in_bounded_time() {
    let zones = zones().await;
    let labels = "a.".repeat(100);
    zones.serve("acme.com", &SERVERS, &format!("{labels}forms A 192.0.2.10\n_formgate.{labels}forms TXT {PROOF}"));
    let begun = Instant::now();
    assert_eq!(look(&zones, &Claim::of(&format!("{labels}forms.acme.com"))).await, ready(Proof::Txt));
    assert!(begun.elapsed() < PROMISED);
}

/// A server that answers each query with these bytes, after the id of the query; `None`: with packets of another id.
async fn answering(port: u16, after_id: Option<&'static [u8]>) -> tokio::task::JoinHandle<()> {
    let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 77), port)).await.unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let id = [buffer[0], buffer[1]];
            let answer = match after_id {
                Some(bytes) => [&id, bytes].concat(),
                None => [&[!id[0], id[1]], &buffer[2..length]].concat(),
            };
            socket.send_to(&answer, from).await.unwrap();
        }
    })
}

#[tokio::test]
async fn answers_that_are_no_messages_or_of_another_query_are_reported() {
    let loop_of_pointers = b"\x84\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01";
    for (bytes, does) in [
        (Some(&b"garbage that is no message"[..]), "answers with an error"),
        (Some(&loop_of_pointers[..]), "answers with an error"),
        (Some(&[][..]), "answers with an error"),
        (None, "does not answer"),
    ] {
        let zones = zones().await;
        zones.serve("acme.com", &[3], OWN_LABEL);
        zones.set_glue("acme.com", "127.0.0.77");
        zones.set_mood(3, crate::support::zones::Mood::Silent);
        let server = answering(zones.port, bytes).await;
        let begun = Instant::now();
        assert_fault(
            look(&zones, &Claim::usual()).await,
            "dns_broken",
            &format!(
                "Repair the name server `ns3.acme.com` (127.0.0.77): asked for A records of `forms.acme.com`, it {does}."
            ),
        );
        assert!(begun.elapsed() < PROMISED);
        server.abort();
    }
}

/// A query as an authoritative answer without records that was cut off.
fn cut_off(query: &[u8]) -> Vec<u8> {
    let mut answer = query.to_vec();
    answer[2] |= 0b1000_0110;
    answer
}

#[tokio::test]
async fn an_answer_that_is_cut_off_by_tcp_too_is_reported() {
    let zones = zones().await;
    zones.serve("acme.com", &[3], OWN_LABEL);
    zones.set_glue("acme.com", "127.0.0.77");
    zones.set_mood(3, crate::support::zones::Mood::Silent);
    let address = (Ipv4Addr::new(127, 0, 0, 77), zones.port);
    let (socket, listener) = (UdpSocket::bind(address).await.unwrap(), TcpListener::bind(address).await.unwrap());
    let by_udp = tokio::spawn(async move {
        let mut query = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut query).await {
            socket.send_to(&cut_off(&query[..length]), from).await.unwrap();
        }
    });
    let by_tcp = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let length = stream.read_u16().await.unwrap();
            let mut query = vec![0; length.into()];
            stream.read_exact(&mut query).await.unwrap();
            stream.write_all(&[&length.to_be_bytes(), &*cut_off(&query)].concat()).await.unwrap();
        }
    });
    assert_fault(
        look(&zones, &Claim::usual()).await,
        "dns_broken",
        "Repair the name server `ns3.acme.com` (127.0.0.77): asked for A records of `forms.acme.com`, it answers with an \
         error.",
    );
    by_udp.abort();
    by_tcp.abort();
}

#[tokio::test]
async fn servers_that_are_silent_everywhere_cost_bounded_time() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = silent.local_addr().unwrap();
    let begun = Instant::now();
    let finding = ask(&Dns::new(&[address, address, address]), &Claim::usual()).await.finding;
    assert!(matches!(finding, Finding::Unknown(_)), "{finding:?}");
    assert!(begun.elapsed() < PROMISED, "{:?}", begun.elapsed());
}

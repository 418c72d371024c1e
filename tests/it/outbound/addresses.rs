//! No packet reaches an address that is not public and not allowed.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::thread;

use formgate::outbound::{Guard, ProbeStep, Target};

use super::scene::{Scene, Untouched};
use crate::support::dns::Lookup;
use crate::support::process::python;
use crate::support::receiver::{Act, HOST, Receiver};

/// What a caller reads of any blocked address.
const BLOCKED: (&str, &str) = ("blocked", "blocked address");

fn blocked() -> (&'static str, String) {
    (BLOCKED.0, BLOCKED.1.to_owned())
}

#[tokio::test]
async fn a_name_that_resolves_to_another_address_later_is_checked_again() {
    let receiver = Receiver::always_at("127.0.0.2:0", Act::answer(204, &["Connection: close"], "")).await;
    let inner = Untouched::listen(&format!("127.0.0.1:{}", receiver.address.port()));
    // 127.0.0.2 is what a public address is elsewhere: allowed, while 127.0.0.1 is not.
    let scene = Scene::with(&["127.0.0.2"], |_| ()).await;
    scene.dns.answer(HOST, &[Lookup::of(&["127.0.0.2"]), Lookup::of(&["127.0.0.1"]), Lookup::of(&["127.0.0.2"])]);
    assert_eq!(scene.status(&receiver.url("/")).await, 204);
    assert_eq!(scene.failure(&receiver.url("/")).await, blocked());
    assert_eq!(scene.status(&receiver.url("/")).await, 204);
    assert_eq!((scene.dns.queries(HOST), receiver.requests().len()), (3, 2));
    inner.assert_untouched();
}

#[tokio::test]
async fn a_private_address_among_public_ones_gets_no_packet() {
    let receiver = Receiver::always_at("127.0.0.2:0", Act::status(204)).await;
    let port = receiver.address.port();
    let others = [format!("127.0.0.1:{port}"), format!("127.0.0.3:{port}"), format!("[::1]:{port}")];
    let others = others.map(|address| Untouched::listen(&address));
    let scene = Scene::with(&["127.0.0.2"], |_| ()).await;
    for addresses in [
        &["127.0.0.1", "127.0.0.2", "::1"][..],
        &["::1", "127.0.0.3", "127.0.0.2", "10.0.0.1"],
        &["::ffff:127.0.0.1", "::ffff:127.0.0.2", "64:ff9b::127.0.0.1", "127.0.0.1"],
    ] {
        scene.dns.answer(HOST, &[Lookup::of(addresses)]);
        assert_eq!(scene.status(&receiver.url("/")).await, 204, "{addresses:?}");
    }
    others.iter().for_each(Untouched::assert_untouched);
}

#[tokio::test]
async fn a_name_with_only_private_addresses_is_blocked() {
    let inner = Untouched::listen("127.0.0.1:0");
    let inner_v6 = Untouched::listen(&format!("[::1]:{}", inner.address().port()));
    let scene = Scene::with(&[], |_| ()).await;
    let url = format!("https://{HOST}:{}/", inner.address().port());
    for addresses in [
        &["127.0.0.1"][..],
        &["::1"],
        &["::"],
        &["0.0.0.0"],
        &["127.0.0.1", "::1", "10.0.0.1", "192.168.0.1", "fd00::1", "fe80::1"],
        &["::ffff:127.0.0.1"],
        &["::127.0.0.1"],
        &["64:ff9b::127.0.0.1"],
        &["169.254.169.254"],
        &["100.64.0.1"],
        &["2002:7f00:1::"],
    ] {
        scene.dns.answer(HOST, &[Lookup::of(addresses)]);
        assert_eq!(scene.failure(&url).await, blocked(), "{addresses:?}");
    }
    // Resolved without DNS, by RFC 6761.
    for name in ["localhost", "hooks.localhost"] {
        let url = format!("https://{name}:{}/", inner.address().port());
        assert_eq!(scene.failure(&url).await, blocked(), "{name}");
    }
    inner.assert_untouched();
    inner_v6.assert_untouched();
}

#[tokio::test]
async fn a_literal_is_blocked_in_every_notation() {
    let inner = Untouched::listen("127.0.0.1:0");
    let inner_v6 = Untouched::listen(&format!("[::1]:{}", inner.address().port()));
    let scene = Scene::with(&[], |_| ()).await;
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.1.",
        "0",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
    ] {
        let url = format!("https://{host}:{}/", inner.address().port());
        assert_eq!(scene.failure(&url).await, blocked(), "{host}");
        let target = Target::parse(&url).unwrap();
        assert!(scene.guard.check_literal(&target).is_err(), "{host} is blocked when it is stored too");
    }
    inner.assert_untouched();
    inner_v6.assert_untouched();
    assert_eq!(scene.dns.queries("127.0.0.1"), 0);
}

#[tokio::test]
async fn a_redirect_to_a_blocked_address_is_an_answer_and_nothing_more() {
    let inner = Untouched::listen("127.0.0.1:0");
    let scene = Scene::with(&["127.0.0.2"], |_| ()).await;
    scene.dns.answer(HOST, &[Lookup::of(&["127.0.0.2"])]);
    for status in [301, 302, 303, 307, 308] {
        let location = format!("Location: https://{}/", inner.address());
        let refresh = format!("Refresh: 0; url=https://{}/", inner.address());
        let receiver = Receiver::always_at("127.0.0.2:0", Act::answer(status, &[&location, &refresh], "")).await;
        let attempt = scene.send(&receiver.url("/")).await;
        assert!(!attempt.is_accepted());
        assert_eq!(attempt.outcome.unwrap().status.as_u16(), status);
        assert_eq!(receiver.requests().len(), 1);
    }
    inner.assert_untouched();
}

#[tokio::test]
async fn a_service_of_our_own_is_blocked_although_its_network_is_allowed() {
    let receiver = Receiver::always(Act::status(204)).await;
    let own = Untouched::listen("127.0.0.1:0");
    let scene = Scene::new().await;
    scene.guard.refuse([own.address()]);
    for host in [HOST, "127.0.0.1", "[::ffff:127.0.0.1]"] {
        let url = format!("https://{host}:{}/", own.address().port());
        assert_eq!(scene.failure(&url).await, blocked(), "{host}");
    }
    own.assert_untouched();
    assert_eq!(scene.status(&receiver.url("/")).await, 204, "another port of the same address");
}

#[tokio::test]
async fn a_host_is_an_exception_by_its_name() {
    let receiver = Receiver::always(Act::status(204)).await;
    let scene = Scene::with(&[HOST], |_| ()).await;
    assert_eq!(scene.status(&receiver.url("/")).await, 204);
    let literal = format!("https://127.0.0.1:{}/", receiver.address.port());
    assert_eq!(scene.failure(&literal).await, blocked());
    scene.dns.answer("other.example.test", &[Lookup::of(&["127.0.0.1"])]);
    let other = format!("https://other.example.test:{}/", receiver.address.port());
    assert_eq!(scene.failure(&other).await, blocked());
    // A client without an open connection looks it up again.
    let fresh = Scene::with(&[HOST], |_| ()).await;
    fresh.dns.answer(HOST, &[Lookup::of(&["169.254.169.254"])]);
    assert_eq!(fresh.failure(&receiver.url("/")).await, blocked(), "a metadata service is no exception");
}

#[tokio::test]
async fn the_way_of_an_operator_shows_what_is_blocked() {
    let scene = Scene::with(&[], |_| ()).await;
    let target = Target::parse(&format!("https://{HOST}/")).unwrap();
    let steps = scene.client.probe(&target, None).await;
    let [dns, address] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!((dns.step, address.step), (ProbeStep::Dns, ProbeStep::Address));
    assert!(dns.finding.as_ref().unwrap().contains("127.0.0.1"), "{dns:?}");
    let fault = address.finding.as_ref().unwrap_err();
    assert!(fault.what == "blocked address" && fault.remedy.contains("allow_targets"), "{fault:?}");
}

/// Python's standard library has the registries of IANA too. What it takes for private must be blocked.
#[test]
fn whatever_python_takes_for_private_is_blocked() {
    const SCRIPT: &str = "import ipaddress, sys\n\
        for line in sys.stdin:\n    a = ipaddress.ip_address(line.strip())\n    \
        print(int(a.is_global and not a.is_multicast and not a.is_reserved))";
    // The ends and neighbors of every /8 and of many smaller IPv4 networks, and the like of IPv6.
    let mut addresses = Vec::<IpAddr>::new();
    for head in 0..=255_u32 {
        for rest in [0, 1, 0x00_00_02_05, 0x00_10_00_01, 0x00_40_00_00, 0x00_58_63_01, 0x00_a8_00_01, 0x00_fe_a9_fe] {
            addresses.push(std::net::Ipv4Addr::from_bits(head << 24 | rest).into());
        }
        for rest in [1, 1 << 96, 0x0db8 << 96, 0x000f_8000 << 84, u128::MAX >> 8] {
            addresses.push(std::net::Ipv6Addr::from_bits(u128::from(head) << 120 | rest).into());
        }
    }
    for second in 0..=255_u32 {
        for head in [100, 169, 172, 192, 198, 203] {
            for rest in [0x01, 0x0201, 0x6401, 0x7101, 0xffff] {
                addresses.push(std::net::Ipv4Addr::from_bits(head << 24 | second << 16 | rest).into());
            }
        }
        addresses.push(std::net::Ipv6Addr::from_bits(0x2001 << 112 | u128::from(second) << 96 | 7).into());
    }
    let listed: String = addresses.iter().map(|address| format!("{address}\n")).collect();
    let mut command = Command::new(python());
    command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("there is a Python");
    let mut input = child.stdin.take().expect("it is piped");
    let writer = thread::spawn(move || input.write_all(listed.as_bytes()));
    let output = child.wait_with_output().expect("the program ends");
    writer.join().unwrap().expect("the program reads");
    assert!(output.status.success());
    let global: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(|line| line == "1").collect();
    assert_eq!(global.len(), addresses.len());
    let guard = Guard::default();
    let host = Target::parse("https://hooks.example/").unwrap().host().clone();
    let mut both = 0;
    for (address, is_global) in addresses.iter().zip(global) {
        let is_allowed = guard.check(&host, SocketAddr::new(*address, 443)).is_ok();
        assert!(is_global || !is_allowed, "{address} is private");
        both += usize::from(is_global && is_allowed);
    }
    assert!(both > 1000, "{both} public addresses prove little");
}

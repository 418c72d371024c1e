//! Networks of tokens: where one is accepted, by the address of the connection or the one that a balancer names.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::HeaderMap;
use serde_json::Value;
use tokio::net::TcpStream;
use toml::Table;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::child::until;
use crate::support::client::operator_count;
use crate::support::connection::exchange;
use crate::support::fixture::{Engine, Site, on_both_databases};

/// No answer takes this long.
const SILENCE: Duration = Duration::from_secs(5);

/// A header of the PROXY protocol, version 2. Without addresses it is one of a health check.
fn proxy_v2(client: Option<IpAddr>) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    let (ports, addresses) = (
        [0x9c, 0x40, 0x01, 0xbb],
        match client {
            None => return [&header[..], &[0x20, 0x00, 0, 0]].concat(),
            Some(IpAddr::V4(client)) => [client.octets().as_slice(), &[198, 51, 100, 1]].concat(),
            Some(IpAddr::V6(client)) => [client.octets().as_slice(), &[0x20; 16]].concat(),
        },
    );
    header.extend([0x21, if addresses.len() == 8 { 0x11 } else { 0x21 }, 0, addresses.len() as u8 + 4]);
    [header, addresses, ports.to_vec()].concat()
}

/// A node that a balancer at 127.0.0.1 sends its clients to, and where.
fn behind_a_balancer(engine: Engine, keys: &str) -> (Acme, SocketAddr) {
    let entry: Table = format!("address = '127.0.0.1:0'\ntls = false\n{keys}").parse().expect("TOML");
    let site = Site::new().tenant("acme", engine).requests_per_minute(1000);
    let mut acme = Acme::of(site.gateway("listen", vec!["127.0.0.1:0".into(), toml::Value::from(entry)]));
    let [_, address] = acme.node.addresses()[..] else { panic!("two listeners") };
    (acme, address)
}

/// A request to an address, with what comes before it.
async fn me(address: SocketAddr, before: &[u8], token: &str, headers: &str) -> Answer {
    let head = format!(
        "GET /api/v1/me HTTP/1.1\r\nHost: acme.example.test\r\nAuthorization: Bearer {token}\r\nX-Request-Id: same\r\n\
         {headers}Connection: close\r\n\r\n"
    );
    let stream = TcpStream::connect(address).await.expect("a connection");
    let bytes = exchange(stream, &[before, head.as_bytes()].concat(), SILENCE).await;
    Answer::read(&bytes).unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(&bytes)))
}

/// All that a caller can compare; `Date` tells only when.
fn comparable(mut answer: Answer) -> (u16, HeaderMap, Vec<u8>) {
    answer.headers.remove("date");
    (answer.status.as_u16(), answer.headers, answer.body)
}

on_both_databases! {
    async fn a_token_is_accepted_from_its_networks_as_the_balancer_names_the_client(engine: Engine) {
        let (mut acme, address) = behind_a_balancer(engine, "proxy_protocol_from = ['127.0.0.1']");
        let networks = ["--networks", "203.0.113.0/24,2001:db8::/32,::ffff:192.0.2.0/120"];
        let token = acme.site.limited_token("acme", "Office", &networks);
        for (client, status) in [
            ("203.0.113.9", 200),
            ("::ffff:203.0.113.9", 200),
            ("192.0.2.200", 200),
            ("2001:db8:7::1", 200),
            ("203.0.114.9", 401),
            ("2001:db9::1", 401),
            ("127.0.0.1", 401),
            ("::1", 401),
        ] {
            let header = proxy_v2(Some(client.parse().unwrap()));
            assert_eq!(me(address, &header, &token, "").await.status, status, "{client}");
            assert_eq!(me(address, &header, &acme.token, "").await.status, 200, "{client} with a token without networks");
            // Whoever the client says it is.
            let forwarded = "X-Forwarded-For: 203.0.113.9\r\nForwarded: for=203.0.113.9\r\nX-Real-IP: 203.0.113.9\r\n";
            assert_eq!(me(address, &header, &token, forwarded).await.status, status, "{client}");
        }
        // A health check of the balancer has no client, so that its address is unknown.
        let own = acme.site.limited_token("acme", "Balancer", &["--networks", "127.0.0.1"]);
        assert_eq!(me(address, &proxy_v2(None), &own, "").await.status, 401);
        assert_eq!(acme.stranger().with(&own).get("/api/v1/me").send().await.status, 200, "by the other listener");
        let series = r#"formgate_token_limit_refusals_total{limit="networks"}"#;
        assert!(operator_count(acme.node.operator_address(), series).await >= 9);
    }

    async fn a_wrong_network_gets_the_answer_to_an_unknown_token_and_is_audited_once(engine: Engine) {
        let mut acme = Acme::of(Site::new().tenant("acme", engine).requests_per_minute(60));
        let token = acme.site.limited_token("acme", "Office", &["--networks", "203.0.113.0/24"]);
        let unknown = formgate::tenant::token::PresentedToken::generate();
        let call = |token: &str| acme.stranger().with(token).get("/api/v1/me").header("x-request-id", "same");
        let expected = comparable(call(unknown.expose()).send().await);
        assert_eq!(expected.0, 401);
        for _ in 0..3 {
            assert_eq!(comparable(call(&token).send().await), expected);
        }
        let answer = acme.caller().get("/api/v1/me").send().await;
        assert_eq!(answer.number("x-ratelimit-remaining"), Some(59), "none of them spent anything");
        let audited = || {
            let output = acme.site.run(&["audit", "list", "--tenant", "acme", "--json"], b"");
            let rows = output.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            rows.filter(|row| row["action"] == "token.refused").collect::<Vec<_>>()
        };
        let rows = until(SILENCE * 6, || Some(audited()).filter(|rows| !rows.is_empty())).expect("it is audited");
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!((&rows[0]["subject"], &rows[0]["network"]), (&"token 2".into(), &"127.0.0.0/24".into()), "{rows:?}");
        assert_eq!(rows[0]["details"], serde_json::json!({"name": "Office", "reason": "wrong_network"}));
        assert!(acme.site.run(&["audit", "verify", "--tenant", "acme"], b"").code == 0);
        assert!(acme.stop().await.contains(r#""reason":"wrong_network""#));
    }
}

#[tokio::test]
async fn behind_a_balancer_that_names_no_client_a_token_with_networks_is_refused() {
    let (acme, address) = behind_a_balancer(Engine::Sqlite, "");
    let token = acme.site.limited_token("acme", "Office", &["--networks", "0.0.0.0/0,::/0"]);
    assert_eq!(me(address, b"", &token, "").await.status, 401, "its address is unknown");
    assert_eq!(me(address, b"", &acme.token, "").await.status, 200);
    assert_eq!(acme.stranger().with(&token).get("/api/v1/me").send().await.status, 200, "here it is known");
}

#[tokio::test]
async fn attempts_from_a_wrong_network_are_limited_like_those_with_bad_tokens_and_harm_nobody_else() {
    let (acme, address) = {
        let limits: Table = "bad_tokens_burst = 3\nbad_tokens_per_second = 1".parse().expect("TOML");
        let entry: Table =
            "address = '127.0.0.1:0'\ntls = false\nproxy_protocol_from = ['127.0.0.1']".parse().expect("TOML");
        let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(1000).gateway("limits", limits);
        let mut acme = Acme::of(site.gateway("listen", vec!["127.0.0.1:0".into(), toml::Value::from(entry)]));
        let [_, address] = acme.node.addresses()[..] else { panic!("two listeners") };
        (acme, address)
    };
    let token = acme.site.limited_token("acme", "Office", &["--networks", "203.0.113.0/24"]);
    let (right, wrong) = (proxy_v2(Some([203, 0, 113, 9].into())), proxy_v2(Some([198, 51, 100, 9].into())));
    for token in [&token, &acme.token] {
        assert_eq!(me(address, &right, token, "").await.status, 200, "it was valid here");
    }
    let mut statuses = Vec::new();
    for _ in 0..40 {
        statuses.push(me(address, &wrong, &token, "").await.status.as_u16());
    }
    assert!(statuses.contains(&401) && statuses.contains(&429), "{statuses:?}");
    assert_eq!(me(address, &right, &token, "").await.status, 200, "from its own network");
    assert_eq!(me(address, &wrong, &acme.token, "").await.status, 200, "a token without networks");
}

//! Traces, as a collector receives them: OTLP over HTTP, decoded by OpenTelemetry's own types.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;

use crate::support::child::free_port;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;

/// How long spans may take: the node sends them every few seconds, and the last when it stops.
const LIMIT: Duration = Duration::from_secs(20);

/// Listens as a collector does, and hands on what it is sent.
struct Collector {
    address: SocketAddr,
    sent: Receiver<Vec<u8>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (sender, sent) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let sender = sender.clone();
                std::thread::spawn(move || take_requests(&stream, &sender));
            }
        });
        Self { address, sent }
    }

    /// Everything that was sent, until a span with each of the names has come.
    fn spans_until(&self, names: &[&str]) -> (Vec<Span>, Vec<u8>) {
        let (since, mut spans, mut raw) = (Instant::now(), Vec::new(), Vec::new());
        while !names.iter().all(|name| spans.iter().any(|span: &Span| span.name == *name)) {
            let left = LIMIT.saturating_sub(since.elapsed());
            let names: Vec<_> = spans.iter().map(|span: &Span| span.name.clone()).collect();
            let body = self.sent.recv_timeout(left).unwrap_or_else(|_| panic!("only these came in time: {names:?}"));
            let request = ExportTraceServiceRequest::decode(&*body).expect("an OTLP message");
            let resources = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            spans.extend(resources.flat_map(|scope| scope.spans));
            raw.extend(body);
        }
        (spans, raw)
    }
}

/// Answers every POST on one connection.
fn take_requests(stream: &TcpStream, sender: &Sender<Vec<u8>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
            line.clear();
        }
        let mut body = vec![0; length];
        if length == 0 || reader.read_exact(&mut body).is_err() {
            return;
        }
        let _ = sender.send(body);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        if (&*stream).write_all(answer).is_err() {
            return;
        }
    }
}

fn attributes(span: &Span) -> HashMap<&str, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let pairs = span.attributes.iter();
    pairs.filter_map(|pair| Some((&*pair.key, text(pair.value.as_ref()?.value.as_ref()?)))).collect()
}

#[tokio::test]
async fn a_request_is_a_trace_with_its_steps_and_without_its_secrets() {
    let collector = Collector::start();
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let token = site.token("acme", "tests");
    let endpoint = format!("http://{}", collector.address);
    let mut node = Node::spawn_in(&site.config_path, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let caller = node.client().to(&site.host("acme")).with(&token);
    let call =
        caller.post("/api/v1/submission?page=1").header("traceparent", &format!("00-{trace}-00f067aa0ba902b7-01"));
    let answer = call.json(&json!({"search": "MARKER-KEYWORD"})).send().await;
    assert_eq!(answer.status, 200);
    assert_eq!(node.stop(LIMIT).await, 0);

    let (spans, raw) = collector.spans_until(&["POST /submission", "verify", "admit", "handle"]);
    let request = spans.iter().find(|span| span.name == "POST /submission").expect("it was waited for");
    let told = attributes(request);
    for (key, value) in [
        ("http.request.method", "POST"),
        ("http.route", "POST /submission"),
        ("http.response.status_code", "200"),
        ("formgate.tenant", "acme"),
        ("formgate.request_id", answer.header("x-request-id").expect("each answer has one")),
    ] {
        assert_eq!(told.get(key).map(String::as_str), Some(value), "{key} in {told:?}");
    }
    let expected: Vec<u8> =
        (0..16).map(|at| u8::from_str_radix(&trace[2 * at..2 * at + 2], 16).expect("hexadecimal")).collect();
    assert_eq!(request.trace_id, expected);
    assert_eq!(request.parent_span_id, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
    for step in ["verify", "admit", "handle"] {
        let step = spans.iter().find(|span| span.name == step).expect("it was waited for");
        assert_eq!((&step.trace_id, &step.parent_span_id), (&expected, &request.span_id), "{}", step.name);
    }
    let text = String::from_utf8_lossy(&raw);
    for secret in ["MARKER-KEYWORD", &token, &token[3..43], "page=1"] {
        assert!(!text.contains(secret), "{secret} was sent to the collector");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_costs_nothing_but_its_traces() {
    let endpoint = format!("http://127.0.0.1:{}", free_port());
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let token = site.token("acme", "tests");
    let mut node = Node::spawn_in(&site.config_path, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    let caller = node.client().to(&site.host("acme")).with(&token);
    for _ in 0..20 {
        assert_eq!(caller.get("/api/v1/me").send().await.status, 200);
    }
    assert_eq!(node.stop(LIMIT).await, 0);
}

/// Anybody can ask to be traced, and a flood would have all of itself exported.
#[tokio::test]
async fn a_client_can_request_tracing_only_with_a_valid_token() {
    let collector = Collector::start();
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let token = site.token("acme", "tests");
    let endpoint = format!("http://{}", collector.address);
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint), ("OTEL_TRACES_SAMPLER", "parentbased_always_off")];
    let mut node = Node::spawn_in(&site.config_path, &environment);
    let stranger = node.client().to(&site.host("acme"));
    let wish = |trace: u128| format!("00-{trace:032x}-00f067aa0ba902b7-01");
    for (trace, path) in (100..).zip(["/api/v1/me", "/", "/api/v1/me", "/api/v1/form"].repeat(5)) {
        let unknown = formgate::tenant::token::PresentedToken::generate();
        for caller in [&stranger, &stranger.with(unknown.expose())] {
            let answer = caller.get(path).header("traceparent", &wish(trace)).send().await;
            assert!(answer.status == 401 || answer.status == 404 || answer.status == 429, "{answer:?}");
        }
    }
    let caller = stranger.with(&token);
    assert_eq!(caller.get("/api/v1/me").send().await.status, 200);
    assert_eq!(caller.get("/api/v1/me").header("traceparent", &wish(7)).send().await.status, 200);
    assert_eq!(node.stop(LIMIT).await, 0);

    let (spans, _) = collector.spans_until(&["GET /me", "admit", "handle"]);
    let traces: Vec<_> =
        spans.iter().map(|span| (&*span.name, u128::from_be_bytes(span.trace_id[..].try_into().unwrap()))).collect();
    assert!(traces.iter().all(|(_, trace)| *trace == 7), "{traces:?}");
    let request: Vec<_> = spans.iter().filter(|span| span.name == "GET /me").collect();
    assert_eq!(request.len(), 1, "{traces:?}");
    assert_eq!(request[0].parent_span_id, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
    assert_eq!(attributes(request[0]).get("http.response.status_code").map(String::as_str), Some("200"));
}

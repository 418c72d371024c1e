//! The `[gateway.limits]` table.
//!
//! Owns its keys, their defaults and their ranges. The limits themselves document what breaks when one is larger or smaller:
//! [`ConnectionLimits`] and [`RequestLimits`]. The ranges exclude values with which no request could be served (a body of zero
//! bytes) and values that would limit nothing.

mod connection;
mod request;

use std::time::Duration;

use super::context::LoadContext;
use super::declaration::{Key, keys};
use super::table::TableReader;

pub use connection::ConnectionLimits;
pub use request::RequestLimits;

const MIB: u32 = 1024 * 1024;

keys! { key:
    handshake_seconds = integer(1..=60).default("5"),
        "protects from clients that connect and stay silent. Covers the TLS handshake and the HTTP/2 preface together";
    head_seconds = integer(1..=60).default("10"), "protects from HTTP/1.1 request heads that arrive byte by byte";
    head_bytes = integer(4096..=65_536).default("32768"),
        "protects the memory that is held before anything is checked, HTTP/1.1: 431";
    http2_head_bytes = integer(4096..=65_536).default("16384"),
        "the same for HTTP/2, where a few bytes expand to many: 431";
    head_fields = integer(10..=200).default("100"), "protects from many small header fields: 431";
    target_bytes = integer(256..=32_768).default("8192"), "protects from long request targets: 414";
    body_seconds = integer(1..=3600).default("30"), "protects from endless bodies: 408";
    body_grace_seconds = integer(1..=60).default("5"),
        "protects from slow bodies: after this time, a body must have arrived at `body_bytes_per_second`";
    body_bytes_per_second = integer(1..=MIB).default("1000"), "the average rate that a body must have by then: 408";
    body_bytes = integer(1024..=64 * MIB).default("1048576"),
        "protects from large bodies: 413, before a byte is read if the length is declared";
    group_body_bytes = integer(1024..=256 * MIB).default("16777216"), "the same for `PUT /group`";
    request_seconds = integer(1..=600).default("15"),
        "protects from slow requests, not counting the time to read the body: 504";
    group_request_seconds = integer(1..=3600).default("60"), "the same for `PUT /group`";
    write_seconds = integer(1..=600).default("30"),
        "protects from clients that stop reading a response, including bytes in kernel buffers (`TCP_USER_TIMEOUT`)";
    idle_seconds = integer(1..=3600).default("60"),
        "protects from connections without a request; pings do not count as activity";
    connection_seconds = integer(1..=86_400).default("3600"),
        "protects from endless connections: after this time, the next request is the last one";
    connection_requests = integer(1..=10_000_000).default("10000"), "the same, by number of requests";
    overhead_factor = integer(1..=1000).default("8"),
        "protects from floods of bytes that belong to no request (PING, SETTINGS, PRIORITY, empty frames, tiny TLS records): at \
         most this multiple of the bytes of requests and responses, plus `overhead_bytes`";
    overhead_bytes = integer(65_536..=1024 * MIB).default("1048576"), "how many such bytes are allowed in any case";
    streams = integer(1..=1000).default("100"), "protects from many concurrent HTTP/2 requests on one connection";
    resets = integer(1..=1_000_000).default("500"),
        "protects from cancelled requests: a connection is closed after more resets than this, if over half of them came before \
         the response";
    connections = integer(1..=1_000_000).default("10000"),
        "protects from too many connections: at this number, the node stops accepting until others close. Lowered at start if \
         the limit of open files is too low, see below";
    connections_per_address = integer(1..=1_000_000).default("256"),
        "protects from one address (IPv6: one /64) that takes all connections: further ones are closed at once";
    in_flight = integer(1..=1_000_000).default("1024"), "protects from too many requests in flight: 503 with `Retry-After`";
    memory_bytes = integer(MIB..=4095 * MIB).default("805306368"),
        "protects from large bodies and responses that exhaust the node's memory: 503 with `Retry-After`. A body counts four \
         times; a response counts until its last byte is sent, one of more than 1 MiB 2 MiB";
    memory_bytes_per_tenant = integer(MIB..=4095 * MIB).default("268435456"),
        "protects from one tenant that uses all of it";
    bad_tokens_burst = integer(1..=1_000_000).default("100"),
        "protects from guessed tokens: after this number of bad tokens, an address is limited to `bad_tokens_per_second`";
    bad_tokens_per_second = integer(1..=100_000).default("10"),
        "the rate of such an address: 429 with `Retry-After`, without a look-up. Tokens that were valid on this node within a \
         day are exempt";
}

/// All limits of `[gateway.limits]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Limits on connections.
    pub connection: ConnectionLimits,
    /// Limits on requests.
    pub request: RequestLimits,
}

/// What a gateway uses that configures none.
impl Default for Limits {
    fn default() -> Self {
        read(TableReader::empty(&LoadContext::empty(), key::KEYS))
    }
}

/// Reads the table.
pub(super) fn read(mut table: TableReader<'_, '_>) -> Limits {
    let mut size = |key: &'static Key| table.integer(key) as usize;
    let head_bytes = size(&key::head_bytes);
    let http2_head_bytes = size(&key::http2_head_bytes);
    let head_fields = size(&key::head_fields);
    let target_bytes = size(&key::target_bytes);
    let body_bytes = size(&key::body_bytes);
    let group_body_bytes = size(&key::group_body_bytes);
    let request = RequestLimits {
        head_bytes,
        http2_head_bytes,
        head_fields,
        target_bytes,
        body_bytes,
        group_body_bytes,
        in_flight: size(&key::in_flight),
        memory_bytes: size(&key::memory_bytes),
        memory_bytes_per_tenant: size(&key::memory_bytes_per_tenant),
        body: table.duration(&key::body_seconds),
        body_grace: table.duration(&key::body_grace_seconds),
        body_rate: table.integer(&key::body_bytes_per_second),
        request: table.duration(&key::request_seconds),
        group_request: table.duration(&key::group_request_seconds),
        bad_tokens_burst: table.integer(&key::bad_tokens_burst),
        bad_tokens_rate: table.integer(&key::bad_tokens_per_second),
    };
    let connection = ConnectionLimits {
        handshake: table.duration(&key::handshake_seconds),
        head: table.duration(&key::head_seconds),
        write: table.duration(&key::write_seconds),
        idle: table.duration(&key::idle_seconds),
        age: table.duration(&key::connection_seconds),
        requests: table.integer(&key::connection_requests).into(),
        overhead_factor: table.integer(&key::overhead_factor).into(),
        overhead_bytes: table.integer(&key::overhead_bytes).into(),
        streams: table.integer(&key::streams),
        resets: table.integer(&key::resets).into(),
        connections: table.integer(&key::connections) as usize,
        connections_per_address: table.integer(&key::connections_per_address),
        closing: Duration::from_secs(5),
        drain_grace: Duration::from_secs(1),
        linger: Duration::from_secs(5),
        linger_total: Duration::from_secs(30),
        // See `ConnectionLimits::head_bytes`: the gate must receive a head in order to refuse it.
        head_bytes: 2 * head_bytes.max(http2_head_bytes).max(target_bytes),
        // See `ConnectionLimits::linger_bytes`.
        linger_bytes: 2 * group_body_bytes.max(body_bytes),
    };
    table.finish();
    Limits { connection, request }
}

//! The `[gateway.limits]` table.
//!
//! Owns its keys and their ranges. The limits themselves document their defaults and what breaks when one is larger or
//! smaller: [`ConnectionLimits`] and [`RequestLimits`]. The ranges exclude values with which no request could be
//! served (a body of zero bytes) and values that would limit nothing.

mod connection;
mod request;

use std::ops::RangeInclusive;
use std::time::Duration;

use super::table::TableReader;

pub use connection::ConnectionLimits;
pub use request::RequestLimits;

/// All limits of `[gateway.limits]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limits on connections.
    pub connection: ConnectionLimits,
    /// Limits on requests.
    pub request: RequestLimits,
}

const MIB: u32 = 1024 * 1024;

/// Reads the table; a missing key keeps its default.
pub(super) fn read(table: Option<TableReader<'_, '_>>) -> Limits {
    let mut limits = Limits::default();
    let Some(mut table) = table else { return limits };
    let Limits { connection, request } = &mut limits;
    seconds(&mut table, "handshake_seconds", 1..=60, &mut connection.handshake);
    seconds(&mut table, "head_seconds", 1..=60, &mut connection.head);
    bytes(&mut table, "head_bytes", 4096..=65_536, &mut request.head_bytes);
    bytes(&mut table, "http2_head_bytes", 4096..=65_536, &mut request.http2_head_bytes);
    bytes(&mut table, "head_fields", 10..=200, &mut request.head_fields);
    bytes(&mut table, "target_bytes", 256..=32_768, &mut request.target_bytes);
    seconds(&mut table, "body_seconds", 1..=3600, &mut request.body);
    seconds(&mut table, "body_grace_seconds", 1..=60, &mut request.body_grace);
    number(&mut table, "body_bytes_per_second", 1..=MIB, &mut request.body_rate);
    bytes(&mut table, "body_bytes", 1024..=64 * MIB, &mut request.body_bytes);
    bytes(&mut table, "group_body_bytes", 1024..=256 * MIB, &mut request.group_body_bytes);
    seconds(&mut table, "request_seconds", 1..=600, &mut request.request);
    seconds(&mut table, "group_request_seconds", 1..=3600, &mut request.group_request);
    seconds(&mut table, "write_seconds", 1..=600, &mut connection.write);
    seconds(&mut table, "idle_seconds", 1..=3600, &mut connection.idle);
    seconds(&mut table, "connection_seconds", 1..=86_400, &mut connection.age);
    long(&mut table, "connection_requests", 1..=10_000_000, &mut connection.requests);
    long(&mut table, "overhead_factor", 1..=1000, &mut connection.overhead_factor);
    long(&mut table, "overhead_bytes", 65_536..=1024 * MIB, &mut connection.overhead_bytes);
    number(&mut table, "streams", 1..=1000, &mut connection.streams);
    long(&mut table, "resets", 1..=1_000_000, &mut connection.resets);
    bytes(&mut table, "connections", 1..=1_000_000, &mut connection.connections);
    number(&mut table, "connections_per_address", 1..=1_000_000, &mut connection.connections_per_address);
    bytes(&mut table, "in_flight", 1..=1_000_000, &mut request.in_flight);
    bytes(&mut table, "memory_bytes", MIB..=4095 * MIB, &mut request.memory_bytes);
    bytes(&mut table, "memory_bytes_per_tenant", MIB..=4095 * MIB, &mut request.memory_bytes_per_tenant);
    number(&mut table, "bad_tokens_burst", 1..=1_000_000, &mut request.bad_tokens_burst);
    number(&mut table, "bad_tokens_per_second", 1..=100_000, &mut request.bad_tokens_rate);
    table.finish();
    // See `ConnectionLimits::head_bytes`: the gate must receive a head in order to refuse it.
    connection.head_bytes = 2 * request.head_bytes.max(request.http2_head_bytes).max(request.target_bytes);
    // See `ConnectionLimits::linger_bytes`.
    connection.linger_bytes = 2 * request.group_body_bytes.max(request.body_bytes);
    limits
}

fn number(table: &mut TableReader<'_, '_>, key: &'static str, range: RangeInclusive<u32>, limit: &mut u32) {
    *limit = table.integer(key, range, *limit);
}

fn long(table: &mut TableReader<'_, '_>, key: &'static str, range: RangeInclusive<u32>, limit: &mut u64) {
    let default = u32::try_from(*limit).expect("the defaults lie within the ranges");
    *limit = table.integer(key, range, default).into();
}

fn bytes(table: &mut TableReader<'_, '_>, key: &'static str, range: RangeInclusive<u32>, limit: &mut usize) {
    let default = u32::try_from(*limit).expect("the defaults lie within the ranges");
    *limit = table.integer(key, range, default) as usize;
}

fn seconds(table: &mut TableReader<'_, '_>, key: &'static str, range: RangeInclusive<u32>, limit: &mut Duration) {
    let default = u32::try_from(limit.as_secs()).expect("the defaults lie within the ranges");
    *limit = Duration::from_secs(table.integer(key, range, default).into());
}

//! The `[gateway.limits]` table: what callers may take.
//!
//! Owns its keys and their ranges. The defaults, and what breaks when a limit is larger or smaller, stand at the limits
//! themselves: [`edge::Limits`] and [`gate::Limits`]. The ranges keep out what could serve nobody (a body of no byte) and
//! what would be no limit.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::file::Table;
use crate::{edge, gate};

/// The limits of the edge and of the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// What a connection may do.
    pub edge: edge::Limits,
    /// What a request may do.
    pub gate: gate::Limits,
}

const MIB: u32 = 1024 * 1024;

/// Reads the table; a key that is left out keeps its default.
pub(super) fn read(table: Option<Table<'_, '_>>) -> Limits {
    let mut limits = Limits::default();
    let Some(mut table) = table else { return limits };
    let Limits { edge, gate } = &mut limits;
    seconds(&mut table, "handshake_seconds", 1..=60, &mut edge.handshake);
    seconds(&mut table, "head_seconds", 1..=60, &mut edge.head);
    bytes(&mut table, "head_bytes", 4096..=65_536, &mut gate.head_bytes);
    bytes(&mut table, "http2_head_bytes", 4096..=65_536, &mut gate.http2_head_bytes);
    bytes(&mut table, "head_fields", 10..=200, &mut gate.head_fields);
    bytes(&mut table, "target_bytes", 256..=32_768, &mut gate.target_bytes);
    seconds(&mut table, "body_seconds", 1..=3600, &mut gate.body);
    seconds(&mut table, "body_grace_seconds", 1..=60, &mut gate.body_grace);
    number(&mut table, "body_bytes_per_second", 1..=MIB, &mut gate.body_rate);
    bytes(&mut table, "body_bytes", 1024..=64 * MIB, &mut gate.body_bytes);
    bytes(&mut table, "group_body_bytes", 1024..=256 * MIB, &mut gate.group_body_bytes);
    seconds(&mut table, "request_seconds", 1..=600, &mut gate.request);
    seconds(&mut table, "group_request_seconds", 1..=3600, &mut gate.group_request);
    seconds(&mut table, "write_seconds", 1..=600, &mut edge.write);
    seconds(&mut table, "idle_seconds", 1..=3600, &mut edge.idle);
    seconds(&mut table, "connection_seconds", 1..=86_400, &mut edge.age);
    long(&mut table, "connection_requests", 1..=10_000_000, &mut edge.requests);
    long(&mut table, "overhead_factor", 1..=1000, &mut edge.overhead_factor);
    long(&mut table, "overhead_bytes", 65_536..=1024 * MIB, &mut edge.overhead_bytes);
    number(&mut table, "streams", 1..=1000, &mut edge.streams);
    long(&mut table, "resets", 1..=1_000_000, &mut edge.resets);
    bytes(&mut table, "connections", 1..=1_000_000, &mut edge.connections);
    number(&mut table, "connections_per_address", 1..=1_000_000, &mut edge.connections_per_address);
    bytes(&mut table, "in_flight", 1..=1_000_000, &mut gate.in_flight);
    bytes(&mut table, "memory_bytes", MIB..=4095 * MIB, &mut gate.memory_bytes);
    bytes(&mut table, "memory_bytes_per_tenant", MIB..=4095 * MIB, &mut gate.memory_bytes_per_tenant);
    number(&mut table, "bad_tokens_burst", 1..=1_000_000, &mut gate.bad_tokens_burst);
    number(&mut table, "bad_tokens_per_second", 1..=100_000, &mut gate.bad_tokens_rate);
    table.finish();
    // See `edge::Limits::head_bytes`: the gate must meet what it is to refuse.
    edge.head_bytes = 2 * gate.head_bytes.max(gate.http2_head_bytes).max(gate.target_bytes);
    // See `edge::Limits::linger_bytes`.
    edge.linger_bytes = 2 * gate.group_body_bytes.max(gate.body_bytes);
    limits
}

fn number(table: &mut Table<'_, '_>, key: &'static str, range: RangeInclusive<u32>, limit: &mut u32) {
    *limit = table.integer(key, range, *limit);
}

fn long(table: &mut Table<'_, '_>, key: &'static str, range: RangeInclusive<u32>, limit: &mut u64) {
    let default = u32::try_from(*limit).expect("the defaults lie within the ranges");
    *limit = table.integer(key, range, default).into();
}

fn bytes(table: &mut Table<'_, '_>, key: &'static str, range: RangeInclusive<u32>, limit: &mut usize) {
    let default = u32::try_from(*limit).expect("the defaults lie within the ranges");
    *limit = table.integer(key, range, default) as usize;
}

fn seconds(table: &mut Table<'_, '_>, key: &'static str, range: RangeInclusive<u32>, limit: &mut Duration) {
    let default = u32::try_from(limit.as_secs()).expect("the defaults lie within the ranges");
    *limit = Duration::from_secs(table.integer(key, range, default).into());
}

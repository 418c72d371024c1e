//! The keys of every table, to report where a misplaced key belongs.
//!
//! In TOML, a key belongs to the last header above it, so a key appended to `[gateway]` often ends up in
//! `[gateway.tls]`. The lists are not duplicated here: each reader runs on an empty table, which records the keys it
//! is asked for. That takes some microseconds and happens only to report an unknown key.

use std::path::Path;

use super::context::LoadContext;
use super::listen::ListenAddresses;
use super::places::Places;
use super::table::TableReader;
use super::{acme, administration, databases, domains, gateway, limits, listen, oidc, operator, tenant, webhooks};

/// A table's header, and the function that reads the table.
type KeyReader = (&'static str, fn(TableReader<'_, '_>));

const READERS: [KeyReader; 19] = [
    ("the top of the file, above every header", |mut table| {
        table.strings("include");
        for key in ["gateway", "tenant"] {
            table.table(key);
        }
        table.finish();
    }),
    ("`[gateway]`", |table| {
        gateway::read(table, Path::new(""));
    }),
    ("`[gateway.tls]`", |table| {
        gateway::read_tls(table, Path::new(""));
    }),
    ("`[gateway.databases]`", |table| {
        databases::read(Some(table));
    }),
    ("`[gateway.limits]`", |table| {
        limits::read(Some(table));
    }),
    ("`[gateway.webhooks]`", |table| {
        webhooks::read(Some(table), Path::new(""));
    }),
    ("`[gateway.administration]`", |table| {
        administration::read(Some(table), Path::new(""));
    }),
    ("`[gateway.administration.oidc]`", |table| {
        oidc::read(Some(table), Path::new(""));
    }),
    ("`[gateway.operator]`", |table| {
        let mut taken = ListenAddresses::new(table.context());
        operator::read(Some(table), true, Path::new(""), &mut taken, &mut Places::default());
    }),
    ("`[gateway.domains]`", |table| {
        domains::read(Some(table), None);
    }),
    ("`[gateway.acme]`", |table| {
        acme::read(Some(table), None, Path::new(""));
    }),
    ("`[[gateway.acme.ca]]`", |table| {
        acme::read_authority(table, Path::new(""));
    }),
    ("`[gateway.acme.ca.eab]`", |table| {
        acme::read_external_account(table);
    }),
    ("`[gateway.redis_sentinel]`", |table| {
        gateway::read_sentinel(table);
    }),
    ("an entry of `listen`", listen::read_every_key),
    ("`[[tenant]]`", |table| {
        tenant::read(table, Path::new(""));
    }),
    ("`[tenant.tls.\"HOST\"]`", |table| {
        gateway::read_files(table, Path::new(""));
    }),
    ("`[tenant.oidc]`", |table| {
        oidc::read(Some(table), Path::new(""));
    }),
    ("`[tenant.group_guard]`", |table| {
        tenant::read_group_guard(table);
    }),
];

/// The headers of the tables that have a key.
pub(super) fn tables_with_key(key: &str) -> Vec<&'static str> {
    let has = |reader: &fn(TableReader<'_, '_>)| {
        let context = LoadContext::new(&|_| None, None, 1);
        reader(TableReader::empty(&context));
        context.take_known_keys().contains(&key)
    };
    READERS.iter().filter(|(_, reader)| has(reader)).map(|(header, _)| *header).collect()
}

//! An export takes the same memory at any size.

use std::fs;
use std::time::Instant;

use http_body_util::BodyExt;
use toml::Table;

use super::{bulky, get};
use crate::support::fixture::{Site, on_both_databases};
use crate::support::process::Node;

/// A hundred megabytes of JSON and more, in a debug build within seconds.
const SUBMISSIONS: i64 = 30_000;

/// How much more memory a node may take for an export, in kilobytes.
const MOST: u64 = 64 * 1024;

/// How many bytes the account may have in memory.
const MEMORY: i64 = 64 * 1024 * 1024;

/// The most memory that a process has had, in kilobytes.
fn peak(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.id())).expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says so");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

on_both_databases! {
    async fn an_export_of_many_submissions_takes_a_bounded_memory(engine: Engine) {
        let mut limits = Table::new();
        limits.insert("memory_bytes_per_tenant".into(), MEMORY.into());
        let site = Site::new().gateway("limits", limits).tenant("acme", engine).requests_per_minute(1000).write();
        site.import("acme", &bulky(1..SUBMISSIONS + 1, 4_000));
        let token = site.token("acme", "tests");
        let node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        client.post("/api/v1/submission").send().await;
        super::export(&client, "&form=2").await;
        let (before, began) = (peak(&node), Instant::now());
        let mut body = get(&client, "").begin().await.into_body();
        let (mut bytes, mut rows, mut end) = (0, 0, Vec::new());
        while let Some(frame) = body.frame().await {
            let data = frame.expect("the whole body").into_data().expect("data");
            (bytes, rows) = (bytes + data.len(), rows + data.iter().filter(|byte| **byte == b'\n').count());
            end = data.to_vec();
        }
        let took = began.elapsed();
        assert_eq!(rows as i64, SUBMISSIONS + 1, "with the last line");
        assert!(String::from_utf8_lossy(&end).ends_with(&format!("\"rows\":{SUBMISSIONS}}}\n")));
        assert!(bytes > 100_000_000, "{bytes} bytes");
        let grown = peak(&node) - before;
        assert!(grown < MOST, "{grown} kB more for {bytes} bytes in {took:?}");
        // A table of it compresses to little: far more rows than the account may have in memory are read before its first part.
        let table = client.get("/api/v1/submission/export?format=parquet&form=1").send().await;
        assert_eq!(table.status, 200, "{table:?}");
        let grown = peak(&node) - before;
        assert!(grown < MOST, "{grown} kB more for a table of {} bytes", table.body.len());
    }
}

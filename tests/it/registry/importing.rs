//! `POST /v1/tenants/{slug}/import`: a product on another machine loads data.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::scene::{Answer, LIMIT, Scene};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::process::Node;

/// A line of each type.
const LINES: &str = r#"{"type":"user","id":7,"email":"ana@example.com","name":"Ana"}
{"type":"label","id":3,"name":"Urgent","shared":false}

{"type":"form","id":1,"name":"Leave","anonymous":false,"disabled":false,"parent_id":null,"graduated":false,"elements":[{"id":101,"gid":"6f1c","name":"Reason","type":"text"}]}
{"type":"group","id":4,"name":"Managers","external_id":null,"managed":false,"members":[7]}
{"type":"flow_step","id":11,"form_id":1,"name":"Approval","groups":[4]}
{"type":"submission","id":1001,"form_id":1,"parent_id":null,"status":"pending","draft":false,"submitter_id":7,"created_at":"2024-05-01T13:45:30.123456Z","updated_at":"2024-05-01T13:45:30.123456Z","labels":[3],"shared_labels":[],"pending_on":[7],"participants":[7],"flow_steps":[11],"answers":[{"element_id":101,"value":"Holiday","updated_at":"2024-05-01T13:45:30.123456Z","files":[]}]}
"#;

const IMPORT: &str = "/v1/tenants/acme/import";

async fn import(scene: &Scene, body: impl Into<bytes::Bytes>, headers: &[(&str, &str)]) -> Answer {
    scene.send(0, Method::POST, IMPORT, body, headers).await.expect("an answer")
}

/// How many users, submissions and rows of the audit log about imports the account has.
async fn counts(scene: &Scene) -> [i64; 3] {
    let database = Database::connect(scene.tenant("acme")["database"].as_str().unwrap()).await;
    let counts = "SELECT (SELECT count(*) FROM users), (SELECT count(*) FROM submissions), \
                  (SELECT count(*) FROM audit_log WHERE action = 'import')";
    let counts = database.integers(counts).await;
    database.close().await;
    counts
}

/// How many files of a node were removed, or never had a name.
fn files_without_names(node: &Node) -> usize {
    let files = fs::read_dir(format!("/proc/{}/fd", node.id())).unwrap().flatten();
    let files = files.filter_map(|file| Some(fs::read_link(file.path()).ok()?.display().to_string()));
    // One file may be open more than once.
    files.filter(|file| file.contains("tmp") && file.ends_with("(deleted)")).collect::<BTreeSet<_>>().len()
}

/// Begins an import of `length` bytes and sends a part of it.
async fn begin(scene: &Scene, length: usize, part: &str) -> UnixStream {
    let mut stream = UnixStream::connect(scene.socket(0)).await.unwrap();
    let head = format!("POST {IMPORT} HTTP/1.1\r\nhost: operator\r\ncontent-length: {length}\r\n\r\n{part}");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

on_both_databases! {
    async fn lines_of_every_type_are_loaded_and_counted_and_audited(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        for (body, headers) in [
            (LINES.as_bytes().to_vec(), &[][..]),
            (LINES.as_bytes().to_vec(), &[("content-type", "application/x-www-form-urlencoded")]),
            (gzip(LINES.as_bytes()), &[("content-encoding", "gzip"), ("content-type", "application/x-ndjson")]),
        ] {
            let loaded = import(&scene, body, headers).await;
            assert_eq!((loaded.status.as_u16(), loaded.body), (200, json!({ "imported": 6 })));
        }
        assert_eq!(counts(&scene).await, [1, 1, 3], "loading is idempotent");
        let log = scene.succeed(&["audit", "list", "--tenant", "acme", "--action", "import", "--json"]);
        let row: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
        assert_eq!((&row["source"], &row["details"]["lines"]), (&json!("operator"), &json!(7)), "{row}");
        let empty = import(&scene, "", &[]).await;
        assert_eq!((empty.status.as_u16(), empty.body), (200, json!({ "imported": 0 })));
    }

    async fn a_fault_is_named_with_its_line_and_nothing_is_kept(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        let [users, submissions, _] = counts(&scene).await;
        for (last, text) in [("not JSON", "line 8"), (r#"{"type":"flow_step","id":1,"form_id":9,"name":"x"}"#, "line 8")] {
            let refused = import(&scene, format!("{LINES}{last}\n"), &[]).await;
            assert_eq!(refused.status, 422, "{refused:?}");
            let fault = refused.body["errors"]["line"][0].as_str().unwrap();
            assert!(fault.starts_with(text), "{fault}");
        }
        for (query, status) in [("?quiet=2", 422), ("?loud=1", 422)] {
            let refused = scene.send(0, Method::POST, &format!("{IMPORT}{query}"), LINES, &[]).await.unwrap();
            assert_eq!(refused.status.as_u16(), status, "{refused:?}");
        }
        let unknown = scene.send(0, Method::POST, "/v1/tenants/none/import", LINES, &[]).await.unwrap();
        assert_eq!(unknown.status, 404, "{unknown:?}");
        for coding in ["br", "gzip"] {
            let refused = import(&scene, LINES, &[("content-encoding", coding)]).await;
            assert!([415, 422].contains(&refused.status.as_u16()), "{refused:?}");
        }
        assert_eq!(counts(&scene).await, [users, submissions, 0]);
    }

    async fn a_slow_client_holds_no_lock_and_a_second_import_is_refused(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let (part, rest) = LINES.split_at(100);
        let mut slow = begin(&scene, LINES.len(), part).await;
        let began = Instant::now();
        while files_without_names(&node) == 0 {
            assert!(began.elapsed() < LIMIT, "it is received into a file without a name");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let refused = import(&scene, LINES, &[]).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.body["message"].as_str().unwrap().contains("under way"), "{refused:?}");
        let client = super::scene::client(&node, "acme", &token);
        let group = json!({ "name": "Now", "external_id": "now", "members": [] });
        let written = client.put("/api/v1/group").json(&group).send().await;
        assert!(written.status.is_success(), "a writer does not wait");
        assert_eq!(files_without_names(&node), 1);
        slow.write_all(rest.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let length = tokio::time::timeout(LIMIT, slow.read(&mut answer)).await.unwrap().unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(r#"{"imported":6}"#), "{answer}");
    }

    async fn a_body_that_breaks_off_or_is_too_large_keeps_nothing(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        let before = counts(&scene).await;
        drop(begin(&scene, LINES.len() + 1, LINES).await);
        // The next one begins as soon as the node has noticed that the first one is gone.
        loop {
            let next = import(&scene, "", &[]).await;
            if next.status == 200 {
                break;
            }
            assert_eq!(next.status, 409, "{next:?}");
        }
        let mut large = begin(&scene, (1 << 30) + 1, "").await;
        let mut answer = String::new();
        let reading = tokio::time::timeout(Duration::from_secs(60), large.read_to_string(&mut answer)).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{reading:?} {answer}");
        assert_eq!(counts(&scene).await[..2], before[..2]);
    }
}

#[tokio::test]
async fn data_is_imported_into_a_tenant_of_a_file_without_a_registry_of_its_own() {
    let mut scene = Scene::new(Engine::Sqlite);
    let text = scene.text("acme");
    scene.write_files(&text, 1);
    scene.succeed(&["migrate", "--tenant", "acme"]);
    let _node = scene.start(0);
    let loaded = import(&scene, LINES, &[]).await;
    assert_eq!(loaded.status, 200, "{loaded:?}");
    assert_eq!(counts(&scene).await, [1, 1, 1]);
}

/// The most memory that a process has had, in kilobytes.
fn peak(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn a_large_body_takes_little_memory() {
    let scene = Scene::new(Engine::Sqlite);
    let node = scene.start(0);
    scene.add(0, "acme").await;
    let blank = format!("{}\n", " ".repeat(64 * 1024)).repeat(2048);
    let before = peak(&node);
    let loaded = import(&scene, blank, &[]).await;
    assert_eq!((loaded.status.as_u16(), loaded.body), (200, json!({ "imported": 0 })));
    let taken = peak(&node) - before;
    assert!(taken < 48 * 1024, "{taken} kB for 128 MiB");
    assert_eq!(files_without_names(&node), 0);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

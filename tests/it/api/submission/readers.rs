//! `GET /submission/{id}/readers`, `formgate readers`, and the seals of the ledger of reads.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::clock::SteppingClock;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::folder;
use crate::support::process::Node;

/// Until something is written in the background, on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A time zone whose day is rarely that of UTC.
const ZONE: &str = "Pacific/Kiritimati";

/// On both sides of the borders of chunks, and beyond 32 bits.
const IDS: [i64; 6] = [1, 65_535, 65_536, 65_537, 4_294_967_295, 4_294_967_297];

/// An account whose form 1 has the submissions, but for the last one, which is of form 2.
fn lines(ids: &[i64]) -> String {
    let mut lines = String::new();
    for form in [1, 2] {
        let element = json!({"id": form * 10, "gid": format!("g{form}"), "name": "N", "type": "text"});
        lines += &format!("{}\n", json!({"type": "form", "id": form, "name": "F", "elements": [element]}));
    }
    for (at, id) in ids.iter().enumerate() {
        let form = if at + 1 == ids.len() { 2 } else { 1 };
        let at = format!("2026-03-01T12:{:02}:{:02}Z", at / 60, at % 60);
        lines += &format!(
            "{}\n",
            json!({"type": "submission", "id": id, "form_id": form, "status": "pending", "created_at": at, "updated_at": at,
                "answers": [{"element_id": form * 10, "value": "x"}]})
        );
    }
    lines
}

struct Scene {
    site: Site,
    node: Node,
    database: Database,
    /// A token that reads nothing but who has read.
    officer: String,
}

impl Scene {
    async fn new(engine: Engine, ids: &[i64]) -> Self {
        Self::started(engine, ids, Site::start).await
    }

    async fn started(engine: Engine, ids: &[i64], start: impl FnOnce(&Site) -> Node) -> Self {
        let site = Site::new().tenant_with("acme", engine, |tenant| tenant.set("timezone", ZONE));
        let site = site.requests_per_minute(100_000).certificate_for_days(-1..30).write();
        site.import("acme", &lines(ids));
        let officer = site.token("acme", "officer");
        let node = start(&site);
        let database = Database::connect(site.database_url("acme")).await;
        Self { site, node, database, officer }
    }

    /// A new token.
    fn token(&self, name: &str) -> String {
        self.site.token("acme", name)
    }

    /// A caller of the node that runs now.
    fn caller(&self, token: &str) -> Client {
        self.node.client().to(&self.site.host("acme")).with(token)
    }

    fn officer(&self) -> Client {
        self.caller(&self.officer)
    }

    async fn read(&self, token: &str, id: i64) {
        let answer = self.caller(token).get(&format!("/api/v1/submission/{id}")).send().await;
        assert_eq!(answer.status, 200, "{id}: {answer:?}");
    }

    async fn readers(&self, id: i64) -> Value {
        let answer = self.officer().get(&format!("/api/v1/submission/sub_{id}/readers")).send().await;
        assert_eq!(answer.status, 200, "{id}: {answer:?}");
        answer.json()
    }

    /// The names of the readers, and on how many days each.
    async fn names(&self, id: i64) -> Vec<(String, i64)> {
        let readers = self.readers(id).await;
        let of = |reader: &Value| (reader["name"].as_str().unwrap().to_owned(), reader["days"].as_i64().unwrap());
        readers["data"].as_array().unwrap().iter().map(of).collect()
    }

    async fn wait_for(&self, query: &str, number: i64) {
        let began = Instant::now();
        while self.database.integers(query).await != [number] {
            assert!(began.elapsed() < SOON, "{query} is not {number}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn stop(&mut self) {
        assert_eq!(self.node.stop(Duration::from_secs(30)).await, 0);
    }

    fn verify(&self) -> (i32, String) {
        let output = self.site.run(&["audit", "verify", "--tenant", "acme"], b"");
        (output.code, format!("{}{}", output.stdout, output.stderr))
    }

    /// The seals in the audit log, the oldest first.
    fn seals(&self) -> Vec<Value> {
        let output = self.site.run(&["audit", "list", "--tenant", "acme", "--action", "reads.sealed", "--json"], b"");
        let mut rows: Vec<Value> = output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        rows.reverse();
        rows
    }
}

fn today() -> Date {
    Timestamp::now().to_zoned(TimeZone::get(ZONE).unwrap()).date()
}

fn once(names: &[&str]) -> Vec<(String, i64)> {
    names.iter().map(|name| ((*name).to_owned(), 1)).collect()
}

/// The number of a day, as the tables have it.
fn number(day: Date) -> i64 {
    day.to_zoned(TimeZone::UTC).unwrap().timestamp().as_second() / 86_400
}

on_both_databases! {
    async fn each_way_of_reading_counts_for_its_token_and_day_and_nothing_else_does(engine: Engine) {
        let scene = Scene::new(engine, &IDS).await;
        let first_day = today();
        let [searcher, single, feed, sample, nobody] = ["searcher", "single", "feed", "sample", "nobody"].map(|name| scene.caller(&scene.token(name)));
        let limited = scene.caller(&scene.site.limited_token("acme", "limited", &["--forms", "for_2"]));

        // None of these is sent a submission.
        assert_eq!(nobody.head("/api/v1/submission/1").send().await.status, 200);
        assert_eq!(nobody.head("/api/v1/submission/changes").send().await.status, 200);
        assert_eq!(nobody.get("/api/v1/submission/77").send().await.status, 404);
        assert_eq!(nobody.post("/api/v1/submission?page=2").json(&json!({})).send().await.status, 200);
        assert_eq!(nobody.get("/api/v1/subscribe/sample?event=submission.deleted").send().await.status, 200);
        assert_eq!(limited.get("/api/v1/submission/1").send().await.status, 404);
        for id in IDS {
            assert_eq!(scene.readers(id).await, json!({"data": [], "meta": {"gaps": []}}), "{id}");
        }

        let found = searcher.post("/api/v1/submission").json(&json!({"forms": ["for_1"]})).send().await.json();
        assert_eq!(found["data"].as_array().unwrap().len(), 5);
        for _ in 0..2 {
            assert_eq!(single.get("/api/v1/submission/sub_65536").send().await.status, 200);
        }
        assert_eq!(feed.get("/api/v1/submission/changes").send().await.json()["data"].as_array().unwrap().len(), 6);
        let shown = sample.get("/api/v1/subscribe/sample").send().await.json();
        let mut sampled: Vec<_> = shown.as_array().unwrap().iter().map(|of| of["data"]["id"].as_str().unwrap().to_owned()).collect();
        sampled.sort();
        let found = limited.post("/api/v1/submission").json(&json!({})).send().await.json();
        assert_eq!(found["data"].as_array().unwrap().len(), 1);

        let mut sampled_by_ledger = Vec::new();
        for (at, id) in IDS.into_iter().enumerate() {
            let mut names = scene.names(id).await;
            if names.contains(&("sample".to_owned(), 1)) {
                sampled_by_ledger.push(format!("sub_{id}"));
                names.retain(|(name, _)| name != "sample");
            }
            let expected = match at {
                2 => once(&["searcher", "single", "feed"]),
                5 => once(&["feed", "limited"]),
                _ => once(&["searcher", "feed"]),
            };
            assert_eq!(names, expected, "{id}");
        }
        sampled_by_ledger.sort();
        assert_eq!((sampled_by_ledger.len(), sampled_by_ledger), (3, sampled));

        let readers = scene.readers(IDS[2]).await["data"].clone();
        // It may be midnight there.
        let days = [first_day, today()].map(|day| json!(day.to_string()));
        assert!(days.contains(&readers[1]["first"]) && days.contains(&readers[1]["last"]), "{readers}");
        assert_eq!((&readers[1]["token"], &readers[1]["name"], &readers[1]["days"]), (&json!(3), &json!("single"), &json!(1)));
    }

    async fn what_was_read_stays_after_a_stop_and_a_deletion_and_the_command_says_the_same(engine: Engine) {
        let mut scene = Scene::new(engine, &IDS).await;
        let caller = scene.token("caller");
        for id in IDS {
            scene.read(&caller, id).await;
        }
        scene.stop().await;
        scene.wait_for("SELECT count(*) FROM read_nodes", 0).await;
        let command = |id: &str| {
            let output = scene.site.run(&["readers", "--tenant", "acme", "--submission", id, "--json"], b"");
            (output.code, serde_json::from_str::<Value>(&output.stdout).unwrap_or_default())
        };
        let (_, stored) = command("sub_4294967297");
        assert_eq!((&stored["data"][0]["name"], &stored["meta"]["gaps"]), (&json!("caller"), &json!([])), "{stored}");
        assert_eq!(command("65538").0, 1, "there is none");

        for table in ["answers WHERE submission_id", "submissions WHERE id"] {
            scene.database.execute(&format!("DELETE FROM {table} IN (1, 65536)")).await;
        }
        scene.node = scene.site.start();
        for id in [1, 65_536, 4_294_967_297] {
            assert_eq!(scene.names(id).await, once(&["caller"]), "{id}");
            assert_eq!(command(&id.to_string()), (0, scene.readers(id).await));
        }
        let table = scene.site.run(&["readers", "--tenant", "acme", "--submission", "1"], b"").stdout;
        assert!(table.starts_with("TOKEN  NAME    FIRST") && table.lines().count() == 2, "{table}");
        for unknown in ["2", "sub_65534", "for_1", "0"] {
            let answer = scene.officer().get(&format!("/api/v1/submission/{unknown}/readers")).send().await;
            assert_eq!((answer.status.as_u16(), answer.json()), (404, json!({"message": "Submission not found"})), "{unknown}");
        }
    }

    async fn only_a_token_that_may_do_everything_sees_who_has_read(engine: Engine) {
        let scene = Scene::new(engine, &[1, 2]).await;
        for limits in [["--forms", "for_2"], ["--scopes", "submissions:read,forms:read"]] {
            let limited = scene.caller(&scene.site.limited_token("acme", "limited", &limits));
            for id in ["1", "2", "77", "x"] {
                let answer = limited.get(&format!("/api/v1/submission/{id}/readers")).send().await;
                assert_eq!((answer.status.as_u16(), &answer.json()["required"]), (403, &json!("*")), "{limits:?} {id}");
            }
        }
    }

    async fn the_submissions_of_a_streamed_answer_count_too(engine: Engine) {
        let ids: Vec<i64> = (1..=4).collect();
        let scene = Scene::new(engine, &ids).await;
        let long = "x".repeat(700_000);
        scene.database.execute(&format!("UPDATE answers SET value = '{long}'")).await;
        let [whole, one, head] = ["whole", "one", "head"].map(|name| scene.caller(&scene.token(name)));
        let answer = whole.post("/api/v1/submission").json(&json!({})).send().await;
        assert!(answer.header("content-length").is_none() && answer.json()["data"].as_array().unwrap().len() == 4);
        scene.database.execute("INSERT INTO answers (submission_id, element_id, value, updated_at) SELECT 1, 20, value, updated_at FROM answers WHERE submission_id = 4").await;
        scene.database.execute(&format!("UPDATE elements SET form_id = 1 WHERE id = 20; UPDATE answers SET value = '{long}{long}' WHERE submission_id = 1")).await;
        let answer = one.get("/api/v1/submission/1").send().await;
        assert!(answer.header("content-length").is_none() && answer.status == 200);
        let answer = head.head("/api/v1/submission/1").send().await;
        assert!(answer.header("content-length").is_none() && answer.status == 200);
        assert_eq!(scene.names(1).await, once(&["whole", "one"]));
        for id in [2, 3, 4] {
            assert_eq!(scene.names(id).await, once(&["whole"]), "{id}");
        }
    }

    async fn a_killed_node_leaves_a_gap_and_a_stopped_one_none(engine: Engine) {
        let mut scene = Scene::new(engine, &[1, 2, 3]).await;
        let caller = scene.token("caller");
        scene.read(&caller, 1).await;
        // The first read is written at once.
        scene.wait_for("SELECT count(*) FROM submission_reads", 1).await;
        scene.wait_for("SELECT count(*) FROM read_nodes", 1).await;
        scene.read(&caller, 2).await;
        assert_eq!(scene.names(2).await, once(&["caller"]), "the node that answers adds what it holds");
        scene.node.kill();
        let killed = Timestamp::now();

        scene.node = scene.site.start();
        let gaps = |readers: &Value| -> Vec<[Timestamp; 2]> {
            let gap = |gap: &Value| ["from", "until"].map(|key| gap[key].as_str().unwrap().parse().unwrap());
            readers["meta"]["gaps"].as_array().unwrap().iter().map(gap).collect()
        };
        // Before anything is written.
        let [[from, until]] = gaps(&scene.readers(2).await)[..] else { panic!("one gap") };
        assert!(from <= killed && until >= killed, "{from} {until}");
        scene.read(&caller, 3).await;
        scene.wait_for("SELECT count(*) FROM read_gaps", 1).await;
        let found = scene.readers(2).await;
        let [[recorded, until]] = gaps(&found)[..] else { panic!("one gap: {found}") };
        // The second read may have been written just when the node was killed.
        assert!(recorded >= from && recorded <= killed && until >= killed, "{found}");
        assert_eq!(scene.names(1).await, once(&["caller"]));
        scene.stop().await;
        scene.wait_for("SELECT count(*) FROM read_nodes", 0).await;
        scene.wait_for("SELECT count(*) FROM read_gaps", 1).await;
        let table = scene.site.run(&["readers", "--tenant", "acme", "--submission", "3"], b"").stdout;
        assert!(table.contains("A node crashed: reads from 20"), "{table}");
    }

    async fn a_day_that_is_over_is_sealed_and_a_change_of_it_is_found(engine: Engine) {
        let ids = [1, 2, 70_000];
        let clocks = folder::temporary("clock");
        let clock = SteppingClock::new(clocks.path());
        // It is noon there, so that no midnight passes.
        let now = Timestamp::now().to_zoned(TimeZone::get(ZONE).unwrap());
        let hours = i64::from((36 - now.hour()) % 24);
        let step = |days: i64| clock.step(&format!("+{}h", 24 * days + hours));
        step(0);
        let mut scene = Scene::started(engine, &ids, |site| Node::spawn_in(&site.config_path, &clock.environment())).await;
        let [one, other] = ["one", "other"].map(|name| scene.token(name));
        let day = (now + jiff::SignedDuration::from_hours(hours)).date();
        for id in ids {
            scene.read(&one, id).await;
        }
        scene.wait_for("SELECT count(*) FROM submission_reads WHERE chunk = 0", 1).await;
        assert!(scene.seals().is_empty());
        step(2);
        scene.read(&one, 1).await;
        scene.stop().await;
        let (first, last) = (day.to_string(), (day + jiff::Span::new().days(2)).to_string());
        let of_one = scene.site.run(&["readers", "--tenant", "acme", "--submission", "1", "--json"], b"");
        let readers: Value = serde_json::from_str(&of_one.stdout).unwrap();
        assert_eq!(readers["data"], json!([{"token": 2, "name": "one", "first": first, "last": last, "days": 2}]));
        let seals = scene.seals();
        assert_eq!((seals.len(), &seals[0]["subject"], &seals[0]["actor"]), (1, &json!(format!("reads {first}")), &json!("formgate")));
        let details = &seals[0]["details"];
        assert_eq!((&details["tokens"], &details["reads"], &details["gaps"], &details["again"]), (&json!(1), &json!(3), &json!(0), &Value::Null));
        let (code, intact) = scene.verify();
        assert!(code == 0 && intact.ends_with("; the ledger of reads is intact: 1 days\n"), "{intact}");

        let day_number = number(day);
        let of_day = format!("WHERE day = {day_number} AND chunk = 0");
        let earlier = day - jiff::Span::new().days(3);
        let changed = format!("error: acme: the ledger of reads was changed for {first}\n");
        let malformed = if engine == Engine::Sqlite { "X'00'" } else { "'\\x00'" };
        for (tampering, found) in [
            (format!("UPDATE submission_reads SET bitmap = (SELECT bitmap FROM submission_reads WHERE day = {day_number} AND chunk = 1) {of_day}"), changed.clone()),
            (format!("UPDATE submission_reads SET bitmap = {malformed} {of_day}"), changed.clone()),
            (format!("UPDATE submission_reads SET forms = '1 2 3' {of_day}"), changed.clone()),
            (format!("UPDATE submission_reads SET token_id = 9 {of_day}"), changed.clone()),
            (format!("DELETE FROM submission_reads {of_day}"), changed.clone()),
            (format!("DELETE FROM submission_reads WHERE day = {day_number}"), format!("error: acme: the ledger of reads is missing for {first}\n")),
            (
                format!("INSERT INTO submission_reads (day, token_id, chunk, bitmap, forms) SELECT {}, token_id, chunk, bitmap, forms FROM submission_reads {of_day}", number(earlier)),
                format!("error: acme: the ledger of reads has entries for {earlier} that were not written by formgate\n"),
            ),
        ] {
            scene.database.execute("CREATE TABLE kept AS SELECT * FROM submission_reads").await;
            scene.database.execute(&tampering).await;
            assert_eq!(scene.verify(), (1, found), "{tampering}");
            scene.database.execute("DELETE FROM submission_reads; INSERT INTO submission_reads SELECT * FROM kept; DROP TABLE kept").await;
            assert_eq!(scene.verify(), (0, intact.clone()), "{tampering}");
        }

        // A node that writes to this day once more, as after an outage of the database.
        step(0);
        scene.node = Node::spawn_in(&scene.site.config_path, &clock.environment());
        scene.read(&one, 1).await;
        scene.stop().await;
        assert_eq!(scene.seals().len(), 1, "nothing is new");
        scene.node = Node::spawn_in(&scene.site.config_path, &clock.environment());
        scene.read(&other, 1).await;
        scene.stop().await;
        let seals = scene.seals();
        let [_, again] = &seals[..] else { panic!("{seals:?}") };
        assert_eq!((&again["subject"], &again["details"]["again"], &again["details"]["tokens"]), (&json!(format!("reads {first}")), &json!(true), &json!(2)));
        let (code, text) = scene.verify();
        assert!(code == 0 && text.ends_with("; the ledger of reads is intact: 1 days\n"), "{text}");

        // A node that another program leads to seal what it has forged.
        scene.database.execute(&format!("UPDATE submission_reads SET forms = '1 2 3' {of_day}; UPDATE read_days SET seals = 0 WHERE day = {day_number}")).await;
        scene.node = Node::spawn_in(&scene.site.config_path, &clock.environment());
        step(2);
        scene.read(&one, 1).await;
        scene.stop().await;
        assert_eq!(scene.seals().len(), 3, "the node has sealed it");
        assert_eq!(scene.verify(), (1, changed));

        // After 400 days, and the seal stays.
        scene.node = Node::spawn_in(&scene.site.config_path, &clock.environment());
        step(403);
        scene.read(&one, 1).await;
        scene.stop().await;
        assert_eq!(scene.database.integers(&format!("SELECT count(*) FROM submission_reads WHERE day = {day_number}")).await, [0]);
        assert_eq!(scene.seals()[..seals.len()], seals[..]);
    }
}

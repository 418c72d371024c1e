//! The receivers of src/api/recipes.md, as printed: they accept what is signed and recent, handle each event once and in order, and
//! lose nothing that they accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::scene::{LIMIT, Scene};
use crate::support::certificate;
use crate::support::child::{Child, bound_to_us, free_port};
use crate::support::database::Database;
use crate::support::document::block;
use crate::support::fixture::Engine;
use crate::support::folder;
use crate::support::process::python;
use crate::support::receiver::HOST;
use crate::support::tls_server;

const GUIDE: &str = include_str!("../../../src/api/recipes.md");

const SECRETS: [&str; 2] = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"];

/// How many callers send at once.
const CALLERS: usize = 8;

/// How many events a receiver has accepted when it is killed, at least.
const ACCEPTED: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Python,
    JavaScript,
}

macro_rules! in_both_languages {
    ($(async fn $name:ident($language:ident: Language) $body:block)+) => {$(
        async fn $name($language: Language) $body

        mod $name {
            use super::Language;

            #[tokio::test]
            async fn python() {
                super::$name(Language::Python).await;
            }

            #[tokio::test]
            async fn javascript() {
                super::$name(Language::JavaScript).await;
            }
        }
    )+};
}

/// A receiver that runs, and what it has printed in all of its runs.
struct Program {
    language: Language,
    folder: TempDir,
    secrets: String,
    port: u16,
    child: Child,
}

impl Program {
    async fn start(language: Language, secrets: &[&str]) -> Self {
        Self::start_at(free_port(), language, secrets).await
    }

    async fn start_at(port: u16, language: Language, secrets: &[&str]) -> Self {
        let (folder, secrets) = (folder::temporary("receiver"), secrets.join(" "));
        let child = Self::spawn(language, folder.path(), &secrets, port);
        let mut program = Self { language, folder, secrets, port, child };
        program.listens().await;
        program
    }

    fn spawn(language: Language, folder: &Path, secrets: &str, port: u16) -> Child {
        let (mut command, name, text) = match language {
            Language::Python => {
                (bound_to_us(python(), "KILL", &[]), "receiver.py", block(GUIDE, "python", "class Receiver"))
            }
            Language::JavaScript => {
                (bound_to_us("node", "KILL", &[]), "receiver.mjs", block(GUIDE, "js", "createServer("))
            }
        };
        fs::write(folder.join(name), text).unwrap();
        let append =
            |name: &str| Stdio::from(File::options().create(true).append(true).open(folder.join(name)).unwrap());
        command.arg(name).current_dir(folder).env("WEBHOOK_SECRETS", secrets).env("PORT", port.to_string());
        command.stdin(Stdio::null()).stdout(append("printed")).stderr(append("faults"));
        Child::spawn(command)
    }

    async fn restart(&mut self) {
        self.child.kill();
        self.child = Self::spawn(self.language, self.folder.path(), &self.secrets, self.port);
        self.listens().await;
    }

    async fn listens(&mut self) {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            assert!(self.child.exited().is_none() && began.elapsed() < LIMIT, "{}", self.text("faults"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    fn lines(&self) -> Vec<String> {
        self.text("printed").lines().map(str::to_owned).collect()
    }

    /// Waits until it has handled an event.
    async fn handles(&self, line: &str) {
        self.wait_until(&format!("{line} is printed"), || self.lines().iter().any(|found| found == line)).await;
    }

    async fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < LIMIT, "{what}: {:?}\n{}", self.lines(), self.text("faults"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends one event as formgate does.
    async fn send(&self, number: usize) -> Option<u16> {
        post(self.port, &Event::new(number)).await
    }

    /// The database or the folder of what was accepted.
    fn inbox(&self) -> PathBuf {
        self.folder.path().join(if self.language == Language::Python { "inbox.db" } else { "inbox" })
    }
}

/// A request in the making.
struct Event {
    id: String,
    timestamp: String,
    body: String,
    signatures: String,
}

impl Event {
    fn new(number: usize) -> Self {
        let body = json!({"type": "submission.created", "data": {"id": format!("sub_{number}")}}).to_string();
        let timestamp = Timestamp::now().as_second().to_string();
        Self { id: format!("evt_{number}"), timestamp, body, signatures: String::new() }.signed(SECRETS[0])
    }

    fn signed(mut self, secret: &str) -> Self {
        self.signatures = self.signature(secret);
        self
    }

    fn signature(&self, secret: &str) -> String {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(format!("{}.{}.{}", self.id, self.timestamp, self.body).as_bytes());
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }

    fn with(mut self, differ: impl FnOnce(&mut Self)) -> Self {
        differ(&mut self);
        self
    }
}

/// The status of the answer; None if there was none.
async fn post(port: u16, event: &Event) -> Option<u16> {
    let Event { id, timestamp, body, signatures } = event;
    let fields = format!("webhook-id: {id}\r\nwebhook-timestamp: {timestamp}\r\nwebhook-signature: {signatures}\r\n");
    send(port, &format!("Content-Length: {}\r\n{fields}\r\n{body}", body.len())).await
}

async fn send(port: u16, fields_and_body: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let head = "POST /webhooks HTTP/1.1\r\nHost: hooks\r\nConnection: close\r\n";
    stream.write_all(format!("{head}{fields_and_body}").as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    // A connection that is reset after the answer has been read is an answer.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
}

/// What stands before a receiver: TLS. Returns its port.
async fn front(folder: &Path, port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tls_server::accept(listener, certificate::issue(folder, &[HOST]), &[b"http/1.1"], move |handshake| async move {
        let (Ok(mut outer), Ok(mut inner)) = (handshake.await, TcpStream::connect(("127.0.0.1", port)).await) else {
            return;
        };
        let _ = copy_bidirectional(&mut outer, &mut inner).await;
    });
    address.port()
}

/// Has a URL get every event. Returns the subscriptions.
async fn subscribe_to_all(scene: &Scene, url: &str) -> Vec<Value> {
    let mut made = Vec::new();
    for event in ["submission.created", "submission.updated", "submission.deleted"] {
        let answer =
            scene.client.post("/api/v1/subscribe").json(&json!({"target_url": url, "event": event})).send().await;
        made.push(answer.json()["data"].clone());
    }
    made
}

in_both_languages! {
    async fn a_receiver_handles_every_event_of_each_submission_in_order(language: Language) {
        let scene = Scene::new(Engine::Sqlite).await;
        let (outer, inner) = (folder::temporary("front"), free_port());
        let url = format!("https://{HOST}:{}/webhooks", front(outer.path(), inner).await);
        let subscriptions = subscribe_to_all(&scene, &url).await;
        let secrets: Vec<&str> = subscriptions.iter().map(|one| one["secret"].as_str().unwrap()).collect();
        let program = Program::start_at(inner, language, &secrets).await;
        for id in 1..=5 {
            scene.insert(id, 1, "Zoë").await;
        }
        for id in 1..=5 {
            program.handles(&format!("submission.created sub_{id}")).await;
        }
        scene.execute("UPDATE answers SET value = 'y' WHERE submission_id = 2").await;
        program.handles("submission.updated sub_2").await;
        let tested = scene.client.post(&format!("/api/v1/subscribe/{}/test", subscriptions[0]["id"].as_str().unwrap())).send().await;
        assert_eq!(tested.json()["data"]["status"], 204, "{tested:?}");
        scene.execute("DELETE FROM answers WHERE submission_id = 2; DELETE FROM submissions WHERE id = 2").await;
        program.handles("submission.deleted sub_2").await;
        let lines = program.lines();
        let of_2: Vec<&String> = lines.iter().filter(|line| line.ends_with("sub_2")).collect();
        assert_eq!(of_2, ["submission.created sub_2", "submission.updated sub_2", "submission.deleted sub_2"]);
        assert_eq!(lines.len(), 7, "a test is no event: {lines:?}");
    }

    async fn a_receiver_accepts_what_is_signed_by_a_secret_of_its_own_and_recent(language: Language) {
        let program = Program::start(language, &SECRETS).await;
        let port = program.port;
        let at = |seconds: i64| (Timestamp::now().as_second() + seconds).to_string();
        let good = [
            Event::new(1),
            Event::new(2).signed(SECRETS[1]),
            Event::new(3).with(|event| event.signatures = format!("v1,AAAA v1a,{} {}", "A".repeat(88), event.signatures)),
            Event::new(4).with(|event| event.timestamp = at(-200)).signed(SECRETS[0]),
            Event::new(5).with(|event| event.timestamp = at(200)).signed(SECRETS[0]),
            Event::new(6).with(|event| event.body = event.body.replace("sub_6", "sub_6\", \"n\": \"Zoë  \\u00e9")).signed(SECRETS[0]),
        ];
        for event in &good {
            assert_eq!(post(port, event).await, Some(204), "{}", event.body);
        }
        let bad = [
            Event::new(90).signed("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
            Event::new(90).with(|event| event.body.push(' ')),
            Event::new(90).with(|event| event.id = "evt_91".to_owned()),
            Event::new(90).with(|event| event.timestamp = at(-1)),
            Event::new(90).with(|event| event.timestamp = at(-400)).signed(SECRETS[0]),
            Event::new(90).with(|event| event.timestamp = at(400)).signed(SECRETS[0]),
            Event::new(90).with(|event| event.timestamp = format!("{}_0", &at(0)[..9])).signed(SECRETS[0]),
            Event::new(90).with(|event| event.timestamp = String::new()).signed(SECRETS[0]),
            Event::new(90).with(|event| event.id = String::new()).signed(SECRETS[0]),
            Event::new(90).with(|event| event.signatures = String::new()),
            Event::new(90).with(|event| event.signatures = event.signatures.replace("v1,", "v2,")),
            Event::new(90).with(|event| event.signatures = format!("{}é", event.signatures)),
        ];
        for (nth, event) in bad.iter().enumerate() {
            assert_eq!(post(port, event).await, Some(401), "{nth}: {} {} {}", event.id, event.timestamp, event.signatures);
        }
        assert_eq!(send(port, "Content-Length: 2\r\n\r\n{}").await, Some(401));
        assert_eq!(send(port, "\r\n").await, Some(413), "a body of unknown length");
        assert_eq!(send(port, &format!("Content-Length: {}\r\n\r\n", 1 << 30)).await, Some(413));
        // What breaks off is not accepted.
        let whole = Event::new(7);
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let head = format!(
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nwebhook-id: evt_7\r\nwebhook-timestamp: {}\r\nwebhook-signature: {}\r\n\r\n{{",
            whole.body.len(), whole.timestamp, whole.signatures
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        drop(stream);
        assert_eq!(program.send(8).await, Some(204));
        program.handles("submission.created sub_8").await;
        let handled: Vec<String> = program.lines();
        let expected = [1, 2, 3, 4, 5, 6, 8].map(|number| format!("submission.created sub_{number}"));
        assert_eq!(handled, expected);
    }

    async fn what_a_receiver_accepted_survives_that_it_is_killed_and_is_handled_once(language: Language) {
        let mut program = Program::start(language, &SECRETS).await;
        let accepted = Arc::new(Mutex::new(BTreeSet::new()));
        let callers = (0..CALLERS).map(|caller| {
            let (accepted, port) = (Arc::clone(&accepted), program.port);
            tokio::spawn(async move {
                for number in (caller..).step_by(CALLERS) {
                    match post(port, &Event::new(number)).await {
                        Some(204) => _ = accepted.lock().unwrap().insert(number),
                        None => return,
                        other => panic!("{other:?}"),
                    }
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        program.wait_until("events are accepted", || accepted.lock().unwrap().len() >= ACCEPTED).await;
        program.child.kill();
        for caller in join_all(callers).await {
            caller.unwrap();
        }
        program.restart().await;
        let accepted = accepted.lock().unwrap().clone();
        for &number in &accepted {
            program.handles(&format!("submission.created sub_{number}")).await;
        }
        for &number in &accepted {
            assert_eq!(program.send(number).await, Some(204), "what was accepted is accepted again");
        }
        let last = accepted.last().unwrap() + 1_000;
        let [one, other] = [program.send(last), program.send(last)];
        assert_eq!(tokio::join!(one, other), (Some(204), Some(204)));
        program.restart().await;
        assert_eq!(program.send(last + 1).await, Some(204));
        program.handles(&format!("submission.created sub_{}", last + 1)).await;
        let mut counts = BTreeMap::<_, usize>::new();
        for line in program.lines() {
            *counts.entry(line).or_default() += 1;
        }
        // Each kill may have been between the work and the note that it is done.
        let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.len() <= 2, "{twice:?}");
    }

    async fn a_receiver_that_cannot_start_says_why_in_one_line(language: Language) {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let in_use = format!("port {port}: ");
        for (secrets, words) in [
            (SECRETS[0], &*in_use),
            ("", "WEBHOOK_SECRETS has no secret"),
            ("whsec_?", "WEBHOOK_SECRETS: a secret is whsec_ and Base64"),
            (&SECRETS[0][..20], "WEBHOOK_SECRETS: a secret is whsec_ and Base64"),
        ] {
            let folder = folder::temporary("receiver");
            let mut child = Program::spawn(language, folder.path(), secrets, port);
            let status = child.wait_at_most(LIMIT).expect("it ends");
            let faults = fs::read_to_string(folder.path().join("faults")).unwrap();
            assert!(!status.success() && faults.starts_with(words) && faults.lines().count() == 1, "{secrets}: {faults}");
        }
    }

    async fn a_receiver_forgets_ids_after_a_week(language: Language) {
        let mut program = Program::start(language, &SECRETS).await;
        for number in 1..=3 {
            assert_eq!(program.send(number).await, Some(204));
        }
        program.handles("submission.created sub_3").await;
        if language == Language::JavaScript {
            for entry in fs::read_dir(program.inbox()).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if !name.ends_with("evt_2") {
                    fs::rename(&path, path.with_file_name(format!("000000000000001{}", &name[15..]))).unwrap();
                }
            }
            program.restart().await;
            let names: Vec<_> = fs::read_dir(program.inbox()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(names.len() == 1 && names[0].to_str().unwrap().ends_with("evt_2"), "{names:?}");
        } else {
            let inbox = Database::connect(&format!("sqlite:{}", program.inbox().display())).await;
            inbox.execute("UPDATE seen SET at = at - 700000 WHERE id <> 'evt_2'").await;
            assert_eq!(program.send(4).await, Some(204));
            assert_eq!(inbox.texts("SELECT id FROM seen ORDER BY id").await, ["evt_2", "evt_4"]);
            inbox.close().await;
        }
        assert_eq!(program.send(2).await, Some(204));
        assert_eq!(program.send(5).await, Some(204));
        program.handles("submission.created sub_5").await;
        assert_eq!(program.lines().iter().filter(|line| line.ends_with("sub_2")).count(), 1);
    }

    async fn an_event_that_cannot_be_handled_is_tried_again_and_holds_up_the_next_one(language: Language) {
        let program = Program::start(language, &SECRETS).await;
        let broken = Event::new(1).with(|event| event.body = "{}".to_owned()).signed(SECRETS[0]);
        assert_eq!(post(program.port, &broken).await, Some(204));
        assert_eq!(program.send(2).await, Some(204), "it is accepted all the same");
        let fault = if language == Language::Python { "KeyError" } else { "TypeError" };
        program.wait_until("it is tried three times", || program.text("faults").matches(fault).count() >= 3).await;
        assert!(program.lines().is_empty(), "{:?}", program.lines());
    }
}

//! The loops of the API's guide keep a copy in step with writers, in Python and in JavaScript.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::{ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::follower::all_submissions;
use crate::api::account::{Account, account};
use crate::api::submission::writers::{Writer, beginning};
use crate::support::certificate;
use crate::support::child::{Child, bound_to_us};
use crate::support::document::block;
use crate::support::fixture::on_both_databases;
use crate::support::folder;
use crate::support::process::python;

const GUIDE: &str = include_str!("../../../../src/api/README.md");

/// Every name leads to this machine.
const PYTHON_BEFORE: &str = "import json, socket, sys, threading\nfound = socket.getaddrinfo\n\
    socket.getaddrinfo = lambda host, *rest, **options: found('127.0.0.1', *rest, **options)\n";
const PYTHON_AFTER: &str = "\nended = threading.Event()\n\
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()\n\
    while not ended.is_set():\n    cursor = follow(copy, cursor, wait=1)\n\
    follow(copy, cursor)\nprint(json.dumps(copy))\n";
const JAVASCRIPT_BEFORE: &str = "import dns from 'node:dns';\nconst found = dns.lookup;\n\
    dns.lookup = (host, ...rest) => found('127.0.0.1', ...rest);\n";
const JAVASCRIPT_AFTER: &str = "\nconst copy = new Map();\nlet cursor, ended = false;\n\
    process.stdin.on('data', () => {}).on('end', () => { ended = true; });\n\
    while (!ended) cursor = await follow(copy, cursor, 1);\nawait follow(copy, cursor);\n\
    console.log(JSON.stringify(Object.fromEntries(copy)));\nprocess.exit(0);\n";

/// How long a program may take to end.
const LIMIT: Duration = Duration::from_secs(60);

const ROUNDS: usize = 400;

/// A program that follows until its input ends.
struct Program {
    child: Child,
    input: ChildStdin,
    output: thread::JoinHandle<String>,
}

impl Program {
    fn start(mut command: Command, account: &Account, authority: &str) -> Self {
        let url = format!("https://{}:{}/api/v1", account.host(), account.address().port());
        command.env("API", url).env("TOKEN", account.token());
        command.env("REQUESTS_CA_BUNDLE", authority).env("NODE_EXTRA_CA_CERTS", authority);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Child::spawn(command);
        let pipes = child.pipes();
        let input = pipes.stdin.take().expect("it is piped");
        let mut pipe = pipes.stdout.take().expect("it is piped");
        let output = thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).expect("programs write UTF-8");
            text
        });
        Self { child, input, output }
    }

    /// The copy at the end.
    fn finish(mut self) -> BTreeMap<String, Value> {
        drop(self.input);
        let status = self.child.wait_at_most(LIMIT);
        self.child.kill();
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
        let output = self.output.join().expect("reading does not panic");
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
    }
}

on_both_databases! {
    async fn the_loops_of_the_guide_end_with_what_the_writers_wrote(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        database.execute(&beginning(engine)).await;
        let folder = folder::temporary("recipes");
        let authority = certificate::authority(folder.path());
        let authority = authority.to_str().expect("the temporary folder has a UTF-8 name");
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("the folder can be written");
            path
        };
        let in_python = [PYTHON_BEFORE, block(GUIDE, "python", "def call"), block(GUIDE, "python", "def follow"), PYTHON_AFTER];
        let in_javascript = [JAVASCRIPT_BEFORE, block(GUIDE, "js", "function follow"), JAVASCRIPT_AFTER];
        let mut python = bound_to_us(python(), "KILL", &[]);
        python.arg(write("follow.py", in_python.concat()));
        let mut node = bound_to_us("node", "KILL", &[]);
        node.arg(write("follow.mjs", in_javascript.concat()));
        let programs = [python, node].map(|command| Program::start(command, &account, authority));

        let mut writer = Writer::new(engine, 7);
        for _ in 0..ROUNDS {
            writer.write(&database).await;
        }
        let expected = all_submissions(&account.client, &json!({})).await;
        for program in programs {
            assert_eq!(program.finish(), expected);
        }
    }
}

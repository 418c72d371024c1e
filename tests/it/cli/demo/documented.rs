//! The calls and recipes of README.md and src/api/README.md work as written, with the token of a demo.
//!
//! A line of a document that starts with `export` or `curl -s` is run. Every other line is not.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Deserializer, Value};
use tempfile::TempDir;

use super::Demo;
use crate::support::folder;
use crate::support::process::python;

const README: &str = include_str!("../../../../README.md");
const API: &str = include_str!("../../../../src/api/README.md");

/// The shells into which a reader may paste a call, without their user's configuration.
const SHELLS: [[&str; 2]; 3] = [["bash", "--norc"], ["zsh", "-f"], ["fish", "--no-config"]];

/// A demo, and a folder for what calls write.
struct Served {
    demo: Demo,
    token: String,
    port: String,
    temporary: TempDir,
}

impl Served {
    fn start() -> Self {
        let temporary = folder::temporary("demo");
        let demo = Demo::start(&["--dir", temporary.path().join("demo").to_str().unwrap()], temporary.path());
        let (_, rest) = demo.printed.split_once("acme.localhost:").expect("the URL of Acme");
        let (port, _) = rest.split_once('/').expect("a path");
        Self { token: demo.token().to_owned(), port: port.to_owned(), demo, temporary }
    }

    fn certificate(&self) -> String {
        self.temporary.path().join("demo/certificate.pem").to_str().unwrap().to_owned()
    }

    /// A document as a reader of this demo would paste it.
    fn filled_in(&self, document: &str) -> String {
        document
            .replace("fg_…", &self.token)
            .replace("acme.localhost:8443", &format!("acme.localhost:{}", self.port))
            .replace("/tmp/formgate-demo", self.temporary.path().join("demo").to_str().unwrap())
    }

    /// Every answer to a call, one for each page that it asks for.
    fn paste(&self, shell: [&str; 2], document: &str, call: &str) -> Vec<Value> {
        let document = self.filled_in(document);
        let exports: Vec<&str> = document.lines().filter(|line| line.starts_with("export ")).collect();
        assert_eq!(exports.len(), 3);
        let script = format!("{}\n{}", exports.join("\n"), self.filled_in(call));
        let [program, option] = shell;
        let mut command = Command::new(program);
        command.args([option, "-c", &script]).current_dir(self.temporary.path()).env("HOME", self.temporary.path());
        let output = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{program}: {script}\n{errors}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        if call.contains("ignored") {
            assert_eq!(text.trim_end(), "x-ignored-parameters: status");
            return Vec::new();
        }
        if let Some((_, table)) = call.split_once(" -o leave.") {
            let written = fs::metadata(self.temporary.path().join(format!("leave.{table}"))).expect("it was written");
            assert!(text.is_empty() && written.len() > 100, "{call}: {written:?} {text}");
            return Vec::new();
        }
        let answers: Result<Vec<Value>, _> = Deserializer::from_str(&text).into_iter().collect();
        let answers = answers.unwrap_or_else(|error| panic!("{error}: {call}\n{text}"));
        assert!(!answers.is_empty(), "{call}");
        for answer in &answers {
            let items = answer["data"].as_array().map_or(1, Vec::len);
            assert!(answer.get("errors").is_none() && items > 0, "{call}: {answer}");
        }
        answers
    }
}

/// The calls of a document. Those that write to a file print instead.
fn calls(document: &str) -> Vec<String> {
    let calls = document.lines().filter(|line| line.starts_with("curl -s "));
    let files = [r#" -o "page-#1.json""#, " > openapi.json", " -o submissions.ndjson", " -o approved.ndjson"];
    let calls = calls.map(|call| files.iter().fold(call.to_owned(), |call, file| call.replace(file, "")));
    calls.inspect(|call| assert!(!call.contains(" #"), "an interactive zsh has no comments: {call}")).collect()
}

#[test]
fn every_call_of_the_readme_works_in_bash_zsh_and_fish() {
    let served = Served::start();
    let calls = calls(README);
    assert_eq!(calls.len(), 6);
    for shell in SHELLS {
        for call in &calls {
            served.paste(shell, README, call);
        }
    }
    served.demo.stop();
}

#[test]
fn every_call_of_the_api_reference_works_in_some_shell() {
    let served = Served::start();
    let calls = calls(API);
    assert_eq!(calls.len(), 35);
    for (call, shell) in calls.iter().zip(SHELLS.into_iter().cycle()) {
        served.paste(shell, API, call);
    }
    served.demo.stop();
}

#[test]
fn the_python_recipes_of_the_api_reference_work() {
    let served = Served::start();
    let blocks = API.split("```python\n").skip(1).map(|rest| rest.split("```").next().expect("a block ends"));
    let script: Vec<&str> = blocks.collect();
    assert_eq!(script.len(), 4);
    let output = run_python(&served, &format!("{}\nassert copy == everything, copy\n", script.join("\n")));
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], "51 submissions");
    assert!(lines[1].starts_with("Staff created") && lines[2].starts_with("Payroll created"), "{output}");
    served.demo.stop();
}

/// What a script prints. Names below `localhost` lead to this machine, as in the `/etc/hosts` that the recipes ask for.
fn run_python(served: &Served, script: &str) -> String {
    const RESOLVE: &str = "import socket\nfound = socket.getaddrinfo\n\
        socket.getaddrinfo = lambda host, *rest, **options: found('127.0.0.1', *rest, **options)\n";
    let folder = served.temporary.path();
    let write = |name: &str, text: &str| fs::write(Path::new(folder).join(name), text).expect("it can be written");
    write("recipes.py", &format!("{RESOLVE}{script}"));
    let mut command = Command::new(python());
    command.arg("recipes.py").current_dir(folder).env("TOKEN", &served.token);
    command.env("API", format!("https://acme.localhost:{}/api/v1", served.port));
    command.env("REQUESTS_CA_BUNDLE", served.certificate());
    let output = command.output().expect("there is a Python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

//! The packages that receivers use accept the signatures: `standardwebhooks` from PyPI and from npm.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::scene::{SECRET, Scene};
use crate::support::process::python;
use crate::support::receiver::{Act, Received, Receiver};

const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// What a receiver passes to the package.
fn case(request: &Received, secret: &str, differ: impl FnOnce(&mut Value)) -> Value {
    let header = |name: &str| (name.to_owned(), json!(request.headers[name].to_str().unwrap()));
    let headers: serde_json::Map<_, _> =
        ["webhook-id", "webhook-timestamp", "webhook-signature"].into_iter().map(header).collect();
    let mut case = json!({"secret": secret, "headers": headers, "body": String::from_utf8_lossy(&request.body)});
    differ(&mut case);
    case
}

/// Runs a program that verifies cases, and returns whether it accepted each.
fn verify(mut command: Command, cases: &Value) -> Vec<bool> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("tests/run installs it");
    child.stdin.take().expect("it is piped").write_all(cases.to_string().as_bytes()).expect("the program reads");
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("an array")
}

#[tokio::test]
async fn the_packages_of_receivers_accept_each_signature_and_nothing_that_was_changed() {
    let scene = Scene::new().await;
    let receiver = Receiver::always(Act::status(204)).await;
    for secrets in [&[SECRET][..], &[SECRET, OTHER]] {
        assert!(scene.send_signed(&receiver.url("/"), secrets).await.is_accepted());
    }
    let [single, rotated] = receiver.requests().try_into().unwrap();
    let cases = json!([
        case(&single, SECRET, |_| ()),
        case(&rotated, SECRET, |_| ()),
        case(&rotated, OTHER, |_| ()),
        case(&single, OTHER, |_| ()),
        case(&single, SECRET, |case| case["body"] = json!("{}")),
        case(&single, SECRET, |case| case["headers"]["webhook-id"] = json!("evt_2")),
        case(&single, SECRET, |case| case["headers"]["webhook-timestamp"] = json!("1614265330")),
    ]);
    let expected = [true, true, true, false, false, false, false];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut by_python = Command::new(python());
    by_python.arg(root.join("tests/it/outbound/verify.py"));
    assert_eq!(verify(by_python, &cases), expected, "Python");
    let mut by_node = Command::new("node");
    by_node.arg(root.join("tests/it/outbound/verify.mjs")).arg(root.join("target/clients/node/"));
    assert_eq!(verify(by_node, &cases), expected, "Node");
}

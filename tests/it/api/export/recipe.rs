//! The loader of the recipes loads by an export and follows by the feed, and goes on where it was stopped.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::many;
use crate::api::account::{Account, account};
use crate::api::changes::follower::all_submissions;
use crate::support::certificate;
use crate::support::document::{block, python_that_finds_every_host_here};
use crate::support::fixture::on_both_databases;
use crate::support::folder;
use crate::support::process::python;

const GUIDE: &str = include_str!("../../../../src/api/recipes.md");

/// Prints the rows of the loader's table as an object.
const PRINT: &str = "import json, sqlite3; \
    print(json.dumps({k: json.loads(v) for k, v in sqlite3.connect('copy.db').execute('SELECT id, submission FROM loaded')}))";

fn run(account: &Account, folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(python());
    command.args(arguments).current_dir(folder).env("TOKEN", account.token());
    command.env("API", format!("https://{}:{}/api/v1", account.host(), account.address().port()));
    command
        .env("SSL_CERT_FILE", certificate::authority(folder))
        .env("PYTHONPATH", python_that_finds_every_host_here(folder));
    let output = command.output().expect("there is a Python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

on_both_databases! {
    async fn the_loader_of_the_recipes_loads_and_follows(engine: Engine) {
        let loader = block(GUIDE, "python", "submission/export");
        assert!(loader.lines().count() <= 60, "it is to be read at a glance");
        let account = account(engine, &many(1..2_600, "x"));
        let database = account.database().await;
        let folder = folder::temporary("loader");
        fs::write(folder.path().join("load.py"), loader).unwrap();
        let copied = || -> BTreeMap<String, Value> {
            run(&account, folder.path(), &["load.py", "copy.db", "--once"]);
            serde_json::from_str(&run(&account, folder.path(), &["-c", PRINT])).expect("JSON")
        };
        let all = async || all_submissions(&account.client, &json!({})).await;
        assert!(copied() == all().await, "the load");
        database.execute("DELETE FROM answers WHERE submission_id < 9; DELETE FROM submissions WHERE id < 9; UPDATE submissions SET status = 'back' WHERE id > 2590").await;
        assert!(copied() == all().await, "what changed");
        // As if it had been stopped half-way: the rest is loaded.
        let set_back = "import sqlite3; copy = sqlite3.connect('copy.db'); copy.executescript(\"\"\"
            DELETE FROM loaded WHERE CAST(substr(id, 5) AS INTEGER) > 1500;
            UPDATE progress SET name = 'as_of' WHERE name = 'cursor' AND NOT EXISTS (SELECT 1 FROM progress WHERE name = 'as_of');
            DELETE FROM progress WHERE name = 'cursor'; UPDATE progress SET value = 'sub_1500' WHERE name = 'after'\"\"\")";
        run(&account, folder.path(), &["-c", set_back]);
        database.execute("UPDATE submissions SET status = 'info' WHERE id IN (100, 2000)").await;
        assert!(copied() == all().await, "the rest of the load");
        // A cursor that is lost: everything again.
        account.run(&["changes", "reset", "--tenant", "acme"]);
        database.execute("DELETE FROM answers WHERE submission_id = 500; DELETE FROM submissions WHERE id = 500").await;
        assert!(copied() == all().await, "everything again");
    }
}

//! deploy/growing.md: its commands take an account from a file to a fleet while it is called, and the metrics that it names exist.

use std::fs;
use std::process::Command;

use super::scene::{Scene, me, me_becomes};
use crate::support::document::block;
use crate::support::fixture::Engine;
use crate::support::postgres::{Postgres, path_with_clients};
use crate::support::process::Node;

const GUIDE: &str = include_str!("../../../deploy/growing.md");
const METRICS: &str = include_str!("../../../deploy/metrics.md");

/// The passwords that the page leaves to variables.
const VARIABLES: [(&str, &str); 3] =
    [("FORMGATE_TENANT_ACME", "secret"), ("FORMGATE_TENANT_GLOBEX", "secret"), ("FORMGATE_TENANT_DB", "secret")];

/// The lines of the page's block that begin with a program.
fn lines(text: &str, program: &str) -> Vec<String> {
    let block = block(GUIDE, "sh", text);
    let lines = block.lines().filter(|line| line.starts_with(program));
    lines.map(|line| line.split("   #").next().expect("a line").trim_end().to_owned()).collect()
}

struct Operator {
    scene: Scene,
    server: Postgres,
    node: Node,
}

impl Operator {
    /// Runs a line of the page as an operator does, with the addresses of this test.
    fn run(&self, line: &str) {
        let at = format!("@127.0.0.1:{}/", self.server.port());
        let line = ["@db.internal/", "@db-2.internal/", "@citus.internal/"]
            .iter()
            .fold(line.to_owned(), |line, place| line.replace(place, &at));
        let accounts = self.scene.folder().join("accounts").display().to_string();
        let line =
            line.replace("/var/lib/formgate/accounts", &accounts).replace("acme.example.com", "acme.example.test");
        let line = line.replace("PASSWORD '…'", "PASSWORD 'secret'");
        let line = line.replace(" globex ", " acme ").replace(" initech ", " acme ");
        let mut command = Command::new("sh");
        command.args(["-ec", &line]).current_dir(self.scene.folder()).envs(VARIABLES);
        command.env("FORMGATE_CONFIG", self.scene.config(0)).env("PATH", path_with_clients());
        command.env("PGHOST", "127.0.0.1").env("PGPORT", self.server.port().to_string()).env("PGUSER", "postgres");
        let output = command.output().expect("there is a shell");
        assert!(output.status.success(), "{line}: {output:?}");
    }

    async fn moves(&self, line: &str, token: &str) {
        self.run(line);
        assert_eq!(me(&self.node, "acme", token).await, 200, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_take_an_account_from_a_file_to_a_fleet() {
    let scene = Scene::new(Engine::Sqlite);
    let node = scene.start_in(0, &VARIABLES);
    let mut operator = Operator { scene, server: Postgres::start(), node };

    for line in lines("tenant add acme", "formgate") {
        operator.run(&line);
    }
    let token = operator.scene.succeed(&["token", "create", "--tenant", "acme", "--name", "tests"]).trim().to_owned();
    assert_eq!(me(&operator.node, "acme", &token).await, 200);

    let to_postgres = "CREATE ROLE account_acme";
    for line in lines(to_postgres, "psql") {
        operator.run(&line);
    }
    for line in lines(to_postgres, "formgate tenant move") {
        operator.moves(&line, &token).await;
    }

    // The registry, by way of files. The block begins with these two lines.
    operator.server.execute("CREATE DATABASE registry");
    let registry = operator.server.url("registry");
    let text = fs::read_to_string(operator.scene.config(0)).expect("a file");
    fs::write(operator.scene.folder().join("new.toml"), text.replace(&operator.scene.registry_url, &registry))
        .expect("a folder");
    let fleet = lines("tenant export --dir", "formgate");
    let [export, import, check, nodes] = &fleet[..] else { panic!("{fleet:?}") };
    operator.run(export);
    operator.run(import);
    operator.node.kill();
    for end in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{end}", operator.scene.snapshot(0).display())).ok();
    }
    operator.scene = operator.scene.gateway("registry", registry);
    operator.node = operator.scene.start_in(0, &VARIABLES);
    me_becomes(&operator.node, "acme", &token, 200).await;
    operator.run(check);
    operator.run(nodes);

    for (place, role, database) in
        [("db-2.internal", "account_globex", "account_globex"), ("citus.internal", "forms", "forms")]
    {
        operator.server.execute(&format!("CREATE ROLE {role} LOGIN PASSWORD 'secret'"));
        operator.server.execute(&format!("CREATE DATABASE {database} OWNER {role}"));
        for line in lines(place, "formgate") {
            operator.moves(&line, &token).await;
        }
    }
}

#[test]
fn every_metric_of_the_page_is_documented() {
    let names = GUIDE.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
    let names: Vec<_> = names.filter(|name| name.starts_with("formgate_")).collect();
    assert!(names.len() > 10);
    for name in names {
        let name = name.strip_suffix("_bucket").unwrap_or(name);
        assert!(METRICS.contains(&format!("`{name}`")), "{name}");
    }
}

//! What `check` tries and warns about beyond the databases: Redis, several nodes, chains, patterns.

use std::fs;

use crate::support::child;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Output;
use crate::support::redis::Redis;

fn warnings(output: &Output) -> Vec<&str> {
    output.stdout.lines().filter(|line| line.starts_with("warning: ")).collect()
}

fn postgres(slug: &str) -> Site {
    Site::new().tenant(slug, Engine::Postgres).write()
}

#[test]
fn a_redis_that_can_not_be_used_is_a_fault_at_its_key_with_the_remedy() {
    let site = postgres("acme");
    let locked = Redis::start();
    locked.run::<()>(&["ACL", "SETUSER", "weak", "on", ">right", "~other:*", "+@all"]);
    locked.run::<()>(&["CONFIG", "SET", "requirepass", "right"]);
    let address = locked.url().replace("redis://", "");
    let full = Redis::start_with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let replica = Redis::start_with(&["--replicaof", "127.0.0.1", "1"]);
    let nobody = child::free_port();
    let mut site = site;
    for (url, cause, remedy) in [
        (format!("redis://127.0.0.1:{nobody}"), "Connection refused", "start Redis, or correct its address"),
        (format!("redis://{address}"), "Authentication required", "correct the user and the password"),
        (format!("redis://:marker-7f3a@{address}"), "authentication failed", "correct the user and the password"),
        (format!("redis://weak:right@{address}"), "no permissions", "ACL SETUSER"),
        (full.url(), "OOM", "raise `maxmemory`"),
        (replica.url(), "read only replica", "name the master"),
    ] {
        site = site.gateway("redis", url).write();
        let output = site.run(&["check"], b"");
        assert_eq!((output.code, output.stderr.as_str()), (1, "error: 1 fault\n"), "{cause}: {}", output.stdout);
        let config = fs::read_to_string(&site.config_path).expect("it was written");
        let line = config.lines().position(|line| line.starts_with("redis = ")).expect("it is there") + 1;
        let place = format!("{}:{line}:1", site.config_path.display());
        for text in ["error: Redis can't be used: ", cause, remedy, &place] {
            assert!(output.stdout.contains(text), "{text:?} in:\n{}", output.stdout);
        }
        assert!(!output.stdout.contains("marker-7f3a"), "{}", output.stdout);
        let explained = site.run(&["explain", "acme.example.test"], b"");
        assert!(explained.stdout.contains(cause) && explained.stdout.contains(remedy), "{}", explained.stdout);
    }
    let cluster = vec![Redis::shared().url()];
    let one = Site::new().tenant("acme", Engine::Sqlite).gateway("redis_cluster", cluster).write();
    let output = one.run(&["check"], b"");
    assert!(output.stdout.contains("this server is no cluster: use `redis`"), "{}", output.stdout);
}

#[test]
fn sqlite_tenants_of_several_nodes_are_warned_about_and_are_no_fault() {
    let site = postgres("acme").redis(Redis::shared()).write();
    let output = site.run(&["check"], b"");
    assert_eq!((output.code, warnings(&output)), (0, Vec::new()), "on Postgres, every node may serve");
    let site = site.tenant("globex", Engine::Sqlite).tenant("initech", Engine::Sqlite).write();
    let output = site.run(&["check"], b"");
    let warned = warnings(&output);
    assert_eq!((output.code, output.stderr.as_str(), warned.len()), (0, "", 1), "{}", output.stdout);
    assert!(warned[0].contains("the tenants `globex`, `initech` are in SQLite"), "{}", warned[0]);
    assert!(warned[0].contains("This is fine with one node") && warned[0].contains("deploy/nodes.md"), "{}", warned[0]);
    assert!(output.stdout.contains("no faults, 3 tenants"), "{}", output.stdout);
}

#[test]
fn a_chain_without_its_issuer_is_warned_about() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    assert_eq!(warnings(&site.run(&["check"], b"")), Vec::<&str>::new());
    let file = site.folder().join("certs/wildcard.example.test.pem");
    let chain = fs::read_to_string(&file).expect("it was issued");
    let end = "-----END CERTIFICATE-----\n";
    let leaf = &chain[..chain.find(end).expect("it is PEM") + end.len()];
    fs::write(&file, leaf).expect("the site's folder can be written");
    let output = site.run(&["check"], b"");
    let warned = warnings(&output);
    assert_eq!((output.code, warned.len()), (0, 1), "{}", output.stdout);
    for text in [&*file.display().to_string(), "formgate test authority", "append the intermediate certificate"] {
        assert!(warned[0].contains(text), "{text:?} in {}", warned[0]);
    }
    let explained = site.run(&["explain", "acme.example.test"], b"");
    assert!(explained.code == 0 && explained.stdout.contains("append the intermediate certificate"), "{explained:?}");
}

#[test]
fn a_pattern_that_matches_no_file_is_warned_about_by_check_and_in_the_log() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let config = fs::read_to_string(&site.config_path).expect("it was written");
    let with_pattern = format!("include = [\"tenants.d/*.toml\"]\n{config}");
    fs::write(&site.config_path, with_pattern).expect("the site's folder can be written");
    let output = site.run(&["check"], b"");
    assert_eq!((output.code, warnings(&output)), (0, vec!["warning: no file matches this pattern"]));
    assert!(output.stdout.contains(&format!("{}:1:12", site.config_path.display())), "{}", output.stdout);
    let mut node = site.start();
    assert!(node.log().contains("no file matches this pattern"), "{}", node.log());
}

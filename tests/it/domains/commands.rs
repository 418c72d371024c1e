//! `formgate domain`, `acme` and `seal`.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use formgate::acme::AccountKey;
use formgate::seal::{SealKey, Seals};
use formgate::store::registry::{CertificateRecord, DomainState, Lease, StoredPair};
use formgate::store::{DatabaseLocation, Registry};
use jiff::Timestamp;
use serde_json::{Value, json};
use toml::Table;

use super::api::scene;
use crate::registry::scene::Scene;
use crate::support::fixture::on_both_databases;
use crate::support::zones::Mood;

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Adds a tenant without a node.
pub(super) fn add_tenant(scene: &Scene, slug: &str) {
    let database = scene.tenant(slug)["database"].as_str().unwrap().to_owned();
    let address = format!("{slug}.example.test");
    scene.succeed(&["tenant", "add", slug, "--address", &address, "--database", &database]);
}

fn key(byte: u8) -> String {
    STANDARD.encode([byte; 32])
}

/// Sets the keys that seal.
fn sealed_with(scene: Scene, keys: &[u8]) -> Scene {
    let mut acme = Table::new();
    acme.insert("contact".into(), vec!["ops@example.test"].into());
    acme.insert("accept_terms".into(), true.into());
    acme.insert("seal_keys".into(), keys.iter().map(|byte| key(*byte)).collect::<Vec<_>>().into());
    let scene = scene.gateway("acme", acme);
    scene.write(0);
    scene
}

on_both_databases! {
    async fn a_domain_is_added_shown_and_removed_by_commands(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        add_tenant(&scene, "acme");
        add_tenant(&scene, "globex");
        let add = ["domain", "add", "forms.globex.test", "--tenant", "acme"];
        let added = scene.succeed(&add);
        assert!(added.contains("state              claimed\nreason             not_checked_yet\n"), "{added}");
        let step = "Add the CNAME record `forms.globex.test` with the value `acme.edge.test`. A running node checks it soon\n";
        assert!(added.contains(step), "{added}");
        assert!(added.contains("add     CNAME  forms.globex.test            acme.edge.test\n"), "{added}");
        assert!(added.contains("proof   TXT    _formgate.forms.globex.test  formgate-"), "{added}");
        let apex = json_of(&scene.succeed(&["domain", "add", "globex.org", "--tenant", "acme", "--wait", "0", "--json"]));
        assert_eq!(apex["records"][0]["value"], "192.0.2.10", "an apex can have no alias: {apex}");
        scene.succeed(&["domain", "remove", "globex.org"]);
        let again = json_of(&scene.succeed(&[&add[..], &["--json"]].concat()));
        assert_eq!((&again["tenant"], &again["owner"]), (&json!("acme"), &json!("domain")), "{again}");
        let other = scene.succeed(&["domain", "add", "forms.globex.test", "--tenant", "globex"]);
        assert!(other.contains("reason             not_checked_yet\n"), "a claim without proof excludes nobody: {other}");
        let listed = json_of(&scene.succeed(&["domain", "list", "--json"]));
        assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
        assert!(!scene.succeed(&["domain", "list", "--tenant", "acme"]).contains("globex  "));
        assert_eq!(scene.succeed(&["domain", "list", "--state", "live"]).lines().count(), 1);
        assert_eq!(scene.run(&["domain", "list", "--state", "dead"]).code, 2);
        let unknown = scene.run(&["domain", "list", "--tenant", "nobody"]);
        let error = "error: there is no tenant `nobody` in the files or the registry: `formgate tenant list` lists all\n";
        assert_eq!((unknown.code, &*unknown.stdout, &*unknown.stderr), (1, "", error));
        let shown = json_of(&scene.succeed(&["domain", "show", "forms.globex.test", "--json"]));
        assert_eq!(shown["tenant"], "acme", "the oldest: {shown}");
        let shown = scene.succeed(&["domain", "show", "forms.globex.test", "--tenant", "globex"]);
        assert!(shown.contains("tenant             globex\n"), "{shown}");
        let unchecked = scene.run(&["domain", "check", "forms.globex.test"]);
        assert_eq!((unchecked.code, &*unchecked.stderr), (1, "error: no node is running, and only nodes look at domains\n"));
        let several = scene.run(&["domain", "remove", "forms.globex.test"]);
        let error = "error: several tenants claim the host `forms.globex.test`: name one of `acme`, `globex` with `--tenant`\n";
        assert_eq!((several.code, &*several.stderr), (1, error));
        scene.succeed(&["domain", "remove", "forms.globex.test", "--tenant", "acme"]);
        scene.succeed(&["domain", "remove", "forms.globex.test"]);
        let gone = scene.run(&["domain", "remove", "forms.globex.test", "--tenant", "acme"]);
        assert_eq!((gone.code, &*gone.stderr), (1, "error: the tenant `acme` has no domain `forms.globex.test`\n"));
        for (arguments, error) in [
            (["add", "192.0.2.1", "--tenant", "acme"], "an IP address is not a host name"),
            (["add", "*.globex.test", "--tenant", "acme"], "not a host name: wildcards are not supported; list each name"),
            (["add", "co.uk", "--tenant", "acme"], "not a domain: it is a public suffix: others register domains below it"),
            (["show", "a..test", "--tenant", "acme"], "not a host name: a label is empty"),
            (["show", "x.globex.test", "--tenant", "nobody"], "there is no tenant `nobody` in the files or the registry"),
            (["check", "x.globex.test", "--tenant", "nobody"], "there is no tenant `nobody` in the files or the registry"),
            (["remove", "x.globex.test", "--tenant", "nobody"], "there is no tenant `nobody` in the files or the registry"),
            (["add", "x.globex.test", "--tenant", "nobody"], "there is no tenant `nobody` in the registry"),
            (["add", "globex.example.test", "--tenant", "acme"], "is in the table of the tenant `globex`"),
            (["remove", "acme.example.test", "--tenant", "acme"], "is in the table of the tenant `acme`"),
            (["show", "x.globex.test", "--tenant", "acme"], "there is no domain `x.globex.test`"),
        ] {
            let refused = scene.run(&[&["domain"][..], &arguments].concat());
            assert!(refused.code == 1 && refused.stderr.contains(error), "{arguments:?}: {}", refused.stderr);
        }
        let table = scene.succeed(&["domain", "add", "acme.example.test", "--tenant", "acme"]);
        assert_eq!(table, "the host `acme.example.test` is in the table of the tenant `acme`\n");
    }

    async fn a_command_waits_for_the_first_look_of_a_node(engine: Engine) {
        let (scene, zones) = scene(engine).await;
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        // The name servers answer in this thread.
        let scene = Arc::new(scene);
        let succeed = async |command: &'static [&'static str]| {
            let scene = Arc::clone(&scene);
            tokio::task::spawn_blocking(move || scene.succeed(command)).await.expect("the command succeeds")
        };
        let added = succeed(&["domain", "add", "forms.globex.test", "--tenant", "acme", "--wait", "60"]).await;
        assert!(added.contains("state              dns\nreason             no_records\n"), "{added}");
        assert!(added.contains("add     CNAME  forms.globex.test            acme.edge.test\n"), "{added}");
        zones.serve("globex.test", &[], "forms CNAME acme.edge.test");
        let checked = json_of(&succeed(&["domain", "check", "forms.globex.test", "--wait", "60", "--json"]).await);
        assert_eq!((&checked["state"], &checked["reason"]), (&json!("verified"), &Value::Null), "{checked}");
        // A look that could not ask is a look.
        zones.set_resolver_mood(Mood::NotImplemented);
        let checked = json_of(&succeed(&["domain", "check", "forms.globex.test", "--wait", "60", "--json"]).await);
        assert_eq!((&checked["state"], &checked["reason"]), (&json!("verified"), &json!("dns_down")), "{checked}");
        let step = checked["next_step"].as_str().unwrap();
        let resolver = zones.resolver();
        let expected = format!("Nothing to do. DNS can't be asked (no resolver works; {resolver} answers with an error). The next try is at ");
        assert!(step.starts_with(&expected), "{step}");
        let added = succeed(&["domain", "add", "www.globex.test", "--tenant", "acme", "--wait", "60"]).await;
        assert!(added.contains("state              claimed\nreason             dns_down\n"), "{added}");
        assert!(added.contains("add     CNAME  www.globex.test            acme.edge.test\n"), "{added}");
    }

    async fn what_authorities_allow_and_what_hosts_need_is_shown(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        let without = scene.run(&["acme", "status"]);
        assert_eq!((without.code, &*without.stderr), (1, "error: no certificates are obtained: there is no `[gateway.acme]`\n"));
        let scene = sealed_with(scene, &[1]);
        add_tenant(&scene, "acme");
        scene.succeed(&["domain", "add", "forms.globex.test", "--tenant", "acme"]);
        let status = json_of(&scene.succeed(&["acme", "status", "--json"]));
        let authority = &status["authorities"][0];
        assert_eq!((&authority["name"], &authority["orders_left"]), (&json!("letsencrypt"), &json!(300)), "{status}");
        assert_eq!(status["domains"], json!({ "claimed": 1 }));
        assert_eq!(status["renewals"], json!({ "within_a_day": 0, "within_a_week": 0, "late": 0 }));
        assert!(scene.succeed(&["acme", "status"]).contains("domains: 1 claimed\n"));
        let plan = scene.succeed(&["acme", "plan", "--hosts", "10000"]);
        assert!(plan.contains("10000 certificates of 90 days are 167 renewals a day"), "{plan}");
        assert!(plan.contains("2400 orders a day, enough") && plan.contains("after 100 h"), "{plan}");
        let plan = json_of(&scene.succeed(&["acme", "plan", "--hosts", "10000", "--days", "6", "--json"]));
        assert_eq!((&plan[0]["possible"], &plan[0]["renewals_a_day"]), (&json!(true), &json!(2500)), "{plan}");
        assert_eq!(plan[0]["exempts_renewals"], true, "Let's Encrypt counts no renewals");
        assert_eq!(json_of(&scene.succeed(&["acme", "plan", "--json"]))[0]["hosts"], 1);
    }

    async fn a_removal_that_ends_after_the_domain_was_added_again_writes_nothing(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        add_tenant(&scene, "acme");
        let host = "forms.globex.test";
        scene.succeed(&["domain", "add", host, "--tenant", "acme"]);
        let location = DatabaseLocation::parse(&scene.registry_url, "/".as_ref()).unwrap();
        let registry = Registry::open(&location).await.unwrap();
        let (now, due) = registry.due_domains(1).await.unwrap();
        let leased = registry.lease_domains("a node", &due).await.unwrap();
        assert!(registry.take_domain(&leased[0], None, "{}", now).await.unwrap(), "it is proved");
        scene.succeed(&["domain", "remove", host, "--tenant", "acme"]);
        let (_, due) = registry.due_domains(1).await.unwrap();
        let leased = registry.lease_domains("a node", &due).await.unwrap();
        assert_eq!((leased.len(), leased[0].state), (1, DomainState::Removed));
        scene.succeed(&["domain", "add", host, "--tenant", "acme"]);
        assert!(!registry.write_domain(&leased[0], Lease::End, &[]).await.unwrap());
        let (_, due) = registry.due_domains(1).await.unwrap();
        let leased = registry.lease_domains("another node", &due).await.unwrap();
        assert_eq!((leased.len(), leased[0].state), (1, DomainState::Claimed), "it is looked at now");
        registry.close().await;
    }

    async fn every_key_is_sealed_again_with_the_first_of_the_keys(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        let scene = sealed_with(scene, &[1]);
        add_tenant(&scene, "acme");
        add_tenant(&scene, "globex");
        scene.succeed(&["domain", "add", "forms.globex.test", "--tenant", "acme"]);
        let location = DatabaseLocation::parse(&scene.registry_url, "/".as_ref()).unwrap();
        let registry = Registry::open(&location).await.unwrap();
        let old = Seals::new(SealKey::parse(&key(1)).ok(), []);
        let account = STANDARD.encode(AccountKey::generate().pkcs8());
        registry.account_key_or(&old.seal(&account, "acme account")).await.unwrap();
        let certificate = |host: &str, revision: i64| CertificateRecord {
            host: host.to_owned(),
            slug: "acme".to_owned(),
            revision,
            pair: Some(StoredPair { chain: "chain".to_owned(), key: old.seal("key", host) }),
            authority: "letsencrypt".to_owned(),
            not_before: Timestamp::now(),
            not_after: Timestamp::now(),
        };
        let hosts = ["a.globex.test", "b.globex.test"];
        registry.copy_certificates(&[certificate(hosts[0], 1), certificate(hosts[1], 2)]).await.unwrap();
        let (_, due) = registry.due_domains(1).await.unwrap();
        let leased = registry.lease_domains("a node", &due).await.unwrap();
        let mut domain = leased.into_iter().next().expect("the row is due");
        let order = json!({ "authority": "letsencrypt", "key": old.seal("pending", &domain.host), "csr": "" });
        domain.pending = Some(order.to_string());
        assert!(registry.write_domain(&domain, Lease::Keep, &[]).await.unwrap());

        let scene = sealed_with(scene, &[2, 1]);
        let rotate = scene.run(&["seal", "rotate"]);
        assert_eq!(rotate.stdout, "sealed with the first key: 2 certificates, 0 orders, 1 account key\n");
        assert!(rotate.code == 1 && rotate.stderr.contains("forms.globex.test"), "a node works on it: {}", rotate.stderr);
        assert!(registry.write_domain(&domain, Lease::End, &[]).await.unwrap());
        assert_eq!(scene.succeed(&["seal", "rotate"]), "sealed with the first key: 0 certificates, 1 order, 0 account keys\n");
        assert_eq!(scene.succeed(&["seal", "rotate"]), "sealed with the first key: 0 certificates, 0 orders, 0 account keys\n");

        let new = Seals::new(SealKey::parse(&key(2)).ok(), []);
        for host in hosts {
            let found = registry.find_certificate(host).await.unwrap().expect("it is there");
            assert!(found.revision > 2, "nodes take it over");
            assert_eq!(new.open(&found.pair.unwrap().key, host).as_deref(), Ok("key"));
        }
        let stored = registry.account_key().await.unwrap().unwrap();
        assert_eq!(new.open(&stored, "acme account"), Ok(account));
        let pending = registry.pending_orders(("", ""), 10).await.unwrap();
        let order = json_of(&pending[0].pending);
        assert_eq!(new.open(order["key"].as_str().unwrap(), "forms.globex.test").as_deref(), Ok("pending"));
        registry.close().await;

        let scene = sealed_with(scene, &[3]);
        let unopened = scene.run(&["seal", "rotate"]);
        assert_eq!(unopened.code, 1);
        let names = ["the account key", "forms.globex.test", "a.globex.test", "b.globex.test"].join(", ");
        let id = new.ids().next().unwrap();
        let lost = format!("error: `seal_keys` lacks the key `{id}`, which sealed these: {names}; put the key with this id back");
        assert!(unopened.stderr.starts_with(&lost), "{}", unopened.stderr);
    }
}

//! Tenants of the registry use no variable of the nodes but those that `tenant_variables` allows, and show none.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use http::Method;
use serde_json::{Value, json};

use super::scene::{LIMIT, Scene, client, me, readiness_becomes};
use crate::support::fixture::{Engine, on_both_databases};

const SECRET: &str = "the-secret-of-the-node";

/// The faults of a key, in one text.
fn faults(body: &Value, key: &str) -> String {
    body["errors"][key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// A server that asks for a password, and what its clients sent.
fn password_collector() -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, sent) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let kept = Arc::clone(&sent);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // The first message of a client has no type. One of 8 bytes asks for TLS.
            let mut first = || {
                let mut length = [0; 4];
                stream.read_exact(&mut length)?;
                let mut message = vec![0; u32::from_be_bytes(length) as usize - 4];
                stream.read_exact(&mut message)?;
                if message.len() == 4 {
                    stream.write_all(b"N")?;
                }
                std::io::Result::Ok(message)
            };
            let Ok(startup) = first().and_then(|message| if message.len() == 4 { first() } else { Ok(message) }) else {
                continue;
            };
            kept.lock().unwrap().extend(startup);
            // AuthenticationCleartextPassword.
            let asked = stream.write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 3]);
            let mut password = [0; 512];
            let length = asked.and_then(|()| stream.read(&mut password)).unwrap_or_default();
            kept.lock().unwrap().extend(&password[..length]);
        }
    });
    (address, sent)
}

#[tokio::test]
async fn a_url_is_completed_by_nothing_of_the_node() {
    let scene = Scene::new(Engine::Sqlite);
    let (server, sent) = password_collector();
    for file in [".pgpass", "passwords"] {
        let path = scene.folder().join(file);
        std::fs::write(&path, format!("*:*:*:*:{SECRET}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let folder = scene.folder().display().to_string();
    let (passwords, port) = (format!("{folder}/passwords"), server.port().to_string());
    let environment = [
        ("HOME", &*folder),
        ("PGPASSFILE", &passwords),
        ("PGPASSWORD", SECRET),
        ("PGUSER", SECRET),
        ("PGDATABASE", SECRET),
        ("PGAPPNAME", SECRET),
        ("PGHOST", "127.0.0.1"),
        ("PGHOSTADDR", "127.0.0.1"),
        ("PGPORT", &port),
        ("PGSSLMODE", "disable"),
        ("PGSSLROOTCERT", SECRET),
    ];
    let node = scene.start_in(0, &environment);
    let put = async |url: &str| {
        let mut acme = scene.tenant("acme");
        acme["database"] = json!(url);
        scene.call(0, Method::PUT, "/v1/tenants/acme?migrate=1", Some(&acme)).await
    };
    for (url, startup) in [
        (format!("postgres://ana@{server}/forms"), "user\0ana\0database\0forms\0"),
        (format!("postgres://ana@{server}"), "user\0ana\0database\0ana\0"),
        (format!("postgres://ana:@{server}/forms?schema=acme"), "user\0ana\0database\0forms\0"),
        (format!("postgres://?user=ana&host=127.0.0.1&port={port}&pooler=session"), "user\0ana\0database\0ana\0"),
    ] {
        sent.lock().unwrap().clear();
        let answer = put(&url).await;
        assert_eq!(answer.status, 422, "the server accepts no one: {answer:?}");
        let sent = String::from_utf8_lossy(&sent.lock().unwrap()).into_owned();
        assert!(sent.contains(startup) && sent.contains("application_name\0formgate\0"), "{url}: {sent:?}");
        assert!(!sent.contains(SECRET), "{url}: {sent:?}");
    }
    sent.lock().unwrap().clear();
    for url in ["postgres:///forms", "postgres://ana@/forms", "postgres://127.0.0.1/forms"] {
        let answer = put(url).await;
        let fault = faults(&answer.body, "database");
        assert!(answer.status == 422 && fault.contains("without a user or a host"), "{url}: {answer:?}");
        assert!(fault.contains("`postgres://USER:PASSWORD@HOST:PORT/DATABASE`"), "{fault}");
    }
    drop(node);
    for variable in ["PGOPTIONS", "PGSSLCERT", "PGSSLKEY"] {
        let node = scene.start_in(0, &[(variable, SECRET)]);
        let answer = put(&format!("postgres://ana@{server}/forms")).await;
        let fault = faults(&answer.body, "database");
        assert!(answer.status == 422 && fault.contains(&format!("`{variable}`")), "{answer:?}");
        assert!(!answer.body.to_string().contains(SECRET), "{answer:?}");
        drop(node);
    }
    assert!(sent.lock().unwrap().is_empty(), "none of these was connected to");
}

#[tokio::test]
async fn a_tenant_that_relies_on_the_environment_is_not_adopted() {
    let mut scene = Scene::new(Engine::Postgres);
    scene.write_files(&scene.text("acme"), 1);
    scene.succeed(&["migrate"]);
    for set in [("PGPASSWORD", SECRET), ("PGAPPNAME", SECRET)] {
        let is_taken = scene.run_in(&["tenant", "adopt", "acme"], &[set]).code == 0;
        assert_eq!(is_taken, set.0 != "PGPASSWORD", "{set:?}");
    }
}

on_both_databases! {
    async fn a_name_is_what_was_written_and_shows_no_variable(engine: Engine) {
        let scene = Scene::new(engine);
        let database = scene.tenant("acme")["database"].as_str().expect("a URL").to_owned();
        let node = scene.start_in(0, &[("SECRET", SECRET), ("FORMGATE_TENANT_DATABASE", &database)]);
        let mut acme = scene.tenant("acme");
        let name = "Cash ${SECRET} $${FORMGATE_TENANT_DATABASE} ${More} & Co ${";
        (acme["name"], acme["database"]) = (json!(name), json!("${FORMGATE_TENANT_DATABASE}"));
        let put = scene.call(0, Method::PUT, "/v1/tenants/acme?migrate=1&wait=60&token=tests", Some(&acme)).await;
        assert_eq!((put.status.as_u16(), &put.body["data"]["tenant"]["name"]), (201, &json!(name)), "{put:?}");
        let token = put.body["token"]["token"].as_str().expect("a token");
        let shown = client(&node, "acme", token).get("/api/v1/me").send().await.json();
        assert_eq!(shown["account"]["name"], name);
        let exported = scene.succeed(&["tenant", "export"]);
        let file = scene.folder().join("exported.toml");
        std::fs::write(&file, exported).unwrap();
        let environment = [("FORMGATE_TENANT_DATABASE", &*database)];
        let again = scene.run_in(&["tenant", "import", &file.display().to_string()], &environment);
        assert_eq!((again.code, again.stdout.contains("unchanged")), (0, true), "{again:?}");
    }

    async fn a_variable_that_tenants_may_not_use_is_refused_when_it_is_put_and_when_it_is_stored(engine: Engine) {
        let scene = Scene::new(engine);
        let database = scene.tenant("acme")["database"].as_str().expect("a URL").to_owned();
        let environment = [("SECRET", SECRET), ("ACME_DATABASE", &*database)];
        let mut acme = scene.tenant("acme");
        acme["database"] = json!("${ACME_DATABASE}");

        let scene = scene.gateway("tenant_variables", vec!["ACME_*"]);
        let node = scene.start_in(0, &environment);
        let put = scene.call(0, Method::PUT, "/v1/tenants/acme?migrate=1&wait=60&token=tests", Some(&acme)).await;
        assert_eq!(put.status, 201, "{put:?}");
        let token = put.body["token"]["token"].as_str().expect("a token").to_owned();
        assert_eq!(me(&node, "acme", &token).await, 200);
        drop(node);

        let scene = scene.gateway("tenant_variables", vec!["FORMGATE_TENANT_*"]);
        let mut node = scene.start_in(0, &environment);
        let logged = node.wait_for_log(LIMIT, |line| line.contains("can't be served").then(|| line.to_owned()));
        let logged = logged.expect("the row is refused");
        assert!(logged.contains("ACME_DATABASE") && logged.contains("tenant_variables"), "{logged}");
        readiness_becomes(&mut node, "1 does not work").await;
        let checked = scene.run_in(&["check"], &environment);
        let report = format!("{}{}", checked.stdout, checked.stderr);
        assert!(checked.code == 1 && report.contains("`tenant_variables` in `[gateway]`"), "{report}");
        for (key, value) in [
            ("database", json!("postgres://u:${SECRET}@127.0.0.1:1/x")),
            ("database", json!("sqlite:${SECRET}/x.db")),
            ("database", json!("${ACME_DATABASE}")),
            ("timezone", json!("${SECRET}")),
            ("address", json!("${SECRET}")),
            ("requests_per_minute", json!("${SECRET}")),
        ] {
            let mut globex = scene.tenant("globex");
            globex[key] = value;
            let put = scene.call(0, Method::PUT, "/v1/tenants/globex?migrate=1", Some(&globex)).await;
            let fault = faults(&put.body, key);
            assert_eq!(put.status, 422, "{put:?}");
            assert!(!put.body.to_string().contains(SECRET), "{put:?}");
            assert_eq!(fault.contains("`tenant_variables` in `[gateway]`"), key == "database", "{fault}");
        }
        let many: String = (0..100_000).map(|number| format!("${{A{number}}}")).collect();
        let mut globex = scene.tenant("globex");
        globex["database"] = json!(many);
        let put = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&globex)).await;
        assert!(put.status == 422 && put.body.to_string().len() < 16 * 1024, "{}", put.status);
    }

    async fn a_tenant_whose_table_means_something_else_in_the_registry_is_not_adopted(engine: Engine) {
        let mut scene = Scene::new(engine);
        let text = scene.text("acme").replace("\"ACME\"", "\"Acme $${x}\"");
        scene.write_files(&text, 1);
        let refused = scene.run(&["tenant", "adopt", "acme"]);
        assert!(refused.code == 1 && refused.stderr.contains("variables"), "{refused:?}");
        let database = scene.tenant("acme")["database"].as_str().expect("a URL").to_owned();
        scene.write_files(&scene.text("acme").replace(&database, "${SECRET}"), 1);
        let refused = scene.run_in(&["tenant", "adopt", "acme"], &[("SECRET", &database)]);
        assert!(refused.code == 1 && refused.stderr.contains("tenant_variables"), "{refused:?}");
    }
}

//! `formgate tenant`, `operator-token` and `nodes`.

use std::fs;

use http::Method;
use serde_json::Value;

use toml::Table;

use super::scene::{Scene, me, me_becomes};
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn tenants_are_added_shown_changed_and_removed(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let database = scene.tenant("acme")["database"].as_str().unwrap().to_owned();
        let add = ["tenant", "add", "acme", "--address", "acme.example.test", "--database", &database, "--migrate", "--wait", "60"];
        assert_eq!(scene.succeed(&add), "acme: added, revision 1\n");
        assert_eq!(scene.succeed(&add), "acme: unchanged, revision 1\n");
        let token = scene.succeed(&["token", "create", "--tenant", "acme", "--name", "tests"]);
        me_becomes(&node, "acme", token.trim(), 200).await;
        let shown = scene.succeed(&["tenant", "show", "acme"]);
        assert!(shown.starts_with("[[tenant]]\nslug = \"acme\"\n"), "{shown}");
        let shown: Value = serde_json::from_str(&scene.succeed(&["tenant", "show", "acme", "--json"])).unwrap();
        assert_eq!((&shown["owner"], &shown["tenant"]["name"]), (&"registry".into(), &"acme".into()));
        assert!(scene.succeed(&["tenant", "list"]).contains("acme  registry  1"));
        let nodes: Value = serde_json::from_str(&scene.succeed(&["nodes", "--json"])).unwrap();
        assert_eq!((&nodes[0]["behind"], &nodes[0]["live"]), (&0.into(), &true.into()), "{nodes}");
        assert!(scene.succeed(&["nodes"]).contains("current"));
        let explained = scene.succeed(&["explain", "acme.example.test"]);
        assert!(explained.contains("would be served"), "{explained}");
        assert!(scene.succeed(&["migrate"]).contains("acme: at version"));
        scene.succeed(&["tenant", "remove", "acme", "--wait", "60"]);
        assert_eq!(me(&node, "acme", token.trim()).await, 404);
        let gone = scene.run(&["tenant", "remove", "acme"]);
        assert!(gone.code == 1 && gone.stderr.contains("no tenant `acme`"), "{}", gone.stderr);
        let faulty = scene.run(&["tenant", "add", "Bad_Slug", "--address", "a b", "--database", "nothing:x"]);
        assert_eq!((faulty.code, faulty.stderr.matches("error").count()), (1, 3), "{}", faulty.stderr);
    }

    async fn export_after_import_is_the_identity(engine: Engine) {
        let scene = Scene::new(engine);
        let text = format!(
            "# Our tenants.\n\n{}requests_per_minute = 0x10 # hexadecimal\n\n# Another one.\n{}\n# The end.\n",
            scene.text("acme"),
            scene.text("globex")
        );
        let file = scene.folder().join("all.txt");
        fs::write(&file, &text).unwrap();
        scene.succeed(&["tenant", "import", file.to_str().unwrap(), "--migrate"]);
        assert_eq!(scene.succeed(&["tenant", "export"]), text);
        let dir = scene.folder().join("exported");
        scene.succeed(&["tenant", "export", "--dir", dir.to_str().unwrap()]);
        let parts: String = ["acme", "globex"].map(|slug| fs::read_to_string(dir.join(format!("{slug}.toml"))).unwrap()).concat();
        assert_eq!(parts, text);
        assert_eq!(scene.run(&["check"]).code, 0);
        let faulty = text.replace("globex.example.test", "acme.example.test");
        fs::write(&file, faulty).unwrap();
        let refused = scene.run(&["tenant", "import", file.to_str().unwrap()]);
        assert!(refused.code == 1 && refused.stderr.contains("claimed twice"), "{}", refused.stderr);
        assert_eq!(scene.succeed(&["tenant", "export"]), text, "all of a file, or nothing");
    }

    async fn files_without_a_line_end_are_exported_as_files_that_can_be_read(engine: Engine) {
        let scene = Scene::new(engine);
        for slug in ["acme", "globex"] {
            let file = scene.folder().join(format!("{slug}.txt"));
            fs::write(&file, scene.text(slug).trim_end()).unwrap();
            scene.succeed(&["tenant", "import", file.to_str().unwrap()]);
            assert_eq!(scene.succeed(&["tenant", "export", slug]), scene.text(slug).trim_end());
        }
        let exported = scene.succeed(&["tenant", "export"]);
        assert_eq!(exported, format!("{}{}", scene.text("acme"), scene.text("globex").trim_end()));
        let file = scene.folder().join("all.txt");
        fs::write(&file, exported).unwrap();
        assert!(scene.succeed(&["tenant", "import", file.to_str().unwrap()]).contains("globex: unchanged"));
    }

    async fn commands_that_read_create_no_registry_and_say_how_to(engine: Engine) {
        let mut domains = Table::new();
        domains.insert("target".into(), "edge.test".into());
        let mut acme = Table::new();
        acme.insert("contact".into(), vec!["ops@example.test"].into());
        acme.insert("accept_terms".into(), true.into());
        acme.insert("seal_keys".into(), vec!["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="].into());
        let mut scene = Scene::new(engine).gateway("domains", domains).gateway("acme", acme);
        let of_file = scene.text("acme");
        scene.write_files(&of_file, 1);
        let reading: [&[&str]; 14] = [
            &["tenant", "list"],
            &["tenant", "show", "globex"],
            &["tenant", "export"],
            &["tenant", "remove", "globex"],
            &["domain", "list"],
            &["domain", "show", "forms.globex.test"],
            &["domain", "check", "forms.globex.test"],
            &["domain", "remove", "forms.globex.test"],
            &["acme", "status"],
            &["acme", "plan"],
            &["seal", "rotate"],
            &["nodes"],
            &["operator-token", "list"],
            &["token", "list", "--tenant", "globex"],
        ];
        for command in reading {
            let refused = scene.run(command);
            assert_eq!(refused.code, 1, "{command:?}: {}", refused.stdout);
            let missing = "does not exist yet: a node creates it when it starts, and `formgate tenant import` when it adds";
            assert!(refused.stderr.contains(missing), "{command:?}: {}", refused.stderr);
        }
        assert!(scene.succeed(&["acme", "plan", "--hosts", "10"]).contains("10 certificates"));
        // What works without a registry goes on with the tenants of the files.
        assert!(scene.succeed(&["migrate"]).contains("acme: "));
        for command in [&["check"][..], &["check", "--deep"], &["explain", "acme.example.test"]] {
            let output = scene.run(command);
            let text = format!("{}{}", output.stdout, output.stderr);
            assert!(output.code == 0 && text.contains("does not exist yet"), "{command:?}: {text}");
        }
        if let Some(file) = scene.registry_url.strip_prefix("sqlite:") {
            assert!(!fs::exists(file).unwrap(), "nothing was created");
        } else {
            let database = Database::connect(&scene.registry_url).await;
            let tables = database.integers("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").await;
            assert_eq!(tables, [0], "nothing was created");
            database.close().await;
        }
        scene.succeed(&["operator-token", "create", "--name", "product"]);
        assert_eq!(scene.run(&["check"]).code, 0);
        assert!(scene.succeed(&["tenant", "list"]).contains("acme"));
    }

    async fn a_registry_of_an_unreleased_version_is_refused_and_left_as_it_is(engine: Engine) {
        let scene = Scene::new(engine);
        scene.succeed(&["operator-token", "create", "--name", "product"]);
        let registry = Database::connect(&scene.registry_url).await;
        registry.execute("UPDATE _sqlx_migrations SET checksum = ''").await;
        for command in [&["tenant", "list"][..], &["operator-token", "list"], &["nodes"], &["migrate"], &["check"], &["serve"]] {
            let refused = scene.run(command);
            let text = format!("{}{}", refused.stdout, refused.stderr);
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(refused.code, 1, "{command:?}: {text}");
            assert!(text.contains("an unreleased version of formgate created the tables"), "{command:?}: {text}");
            assert!(text.contains("with the build that created it, run `formgate tenant export`"), "{command:?}: {text}");
        }
        let rows = "SELECT count(*) FROM _sqlx_migrations, operator_tokens WHERE checksum = ''";
        assert_eq!(registry.integers(rows).await, [1]);
        registry.close().await;
    }

    async fn a_token_of_the_operator_is_shown_once_and_can_be_revoked(engine: Engine) {
        let scene = Scene::new(engine);
        let mut node = scene.start(0);
        let token = scene.succeed(&["operator-token", "create", "--name", "product"]);
        let token = token.trim();
        assert!(token.starts_with("fgo_") && token.len() == 47, "{token}");
        let logged = node.wait_for_log(super::scene::LIMIT, |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            let address = line["address"].as_str().filter(|_| line["message"] == "operator API is served")?;
            address.parse::<std::net::SocketAddr>().ok()
        });
        let address = logged.expect("it says where it listens");
        let get = |authorization: Option<String>| async move {
            let call = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}"].map(str::to_owned);
            let header = authorization.map(|value| ["-H".to_owned(), format!("Authorization: {value}")]);
            let url = format!("http://{address}/v1/tenants");
            let arguments: Vec<_> = call.into_iter().chain(header.into_iter().flatten()).chain([url]).collect();
            let output = std::process::Command::new(&arguments[0]).args(&arguments[1..]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().parse::<u16>().unwrap()
        };
        assert_eq!(get(None).await, 401);
        assert_eq!(get(Some("Bearer fgo_wrong".to_owned())).await, 401);
        assert_eq!(get(Some(format!("Bearer {token}"))).await, 200);
        let listed: Value = serde_json::from_str(&scene.succeed(&["operator-token", "list", "--json"])).unwrap();
        assert!(listed[0]["last_used_at"].is_string() && !listed.to_string().contains(token), "{listed}");
        scene.succeed(&["operator-token", "revoke", "1"]);
        assert_eq!(get(Some(format!("Bearer {token}"))).await, 401);
        assert_eq!(scene.call(0, Method::GET, "/v1/tenants", None).await.status, 200, "the socket needs none");
    }
}

//! A tenant belongs to a file or to the registry.

use http::Method;

use super::scene::{Scene, me, me_becomes};
use crate::support::client::wait_for_count;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn a_tenant_of_a_file_can_be_looked_at_and_not_changed(engine: Engine) {
        let mut scene = Scene::new(engine);
        let text = scene.text("acme");
        scene.write_files(&text, 1);
        scene.succeed(&["migrate"]);
        let token = scene.succeed(&["token", "create", "--tenant", "acme", "--name", "tests"]);
        let node = scene.start(0);
        assert_eq!(me(&node, "acme", token.trim()).await, 200);
        let put = scene.call(0, Method::PUT, "/v1/tenants/acme", Some(&scene.tenant("acme"))).await;
        let place = format!("{}:", scene.config(0).display());
        let message = put.body["message"].as_str().unwrap().to_owned();
        assert!(put.status == 409 && message.contains(&place), "{put:?}");
        let removed = scene.call(0, Method::DELETE, "/v1/tenants/acme", None).await;
        assert_eq!(removed.status, 409, "{removed:?}");
        let mut other = scene.tenant("globex");
        other["address"] = "acme.example.test".into();
        let taken = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&other)).await;
        assert!(taken.status == 409 && taken.body["errors"]["address"][0].as_str().unwrap().contains(&place), "{taken:?}");
        let shown = scene.call(0, Method::GET, "/v1/tenants/acme", None).await;
        assert_eq!((&shown.body["data"]["owner"], shown.status.as_u16()), (&"file".into(), 200));
        assert!(shown.body["data"]["tenant"].get("database").is_none(), "{shown:?}");
        assert_eq!(scene.call(0, Method::POST, "/v1/tenants/acme/tokens", Some(&serde_json::json!({"name": "x"}))).await.status, 201);
    }

    async fn a_file_that_claims_what_the_registry_has_is_refused_whole(engine: Engine) {
        let mut scene = Scene::new(engine);
        let mut node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let text = format!("{}{}", scene.text("initech"), scene.text("globex").replace("globex.example", "acme.example"));
        scene.write_files(&text, 1);
        wait_for_count(node.operator_address(), "formgate_config_reloads_total{result=\"refused\"}", 1).await;
        assert_eq!(me(&node, "acme", &token).await, 200);
        assert_eq!(me(&node, "initech", &token).await, 404, "nothing of the files is taken over");
        let checked = scene.run(&["check"]);
        let named = ["acme.example.test", "`acme` of the registry", "globex"].map(|name| checked.stdout.contains(name));
        assert!(checked.code == 1 && named == [true; 3], "{}", checked.stdout);
        drop(node);
        let failed = scene.run(&["serve"]);
        assert!(failed.code == 1 && failed.stderr.contains("`acme` of the registry"), "{}", failed.stderr);
    }

    async fn an_adopted_tenant_is_served_all_the_time(engine: Engine) {
        let mut scene = Scene::new(engine);
        let text = format!("# The first.\n{}# The second.\n{}", scene.text("acme"), scene.text("globex"));
        scene.write_files(&text, 1);
        scene.succeed(&["migrate"]);
        let token = scene.succeed(&["token", "create", "--tenant", "acme", "--name", "tests"]).trim().to_owned();
        let node = scene.start(0);
        let (caller, began) = (super::scene::client(&node, "acme", &token), std::time::Instant::now());
        scene.succeed(&["tenant", "adopt", "acme"]);
        loop {
            let answer = caller.get("/api/v1/me").send().await;
            assert!(answer.status == 200 || answer.status == 429, "{answer:?}");
            let shown = scene.call(0, Method::GET, "/v1/tenants/acme", None).await;
            if shown.body["data"]["owner"] == "registry" {
                break;
            }
            assert!(began.elapsed() < super::scene::LIMIT, "{shown:?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        me_becomes(&node, "acme", &token, if caller.get("/api/v1/me").send().await.status == 429 { 429 } else { 200 }).await;
        let left = std::fs::read_to_string(scene.config(0)).unwrap();
        assert!(left.contains("globex") && !left.contains("slug = \"acme\""), "{left}");
        assert_eq!(scene.run(&["check"]).code, 0);
        let again = scene.call(0, Method::PUT, "/v1/tenants/acme?wait=60", Some(&scene.tenant("acme"))).await;
        assert_eq!(again.status, 200, "{again:?}");
    }
}

//! `PUT /group`: which group is meant, and what it is called.

use serde_json::{Value, json};

use super::{ALL_USERS, GROUPS, everything, faulty_fields, members, pull, put, show, write};
use crate::api::account::account;
use crate::support::fixture::{Engine, Site, on_both_databases};

on_both_databases! {
    async fn a_new_group_reads_as_it_was_written(engine: Engine) {
        let client = &account(engine, "").client;
        let name = "Führung \"A\" \\ ☃";
        let body = json!({"name": name, "external_id": "dir/7", "members": [{"email": "Ana@example.com", "name": "Ana"}]});
        let written = write(client, &body).await;
        let id = written["data"]["id"].as_str().unwrap();
        let data = json!({"id": id, "name": name, "external_id": "dir/7", "managed": true, "managed_by": "api", "members_count": 1});
        assert!(id.strip_prefix("grp_").unwrap().parse::<u64>().is_ok());
        let counts = json!({"attached": 1, "detached": 0, "created": 1});
        assert_eq!(written, json!({"data": data, "result": "created", "members": counts}));
        let mut shown = data;
        shown["members"] = json!([{"email": "Ana@example.com", "name": "Ana"}]);
        assert_eq!(show(client, id).await, shown);
    }

    async fn the_external_id_finds_a_group_after_a_rename_too(engine: Engine) {
        let client = &account(engine, "").client;
        let first = write(client, &json!({"name": "Sales", "external_id": "x1"})).await;
        let renamed = write(client, &json!({"name": "Vertrieb", "external_id": "x1"})).await;
        assert_eq!((&renamed["result"], &renamed["data"]["id"]), (&json!("updated"), &first["data"]["id"]));
        let back = write(client, &json!({"name": "Sales", "external_id": "x1"})).await;
        assert_eq!((&back["data"]["name"], &back["data"]["id"]), (&json!("Sales"), &first["data"]["id"]));
        let other = write(client, &json!({"name": "Sales", "external_id": "X1"})).await;
        assert_eq!(other["result"], "created", "identifiers are compared exactly");
    }

    async fn without_an_external_id_the_exact_name_finds_a_group(engine: Engine) {
        let client = &account(engine, "").client;
        let known = write(client, &json!({"name": "Sales", "external_id": "x1"})).await;
        for body in [json!({"name": "Sales"}), json!({"name": "Sales", "external_id": null})] {
            let found = write(client, &body).await;
            assert_eq!((&found["result"], &found["data"]), (&json!("updated"), &known["data"]), "the identifier stays");
        }
        for name in ["sales", "Sales ", " Sales", "Sale"] {
            assert_eq!(write(client, &json!({"name": name})).await["result"], "created", "{name:?}");
        }
    }

    async fn a_group_without_an_external_id_is_adopted_by_its_name(engine: Engine) {
        let account = account(engine, "");
        account.database().await.execute("INSERT INTO groups (id, name) VALUES (4, 'Managers')").await;
        let before = json!({"id": "grp_4", "name": "Managers", "external_id": null, "managed": false, "managed_by": null, "members_count": 0});
        assert_eq!(pull(&account.client, GROUPS).await[0], before);
        let adopted = write(&account.client, &json!({"name": "Managers", "external_id": "x1"})).await;
        let after = json!({"id": "grp_4", "name": "Managers", "external_id": "x1", "managed": true, "managed_by": "api", "members_count": 0});
        assert_eq!((&adopted["result"], &adopted["data"]), (&json!("updated"), &after));
    }

    async fn a_group_with_another_external_id_is_unchanged_and_a_second_of_its_name_is_created(engine: Engine) {
        let client = &account(engine, "").client;
        let first = write(client, &json!({"name": "Managers", "external_id": "x1", "members": members(["a@x.example"])})).await;
        let second = write(client, &json!({"name": "Managers", "external_id": "x2"})).await;
        assert_eq!(second["result"], "created");
        assert_ne!(second["data"]["id"], first["data"]["id"]);
        let groups = everything(client).await;
        assert_eq!(groups[0]["external_id"], "x1");
        assert_eq!(groups[0]["members_count"], 1);
        assert_eq!((&groups[1]["name"], &groups[1]["external_id"]), (&json!("Managers"), &json!("x2")));
    }

    async fn a_name_of_two_groups_is_a_fault_without_an_external_id(engine: Engine) {
        let client = &account(engine, "").client;
        for external_id in ["x1", "x2"] {
            write(client, &json!({"name": "Managers", "external_id": external_id})).await;
        }
        let before = everything(client).await;
        let answer = put(client, "", &json!({"name": "Managers", "members": []})).await;
        assert_eq!(faulty_fields(&answer), ["name"]);
        assert_eq!(everything(client).await, before);
        assert_eq!(write(client, &json!({"name": "Managers", "external_id": "x2"})).await["result"], "updated");
    }

    async fn the_built_in_group_is_not_written_under_any_guise(engine: Engine) {
        let account = account(engine, "");
        let client = &account.client;
        write(client, &json!({"name": "Sales", "external_id": "x1", "members": members(["a@x.example"])})).await;
        let before = everything(client).await;
        for body in [
            json!({"name": "All Users"}),
            json!({"name": "ALL users"}),
            json!({"name": "all users", "external_id": "new", "members": []}),
            json!({"name": "All Users", "members": []}),
            json!({"name": "All Users", "external_id": "new"}),
            json!({"name": "All Users", "external_id": "x1"}),
        ] {
            for query in ["", "?dry_run=1", "?confirm=1"] {
                assert_eq!(faulty_fields(&put(client, query, &body).await), ["name"], "{body}");
            }
        }
        assert_eq!(everything(client).await, before);

        account.database().await.execute("UPDATE groups SET external_id = 'theirs' WHERE built_in").await;
        let before = everything(client).await;
        for (name, field) in [("All Users", "name"), ("Renamed", "external_id")] {
            let body = json!({"name": name, "external_id": "theirs"});
            assert_eq!(faulty_fields(&put(client, "", &body).await), [field], "{body}");
        }
        assert_eq!(everything(client).await, before);
    }

    async fn the_built_in_group_exists_from_the_start_and_contains_every_user(engine: Engine) {
        let client = &account(engine, "").client;
        let empty = json!({"id": ALL_USERS, "name": "All Users", "external_id": null, "managed": false, "managed_by": null, "members_count": 0, "members": []});
        assert_eq!(everything(client).await, [empty]);
        write(client, &json!({"name": "Sales", "members": members(["b@x.example", "a@x.example"])})).await;
        write(client, &json!({"name": "Sales", "members": members(["c@x.example"])})).await;
        let all = show(client, ALL_USERS).await;
        assert_eq!(super::emails(&all), ["a@x.example", "b@x.example", "c@x.example"], "who is in no group is a user still");
    }

    async fn ids_are_not_given_again_after_a_deletion(engine: Engine) {
        let client = &account(engine, "").client;
        let first = write(client, &json!({"name": "Sales"})).await["data"]["id"].clone();
        client.delete(&format!("{GROUPS}/{}", first.as_str().unwrap())).send().await;
        assert_ne!(write(client, &json!({"name": "Sales"})).await["data"]["id"], first);
    }

    async fn ids_that_another_writer_gave_are_passed_over(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        database.execute("INSERT INTO groups (id, name) VALUES (1, 'One'), (2, 'Two')").await;
        database.execute("INSERT INTO users (id, email) VALUES (1, 'one@x.example'), (2, 'two@x.example')").await;
        let body = json!({"name": "Three", "members": members(["one@x.example", "three@x.example", "four@x.example"])});
        let written = write(&account.client, &body).await;
        assert_eq!(written["result"], "created");
        assert!(super::model::number(written["data"]["id"].as_str().unwrap()) > 2, "{written}");
        assert_eq!(super::counts(&written), [3, 0, 2]);
    }

    /// Ids up to that of the built-in group, which is the largest integer that every JSON parser reads.
    async fn ids_stay_below_the_largest_whatever_another_writer_gave(engine: Engine) {
        const LARGEST: i64 = 9_007_199_254_740_991;
        let account = account(engine, "");
        let database = account.database().await;
        let create = async |name: &str| {
            let id = write(&account.client, &json!({"name": name})).await["data"]["id"].as_str().unwrap().to_owned();
            assert!(super::model::number(&id) < LARGEST, "{id}");
            account.client.delete(&format!("{GROUPS}/{id}")).send().await;
            id
        };
        // As a database is filled from another one.
        let truth = if engine == Engine::Sqlite { "1" } else { "true" };
        let built_in = format!("INSERT INTO groups (id, name, built_in) VALUES ({LARGEST}, 'All Users', {truth})");
        database.execute(&format!("DELETE FROM groups; {built_in}")).await;
        assert_ne!(create("Sales").await, create("Support").await, "the first one was deleted");
        for id in [LARGEST + 1, i64::MAX - 1, i64::MAX, LARGEST - 1] {
            database.execute(&format!("INSERT INTO groups (id, name) VALUES ({id}, 'x')")).await;
            create("Sales").await;
            database.execute("DELETE FROM groups WHERE name = 'x'").await;
            create("Sales").await;
        }
    }

    async fn an_unknown_key_is_ignored_and_named(engine: Engine) {
        let client = &account(engine, "").client;
        let answer = put(client, "", &json!({"name": "Sales", "externalId": "x", "member": []})).await;
        assert_eq!(answer.header("x-ignored-parameters"), Some("externalId, member"));
        assert_eq!(super::written(&answer)["data"]["external_id"], Value::Null);
        let answer = put(client, "", &json!({"name": "Sales", "external_id": "x", "members": []})).await;
        assert_eq!(answer.header("x-ignored-parameters"), None);
    }

    async fn another_account_is_not_touched(engine: Engine) {
        let site = Site::new().tenant("acme", engine).tenant("globex", engine).requests_per_minute(100_000).write();
        let node = site.start();
        let client = |slug| node.client().to(&site.host(slug)).with(&site.token(slug, "tests"));
        let (acme, globex) = (client("acme"), client("globex"));
        let body = json!({"name": "Sales", "external_id": "x1", "members": members(["a@x.example", "b@x.example"])});
        assert_eq!(write(&globex, &body).await["result"], "created");
        let before = everything(&globex).await;
        let written = write(&acme, &body).await;
        assert_eq!((&written["result"], super::counts(&written)), (&json!("created"), [2, 0, 2]));
        write(&acme, &json!({"name": "Renamed", "external_id": "x1", "members": []})).await;
        for group in pull(&acme, GROUPS).await {
            acme.delete(&format!("{GROUPS}/{}", group["id"].as_str().unwrap())).send().await;
        }
        assert_eq!(everything(&globex).await, before);
        let with_the_others_token = acme.to(&site.host("globex"));
        assert_eq!(put(&with_the_others_token, "", &body).await.status, 401);
        assert_eq!(with_the_others_token.delete(&format!("{GROUPS}/1")).send().await.status, 401);
        assert_eq!(everything(&globex).await, before);
    }
}

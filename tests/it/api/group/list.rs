//! `GET /group`.

use serde_json::{Value, json};

use super::{ALL_USERS, GROUPS, faulty_fields, pull, write};
use crate::api::account::account;
use crate::support::fixture::{Engine, on_both_databases};

fn ids(groups: &[Value]) -> Vec<&str> {
    groups.iter().map(|group| group["id"].as_str().unwrap()).collect()
}

/// 250 groups by SQL, every other one managed, and their ids in order.
fn many() -> (String, Vec<String>) {
    let rows = |managed: [&str; 2]| {
        let row = |id: usize| format!("({id}, 'Group {id}', 'x{id}', {})", managed[id % 2]);
        (1..=250).rev().map(row).collect::<Vec<_>>().join(", ")
    };
    let insert = format!("INSERT INTO groups (id, name, external_id, managed) VALUES {}", rows(["MANAGED", "OTHER"]));
    (insert, (1..=250).map(|id| format!("grp_{id}")).collect())
}

on_both_databases! {
    async fn a_long_list_comes_in_pages_of_a_hundred_by_id(engine: Engine) {
        let account = account(engine, "");
        let (insert, mut all) = many();
        let insert = match engine {
            Engine::Postgres | Engine::PostgresOn(_) => insert.replace("MANAGED", "true").replace("OTHER", "false"),
            Engine::Sqlite => insert.replace("MANAGED", "1").replace("OTHER", "0"),
        };
        account.database().await.execute(&insert).await;
        let managed: Vec<String> = all.iter().skip(1).step_by(2).cloned().collect();
        all.push(ALL_USERS.to_owned());
        let client = &account.client;
        assert_eq!(ids(&pull(client, GROUPS).await), all);
        assert_eq!(ids(&pull(client, &format!("{GROUPS}?managed=1")).await), managed, "links keep the filter");
        assert_eq!(ids(&pull(client, &format!("{GROUPS}?managed=0")).await), all);

        let answer = client.get(&format!("{GROUPS}/?page=3&managed=0")).host("ACME.example.test:4711").send().await.json();
        let path = "https://acme.example.test:4711/api/v1/group";
        let meta = json!({"current_page": 3, "last_page": 3, "per_page": 100, "total": 251, "from": 201, "to": 251, "path": path});
        assert_eq!(answer["meta"], meta);
        assert_eq!(answer["links"]["prev"], format!("{path}?managed=0&page=2"));
        let past = client.get(&format!("{GROUPS}?page=4")).send().await.json();
        assert_eq!((&past["data"], &past["meta"]["total"]), (&json!([]), &json!(251)));
    }

    async fn an_external_id_finds_only_its_group(engine: Engine) {
        let client = &account(engine, "").client;
        for (name, external_id) in [("A", "x1"), ("B", "X1"), ("C", "a&b=c%20 +ü")] {
            write(client, &json!({"name": name, "external_id": external_id})).await;
        }
        write(client, &json!({"name": "D"})).await;
        for (query, names) in [
            ("external_id=x1", vec!["A"]),
            ("external_id=X1&managed=1", vec!["B"]),
            ("external_id=a%26b%3Dc%2520+%2B%C3%BC", vec!["C"]),
            ("external_id=%25", vec![]),
            ("external_id=none", vec![]),
            ("external_id=", vec![]),
            ("managed=1", vec!["A", "B", "C", "D"]),
            ("managed=true&unknown=x", vec!["A", "B", "C", "D"]),
        ] {
            let found = pull(client, &format!("{GROUPS}?{query}")).await;
            assert_eq!(found.iter().map(|group| group["name"].as_str().unwrap()).collect::<Vec<_>>(), names, "{query}");
        }
    }

    async fn faults_of_the_query_are_reported_together(engine: Engine) {
        let client = &account(engine, "").client;
        let answer = client.get(&format!("{GROUPS}?managed=yes&page=0&external_id=%00")).send().await;
        let mut fields = faulty_fields(&answer);
        fields.sort();
        assert_eq!(fields, ["external_id", "managed", "page"]);
    }

    async fn head_works_where_get_does(engine: Engine) {
        let client = &account(engine, "").client;
        for path in [GROUPS.to_owned(), format!("{GROUPS}/{ALL_USERS}")] {
            assert_eq!(client.head(&path).send().await.status, 200, "{path}");
        }
    }
}

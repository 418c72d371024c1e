//! `PUT /group`: an address is one mailbox in all its spellings, whoever stored it.

use serde_json::{Value, json};

use super::{counts, emails, everything, faulty_fields, members, put, show, write, written};
use crate::api::account::account;
use crate::support::fixture::on_both_databases;

const UNICODE: &str = "a@bücher.example";
const DECOMPOSED: &str = "a@bu\u{308}cher.example";
const PUNYCODE: &str = "a@xn--bcher-kva.example";

on_both_databases! {
    async fn two_spellings_of_a_mailbox_count_once_and_the_last_entry_wins(engine: Engine) {
        let client = &account(engine, "").client;
        for (at, (first, last)) in
            [(UNICODE, PUNYCODE), (PUNYCODE, DECOMPOSED), ("Rene\u{301}@x.example", "rené@x.example"), ("b@ｘ.example", "B@x.example")].into_iter().enumerate()
        {
            let list = json!([{"email": first, "name": "First"}, {"email": "other@x.example"}, {"email": last, "name": "Last"}]);
            let report = written(&put(client, "?report=members&dry_run=1", &json!({"name": "Sales", "members": list})).await);
            assert_eq!(report["members"]["attached"], json!(2), "{first} {last}: {report}");
            let answer = write(client, &json!({"name": format!("G{at}"), "members": list})).await;
            assert_eq!(answer["members"]["attached"], json!(2), "{first} {last}");
            let group = show(client, answer["data"]["id"].as_str().unwrap()).await;
            let known = if last == DECOMPOSED { PUNYCODE } else { last };
            let member = json!({"email": known, "name": "Last"});
            assert!(group["members"].as_array().unwrap().contains(&member), "{group}");
        }
    }

    async fn a_user_is_found_in_every_spelling_and_shown_as_stored(engine: Engine) {
        let client = &account(engine, "").client;
        for stored in [UNICODE, DECOMPOSED, PUNYCODE] {
            // Each with a local part of its own.
            let local = format!("{}{stored}", stored.len());
            write(client, &json!({"name": "All", "members": members([&local])})).await;
            for spelling in [UNICODE, DECOMPOSED, PUNYCODE, "A@BÜCHER.EXAMPLE", "a@XN--BCHER-KVA.example", "a@bücher。example"] {
                let body = json!({"name": "All", "members": members([format!("{}{spelling}", stored.len())])});
                let answer = written(&put(client, "?report=members", &body).await);
                assert_eq!(counts(&answer), [0, 0, 0], "{stored:?} as {spelling:?}");
                assert_eq!(counts(&write(client, &body).await), [0, 0, 0], "{stored:?} as {spelling:?}");
                assert_eq!(emails(&everything(client).await[0]), [local.as_str()]);
            }
        }
        let sharp = write(client, &json!({"name": "ß", "members": members(["a@faß.example", "a@fass.example", "é@x.example", "e@x.example"])})).await;
        assert_eq!(counts(&sharp), [4, 0, 4], "other names are other mailboxes");
    }

    async fn a_user_stored_by_another_program_is_found_in_another_spelling(engine: Engine) {
        let account = account(engine, "");
        let (client, database) = (&account.client, account.database().await);
        database.execute("INSERT INTO users (id, email) VALUES (1, 'one@bücher.example'), (2, 'two@xn--bcher-kva.example'), (3, 'rene\u{301}@x.example')").await;
        let list = ["one@xn--bcher-kva.example", "two@bücher.example", "rené@x.example"];
        let first = write(client, &json!({"name": "Sales", "members": members(list)})).await;
        assert_eq!(counts(&first), [3, 0, 0]);
        // A group that exists is written another way on Postgres.
        let again = write(client, &json!({"name": "Sales", "members": members(&list[..2])})).await;
        assert_eq!(counts(&again), [0, 1, 0]);
        let more = write(client, &json!({"name": "Sales", "members": members([list[0], list[1], "new@bücher.example"])})).await;
        assert_eq!(counts(&more), [1, 0, 1]);
        let shown = ["new@bücher.example", "one@bücher.example", "two@xn--bcher-kva.example"];
        assert_eq!(emails(&everything(client).await[0]), shown);

        // Two users of one mailbox, which formgate would not make: each is meant by its own spelling.
        database.execute("INSERT INTO users (id, email) VALUES (8, 'eight@bücher.example'), (9, 'eight@xn--bcher-kva.example')").await;
        for email in ["eight@bücher.example", "eight@xn--bcher-kva.example"] {
            write(client, &json!({"name": "Two", "members": members([email])})).await;
            assert_eq!(emails(&everything(client).await[1]), [email]);
        }
        database.close().await;
    }

    async fn calls_at_once_with_other_spellings_make_one_user(engine: Engine) {
        let mut account = account(engine, "");
        let clients = [account.client.clone(), account.another_node()];
        for group in 0..4 {
            write(&account.client, &json!({"name": format!("G{group}"), "members": []})).await;
        }
        for round in 0..5 {
            let calls: Vec<_> = (0..8)
                .map(|at| {
                    let domain = ["bücher.example", "xn--bcher-kva.example", "bu\u{308}cher.example", "BÜCHER.example"][at % 4];
                    let body = json!({"name": format!("G{}", at % 4), "members": members([format!("u{round}@{domain}")])});
                    let client = clients[at % 2].clone();
                    tokio::spawn(async move { counts(&write(&client, &body).await)[2] })
                })
                .collect();
            let mut created = 0;
            for call in calls {
                created += call.await.unwrap();
            }
            assert_eq!(created, 1, "round {round}");
        }
        assert_eq!(show(&account.client, super::ALL_USERS).await["members_count"], 5);
    }

    async fn invisible_characters_in_an_address_are_refused_and_named(engine: Engine) {
        let client = &account(engine, "").client;
        let invisible = "must not contain the invisible character";
        for (email, text) in [
            ("ana\u{200b}@x.example", format!("{invisible} U+200B")),
            ("\u{feff}ana@x.example", format!("{invisible} U+FEFF")),
            ("ana@x.exam\u{ad}ple", format!("{invisible} U+00AD")),
            ("ana@x.example\u{202c}", format!("{invisible} U+202C")),
            ("an\u{2060}a@bücher.example", format!("{invisible} U+2060")),
            ("ana\u{e0061}@x.example", format!("{invisible} U+E0061")),
            ("mailto:ana@x.example", "must be an email address without mailto:".to_owned()),
            ("MAILTO:ana@x.example", "must be an email address without mailto:".to_owned()),
            ("ana@xn--a.example", "must have a domain that is a valid internationalized domain name".to_owned()),
            ("ana@\u{308}x.example", "must have a domain that is a valid internationalized domain name".to_owned()),
        ] {
            let body = json!({"name": "S", "members": [{"email": "fine@x.example"}, {"email": email}]});
            let answer = put(client, "", &body).await;
            assert_eq!(faulty_fields(&answer), ["members.1.email"], "{email:?}");
            assert_eq!(answer.json()["errors"]["members.1.email"], json!([format!("The members.1.email {text}.")]));
        }
        assert_eq!(everything(client).await.len(), 1, "nothing was made");
        let none: [Value; 0] = [];
        assert_eq!(show(client, super::ALL_USERS).await["members"], json!(none));
    }
}

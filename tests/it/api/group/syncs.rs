//! What is kept of each `PUT /group` that changed something, and undoing it.

use std::collections::BTreeSet;
use std::time::Duration;

use formgate::store::{Actor, AuditFilter, AuditSource, DatabaseLocation, GroupSync, Store, Undone};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{emails, members, put, show, write};
use crate::api::account::{Account, account};
use crate::support::fixture::{Engine, on_both_databases};

const BY: &str = "ana@example.com";

async fn store(account: &Account) -> Store {
    let location = DatabaseLocation::parse(account.database_url(), "/".as_ref()).unwrap();
    Store::open(&location, 2).await.unwrap()
}

fn body(emails: &[&str]) -> Value {
    json!({ "name": "Sales", "external_id": "x", "members": members(emails) })
}

/// The syncs, the oldest first.
async fn syncs(store: &Store) -> Vec<GroupSync> {
    let mut syncs = store.list_group_syncs(None, None, 1_000).await.unwrap();
    syncs.reverse();
    syncs
}

/// The addresses that a sync attached and detached.
async fn changed(store: &Store, sync: &GroupSync) -> [Vec<String>; 2] {
    let (found, members) = store.find_group_sync(sync.id).await.unwrap().unwrap();
    assert_eq!(found, *sync);
    assert_eq!([sync.attached, sync.detached], [members.attached.len() as u64, members.detached.len() as u64]);
    [members.attached, members.detached]
}

async fn undo(store: &Store, id: i64) -> Undone {
    let actor = Actor { name: BY.to_owned(), source: AuditSource::Administration, network: None, identity: None };
    let preview = store.preview_undo(id).await.unwrap();
    let undone = store.undo_group_sync(id, &actor).await.unwrap();
    assert_eq!(preview, undone, "a preview shows what an undo does");
    undone
}

fn undone(attached: &[&str], detached: &[&str], skipped: u64) -> Undone {
    let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    Undone::Undone { attached: texts(attached), detached: texts(detached), skipped }
}

on_both_databases! {
    async fn each_write_that_changed_something_is_kept_with_who_came_and_who_went(engine: Engine) {
        let account = account(engine, "");
        let (client, store) = (&account.client, store(&account).await);
        // The first is written by a transaction, since it creates the group; the others by one call, on Postgres.
        let id = write(client, &body(&["a@x.example", "b@x.example"])).await["data"]["id"].clone();
        write(client, &body(&["a@x.example", "b@x.example"])).await;
        write(client, &body(&["b@x.example", "a@x.example"])).await;
        put(client, "?dry_run=1", &body(&["z@x.example"])).await;
        write(client, &body(&["b@x.example", "c@x.example"])).await;
        write(client, &json!({ "name": "Renamed", "external_id": "x" })).await;
        put(client, "?report=members", &json!({ "name": "Renamed", "external_id": "x", "members": [] })).await;
        let kept = syncs(&store).await;
        let group: i64 = id.as_str().unwrap().trim_start_matches("grp_").parse().unwrap();
        let shown: Vec<_> = kept.iter().map(|sync| (sync.group_name.as_str(), sync.is_new)).collect();
        assert_eq!(shown, [("Sales", true), ("Sales", false), ("Renamed", false), ("Renamed", false)]);
        let mut members = Vec::new();
        for sync in &kept {
            assert_eq!((sync.group, sync.actor.as_str(), sync.undoes), (group, "tests", None));
            assert!(sync.token.is_some());
            members.push(changed(&store, sync).await);
        }
        let [a, b, c] = ["a@x.example", "b@x.example", "c@x.example"];
        assert_eq!(members, [[vec![a, b], vec![]], [vec![c], vec![a]], [vec![], vec![]], [vec![], vec![b, c]]]);
    }

    async fn an_undo_restores_the_members_and_can_be_undone(engine: Engine) {
        let account = account(engine, "");
        let (client, store) = (&account.client, store(&account).await);
        let id = write(client, &body(&["a@x.example", "b@x.example"])).await["data"]["id"].as_str().unwrap().to_owned();
        write(client, &body(&["b@x.example", "c@x.example"])).await;
        let sync = syncs(&store).await.pop().unwrap();
        let plan = store.preview_undo(sync.id).await.unwrap();
        assert_eq!(plan, undone(&["a@x.example"], &["c@x.example"], 0));
        assert_eq!(emails(&show(client, &id).await), ["b@x.example", "c@x.example"], "it was only a look");
        assert_eq!(undo(&store, sync.id).await, plan);
        assert_eq!(emails(&show(client, &id).await), ["a@x.example", "b@x.example"]);

        let entry = syncs(&store).await.pop().unwrap();
        assert_eq!((entry.actor.as_str(), entry.token, entry.undoes), (BY, None, Some(sync.id)));
        assert_eq!(undo(&store, sync.id).await, Undone::TouchedLater { sync: entry.id, is_undo: true });
        assert_eq!(undo(&store, entry.id).await, undone(&["c@x.example"], &["a@x.example"], 0));
        assert_eq!(emails(&show(client, &id).await), ["b@x.example", "c@x.example"]);

        let filter = AuditFilter { action: Some("group.undo".to_owned()), ..AuditFilter::default() };
        let audited = store.list_audit(&filter, None, 10).await.unwrap();
        let subjects: Vec<_> = audited.iter().map(|row| (row.actor.as_str(), row.subject.clone())).collect();
        let subject = |sync: i64| (BY, format!("sync {sync} of Sales"));
        assert_eq!(subjects, [subject(entry.id), subject(sync.id)]);
    }

    async fn a_sync_is_not_undone_if_it_is_unknown_its_group_is_gone_or_a_later_one_touched_its_members(engine: Engine) {
        let account = account(engine, "");
        let (client, store) = (&account.client, store(&account).await);
        let id = write(client, &body(&["a@x.example"])).await["data"]["id"].as_str().unwrap().to_owned();
        write(client, &body(&["a@x.example", "b@x.example"])).await;
        write(client, &body(&["a@x.example"])).await;
        write(client, &body(&["a@x.example", "c@x.example"])).await;
        let kept = syncs(&store).await;
        assert_eq!(undo(&store, kept[1].id).await, Undone::TouchedLater { sync: kept[2].id, is_undo: false });
        // No later sync touched these.
        assert_eq!(undo(&store, kept[0].id).await, undone(&[], &["a@x.example"], 0));
        assert_eq!(undo(&store, kept[2].id).await, undone(&["b@x.example"], &[], 0));
        assert_eq!(emails(&show(client, &id).await), ["b@x.example", "c@x.example"]);
        assert_eq!(undo(&store, 4711).await, Undone::NotFound);
        client.delete(&format!("/api/v1/group/{id}")).send().await;
        assert_eq!(undo(&store, kept[3].id).await, Undone::GroupDeleted);
    }

    async fn what_other_programs_changed_since_is_left_out(engine: Engine) {
        let account = account(engine, "");
        let (client, store) = (&account.client, store(&account).await);
        write(client, &body(&["a@x.example", "b@x.example", "c@x.example"])).await;
        write(client, &body(&["d@x.example", "e@x.example"])).await;
        let sync = syncs(&store).await.pop().unwrap();
        let database = account.database().await;
        let user = |letter| format!("(SELECT id FROM users WHERE email = '{letter}@x.example')");
        database.execute(&format!("DELETE FROM group_members WHERE user_id = {}", user('d'))).await;
        database.execute(&format!("DELETE FROM users WHERE id = {}", user('a'))).await;
        database.execute(&format!("INSERT INTO group_members SELECT id, {} FROM groups WHERE name = 'Sales'", user('b'))).await;
        assert_eq!(undo(&store, sync.id).await, undone(&["c@x.example"], &["e@x.example"], 3));
    }

    async fn a_preview_waits_for_no_write_of_a_group(engine: Engine) {
        let account = account(engine, "");
        let (client, store) = (&account.client, store(&account).await);
        write(client, &body(&["a@x.example"])).await;
        let sync = syncs(&store).await.pop().unwrap();
        let writer = account.database().await;
        writer.execute(match engine {
            Engine::Sqlite => "BEGIN IMMEDIATE",
            _ => "BEGIN; SELECT pg_advisory_xact_lock(7310577365311121506)",
        }).await;
        let preview = timeout(Duration::from_secs(30), store.preview_undo(sync.id)).await;
        assert_eq!(preview.expect("it does not wait").unwrap(), undone(&[], &["a@x.example"], 0));
        writer.execute("ROLLBACK").await;
    }

    async fn syncs_are_kept_for_ninety_days(engine: Engine) {
        let account = account(engine, "");
        let (client, store) = (&account.client, store(&account).await);
        write(client, &body(&["a@x.example"])).await;
        write(client, &body(&["b@x.example"])).await;
        let database = account.database().await;
        let days = |days: i64| match engine {
            Engine::Sqlite => format!("at - {}", days * 86_400_000_000),
            _ => format!("at - interval '{days} days'"),
        };
        database.execute(&format!("UPDATE group_syncs SET at = {} WHERE id = 1", days(91))).await;
        database.execute(&format!("UPDATE group_syncs SET at = {} WHERE id = 2", days(89))).await;
        write(client, &body(&["b@x.example"])).await;
        assert_eq!(syncs(&store).await.len(), 2, "a write that changes nothing removes none");
        write(client, &body(&["c@x.example"])).await;
        let kept: Vec<_> = syncs(&store).await.iter().map(|sync| sync.id).collect();
        assert!(kept.len() == 2 && kept[0] == 2, "{kept:?}");
    }

    async fn random_writes_and_undos_agree_with_a_model(engine: Engine) {
        const ADDRESSES: [&str; 6] =
            ["a@x.example", "b@x.example", "c@x.example", "d@x.example", "e@x.example", "f@x.example"];
        let account = account(engine, "");
        let (client, store) = (&account.client, store(&account).await);
        let seed = rand::random();
        eprintln!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let id = write(client, &body(&[])).await["data"]["id"].as_str().unwrap().to_owned();
        let mut current: BTreeSet<&str> = BTreeSet::new();
        // Who came and who went, by sync.
        let mut model: Vec<[BTreeSet<&str>; 2]> = vec![Default::default()];
        let (mut undos, mut refusals) = (0, 0);
        for _ in 0..120 {
            if random.random_bool(0.5) {
                let mut wanted = current.clone();
                for _ in 0..random.random_range(1..=2) {
                    let address = ADDRESSES.choose(&mut random).unwrap();
                    if !wanted.remove(address) {
                        wanted.insert(address);
                    }
                }
                write(client, &body(&wanted.iter().copied().collect::<Vec<_>>())).await;
                let change = [&wanted - &current, &current - &wanted];
                if change.iter().any(|list| !list.is_empty()) {
                    model.push(change);
                }
                current = wanted;
            } else {
                // The newest one can always be undone; of the others few can.
                let at = if random.random_bool(0.3) { model.len() - 1 } else { random.random_range(0..model.len()) };
                let kept = syncs(&store).await;
                let [came, went] = model[at].clone();
                let touched = &came | &went;
                let later = model[at + 1..].iter().position(|[came, went]| !(came | went).is_disjoint(&touched));
                match (undo(&store, kept[at].id).await, later) {
                    (Undone::TouchedLater { sync, .. }, Some(later)) => {
                        assert_eq!(sync, kept[at + 1 + later].id);
                        refusals += 1;
                    }
                    (Undone::Undone { attached, detached, skipped }, None) => {
                        assert_eq!(attached, went.iter().copied().collect::<Vec<_>>());
                        assert_eq!(detached, came.iter().copied().collect::<Vec<_>>());
                        assert_eq!(skipped, 0);
                        current = &(&current - &came) | &went;
                        // Undoing one that changed no members is none.
                        if !touched.is_empty() {
                            model.push([went, came]);
                            undos += 1;
                        }
                    }
                    other => panic!("sync {at}: {other:?}"),
                }
            }
            assert_eq!(emails(&show(client, &id).await), current.iter().copied().collect::<Vec<_>>());
            assert_eq!(syncs(&store).await.len(), model.len());
        }
        assert!(undos > 3 && refusals > 3, "{undos} undos, {refusals} refusals");
    }
}

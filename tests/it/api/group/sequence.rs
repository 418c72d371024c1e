//! A long sequence of writes and deletions, held against a model in memory.

use rand::RngExt;
use rand::seq::IndexedRandom;

use super::model::{Model, Writes, number};
use super::{GROUPS, everything, faulty_fields, put};
use crate::api::account::account;
use crate::support::fixture::on_all_databases;

const STEPS: usize = 150;

on_all_databases! {
    async fn every_step_of_a_long_sequence_follows_the_rules(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;
        database.execute("INSERT INTO flow_steps (id, form_id, name) VALUES (1, 1, 'Approval')").await;
        let (mut model, mut writes) = (Model::new(), Writes::new(3));
        let (mut given, mut done) = (Vec::new(), [0; 3]);
        for step in 0..STEPS {
            let known = model.ids();
            match writes.random.random_range(0..20) {
                // The product beside formgate makes groups too, some with the name of another.
                0 => {
                    let id = given.iter().max().unwrap_or(&0) + writes.random.random_range(1..5);
                    database.execute(&format!("INSERT INTO groups (id, name) VALUES ({id}, 'Managers')")).await;
                    model.add(id, "Managers", None);
                    given.push(id);
                    continue;
                }
                1 if known.len() > 1 => {
                    let id = known[0];
                    database.execute(&format!("INSERT INTO flow_step_groups VALUES (1, {id}) ON CONFLICT DO NOTHING")).await;
                    model.use_in_flow(id);
                    continue;
                }
                1..4 => {
                    let any = given.choose(&mut writes.random).copied().unwrap_or(77);
                    let id = known.choose(&mut writes.random).copied().filter(|_| writes.random.random_bool(0.7)).unwrap_or(any);
                    let answer = account.client.delete(&format!("{GROUPS}/grp_{id}")).send().await;
                    done[0] += usize::from(answer.status == 200);
                    assert_eq!((answer.status.as_u16(), answer.json()), model.delete(id), "step {step}: delete {id}");
                }
                _ => {
                    let body = writes.next();
                    // A report is put together on the way that has more steps.
                    let query = if writes.random.random_bool(0.5) { "?report=members" } else { "" };
                    let answer = put(&account.client, query, &body).await;
                    let new_id = answer.json()["data"]["id"].as_str().map_or(0, number);
                    match model.put(&body, new_id) {
                        Ok(mut expected) => {
                            if query.is_empty() {
                                expected.as_object_mut().unwrap().remove("report");
                            }
                            let created = expected["result"] == "created";
                            assert_eq!(answer.status, if created { 201 } else { 200 }, "step {step}: {body}: {answer:?}");
                            assert_eq!(answer.json(), expected, "step {step}: {body}");
                            if created {
                                assert!(!given.contains(&new_id), "step {step}: {new_id} was another group's id");
                                given.push(new_id);
                            }
                            done[1] += 1;
                        }
                        Err(field) => {
                            assert_eq!(faulty_fields(&answer), [field], "step {step}: {body}");
                            done[2] += 1;
                        }
                    }
                }
            }
            assert_eq!(everything(&account.client).await, model.everything(), "step {step}");
        }
        assert!(done[0] > 5 && done[1] > 60 && done[2] > 5, "{done:?} deletions, writes and refusals prove little");
    }
}

//! One submission.

use crate::api::account::account;
use crate::api::world::World;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn every_submission_reads_as_in_a_search_or_is_not_found(engine: Engine) {
        let world = World::new(21, 0, 80);
        let account = account(engine, &world.ndjson());
        let (mut shown, mut hidden) = (0, 0);
        for id in world.ids() {
            for path in [format!("/api/v1/submission/{id}"), format!("/api/v1/submission/sub_{id}/")] {
                let answer = account.client.get(&path).send().await;
                match world.find(id) {
                    Some(expected) => {
                        shown += 1;
                        assert_eq!((answer.status.as_u16(), &answer.json()["data"]), (200, &expected));
                    }
                    None => {
                        hidden += 1;
                        assert_eq!((answer.status.as_u16(), &answer.json()["message"]), (404, &"Submission not found".into()));
                    }
                }
            }
        }
        assert!(shown > 50 && hidden > 20, "{shown} shown, {hidden} hidden");
    }

    async fn an_invalid_id_is_not_found(engine: Engine) {
        let account = account(engine, "");
        for id in ["1", "sub_", "for_1", "0", "-1", "x", "9223372036854775808", "1%00", "%F0%9F%98%80", "1.5"] {
            let answer = account.client.get(&format!("/api/v1/submission/{id}")).send().await;
            assert_eq!((answer.status.as_u16(), &answer.json()["message"]), (404, &"Submission not found".into()), "{id}");
        }
    }
}

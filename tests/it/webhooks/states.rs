//! The table of a subscription's states, held to what the database has after each event.

use std::collections::BTreeSet;
use std::time::Duration;

use formgate::outbound::DeliveryReason;
use formgate::store::{
    DatabaseLocation, Progress, SUBSCRIPTION_STATES, SUBSCRIPTION_TRANSITIONS, Standing, Store, SubscriptionEvent,
};
use serde_json::json;

use super::scene::{Scene, without_delivery};
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Receiver};

on_both_databases! {
    async fn each_event_moves_each_state_as_the_table_says(engine: Engine) {
        let scene = Scene::with(engine, without_delivery).await;
        let receiver = Receiver::always(Act::status(200)).await;
        let id = scene.subscribe(&receiver, "submission.created", None).await["id"].clone();
        let bare = id.as_str().unwrap().trim_start_matches("hook_").parse().unwrap();
        scene.site.token("acme", "ended");
        scene.execute("UPDATE tokens SET revoked_at = created_at WHERE name = 'ended'").await;
        let location = DatabaseLocation::parse(scene.site.database_url("acme"), "/".as_ref()).unwrap();
        let store = Store::open(&location, 1).await.unwrap();
        let reason = DeliveryReason::Status { status: 503 };
        for (event, after) in SUBSCRIPTION_TRANSITIONS {
            for (before, expected) in SUBSCRIPTION_STATES.into_iter().zip(after) {
                let free = "state = 'active', reason = NULL, leased_by = NULL, leased_until = NULL, next_attempt_at = NULL, bound = FALSE";
                scene.execute(&format!("UPDATE subscriptions SET {free}")).await;
                let holder = format!("{event:?} {before}");
                let leased = store.lease_subscription(bare, holder).await.unwrap().expect("it is free");
                let stored = if before == "active" { "NULL".to_owned() } else { format!("'{}'", reason.stored()) };
                scene.execute(&format!("UPDATE subscriptions SET state = '{before}', reason = {stored}")).await;
                let standing = match event {
                    SubscriptionEvent::Paused => {
                        store.pause_subscription(bare, None).await.unwrap();
                        None
                    }
                    SubscriptionEvent::Resumed => {
                        store.resume_subscription(bare, None).await.unwrap();
                        None
                    }
                    SubscriptionEvent::TokenEnded => {
                        let ended = "SELECT id FROM tokens WHERE name = 'ended'";
                        scene.execute(&format!("UPDATE subscriptions SET bound = TRUE, token_id = ({ended})")).await;
                        None
                    }
                    SubscriptionEvent::Accepted => Some(Standing::Resting),
                    SubscriptionEvent::Failed => Some(Standing::Failing { reason, again_in: Duration::from_secs(60) }),
                    SubscriptionEvent::FailedForTooLong => Some(Standing::Disabled { reason }),
                    SubscriptionEvent::ReceiverGone => Some(Standing::Gone { reason }),
                };
                if let Some(standing) = &standing {
                    let accepted: &[(i64, i64)] = if *standing == Standing::Resting { &[(1, 1)] } else { &[] };
                    let progress = Progress {
                        position: leased.position,
                        done_beyond: &BTreeSet::new(),
                        attempts: &[],
                        accepted,
                        dropped: &[],
                        failed: &[],
                        standing,
                        prunes: false,
                    };
                    store.write_progress(&leased, &progress).await.unwrap();
                }
                let shown = scene.subscription(&id).await;
                assert_eq!(shown["state"], json!(expected), "{event:?} of one that is {before}");
                assert_eq!(shown["reason"].is_null(), expected == "active", "{event:?} of one that is {before}: {shown}");
            }
        }
        store.close().await;
    }
}

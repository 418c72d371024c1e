//! The account: its contact is that of the configuration, also when that changes.

use serde_json::json;

use super::scene::{Scene, open};
use crate::support::acme_proxy::{Fault, Kind};

/// The contacts that were sent to an account that exists.
fn updates(scene: &Scene) -> Vec<serde_json::Value> {
    let of_account = scene.proxy.passed().into_iter().filter(|passed| passed.kind == Some(Kind::AccountUpdate));
    of_account.filter_map(|passed| Some(passed.payload?["contact"].clone())).collect()
}

#[tokio::test]
async fn a_changed_contact_is_sent_once_to_the_account_that_exists() {
    let scene = Scene::new().await;
    open(&scene.process(), scene.host()).await.unwrap();
    open(&scene.process(), scene.host()).await.unwrap();
    assert_eq!(updates(&scene), Vec::<serde_json::Value>::new(), "it is the same");
    let contact = ["mailto:ops@example.com", "mailto:it@example.com"].map(str::to_owned);
    for order in [contact.to_vec(), contact.iter().rev().cloned().collect()] {
        open(&scene.process_with(|settings| settings.contact = order), scene.host()).await.unwrap();
        assert_eq!(updates(&scene), [json!(contact)]);
    }
    assert_eq!(scene.proxy.accounts(), 1);
}

#[tokio::test]
async fn a_contact_that_is_refused_stops_no_order() {
    let scene = Scene::new().await;
    open(&scene.process(), scene.host()).await.unwrap();
    scene.proxy.break_next(1, Kind::AccountUpdate, Fault::refusal(400, "invalidContact", "no such mailbox"));
    let changed = || scene.process_with(|settings| settings.contact = vec!["mailto:ops@example.com".to_owned()]);
    open(&changed(), scene.host()).await.unwrap();
    // The next session tries again.
    open(&changed(), scene.host()).await.unwrap();
    assert_eq!(updates(&scene).len(), 2);
}

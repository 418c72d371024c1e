//! A database that is away: pages that say so, and nothing half done.

use super::scene::{Scene, form_of, random, text};
use crate::support::fixture::Engine;
use crate::support::postgres::Postgres;

#[tokio::test]
async fn without_its_database_an_account_gets_pages_that_say_so_and_the_other_goes_on() {
    let mut server = Postgres::start();
    let url = server.new_migrated_database();
    let site = Scene::site(Engine::Sqlite).tenant_with("initech", Engine::Sqlite, |tenant| tenant.set("database", url));
    let scene = Scene::of(site);
    let own = scene.sign_in("initech", "admin").await;
    let link = scene.link("initech", "admin", 600).await;
    let other = scene.sign_in("acme", "admin").await;
    server.crash();
    let key = random();
    for answer in [
        own.get("/admin").await,
        own.get("/admin/tokens").await,
        own.post("/admin/tokens", &[("name", "Once"), ("form_key", &key)]).await,
        own.caller.get(&link).send().await,
        form_of(own.caller.post(&link), &own.host, &[]).send().await,
    ] {
        assert_eq!((answer.status.as_u16(), answer.number("retry-after")), (503, Some(1)), "{answer:?}");
        assert!(text(&answer).contains("not available just now"), "{answer:?}");
    }
    assert_eq!(other.get("/admin").await.status, 200);
    server.recover();
    let since = std::time::Instant::now();
    while own.get("/admin").await.status != 200 {
        assert!(since.elapsed() < std::time::Duration::from_secs(20), "still away");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    assert!(scene.redeem("initech", &link).await.is_some(), "the link was not used up");
    let page = own.post("/admin/tokens", &[("name", "Once"), ("form_key", &key)]).await;
    assert_eq!(page.status, 201, "nothing was generated before");
}

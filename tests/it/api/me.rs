//! `GET /me`.

use serde_json::json;

use crate::api::account::account;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn a_valid_token_is_welcomed_by_its_account(engine: Engine) {
        let account = account(engine, "");
        let answer = account.client.get("/api/v1/me").send().await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json(), json!({"message": "Welcome to Acme", "account": {"id": "acme", "name": "Acme", "timezone": "Europe/Berlin"},
            "token": {"id": 1, "name": "tests", "scopes": ["*"], "forms": null, "requests_per_minute": null}, "usage": [{"token": "tests", "requests": 1}]}));
    }
}

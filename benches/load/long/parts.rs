//! The parts of the mixed load, each a generator of its own.

use serde_json::json;

use crate::account::Account;
use crate::order::{Order, Pace, Protocol, Request};

/// How many groups each account's writer keeps.
const GROUPS: usize = 20;

/// A part of the load, and the answers that it may have.
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) order: Order,
    pub(super) right: &'static [u16],
}

/// All of them, like an order. The first of the accounts is one over its limit; the large one has the submissions.
pub(super) fn all(like: &Order, accounts: &[Account], large: &Account, listed: &[i64]) -> [Part; 7] {
    let part = |name, rate, right, requests| Part {
        name,
        order: Order { pace: Pace::Due(rate), requests, ..like.clone() },
        right,
    };
    let me: Vec<Request> = accounts.iter().map(|one| one.ask("GET", "/me")).collect();
    let reads: Vec<Request> = listed.iter().flat_map(|id| reads(large, *id)).chain(me[1..].iter().cloned()).collect();
    let unauthenticated = me.iter().cloned().map(Request::unauthenticated).collect();
    let writes =
        (0..10 * GROUPS).map(|n| group(if n % 2 == 0 { large } else { &accounts[1 + n % (accounts.len() - 1)] }, n));
    let mut over_http_2 = part("reads, HTTP/2", 150.0, &[200], reads.clone());
    (over_http_2.order.protocol, over_http_2.order.streams) = (Protocol::Http2, 4);
    let mut connections = part("new connections", 20.0, &[200], me[1..].to_vec());
    connections.order.fresh = true;
    [
        part("reads, HTTP/1.1", 150.0, &[200], reads),
        over_http_2,
        part("searches", 40.0, &[200], searches(large)),
        part("writes", 10.0, &[200, 201], writes.collect()),
        connections,
        // More, and their address is one that tries tokens.
        part("without a token", 5.0, &[401], unauthenticated),
        part("over the limit", 20.0, &[200, 429], me[..1].to_vec()),
    ]
}

fn reads(account: &Account, submission: i64) -> [Request; 3] {
    [account.ask("GET", "/me"), account.ask("GET", "/form"), account.ask("GET", &format!("/submission/{submission}"))]
}

fn searches(account: &Account) -> Vec<Request> {
    let filters = ["{}", r#"{"search":"delivery"}"#, r#"{"forms":[1]}"#, r#"{"statuses":["escalate"]}"#];
    filters.iter().map(|filter| account.ask("POST", "/submission").with(*filter)).collect()
}

/// Fifty people, most of whom were in the group the last time.
fn group(account: &Account, n: usize) -> Request {
    let members: Vec<_> = (n..n + 50).map(|person| json!({"email": format!("user{person}@mail.test")})).collect();
    let (external_id, name) = (format!("g{}", n % GROUPS), format!("Group {}", n % GROUPS));
    account.ask("PUT", "/group").with(json!({"external_id": external_id, "name": name, "members": members}).to_string())
}

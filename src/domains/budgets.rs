//! The budgets of an order at a CA: one fifth is reserved for renewals. Also the limits that a CA reported.
//!
//! All accounts share the orders of a CA: each may use at most as many as it leaves to the others. A CA counts certificates
//! of a registered domain and of a host when it issues them, so an order that ends without one gives its share back.
//!
//! A budget is counted here; a limit is what the CA responded: no order before an instant, new or not. It is stored as a
//! budget of one order that is used up until then, so every node knows it.

use std::time::Duration;

use jiff::Timestamp;

use crate::config::AuthorityLimits;
use crate::store::registry::{Budget, DomainRecord};
use crate::store::{Registry, StoreError};

/// The part of a budget that is reserved for renewals: one fifth.
///
/// Larger: new domains wait for longer. Smaller: renewals may find nothing left after many domains were added at once.
const RESERVED: u32 = 5;

/// How many failed validations of a host a CA allows in an hour: the strictest known limit by far.
const FAILURES: u32 = 5;

/// The refill period of a limit, which is always exhausted until the instant that the CA named: the longest time that counts.
const LIMIT: Duration = DomainRecord::LONGEST_PAUSE;

const WEEK: Duration = Duration::from_hours(7 * 24);

/// Whether a certificate is the first one of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    First,
    Renewal,
}

fn budget(name: String, capacity: u32, period: Duration, order: Order) -> Budget {
    let reserve = match order {
        Order::First => capacity / RESERVED,
        Order::Renewal => 0,
    };
    Budget { name, capacity, period, reserve, account: None }
}

/// The budget of all orders at a CA.
pub(super) fn orders(authority: &str, limits: AuthorityLimits, order: Order) -> Budget {
    budget(format!("orders {authority}"), limits.orders, Duration::from_hours(3), order)
}

/// The budget of failed validations of a host.
pub(super) fn failures(authority: &str, host: &str) -> Budget {
    budget(format!("failures {authority} {host}"), FAILURES, Duration::from_hours(1), Order::Renewal)
}

/// The limit that a CA named for all orders.
pub(super) fn limit(authority: &str) -> Budget {
    budget(format!("limit {authority}"), 1, LIMIT, Order::Renewal)
}

/// The limit that a CA named for a host.
pub(super) fn limit_of_host(authority: &str, host: &str) -> Budget {
    budget(format!("limit {authority} {host}"), 1, LIMIT, Order::Renewal)
}

/// How many orders a CA allows now; if none, when it allows the next one.
pub(super) async fn orders_left(
    registry: &Registry,
    authority: &str,
    limits: AuthorityLimits,
    order: Order,
) -> Result<(u32, Option<Timestamp>), StoreError> {
    let (left, free_at) = registry.budget_left(&orders(authority, limits, order)).await?;
    let (_, limited_until) = registry.budget_left(&limit(authority)).await?;
    Ok(if limited_until.is_some() { (0, limited_until.max(free_at)) } else { (left, free_at) })
}

/// What an account has used of the orders at a CA.
pub(super) fn used_by(authority: &str, slug: &str) -> String {
    format!("orders {authority} of {slug}")
}

/// Every budget that an order uses. `account`: its share; an only account may use up all.
pub(super) fn of_order(
    authority: &str,
    limits: AuthorityLimits,
    account: Option<String>,
    host: &str,
    order: Order,
) -> Vec<Budget> {
    let mut budgets = vec![Budget { account, ..orders(authority, limits, order) }];
    budgets.extend(of_certificates(authority, limits, host, order));
    budgets
}

/// The budgets of issued certificates.
pub(super) fn of_certificates(authority: &str, limits: AuthorityLimits, host: &str, order: Order) -> Vec<Budget> {
    let of_domain = limits.per_domain.map(|most| (format!("domain {authority} {}", registered(host)), most));
    let of_host = limits.per_host.map(|most| (format!("host {authority} {host}"), most));
    of_domain.into_iter().chain(of_host).map(|(name, most)| budget(name, most, WEEK, order)).collect()
}

/// The registered domain of a host: the public suffix and one more label.
fn registered(host: &str) -> &str {
    psl::domain_str(host).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: AuthorityLimits =
        AuthorityLimits { orders: 300, per_domain: Some(50), per_host: Some(5), exempts_renewals: true };

    #[test]
    fn an_order_counts_for_the_authority_the_registered_domain_and_the_host() {
        let budgets = of_order("main", LIMITS, None, "forms.acme.co.uk", Order::First);
        let names: Vec<_> = budgets.iter().map(|budget| (budget.name.as_str(), budget.reserve)).collect();
        let expected = [("orders main", 60), ("domain main acme.co.uk", 10), ("host main forms.acme.co.uk", 1)];
        assert_eq!(names, expected);
        let accounts = of_order("main", LIMITS, Some(used_by("main", "acme")), "acme.org", Order::First);
        let accounts: Vec<_> = accounts.iter().map(|budget| budget.account.as_deref()).collect();
        assert_eq!(accounts, [Some("orders main of acme"), None, None]);
        assert!(of_order("main", LIMITS, None, "acme.org", Order::Renewal).iter().all(|budget| budget.reserve == 0));
    }
}

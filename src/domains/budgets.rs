//! The budgets of an order at an authority, of which a fifth is kept for renewals and two fifths for other accounts, and the
//! limits that an authority has named itself.
//!
//! A budget is counted here, and a limit is what the authority answered: no order before this instant, new or not. It is
//! stored as a budget of one order that is used up until then, so every node knows it.

use std::time::Duration;

use jiff::Timestamp;

use crate::config::AuthorityLimits;
use crate::store::registry::{AccountShare, Budget, DomainRecord};
use crate::store::{Registry, StoreError};

/// The part of a budget that is kept for renewals: one fifth.
///
/// Larger: new domains wait for longer. Smaller: renewals may find nothing left after many domains were added at once.
const RESERVED: u32 = 5;

/// The share of an account in the orders that all have together: one fifth.
///
/// Larger: few accounts use up what is kept for the others. Smaller: each waits for longer when many order at once.
const SHARE: u32 = 5;

/// The part of the orders that is kept for other accounts once one has used its share: two fifths.
///
/// Larger: an account that adds many domains at once waits for longer. Smaller: the next account finds less.
const KEPT: (u32, u32) = (2, 5);

/// How many failed validations of a host an authority allows in an hour, by far the strictest known.
const FAILURES: u32 = 5;

/// The refill period of a limit, which is always exhausted until the instant that the authority named: the longest time that
/// counts.
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
    Budget { name, capacity, period, reserve, share: None }
}

/// The budget of all orders at an authority.
pub(super) fn orders(authority: &str, limits: AuthorityLimits, order: Order) -> Budget {
    budget(format!("orders {authority}"), limits.orders, Duration::from_hours(3), order)
}

/// The budget of failed validations of a host.
pub(super) fn failures(authority: &str, host: &str) -> Budget {
    budget(format!("failures {authority} {host}"), FAILURES, Duration::from_hours(1), Order::Renewal)
}

/// The limit that an authority named for all orders.
pub(super) fn limit(authority: &str) -> Budget {
    budget(format!("limit {authority}"), 1, LIMIT, Order::Renewal)
}

/// The limit that an authority named for a host.
pub(super) fn limit_of_host(authority: &str, host: &str) -> Budget {
    budget(format!("limit {authority} {host}"), 1, LIMIT, Order::Renewal)
}

/// How many orders an authority allows now, and from when on there is one if there is none.
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

/// The share of an account in the orders at an authority.
pub(super) fn share(authority: &str, limits: AuthorityLimits, slug: &str) -> AccountShare {
    AccountShare {
        name: format!("share {authority} {slug}"),
        capacity: (limits.orders / SHARE).max(1),
        kept: limits.orders * KEPT.0 / KEPT.1,
    }
}

/// Every budget that an order takes a token of. An account that is alone has no share but all.
pub(super) fn of_order(
    authority: &str,
    limits: AuthorityLimits,
    share: Option<AccountShare>,
    host: &str,
    order: Order,
) -> Vec<Budget> {
    let mut budgets = vec![Budget { share, ..orders(authority, limits, order) }];
    if let Some(per_domain) = limits.per_domain {
        let registered = registered(host);
        budgets.push(budget(format!("domain {authority} {registered}"), per_domain, WEEK, order));
    }
    if let Some(per_host) = limits.per_host {
        budgets.push(budget(format!("host {authority} {host}"), per_host, WEEK, order));
    }
    budgets
}

/// The registered domain of a host: the public suffix and one label more.
fn registered(host: &str) -> &str {
    psl::domain_str(host).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: AuthorityLimits = AuthorityLimits { orders: 300, per_domain: Some(50), per_host: Some(5) };

    #[test]
    fn an_order_counts_for_the_authority_the_registered_domain_and_the_host() {
        let budgets = of_order("main", LIMITS, None, "forms.acme.co.uk", Order::First);
        let names: Vec<_> = budgets.iter().map(|budget| (budget.name.as_str(), budget.reserve)).collect();
        let expected = [("orders main", 60), ("domain main acme.co.uk", 10), ("host main forms.acme.co.uk", 1)];
        assert_eq!(names, expected);
        let share = share("main", LIMITS, "acme");
        assert_eq!((share.capacity, share.kept), (60, 120));
        let shares = of_order("main", LIMITS, Some(share.clone()), "acme.org", Order::First);
        let shares: Vec<_> = shares.into_iter().map(|budget| budget.share).collect();
        assert_eq!(shares, [Some(share), None, None], "a registered domain and a host have one owner");
        assert!(of_order("main", LIMITS, None, "acme.org", Order::Renewal).iter().all(|budget| budget.reserve == 0));
    }
}

//! The budgets of an order at an authority. A fifth of each is kept for renewals.

use std::time::Duration;

use crate::config::AuthorityLimits;
use crate::store::registry::Budget;

/// The part of a budget that is kept for renewals: one fifth.
///
/// Larger: new domains wait for longer. Smaller: renewals may find nothing left after many domains were added at once.
const RESERVED: u32 = 5;

/// How many failed validations of a host an authority allows in an hour, by far the strictest known.
const FAILURES: u32 = 5;

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
    Budget { name, capacity, period, reserve }
}

/// The budget of all orders at an authority.
pub(super) fn orders(authority: &str, limits: AuthorityLimits, order: Order) -> Budget {
    budget(format!("orders {authority}"), limits.orders, Duration::from_hours(3), order)
}

/// The budget of failed validations of a host.
pub(super) fn failures(authority: &str, host: &str) -> Budget {
    budget(format!("failures {authority} {host}"), FAILURES, Duration::from_hours(1), Order::Renewal)
}

/// Every budget that an order takes a token of.
pub(super) fn of_order(authority: &str, limits: AuthorityLimits, host: &str, order: Order) -> Vec<Budget> {
    let mut budgets = vec![orders(authority, limits, order)];
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
        let budgets = of_order("main", LIMITS, "forms.acme.co.uk", Order::First);
        let names: Vec<_> = budgets.iter().map(|budget| (budget.name.as_str(), budget.reserve)).collect();
        let expected = [("orders main", 60), ("domain main acme.co.uk", 10), ("host main forms.acme.co.uk", 1)];
        assert_eq!(names, expected);
        assert!(of_order("main", LIMITS, "acme.org", Order::Renewal).iter().all(|budget| budget.reserve == 0));
    }
}

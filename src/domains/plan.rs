//! The arithmetic of many certificates: how many are renewed each day, and how long a first issue takes.

use std::time::Duration;

use jiff::Timestamp;

use super::budgets::{self, Order};
use crate::config::{AcmeConfig, AuthorityLimits};
use crate::store::{Registry, StoreError};

/// The part of its life after which a certificate is renewed, in thirds.
const RENEWED_AFTER: (u64, u64) = (2, 3);

/// What a number of hosts requires of a CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Certificates.
    pub hosts: u64,
    /// Renewals in a day, rounded up.
    pub renewals_a_day: u64,
    /// Orders that the CA allows in a day.
    pub orders_a_day: u64,
    /// Whether the CA does not count renewals, which leaves all orders for new hosts.
    pub exempts_renewals: bool,
    /// The time in which all of them are issued the first time.
    pub first_issue: Duration,
}

impl Plan {
    /// For certificates that are valid for some days, at least one.
    #[must_use]
    pub fn new(hosts: u64, days: u64, limits: AuthorityLimits) -> Self {
        let (part, of) = RENEWED_AFTER;
        let renewed_after = (days * part / of).max(1);
        let orders = u64::from(limits.orders);
        Self {
            hosts,
            renewals_a_day: hosts.div_ceil(renewed_after),
            orders_a_day: orders * 8,
            exempts_renewals: limits.exempts_renewals,
            first_issue: Duration::from_secs((hosts * 3 * 3600).div_ceil(orders)),
        }
    }

    /// Whether the CA allows the renewals.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.exempts_renewals || self.renewals_a_day <= self.orders_a_day
    }
}

/// A CA, and what it still allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Its directory.
    pub directory: String,
    /// The orders that it allows in three hours.
    pub orders: u32,
    /// The orders that are left now.
    pub left: u32,
    /// When the next one is allowed, if none is left for a new domain.
    pub free_at: Option<Timestamp>,
}

/// What each CA still allows.
///
/// # Errors
/// [`StoreError::Unavailable`], [`StoreError::Statement`].
pub async fn status(registry: &Registry, acme: &AcmeConfig) -> Result<Vec<AuthorityStatus>, StoreError> {
    let mut all = Vec::with_capacity(acme.limits.len());
    for (authority, limits) in acme.requests.authorities.iter().zip(&acme.limits) {
        let (left, free_at) = budgets::orders_left(registry, &authority.name, *limits, Order::First).await?;
        all.push(AuthorityStatus {
            name: authority.name.clone(),
            directory: authority.directory.uri().to_string(),
            orders: limits.orders,
            left,
            free_at,
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_hosts_are_167_renewals_a_day_and_100_hours_at_first() {
        let limits = AuthorityLimits { orders: 300, per_domain: None, per_host: None, exempts_renewals: false };
        let plan = Plan::new(10_000, 90, limits);
        assert_eq!((plan.renewals_a_day, plan.orders_a_day), (167, 2400));
        assert_eq!(plan.first_issue, Duration::from_hours(100));
        assert!(plan.is_possible());
        assert!(!Plan::new(10_000, 6, limits).is_possible(), "certificates of six days");
        assert!(!Plan::new(200_000, 64, limits).is_possible());
        let exempt = AuthorityLimits { exempts_renewals: true, ..limits };
        assert!(Plan::new(200_000, 64, exempt).is_possible(), "they are not counted");
    }
}

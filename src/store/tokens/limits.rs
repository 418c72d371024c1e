//! What a token is limited to: scopes, forms, networks, and a budget of its own. What is absent is not limited.
//!
//! Scopes, forms and networks are stored as words separated by blanks, as OAuth writes scopes, so that they can be read in SQL.
//! A scope that this version does not know is left out when a row is read: a token never gets more than its row says.

mod networks;
mod scopes;

use std::fmt;

use serde_json::{Map, Value, json};

use self::networks::MAX_NETWORKS;
pub use self::networks::Networks;
use self::scopes::list as scope_list;
pub use self::scopes::{Scope, Scopes};

use crate::store::reach::{FormReach, MAX_FORMS};
use crate::store::statement::Row;

/// What a token is limited to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenLimits {
    /// What it may do.
    pub scopes: Scopes,
    /// What it reaches.
    pub forms: FormReach,
    /// From where it is accepted.
    pub networks: Networks,
    /// The requests of a budget of its own. If that of the account is smaller, the account's holds.
    pub requests_per_minute: Option<u32>,
}

impl TokenLimits {
    /// A budget that a token of an account can have.
    ///
    /// # Errors
    /// [`LimitFault::Budget`].
    pub fn parse_budget(requests_per_minute: u64, of_account: u32) -> Result<u32, LimitFault> {
        let budget = u32::try_from(requests_per_minute).ok().filter(|budget| (1..=of_account).contains(budget));
        budget.ok_or(LimitFault::Budget { of_account })
    }

    /// Whether a token with them may use an endpoint that needs a scope. One that is limited to forms can't have everything.
    #[must_use]
    pub fn allow(&self, scope: Scope) -> bool {
        self.scopes.allow(scope) && (scope != Scope::All || self.forms.is_all())
    }

    pub(super) const COLUMNS: usize = 4;

    /// Reads the columns `scopes`, `forms`, `networks` and `requests_per_minute`.
    pub(super) fn read(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
        let (scopes, forms): (Option<String>, Option<String>) = (row.get(column)?, row.get(column + 1)?);
        let networks: Option<String> = row.get(column + 2)?;
        let budget = row.get::<Option<i64>>(column + Self::COLUMNS - 1)?.map(u32::try_from);
        Ok(Self {
            scopes: Scopes::of_stored(scopes.as_deref()),
            forms: FormReach::read(forms.as_deref())?,
            networks: Networks::of_stored(networks.as_deref())?,
            requests_per_minute: budget.transpose().map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        })
    }

    pub(super) fn stored_budget(&self) -> Option<i64> {
        self.requests_per_minute.map(i64::from)
    }

    /// By the keys of the API: `{"scopes": ["*"], "forms": null, "networks": null, "requests_per_minute": null}` without any limit.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Value> {
        let networks = (!self.networks.is_all()).then(|| self.networks.iter().collect::<Vec<_>>());
        Map::from_iter([
            ("scopes".to_owned(), json!(self.scopes.names().collect::<Vec<_>>())),
            ("forms".to_owned(), json!(self.forms.names())),
            ("networks".to_owned(), json!(networks)),
            ("requests_per_minute".to_owned(), json!(self.requests_per_minute)),
        ])
    }
}

/// Why a token can't be limited like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitFault {
    /// There is no such scope.
    #[error("there is no scope `{0}`; there are {names}", names = scope_list())]
    UnknownScope(String),
    /// The list is empty.
    #[error("name at least one scope, or `*` for all")]
    NoScope,
    /// The list has everything, and something.
    #[error("`*` stands alone: it is all scopes, now and later")]
    StarNotAlone,
    /// It is no id of a form.
    #[error("`{0}` is no id of a form: write one as for_1")]
    UnknownForm(String),
    /// The list is empty.
    #[error("name at least one form, or leave them out for all")]
    NoForm,
    /// The list is too long.
    #[error("a token can be limited to at most {MAX_FORMS} forms")]
    TooManyForms,
    /// It is neither a network nor an address.
    #[error("`{0}` is no network: write one as 203.0.113.0/24 or 2001:db8::/32")]
    UnknownNetwork(String),
    /// Its address is not the first one of its network.
    #[error("`{text}` has bits set after its prefix: the network is {network}")]
    HostBits {
        /// As it was given.
        text: String,
        /// The network that contains it.
        network: String,
    },
    /// The list is empty.
    #[error("name at least one network, or leave them out for all")]
    NoNetwork,
    /// The list is too long.
    #[error("a token can have at most {MAX_NETWORKS} networks")]
    TooManyNetworks,
    /// The budget is not within that of the account.
    #[error("the requests per minute of a token must be from 1 to {of_account}, the account's")]
    Budget {
        /// The requests per minute of the account.
        of_account: u32,
    },
}

/// A fault of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFault {
    /// The position of the faulty element; `None` if it is the list.
    pub at: Option<usize>,
    /// What is wrong.
    pub fault: LimitFault,
}

/// Writes words with blanks between them.
fn joined(f: &mut fmt::Formatter<'_>, words: impl Iterator<Item = impl fmt::Display>) -> fmt::Result {
    for (at, word) in words.enumerate() {
        write!(f, "{}{word}", if at == 0 { "" } else { " " })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_is_limited_to_forms_has_every_single_scope_and_not_all() {
        let limits = TokenLimits { forms: FormReach::of([1]), ..TokenLimits::default() };
        assert!(Scope::SINGLE.into_iter().all(|scope| limits.allow(scope)));
        assert!(!limits.allow(Scope::All) && TokenLimits::default().allow(Scope::All));
    }

    #[test]
    fn a_budget_is_within_that_of_the_account() {
        for (budget, expected) in [(1, Some(1)), (60, Some(60)), (0, None), (61, None), (1 << 40, None)] {
            assert_eq!(TokenLimits::parse_budget(budget, 60).ok(), expected);
        }
    }
}

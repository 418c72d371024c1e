//! What a token is limited to: scopes, forms, networks, and a budget of its own. What is absent is not limited.
//!
//! Scopes, forms and networks are stored as words separated by blanks, as OAuth writes scopes, so that they can be read in SQL.
//! A scope that this version does not know is left out when a row is read: a token never gets more than its row says.

use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use serde_json::{Map, Value, json};

use crate::store::reach::{FormReach, MAX_FORMS};
use crate::store::statement::Row;

/// How many networks a token can have.
///
/// Larger: each request with the token compares more. Smaller: a service that publishes its networks does not fit.
const MAX_NETWORKS: usize = 100;

/// What an endpoint needs, and a token may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Reads forms.
    FormsRead,
    /// Reads submissions.
    SubmissionsRead,
    /// Reads groups and their members.
    GroupsRead,
    /// Writes and deletes groups.
    GroupsWrite,
    /// Creates, changes and deletes subscriptions.
    WebhooksManage,
    /// Provisions users and groups by SCIM.
    Scim,
    /// Everything, now and later.
    All,
}

impl Scope {
    /// Every scope but [`Scope::All`], in the order in which they are listed.
    pub const SINGLE: [Self; 6] =
        [Self::FormsRead, Self::SubmissionsRead, Self::GroupsRead, Self::GroupsWrite, Self::WebhooksManage, Self::Scim];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FormsRead => "forms:read",
            Self::SubmissionsRead => "submissions:read",
            Self::GroupsRead => "groups:read",
            Self::GroupsWrite => "groups:write",
            Self::WebhooksManage => "webhooks:manage",
            Self::Scim => "scim",
            Self::All => "*",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        Self::SINGLE.into_iter().chain([Self::All]).find(|scope| scope.as_str() == name)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The scopes of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scopes(u8);

impl Default for Scopes {
    fn default() -> Self {
        Self::ALL
    }
}

impl Scopes {
    /// Everything, now and later.
    pub const ALL: Self = Self(Scope::All.bit());

    /// Parses names. `*` includes all others, so that it stands alone.
    ///
    /// # Errors
    /// [`ListFault`] if there is none, one that is unknown, or another one beside `*`.
    pub fn parse<'t>(names: impl IntoIterator<Item = &'t str>) -> Result<Self, ListFault> {
        let mut bits = 0;
        for (at, name) in names.into_iter().enumerate() {
            let unknown = || ListFault { at: Some(at), fault: LimitFault::UnknownScope(name.to_owned()) };
            bits |= Scope::of_name(name).ok_or_else(unknown)?.bit();
        }
        let of_list = |fault| ListFault { at: None, fault };
        match bits {
            0 => Err(of_list(LimitFault::NoScope)),
            _ if bits & Scope::All.bit() != 0 && bits != Scope::All.bit() => Err(of_list(LimitFault::StarNotAlone)),
            _ => Ok(Self(bits)),
        }
    }

    fn of_bits(bits: u8) -> Self {
        if bits & Scope::All.bit() == 0 { Self(bits) } else { Self::ALL }
    }

    /// Whether a token with them may use an endpoint that needs a scope.
    #[must_use]
    pub fn allow(self, scope: Scope) -> bool {
        self.0 & (Scope::All.bit() | scope.bit()) != 0
    }

    /// Whether they are not limited.
    #[must_use]
    pub fn is_all(self) -> bool {
        self == Self::ALL
    }

    /// Their names: `*` if they are not limited.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = Some(Scope::All).filter(|_| self.is_all());
        let single = Scope::SINGLE.into_iter().filter(move |scope| self.0 & scope.bit() != 0);
        all.into_iter().chain(single).map(Scope::as_str)
    }

    pub(super) fn stored(self) -> Option<String> {
        (!self.is_all()).then(|| self.to_string())
    }

    fn of_stored(stored: Option<&str>) -> Self {
        let Some(names) = stored else { return Self::ALL };
        let known = names.split_ascii_whitespace().filter_map(Scope::of_name);
        Self::of_bits(known.fold(0, |bits, scope| bits | scope.bit()))
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        joined(f, self.names())
    }
}

/// From where a token is accepted. None: from everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Box<[IpNet]>);

impl Networks {
    /// Parses networks and single addresses. IPv4-mapped IPv6 networks become those of IPv4.
    ///
    /// # Errors
    /// [`ListFault`] if there is none, too many, or one that is no network.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, ListFault> {
        let mut networks = Vec::new();
        for (at, text) in texts.into_iter().enumerate() {
            let network = parse_network(text).map_err(|fault| ListFault { at: Some(at), fault })?;
            if !networks.contains(&network) {
                networks.push(network);
            }
        }
        match networks.len() {
            0 => Err(ListFault { at: None, fault: LimitFault::NoNetwork }),
            1..=MAX_NETWORKS => Ok(Self(networks.into())),
            _ => Err(ListFault { at: None, fault: LimitFault::TooManyNetworks }),
        }
    }

    /// Whether a token with them is accepted from an address. An unknown one is in no network.
    #[must_use]
    pub fn allow(&self, address: Option<IpAddr>) -> bool {
        let is_within = |address: IpAddr| {
            let address = address.to_canonical();
            self.0.iter().any(|network| network.contains(&address))
        };
        self.is_all() || address.is_some_and(is_within)
    }

    /// Whether they are not limited.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them, such as `203.0.113.0/24`; none if they are not limited.
    pub fn iter(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(IpNet::to_string)
    }

    pub(super) fn stored(&self) -> Option<String> {
        (!self.is_all()).then(|| self.to_string())
    }

    fn of_stored(stored: Option<&str>) -> Result<Self, sqlx::Error> {
        let Some(texts) = stored else { return Ok(Self::default()) };
        Self::parse(texts.split_ascii_whitespace()).map_err(|fault| sqlx::Error::Decode(Box::new(fault.fault)))
    }
}

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        joined(f, self.iter())
    }
}

/// Writes words with blanks between them.
fn joined(f: &mut fmt::Formatter<'_>, words: impl Iterator<Item = impl fmt::Display>) -> fmt::Result {
    for (at, word) in words.enumerate() {
        write!(f, "{}{word}", if at == 0 { "" } else { " " })?;
    }
    Ok(())
}

fn parse_network(text: &str) -> Result<IpNet, LimitFault> {
    let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let network = network.ok_or_else(|| LimitFault::UnknownNetwork(text.to_owned()))?;
    if network.trunc() != network {
        return Err(LimitFault::HostBits { text: text.to_owned(), network: network.trunc().to_string() });
    }
    // Callers are compared by their canonical address, which is that of IPv4.
    let mapped = match network {
        IpNet::V6(network) if network.prefix_len() >= 96 => network.addr().to_ipv4_mapped(),
        IpNet::V6(_) | IpNet::V4(_) => None,
    };
    let of_mapped = mapped.and_then(|address| Ipv4Net::new(address, network.prefix_len() - 96).ok());
    Ok(of_mapped.map_or(network, IpNet::V4))
}

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

fn scope_list() -> String {
    let names = Scope::SINGLE.into_iter().chain([Scope::All]).map(|scope| format!("`{}`", scope.as_str()));
    names.collect::<Vec<_>>().join(", ")
}

/// A fault of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFault {
    /// The position of the faulty element; `None` if it is the list.
    pub at: Option<usize>,
    /// What is wrong.
    pub fault: LimitFault,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_what_their_names_say_and_the_star_is_all_of_them() {
        let parse = |names: &str| Scopes::parse(names.split_ascii_whitespace());
        let some = parse("submissions:read forms:read forms:read").unwrap();
        assert_eq!(some.to_string(), "forms:read submissions:read");
        let allowed: Vec<_> = Scope::SINGLE.into_iter().filter(|scope| some.allow(*scope)).collect();
        assert_eq!(allowed, [Scope::FormsRead, Scope::SubmissionsRead]);
        assert!(!some.allow(Scope::All));
        assert_eq!(Scopes::of_stored(some.stored().as_deref()), some);
        assert_eq!(parse("forms:read *").unwrap_err(), ListFault { at: None, fault: LimitFault::StarNotAlone });
        for all in [parse("*").unwrap(), parse("* *").unwrap(), Scopes::default(), Scopes::of_stored(None)] {
            assert_eq!((all.to_string().as_str(), all.stored()), ("*", None));
            assert!(Scope::SINGLE.into_iter().chain([Scope::All]).all(|scope| all.allow(scope)));
        }
        // Each single scope is not all of them.
        let each = Scope::SINGLE.map(Scope::as_str).join(" ");
        assert!(!parse(&each).unwrap().allow(Scope::All));
        assert_eq!(parse("").unwrap_err(), ListFault { at: None, fault: LimitFault::NoScope });
        assert_eq!(parse("forms:read forms:write").unwrap_err().at, Some(1));
        // A scope of a later version opens nothing in this one.
        let later = Scopes::of_stored(Some("later:read"));
        assert!(!Scope::SINGLE.into_iter().any(|scope| later.allow(scope)) && !later.is_all());
    }

    #[test]
    fn networks_contain_what_is_within_them_in_either_notation() {
        let parse = |texts: &str| Networks::parse(texts.split_ascii_whitespace());
        let office = parse("203.0.113.0/24 2001:db8::/32 198.51.100.7 ::ffff:192.0.2.0/120").unwrap();
        assert_eq!(office.to_string(), "203.0.113.0/24 2001:db8::/32 198.51.100.7/32 192.0.2.0/24");
        for (address, expected) in [
            ("203.0.113.77", true),
            ("::ffff:203.0.113.77", true),
            ("::ffff:192.0.2.1", true),
            ("192.0.2.255", true),
            ("198.51.100.7", true),
            ("198.51.100.8", false),
            ("203.0.114.1", false),
            ("2001:db8:ffff::1", true),
            ("2001:db9::1", false),
            ("::1", false),
        ] {
            assert_eq!(office.allow(Some(address.parse().unwrap())), expected, "{address}");
        }
        assert!(!office.allow(None), "an unknown address is in no network");
        assert!(Networks::default().allow(None) && Networks::default().allow(Some([192, 0, 2, 1].into())));
        assert_eq!(Networks::of_stored(office.stored().as_deref()).unwrap(), office);
        for faulty in ["203.0.113.7/24", "2001:db8::1/32", "10.0.0.0/33", "office", "10.0.0.0/8,", "*", "10.0.0.0/08x"]
        {
            assert_eq!(parse(&format!("10.0.0.0/8 {faulty}")).unwrap_err().at, Some(1), "{faulty}");
        }
        assert_eq!(parse("").unwrap_err().fault, LimitFault::NoNetwork);
        let many: Vec<_> = (0..=MAX_NETWORKS).map(|n| format!("10.0.{n}.0/24")).collect();
        assert_eq!(parse(&many.join(" ")).unwrap_err().fault, LimitFault::TooManyNetworks);
    }

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

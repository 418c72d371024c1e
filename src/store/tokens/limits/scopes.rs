//! What a token may do.

use std::fmt;

use super::{LimitFault, ListFault, joined};

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

    pub(in crate::store::tokens) fn stored(self) -> Option<String> {
        (!self.is_all()).then(|| self.to_string())
    }

    pub(super) fn of_stored(stored: Option<&str>) -> Self {
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

/// The names of all, for people.
pub(super) fn list() -> String {
    let names = Scope::SINGLE.into_iter().chain([Scope::All]).map(|scope| format!("`{}`", scope.as_str()));
    names.collect::<Vec<_>>().join(", ")
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
}

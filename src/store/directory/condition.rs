//! Filters of lists as conditions of SQL.
//!
//! User names and addresses are compared folded, as everywhere. Other names ignore the case of ASCII letters only, since
//! they are not stored folded. A comparison for equality of what has an index is a look-up.

use crate::store::statement::{Sql, fold, sql};

/// What a list shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter<T> {
    /// All of these hold; without any, everything.
    All(Vec<Self>),
    /// One of these holds; without any, nothing.
    Any(Vec<Self>),
    /// It does not hold.
    Not(Box<Self>),
    /// A single test.
    Test(T),
}

/// How a text is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The whole text.
    Equal,
    /// Its beginning.
    Begins,
    /// A part of it.
    Contains,
}

/// A test of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserTest {
    /// Its number.
    Id(i64),
    /// Whether it is active.
    Active(bool),
    /// Its user name.
    UserName(Comparison, String),
    /// Its address.
    Email(Comparison, String),
    /// The name that is shown.
    DisplayName(Comparison, String),
    /// Its identifier in the directory.
    ExternalId(Comparison, String),
    /// Its given name.
    GivenName(Comparison, String),
    /// Its family name.
    FamilyName(Comparison, String),
    /// Its whole name.
    FormattedName(Comparison, String),
}

/// A test of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupTest {
    /// Its number.
    Id(i64),
    /// Its name.
    DisplayName(Comparison, String),
    /// Its identifier in the directory.
    ExternalId(Comparison, String),
    /// A user is a member.
    Member(i64),
}

impl<T> Filter<T> {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self::All(Vec::new())
    }

    /// Nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::Any(Vec::new())
    }

    /// A condition: the row is listed.
    pub(super) fn is_listed(&self, is_matched: &impl Fn(&T) -> Sql) -> Sql {
        let each = |parts: &[Self], between, without: &'static str| {
            if parts.is_empty() {
                return Sql::text(without);
            }
            let is_any = Sql::joined(parts.iter().map(|part| part.is_listed(is_matched)), between);
            sql!("({+is_any})", is_any)
        };
        match self {
            Self::All(parts) => each(parts, " AND ", "true"),
            Self::Any(parts) => each(parts, " OR ", "false"),
            Self::Not(part) => sql!("NOT {+is_listed}", is_listed = part.is_listed(is_matched)),
            Self::Test(test) => is_matched(test),
        }
    }
}

/// A condition: a text, which may be missing, compares with a value.
fn is_equal(text: Sql, comparison: Comparison, value: String) -> Sql {
    match comparison {
        Comparison::Equal => sql!("coalesce({+text} = {value}, false)", text, value),
        Comparison::Begins => sql!("coalesce(substr({+text}, 1, length({value})) = {value}, false)", text, value),
        Comparison::Contains => {
            sql!("coalesce({pg: strpos({+text}, {value}) | lite: instr({+text}, {value})} > 0, false)", text, value,)
        }
    }
}

/// The same for a text whose case of ASCII letters does not matter.
fn is_alike(text: &'static str, comparison: Comparison, value: &str) -> Sql {
    let lower = sql!("{pg: lower({+text} COLLATE \"C\") | lite: lower({+text})}", text = Sql::text(text));
    is_equal(lower, comparison, value.to_ascii_lowercase())
}

impl UserTest {
    /// A condition: it holds for the user `u` with what a directory said of it, `d`.
    pub(super) fn is_matched(&self) -> Sql {
        match self {
            Self::Id(id) => sql!("u.id = {id}", id = *id),
            Self::Active(true) => Sql::text("u.active"),
            Self::Active(false) => Sql::text("NOT u.active"),
            Self::UserName(Comparison::Equal, name) => sql!(
                "u.id IN (SELECT user_id FROM directory_users WHERE user_name_folded = {name}
                          UNION ALL
                          SELECT e.id FROM users e WHERE e.email_folded = {name}
                            AND NOT EXISTS (SELECT 1 FROM directory_users o WHERE o.user_id = e.id))",
                name = fold(name),
            ),
            Self::UserName(comparison, name) => {
                is_equal(Sql::text("coalesce(d.user_name_folded, u.email_folded)"), *comparison, fold(name))
            }
            Self::Email(Comparison::Equal, email) => {
                sql!("u.id IN (SELECT id FROM users WHERE email_folded = {email})", email = fold(email))
            }
            Self::Email(comparison, email) => is_equal(Sql::text("u.email_folded"), *comparison, fold(email)),
            Self::ExternalId(Comparison::Equal, id) => {
                sql!("u.id IN (SELECT user_id FROM directory_users WHERE external_id = {id})", id)
            }
            Self::ExternalId(comparison, id) => is_equal(Sql::text("d.external_id"), *comparison, id.clone()),
            Self::DisplayName(comparison, name) => is_alike("u.name", *comparison, name),
            Self::GivenName(comparison, name) => is_alike("d.given_name", *comparison, name),
            Self::FamilyName(comparison, name) => is_alike("d.family_name", *comparison, name),
            Self::FormattedName(comparison, name) => is_alike("d.formatted_name", *comparison, name),
        }
    }
}

impl GroupTest {
    /// A condition: it holds for the group `g`.
    pub(super) fn is_matched(&self) -> Sql {
        match self {
            Self::Id(id) => sql!("g.id = {id}", id = *id),
            Self::DisplayName(comparison, name) => is_alike("g.name", *comparison, name),
            Self::ExternalId(Comparison::Equal, id) => {
                sql!("g.id IN (SELECT id FROM groups WHERE external_id = {id})", id)
            }
            Self::ExternalId(comparison, id) => is_equal(Sql::text("g.external_id"), *comparison, id.clone()),
            Self::Member(user) => sql!(
                "(g.id IN (SELECT group_id FROM group_members WHERE user_id = {user})
                  OR g.built_in AND EXISTS (SELECT 1 FROM users WHERE id = {user} AND active))",
                user = *user,
            ),
        }
    }
}

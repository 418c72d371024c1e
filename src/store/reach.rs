//! Reach: the forms to which a token is limited, with their sub-forms at any depth.
//!
//! What is out of reach does not exist for the token. A [`Store`] has the reach of its caller, so that no method has to
//! be told. The limit is a part of the statements, and is decided by the tree of forms as it is when they run: a form that is moved
//! is in reach or out of it from then on. A submission is in reach if its form is; a graduated child goes with its parent.
//!
//! A single row is decided by climbing from its form ([`FormReach::of_row`]), whatever the number of sub-forms. Searches
//! and feeds find the forms first; those of a filter that are in reach are found by [`FormReach::narrowed_to`]. One that is out of
//! reach has no rows, also if it has sub-forms that are in reach.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use super::engine::PooledConnection;
use super::statement::{Sql, sql};
use super::{LimitFault, ListFault, ShownElements, Store, StoreError};

/// How many forms a token can be limited to.
///
/// Larger: each request of the token compares more. Smaller: a token for many forms of an account does not fit.
pub(super) const MAX_FORMS: usize = 100;

/// The forms that a caller reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FormReach {
    /// All.
    #[default]
    All,
    /// These and their sub-forms; nothing if there are none. Ids of forms that do not exist reach nothing.
    Forms(Arc<[i64]>),
}

/// The prefix of a form's id, as the API has it.
const PREFIX: &str = "for_";

/// Who reads a store.
#[derive(Clone, Debug, Default)]
pub(super) struct Caller {
    /// The token, if it is a call of the API.
    pub(super) token: Option<i64>,
    /// What it reaches.
    pub(super) reach: FormReach,
    /// Whose answers it reads.
    pub(super) elements: ShownElements,
}

impl Caller {
    /// A reader of some forms.
    pub(super) fn within(reach: &FormReach) -> Self {
        Self { reach: reach.clone(), ..Self::default() }
    }
}

impl Store {
    /// The same store for the calls of a token.
    #[must_use]
    pub fn of_token(&self, token: i64, reach: &FormReach) -> Self {
        Self { caller: Caller { token: Some(token), ..Caller::within(reach) }, ..self.clone() }
    }

    /// The same store for a reader of some forms.
    #[must_use]
    pub fn within(&self, reach: &FormReach) -> Self {
        Self { caller: Caller::within(reach), ..self.clone() }
    }

    /// What its caller reaches.
    #[must_use]
    pub fn reach(&self) -> &FormReach {
        &self.caller.reach
    }
}

impl FormReach {
    /// The reach of these forms, in their order.
    #[must_use]
    pub fn of(forms: impl IntoIterator<Item = i64>) -> Self {
        Self::Forms(forms.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Parses ids of forms, with their prefix or without. They need not exist.
    ///
    /// # Errors
    /// [`ListFault`] if there is none, too many, or one that is no id.
    pub fn parse<'t>(ids: impl IntoIterator<Item = &'t str>) -> Result<Self, ListFault> {
        let mut forms = BTreeSet::new();
        for (at, text) in ids.into_iter().enumerate() {
            let number = text.strip_prefix(PREFIX).unwrap_or(text);
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            let id = number.parse().ok().filter(|&id: &i64| digits && id > 0);
            let unknown = || ListFault { at: Some(at), fault: LimitFault::UnknownForm(text.to_owned()) };
            forms.insert(id.ok_or_else(unknown)?);
        }
        match forms.len() {
            0 => Err(ListFault { at: None, fault: LimitFault::NoForm }),
            1..=MAX_FORMS => Ok(Self::of(forms)),
            _ => Err(ListFault { at: None, fault: LimitFault::TooManyForms }),
        }
    }

    /// The ids of the limit, such as `for_1`, if there is one.
    #[must_use]
    pub fn names(&self) -> Option<Vec<String>> {
        self.forms().map(|forms| forms.iter().map(|form| format!("{PREFIX}{form}")).collect())
    }

    /// Whether there is no limit.
    #[must_use]
    pub fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }

    /// The forms of the limit, if there is one.
    #[must_use]
    pub fn forms(&self) -> Option<&[i64]> {
        match self {
            Self::All => None,
            Self::Forms(forms) => Some(forms),
        }
    }

    /// The column `forms` of a token: bare ids separated by blanks.
    pub(super) fn read(stored: Option<&str>) -> Result<Self, sqlx::Error> {
        let Some(stored) = stored else { return Ok(Self::All) };
        let forms: Result<Vec<i64>, _> = stored.split_ascii_whitespace().map(str::parse).collect();
        Ok(Self::of(forms.map_err(|error| sqlx::Error::Decode(Box::new(error)))?))
    }

    /// What the column has.
    pub(super) fn stored(&self) -> Option<String> {
        self.forms().map(|forms| forms.iter().map(i64::to_string).collect::<Vec<_>>().join(" "))
    }

    /// The condition that the form in a column is in reach, behind others. Nothing if all are.
    pub(super) fn of_row(&self, form: &'static str) -> Sql {
        let Self::Forms(forms) = self else { return Sql::default() };
        // NULL is above a form without a parent, and above NULL: UNION ends there, and in a circle. A scalar subquery is looked up
        // for each row; Postgres would read the whole table for a join if it expects to climb from many.
        let above = sql!(
            "WITH RECURSIVE above (id) AS (
               SELECT {+form}
               UNION
               SELECT (SELECT f.parent_id FROM forms f WHERE f.id = above.id) FROM above)
             SELECT 1 FROM above WHERE id {in forms}",
            form = Sql::text(form),
            forms,
        );
        sql!(" AND EXISTS ({+above})", above)
    }

    /// The same of a form that may be deleted, which is where it was last seen in the tree.
    pub(super) fn of_past_row(&self, form: &'static str) -> Sql {
        let Self::Forms(forms) = self else { return Sql::default() };
        let above = sql!(
            "WITH RECURSIVE above (id) AS (
               SELECT {+form}
               UNION
               SELECT CASE WHEN EXISTS (SELECT 1 FROM forms f WHERE f.id = above.id)
                 THEN (SELECT f.parent_id FROM forms f WHERE f.id = above.id)
                 ELSE (SELECT p.parent_id FROM form_placements p
                   WHERE p.form_id = above.id AND NOT p.deleted ORDER BY p.seq DESC LIMIT 1) END
               FROM above)
             SELECT 1 FROM above WHERE id {in forms}",
            form = Sql::text(form),
            forms,
        );
        sql!(" AND EXISTS ({+above})", above)
    }

    /// The reach of those of `forms` that are in reach; all of the reach if `forms` is empty.
    pub(super) async fn narrowed_to(&self, reader: &mut PooledConnection, forms: &[i64]) -> Result<Self, StoreError> {
        let reach = match self {
            Self::All if forms.is_empty() => return Ok(Self::All),
            Self::All => return Ok(Self::Forms(forms.into())),
            Self::Forms(_) if forms.is_empty() => return Ok(self.clone()),
            Self::Forms(reach) => reach.iter().copied().collect(),
        };
        let parents = parents_above(reader, forms).await?;
        let mut in_reach = FormsBelow::new(&reach, |form| parents.get(&form).copied().flatten());
        Ok(Self::of(forms.iter().copied().filter(|form| in_reach.has(*form))))
    }

    /// The reach of what both reach.
    ///
    /// A form has one parent, so whatever is below two forms is below the lower of both. So these are the forms of each side that
    /// are on the other side, too.
    pub(super) async fn and(&self, reader: &mut PooledConnection, other: &Self) -> Result<Self, StoreError> {
        let (Self::Forms(one), Self::Forms(other)) = (self, other) else {
            return Ok(if self.is_all() { other.clone() } else { self.clone() });
        };
        let [one, other] = [one, other].map(|ids| ids.iter().copied().collect::<BTreeSet<i64>>());
        let ids: Vec<i64> = one.union(&other).copied().collect();
        let parents = parents_above(reader, &ids).await?;
        let parent = |form| parents.get(&form).copied().flatten();
        let (mut in_one, mut in_other) = (FormsBelow::new(&one, parent), FormsBelow::new(&other, parent));
        let both = other.iter().filter(|form| in_one.has(**form)).chain(one.iter().filter(|form| in_other.has(**form)));
        Ok(Self::of(both.copied()))
    }
}

/// The parent of each of these forms, and of those above them: at most as many rows as there are.
async fn parents_above(reader: &mut PooledConnection, forms: &[i64]) -> Result<HashMap<i64, Option<i64>>, StoreError> {
    let sql = sql!(
        "WITH RECURSIVE above (id, parent_id) AS (
           SELECT id, parent_id FROM forms WHERE id {in forms}
           UNION
           SELECT above.parent_id, (SELECT f.parent_id FROM forms f WHERE f.id = above.parent_id) FROM above
           WHERE above.parent_id IS NOT NULL)
         SELECT id, parent_id FROM above",
        forms,
    );
    let rows = reader.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, sqlx::Error>>()?)
}

impl fmt::Display for FormReach {
    /// The ids with blanks between them; nothing if there is no limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().unwrap_or_default().join(" "))
    }
}

/// Some forms and those below them, by the parent of each form. Remembers what it has found.
#[derive(Debug)]
pub(super) struct FormsBelow<'f, P> {
    forms: &'f BTreeSet<i64>,
    parent: P,
    known: HashMap<i64, bool>,
}

impl<'f, P: Fn(i64) -> Option<i64>> FormsBelow<'f, P> {
    pub(super) fn new(forms: &'f BTreeSet<i64>, parent: P) -> Self {
        Self { forms, parent, known: HashMap::new() }
    }

    /// Whether a form is one of them, or below one. Forms whose parents go in a circle are below none that is not in it or
    /// reached from it.
    pub(super) fn has(&mut self, form: i64) -> bool {
        let (mut at, mut passed) = (Some(form), Vec::new());
        let is_below = loop {
            let Some(form) = at else { break false };
            if self.forms.contains(&form) {
                break true;
            }
            // In a circle, it comes back to where it was.
            if let Some(known) = self.known.insert(form, false) {
                self.known.insert(form, known);
                break known;
            }
            passed.push(form);
            at = (self.parent)(form);
        };
        if is_below {
            self.known.extend(passed.into_iter().map(|form| (form, true)));
        }
        is_below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_below_those_that_its_parents_lead_to() {
        let parents = HashMap::from([(3, 2), (2, 1), (5, 6), (6, 5), (7, 3)]);
        let parent = |form| parents.get(&form).copied();
        for (forms, expected) in [
            (&[1][..], [true, true, true, false, false, false, true]),
            (&[3], [false, false, true, false, false, false, true]),
            (&[6], [false, false, false, false, true, true, false]),
            (&[8], [false; 7]),
            (&[], [false; 7]),
        ] {
            let forms = forms.iter().copied().collect();
            for order in [[1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1]] {
                let mut below = FormsBelow::new(&forms, parent);
                for form in order {
                    assert_eq!(below.has(form), expected[form as usize - 1], "{form} {forms:?}");
                }
            }
        }
    }

    #[test]
    fn a_column_without_forms_is_no_limit_and_an_empty_list_reaches_nothing() {
        assert_eq!(FormReach::read(None).unwrap(), FormReach::All);
        assert_eq!(FormReach::read(Some("3 1 3")).unwrap(), FormReach::of([1, 3]));
        assert_eq!(FormReach::read(Some("")).unwrap().forms(), Some(&[][..]));
        assert!(FormReach::read(Some("1,2")).is_err(), "never as if there was no limit");
        for reach in [FormReach::All, FormReach::of([]), FormReach::of([7, 2])] {
            assert_eq!(FormReach::read(reach.stored().as_deref()).unwrap(), reach);
        }
    }

    #[test]
    fn forms_are_named_by_their_ids_with_the_prefix_or_without() {
        let parse = |texts: &str| FormReach::parse(texts.split(','));
        let some = parse("for_3,1,for_03").unwrap();
        assert_eq!((some.to_string().as_str(), some.stored().as_deref()), ("for_1 for_3", Some("1 3")));
        for (faulty, at) in
            [("1,sub_3", 1), ("0", 0), ("for_", 0), ("", 0), ("1,2,-1", 2), ("+1", 0), ("1,9223372036854775808", 1)]
        {
            assert_eq!(parse(faulty).unwrap_err().at, Some(at), "{faulty}");
        }
        assert_eq!(FormReach::parse([]).unwrap_err(), ListFault { at: None, fault: LimitFault::NoForm });
        let many: Vec<String> = (1..=101).map(|id| id.to_string()).collect();
        assert_eq!(FormReach::parse(many.iter().map(String::as_str)).unwrap_err().fault, LimitFault::TooManyForms);
        assert!(FormReach::parse(many[1..].iter().map(String::as_str)).is_ok());
    }
}

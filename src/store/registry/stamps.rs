//! The history of the revisions: which revision is which.
//!
//! A registry that was restored gives the same revisions again, to other changes, and a restored copy is byte for byte the
//! old one: nothing in it says that it was restored. So the statement that takes a revision also stores a random stamp with
//! it (a trigger of `registry_head`), and whoever keeps a revision keeps its stamp too. Another stamp at that revision, or
//! none, is another history. [`LogMark`](crate::store::LogMark) is the same of an account's change log.

use std::fmt;
use std::str::FromStr;

use super::Registry;
use super::events::KEPT;
use crate::store::StoreError;
use crate::store::statement::{Sql, sql};

/// A revision, and its stamp. Zero, without a stamp, is before the first change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistryMark {
    /// The revision.
    pub revision: i64,
    /// The stamp.
    pub stamp: i64,
}

/// Prints `17.00d3c1f6a8b95e24`, from which a mark is read again.
impl fmt::Display for RegistryMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.revision, self.stamp)
    }
}

/// The text is not that of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a revision with its stamp")]
pub struct InvalidMark;

impl FromStr for RegistryMark {
    type Err = InvalidMark;

    fn from_str(text: &str) -> Result<Self, InvalidMark> {
        let (revision, stamp) = text.split_once('.').ok_or(InvalidMark)?;
        let is_plain = revision.bytes().all(|byte| byte.is_ascii_digit())
            && stamp.len() == 16
            && stamp.bytes().all(|byte| byte.is_ascii_hexdigit());
        let stamp = u64::from_str_radix(stamp, 16).ok().filter(|_| is_plain).ok_or(InvalidMark)?;
        Ok(Self { revision: revision.parse().map_err(|_| InvalidMark)?, stamp: stamp.cast_signed() })
    }
}

/// The stamp of a revision. A write of several tenants takes several revisions and one stamp.
pub(super) fn stamp_of(revision: Sql) -> Sql {
    sql!("(SELECT stamp FROM registry_stamps WHERE revision >= {+revision} ORDER BY revision LIMIT 1)", revision)
}

/// The stamp of the head.
pub(super) fn head_stamp() -> Sql {
    sql!(
        "coalesce(CASE WHEN registry_head.revision > 0 THEN {+stamp} END, 0)",
        stamp = stamp_of(Sql::text("registry_head.revision")),
    )
}

/// The registry has the history of a mark.
pub(super) fn has_history(mark: RegistryMark) -> Sql {
    let RegistryMark { revision, stamp } = mark;
    if revision == 0 {
        return Sql::text("TRUE");
    }
    sql!("coalesce({+stored} = {stamp}, FALSE)", stored = stamp_of(sql!("{revision}", revision)), stamp)
}

impl Registry {
    /// A revision with its stamp, as the registry has it now. A revision that it does not have gets the stamp zero, which
    /// it never has.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn mark(&self, revision: i64) -> Result<RegistryMark, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT coalesce({+stamp}, 0)", stamp = stamp_of(sql!("{revision}", revision)));
        let stamp = if revision == 0 { 0 } else { reader.fetch_one(sql).await?.get(0)? };
        Ok(RegistryMark { revision, stamp })
    }

    /// Removes the stamps that ceased to be the newest longer ago than events are kept, of which the newest is still that of
    /// readers that are up to date.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn forget_old_stamps(&self) -> Result<(), StoreError> {
        // Subqueries, which Postgres evaluates once and can look up in the index.
        let sql = sql!(
            "DELETE FROM registry_stamps
             WHERE revision < (
                 SELECT s.revision FROM registry_stamps s
                 WHERE s.at < (SELECT {clock - kept})
                 ORDER BY s.at DESC LIMIT 1)
               AND at < (SELECT {clock - kept})",
            kept = KEPT,
        );
        self.database.execute(sql).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_is_printed_and_nothing_else_is_one() {
        for mark in [(0, 0), (17, 1), (i64::MAX, -1), (3, i64::MIN)] {
            let mark = RegistryMark { revision: mark.0, stamp: mark.1 };
            assert_eq!(mark.to_string().parse(), Ok(mark));
        }
        for text in ["", "17", "17.", ".0000000000000000", "1.+000000000000000", "-1.0000000000000000", "1.00"] {
            assert_eq!(text.parse::<RegistryMark>(), Err(InvalidMark), "{text}");
        }
    }
}

//! A node as it last wrote, and whether it serves a change.

use jiff::Timestamp;

use crate::store::statement::Row;

/// A node, as it last wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// One process, until it ends.
    pub id: String,
    /// Its host and process.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// Up to here it has applied every change. Zero if it follows another history of the registry.
    pub revision: i64,
    /// The first tenants whose rows it can't read, in alphabetical order.
    pub refused: Vec<String>,
    /// Why it can't read each of them, in a few words.
    pub reasons: Vec<String>,
    /// How many rows it can't read.
    pub refused_count: i64,
    /// The ids of the keys that seal private keys, that of the key that seals first. `None` for a node of an earlier
    /// version, which does not write them.
    pub seal_keys: Option<Vec<String>>,
    /// The tenants that were removed and whose databases it has still open.
    pub closing: Vec<String>,
    /// When it started.
    pub started_at: Timestamp,
    /// When it last wrote, by the clock of the registry.
    pub seen_at: Timestamp,
    /// Whether that was within the time after which a node counts as gone. An instant that is still ahead is from before the
    /// clock was set back, and a node that lives writes another one soon.
    pub is_live: bool,
}

/// A node that does not serve a change, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeBehind {
    /// One process, until it ends.
    pub id: String,
    /// Its host and process.
    pub name: String,
    /// In a few words.
    pub reason: String,
    /// Whether waiting changes nothing.
    pub(super) is_final: bool,
}

impl NodeRecord {
    /// Why a live node does not serve the changes of these tenants up to a revision.
    pub(super) fn behind(&self, revision: i64, slugs: &[&str]) -> Option<NodeBehind> {
        let refused = slugs.iter().find_map(|slug| match self.can_read(slug)? {
            true => None,
            false => Some(format!("it can't serve the row of `{slug}`: {}", self.reason(slug))),
        });
        let unknown = || {
            let is_unknown = slugs.iter().any(|slug| self.can_read(slug).is_none());
            is_unknown.then(|| format!("it can't serve {} rows; its log has the reason", self.refused_count))
        };
        match refused.or_else(unknown) {
            _ if !self.is_live => None,
            _ if self.revision < revision => Some(self.named(format!("it is at revision {}", self.revision), false)),
            reason => Some(self.named(reason?, true)),
        }
    }

    /// Why a node may still serve a tenant that was removed with a revision, or use its database.
    pub(super) fn holds(&self, revision: i64, slug: &str) -> Option<NodeBehind> {
        if self.revision < revision {
            return Some(self.named(format!("it is at revision {}", self.revision), false));
        }
        let is_closing = self.closing.iter().any(|closing| closing == slug);
        is_closing.then(|| self.named("requests still use the database".to_owned(), false))
    }

    fn named(&self, reason: String, is_final: bool) -> NodeBehind {
        NodeBehind { id: self.id.clone(), name: self.name.clone(), reason, is_final }
    }

    fn reason(&self, slug: &str) -> &str {
        let at = self.refused.iter().position(|refused| refused == slug);
        at.and_then(|at| self.reasons.get(at)).map_or("its log has the reason", String::as_str)
    }

    /// Whether it can read the row of a tenant. `None`: it can't read more rows than it names, and this one may be among them.
    #[must_use]
    pub fn can_read(&self, slug: &str) -> Option<bool> {
        if self.refused.binary_search_by(|refused| refused.as_str().cmp(slug)).is_ok() {
            return Some(false);
        }
        let is_whole = usize::try_from(self.refused_count).is_ok_and(|count| count <= self.refused.len());
        (is_whole || self.refused.last().is_some_and(|last| slug < last.as_str())).then_some(true)
    }

    pub(super) fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            version: row.get(2)?,
            revision: row.get(3)?,
            refused: serde_json::from_str(&row.get::<String>(4)?).unwrap_or_default(),
            reasons: serde_json::from_str(&row.get::<String>(10)?).unwrap_or_default(),
            refused_count: row.get(5)?,
            seal_keys: row.get::<Option<String>>(6)?.and_then(|keys| serde_json::from_str(&keys).ok()),
            started_at: row.get(7)?,
            seen_at: row.get(8)?,
            is_live: row.get(9)?,
            closing: serde_json::from_str(&row.get::<String>(11)?).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_names_some_of_its_rows_can_not_vouch_for_the_rest() {
        let node = |refused: &[&str], refused_count| NodeRecord {
            id: String::new(),
            name: String::new(),
            version: String::new(),
            revision: 7,
            refused: refused.iter().map(|slug| (*slug).to_owned()).collect(),
            reasons: refused.iter().map(|slug| format!("why not {slug}")).collect(),
            refused_count,
            seal_keys: None,
            closing: Vec::new(),
            started_at: Timestamp::UNIX_EPOCH,
            seen_at: Timestamp::UNIX_EPOCH,
            is_live: true,
        };
        let whole = node(&["b", "d"], 2);
        assert_eq!(
            ["a", "b", "c", "e"].map(|slug| whole.can_read(slug)),
            [Some(true), Some(false), Some(true), Some(true)]
        );
        let part = node(&["b", "d"], 3);
        assert_eq!(["a", "b", "c", "e"].map(|slug| part.can_read(slug)), [Some(true), Some(false), Some(true), None]);
        assert_eq!(part.behind(7, &["a"]), None);
        let reasons = ["d", "e"].map(|slug| part.behind(7, &[slug]).expect("it is behind").reason);
        assert!(reasons[0].contains("the row of `d`: why not d") && reasons[1].contains("3 rows"), "{reasons:?}");
    }
}

//! What a write of a group is asked for, and what came of it.

use std::sync::Arc;

use super::GroupSummary;
use crate::store::engine::AsStoreError;
use crate::store::{StoreError, Texts, mailbox};

/// A group as it is asked for.
#[derive(Clone, Debug)]
pub struct GroupWrite {
    /// 1 to 255 characters.
    pub name: String,
    /// The caller's identifier, 1 to 255 characters.
    pub external_id: Option<String>,
    /// The full membership, each address once; none leaves it untouched.
    pub members: Option<NewMembers>,
}

/// The members as they are asked for, in columns: so they are bound, and not copied for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMembers {
    /// The addresses as they are to be stored.
    pub emails: Arc<Texts>,
    /// What users are found by: the folded form of each address. Until `find_spellings` has looked for the spelling that
    /// is stored, that of a mailbox with several is its key.
    pub folded: Arc<Texts>,
    /// The names of those who are new.
    pub names: Arc<Texts>,
    /// The places of those whose mailbox has several spellings: mostly none.
    pub(super) ambiguous: Vec<usize>,
}

impl NewMembers {
    /// The members with their addresses, the key of each once, and whether any of them has several spellings ([`mailbox`]).
    #[must_use]
    pub fn new(emails: Arc<Texts>, keys: Arc<Texts>, names: Arc<Texts>, have_spellings: bool) -> Self {
        let ambiguous = if have_spellings {
            keys.iter().enumerate().filter(|(_, key)| mailbox::has_spellings(key)).map(|(place, _)| place).collect()
        } else {
            Vec::new()
        };
        Self { emails, folded: keys, names, ambiguous }
    }

    pub(super) fn count(&self) -> usize {
        self.folded.len()
    }
}

/// Whether a write stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It stays.
    Commit,
    /// It is rolled back once its answer is known.
    DryRun,
}

/// Whether a write tells whom it attached, detached and created, beside how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// How many.
    Counts,
    /// Whom, too.
    Members,
}

/// The most members that one write may detach, in percent of those that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// 0 to 100.
    pub max_detached_percent: u32,
}

/// What became of the members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberChange {
    /// How many users became members, new ones included.
    pub attached: u64,
    /// How many stopped being members.
    pub detached: u64,
    /// How many users were created.
    pub created: u64,
    /// Their addresses, ordered as members are, where a report was asked for: attached, detached, created.
    pub report: Option<[Vec<String>; 3]>,
}

/// A group that was written.
#[derive(Clone, Debug)]
pub struct WrittenGroup {
    /// The group as it is now.
    pub group: GroupSummary,
    /// Whether it is new.
    pub created: bool,
    /// What became of its members.
    pub members: MemberChange,
}

/// Why a group can't be written; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum GroupWriteError {
    /// Two or more groups have the name, and no external id tells which is meant.
    #[error("two groups have this name")]
    AmbiguousName,
    /// The built-in group is nobody's to write.
    #[error("the built-in group can't be written")]
    BuiltIn,
    /// The same, where the external id tells that it is meant.
    #[error("the built-in group has this external id, and can't be written")]
    BuiltInIdentified,
    /// It would detach more members than the tenant's guard allows.
    #[error("{detached} of {members} members would be detached")]
    Guarded {
        /// Members who would be detached.
        detached: u64,
        /// Members whom the group has.
        members: u64,
    },
    /// The database could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for GroupWriteError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

impl AsStoreError for GroupWriteError {
    fn as_store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::AmbiguousName | Self::BuiltIn | Self::BuiltInIdentified | Self::Guarded { .. } => None,
        }
    }
}

//! The input and the result of writing a group.

use std::sync::Arc;

use super::GroupSummary;
use crate::store::engine::AsStoreError;
use crate::store::{StoreError, TextList, mailbox};

/// A group as it should be.
#[derive(Clone, Debug)]
pub struct GroupWrite {
    /// 1 to 255 characters.
    pub name: String,
    /// The caller's identifier, 1 to 255 characters.
    pub external_id: Option<String>,
    /// The full membership, each address once. None leaves it unchanged.
    pub members: Option<NewMembers>,
}

/// The members as they should be, in columns, so that they can be bound without copying.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMembers {
    /// The addresses to store for new users.
    pub emails: Arc<TextList>,
    /// The folded form of each address, by which users are found. For a mailbox with several spellings it is the key,
    /// until `find_spellings` replaces it by the stored spelling.
    pub folded: Arc<TextList>,
    /// The names for new users.
    pub names: Arc<TextList>,
    /// The positions of members whose mailbox has several spellings; usually none.
    pub(super) ambiguous: Vec<usize>,
}

impl NewMembers {
    /// Members by their addresses and unique keys. `have_spellings`: whether any mailbox has several spellings
    /// ([`mailbox`]).
    #[must_use]
    pub fn new(emails: Arc<TextList>, keys: Arc<TextList>, names: Arc<TextList>, have_spellings: bool) -> Self {
        let ambiguous = if have_spellings {
            keys.iter()
                .enumerate()
                .filter(|(_, key)| mailbox::has_spellings(key))
                .map(|(position, _)| position)
                .collect()
        } else {
            Vec::new()
        };
        Self { emails, folded: keys, names, ambiguous }
    }

    pub(super) fn count(&self) -> usize {
        self.folded.len()
    }
}

/// Whether a write is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It is committed.
    Commit,
    /// It is rolled back once its result is known.
    DryRun,
}

/// Whether a write lists the members that it attached, detached and created, or only counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Only counts.
    Counts,
    /// Counts and addresses.
    Members,
}

/// Who writes a group, for the list of syncs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncedBy {
    /// The name of the token, or the administrator.
    pub name: Arc<str>,
    /// The number of the token.
    pub token: Option<i64>,
}

/// How a group is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteMode {
    /// The most members that it may detach, if there is a limit.
    pub guard: Option<Guard>,
    /// Whether it is committed.
    pub durability: Durability,
    /// Whether the changed members are listed.
    pub report: Report,
}

/// The most members that one write may detach, in percent of the current members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// 0 to 100.
    pub max_detached_percent: u32,
}

/// The changes of a group's membership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberChange {
    /// How many users became members, new ones included.
    pub attached: u64,
    /// How many stopped being members.
    pub detached: u64,
    /// How many users were created.
    pub created: u64,
    /// How many listed members are inactive. Their membership is kept, and returns when they become active.
    pub inactive: u64,
    /// The addresses (attached, detached, created) in the order of members, for [`Report::Members`].
    pub report: Option<[Vec<String>; 3]>,
}

/// A group that was written.
#[derive(Clone, Debug)]
pub struct WrittenGroup {
    /// The group as it is now.
    pub group: GroupSummary,
    /// Whether it is new.
    pub created: bool,
    /// The changes of its membership.
    pub members: MemberChange,
}

/// Why a group was not written. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum GroupWriteError {
    /// Several groups have the name, and there is no external id to choose one.
    #[error("two groups have this name")]
    AmbiguousName,
    /// The built-in group can't be written.
    #[error("the built-in group can't be written")]
    BuiltIn,
    /// The external id is that of the built-in group.
    #[error("the built-in group has this external id, and can't be written")]
    BuiltInIdentified,
    /// The group belongs to SCIM.
    #[error("the group belongs to SCIM")]
    OfScim,
    /// The write would detach more members than the tenant's guard allows.
    #[error("{detached} of {members} members would be detached")]
    Guarded {
        /// How many members would be detached.
        detached: u64,
        /// How many members the group has.
        members: u64,
    },
    /// The database failed.
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
            Self::AmbiguousName | Self::BuiltIn | Self::BuiltInIdentified | Self::OfScim | Self::Guarded { .. } => None,
        }
    }
}

//! What a directory provisions by SCIM: users and groups, with the attributes that the plain tables do not have.
//!
//! Every user and every group can be read; only groups of a directory can be written. A user that is inactive is a member
//! of nothing: the triggers of the schema move its memberships to `inactive_members`, and back. All writes take the lock
//! on groups, since a user that comes or goes changes groups too, and each is one transaction.

mod condition;
mod groups;
mod guard;
mod held;
mod leaving;
mod members;
mod search;
mod user_writes;
mod users;

use super::StoreError;
use super::engine::AsStoreError;
use super::statement::{SortDirection, Sql, sql};

pub use condition::{Comparison, Filter, GroupTest, UserTest};
pub use groups::{DirectoryGroup, GroupManager, GroupMember, GroupOrder};
pub(super) use guard::held_count;
pub use guard::{HeldKind, Provisioner};
pub(super) use held::release as release_held;
pub use held::{HeldDecision, HeldGroup, HeldMember};
pub use members::{DirectoryGroupChange, SkippedMembers};
pub use search::DirectoryResource;
pub use user_writes::{DirectoryUserChange, DirectoryUserValues};
pub use users::{DirectoryUser, UserOrder};

/// Which part of a list is read.
#[derive(Clone, Debug)]
pub struct Listing<T, O> {
    /// What is listed.
    pub filter: Filter<T>,
    /// The order; ids break ties.
    pub order: O,
    /// Its direction.
    pub direction: SortDirection,
    /// How many are skipped.
    pub offset: u64,
    /// The most that are read.
    pub limit: u32,
}

/// The order of a list by a text, by code points, and then by id. What has no such text is last, or first if the order is
/// descending (RFC 7644, section 3.4.2.3).
fn order_by(text: Option<&'static str>, id: &'static str, direction: SortDirection) -> Sql {
    let id = Sql::text(id);
    let Some(text) = text.map(Sql::text) else {
        return if direction == SortDirection::Ascending { id } else { sql!("{+id} DESC", id) };
    };
    match direction {
        SortDirection::Ascending => sql!("{+text} {pg: COLLATE \"C\"} NULLS LAST, {+id}", text, id),
        SortDirection::Descending => sql!("{+text} {pg: COLLATE \"C\"} DESC NULLS FIRST, {+id} DESC", text, id),
    }
}

/// Why a directory can't write. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// There is no user or group with the id.
    #[error("no such resource")]
    NotFound,
    /// It is not the version that the client expects.
    #[error("the resource has another version")]
    OtherVersion,
    /// Neither the user name nor the e-mail address is one to which mail can be sent.
    #[error("the user has no e-mail address")]
    NoAddress,
    /// Another user has the user name or the address.
    #[error("another user has this user name or address")]
    UserNameTaken,
    /// Another user or group has the identifier.
    #[error("the external id is taken")]
    ExternalIdTaken,
    /// Another group has the name, and neither has an identifier.
    #[error("the name of the group is taken")]
    GroupNameTaken,
    /// The group does not belong to SCIM.
    #[error("the group does not belong to SCIM")]
    OtherManager(GroupManager),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for DirectoryError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

impl AsStoreError for DirectoryError {
    fn as_store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::NotFound
            | Self::OtherVersion
            | Self::NoAddress
            | Self::UserNameTaken
            | Self::ExternalIdTaken
            | Self::GroupNameTaken
            | Self::OtherManager(_) => None,
        }
    }
}

//! Moves of accounts to other databases while they are called.
//!
//! [`begin`] checks a move and writes it into the registry. Any node that serves the operator API carries it out
//! ([`MoveAccounts`]), under a lease, so that another one takes over after a crash. It copies the account (`carrying`), holds the
//! account's requests on every node, locks the old database, copies the rest, and writes the new place into the registry
//! (`switching`). [`crate::store::Moving`] has what happens in the two databases.
//!
//! **The account is in one place at any moment.** The commit with which the old database begins to refuse writes decides: before
//! it, the new database is an unused copy; after it, the node updates the registry and retries until that succeeds. A node that
//! takes over a move reads the old database first.

mod beginning;
mod carrying;
mod described;
mod switching;
mod task;

pub use beginning::{BeginRefused, CheckText, Place, begin};
pub use described::describe;
pub use task::MoveAccounts;

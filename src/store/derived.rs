//! What is derived from the plain tables, and kept up to date when they are written by anybody.
//!
//! Triggers note what a writer touched. A settler takes the notes ([`settle`]), numbers what changed in the change log
//! ([`changes`]), and writes the tables that searches read ([`search`]). [`export`] reads what is in both. [`totals`] counts the
//! lists that have no other table.
//! They name each other's tables, and no other folder writes these.

pub(in crate::store) mod changes;
pub(in crate::store) mod export;
pub(in crate::store) mod search;
pub(in crate::store) mod settle;
pub(in crate::store) mod totals;

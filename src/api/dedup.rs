//! Each address of a group once, at twelve bytes a member whatever their order.
//!
//! The first place of an address stays, its last spelling and its last name win.

use std::sync::Arc;

use foldhash::fast::FixedState;
use std::hash::BuildHasher;

use crate::store::Texts;

/// A column of all members.
type Column = Arc<Texts>;

/// The columns of members, without each address that comes again: addresses, what they are compared by, and names. Addresses
/// and keys may be one column.
pub(super) fn dedup(emails: Column, keys: Column, names: Column) -> (Column, Column, Column) {
    let duplicates = duplicates(&keys, &names);
    if duplicates.is_empty() {
        return (emails, keys, names);
    }
    let column = |texts: &Texts, of: fn(&Replacement) -> u32| {
        let mut duplicates = duplicates.iter().peekable();
        let mut column = Texts::default();
        for (at, text) in (0..).zip(texts.iter()) {
            match duplicates.next_if(|duplicate| duplicate.at == at) {
                None => column.push(text),
                Some(Duplicate { replacement: Some(replacement), .. }) => {
                    column.push(texts.get(of(replacement) as usize))
                }
                Some(Duplicate { replacement: None, .. }) => {}
            }
        }
        Arc::new(column)
    };
    let once = column(&emails, |replacement| replacement.email);
    let keys =
        if Arc::ptr_eq(&emails, &keys) { Arc::clone(&once) } else { column(&keys, |replacement| replacement.email) };
    (once, keys, column(&names, |replacement| replacement.name))
}

/// A member whose address is listed more than once.
struct Duplicate {
    at: u32,
    /// What replaces it. None for all but the first occurrence.
    replacement: Option<Replacement>,
}

/// The members from which an address has its spelling and its name.
struct Replacement {
    email: u32,
    name: u32,
}

fn duplicates(keys: &Texts, names: &Texts) -> Vec<Duplicate> {
    let text = |at: u32| keys.get(at as usize);
    let mut duplicates = Vec::new();
    // By their hashes, which for most lists shows that all differ. Two texts may have the same by chance, or by intent.
    let hasher = FixedState::default();
    let hash = |text: &str| (hasher.hash_one(text) >> 32) as u32;
    let mut order: Vec<(u32, u32)> = keys.iter().map(hash).zip(0..).collect();
    order.sort_unstable();
    for run in order.chunk_by_mut(|one, next| one.0 == next.0).filter(|run| run.len() > 1) {
        run.sort_by_key(|(_, at)| (text(*at), *at));
        for group in run.chunk_by(|one, next| text(one.1) == text(next.1)).filter(|group| group.len() > 1) {
            let (first, last) = (group[0].1, group[group.len() - 1].1);
            let named = group.iter().rev().find(|(_, at)| !names.get(*at as usize).is_empty());
            let replacement = Replacement { email: last, name: named.map_or(last, |named| named.1) };
            duplicates.push(Duplicate { at: first, replacement: Some(replacement) });
            duplicates.extend(group[1..].iter().map(|(_, at)| Duplicate { at: *at, replacement: None }));
        }
    }
    duplicates.sort_unstable_by_key(|duplicate| duplicate.at);
    duplicates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_members_in_any_order_are_left_once_each() {
        let listed: Vec<(String, String)> =
            (0..20_000_u32).map(|at| (format!("u{}@x.de", at.wrapping_mul(7919) % 6_000), at.to_string())).collect();
        let emails: Arc<Texts> = Arc::new(listed.iter().map(|member| &member.0).collect());
        let names = Arc::new(listed.iter().map(|member| &member.1).collect());
        let (emails, keys, names) = dedup(Arc::clone(&emails), emails, names);
        let mut expected: Vec<(&str, &str)> = Vec::new();
        for (email, name) in &listed {
            match expected.iter_mut().find(|(known, _)| known == email) {
                Some(known) => known.1 = name,
                None => expected.push((email, name)),
            }
        }
        assert_eq!(emails.iter().zip(names.iter()).collect::<Vec<_>>(), expected);
        assert!(Arc::ptr_eq(&emails, &keys));
    }
}

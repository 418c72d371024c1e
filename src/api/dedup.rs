//! Removes duplicate addresses from the members of a group, using twelve bytes per member in any order.
//!
//! An address keeps its first position, and takes the spelling and the name of its last occurrence.

use std::sync::Arc;

use foldhash::fast::FixedState;
use std::hash::BuildHasher;

use crate::store::TextList;

/// One column of all members.
type SharedTexts = Arc<TextList>;

/// Removes the members whose address occurs again. Takes and returns the addresses, the keys by which they are
/// compared, and the names. Addresses and keys may be the same column.
pub(super) fn dedup(
    emails: SharedTexts,
    keys: SharedTexts,
    names: SharedTexts,
) -> (SharedTexts, SharedTexts, SharedTexts) {
    let duplicates = duplicates(&keys, &names);
    if duplicates.is_empty() {
        return (emails, keys, names);
    }
    let column = |texts: &TextList, of: fn(&Replacement) -> u32| {
        let mut duplicates = duplicates.iter().peekable();
        let mut column = TextList::default();
        for (at, text) in (0..).zip(texts.iter()) {
            match duplicates.next_if(|duplicate| duplicate.at == at) {
                None => column.push(text),
                Some(Duplicate { replacement: Some(replacement), .. }) => {
                    column.push(texts.get(of(replacement) as usize));
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

/// A member whose address occurs more than once.
struct Duplicate {
    at: u32,
    /// The member's replacement; `None` removes it, as for all but the first occurrence.
    replacement: Option<Replacement>,
}

/// The indices of the members from which to take the spelling and the name.
struct Replacement {
    email: u32,
    name: u32,
}

fn duplicates(keys: &TextList, names: &TextList) -> Vec<Duplicate> {
    let text = |at: u32| keys.get(at as usize);
    let mut duplicates = Vec::new();
    // Sort by hash, which for most lists shows that all are different. Two texts may collide, by chance or by intent.
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
    fn duplicates_among_many_members_are_removed_in_any_order() {
        let listed: Vec<(String, String)> =
            (0..20_000_u32).map(|at| (format!("u{}@x.de", at.wrapping_mul(7919) % 6_000), at.to_string())).collect();
        let emails: Arc<TextList> = Arc::new(listed.iter().map(|member| &member.0).collect());
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

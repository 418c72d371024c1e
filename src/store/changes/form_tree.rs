//! Whether the forms that a reader follows are still the same ones: a form can be moved below another one, or away from it,
//! with all its submissions, of which none changes.
//!
//! Settling keeps where each form was in the tree, by numbers of the log. Only forms that were moved since the reader's
//! number, or deleted, are looked at: every other form follows its parent. A form that was inserted since has no submission
//! that the reader could have missed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::store::StoreError;
use crate::store::engine::PooledConnection;
use crate::store::statement::sql;

/// How many placements of moved forms are compared, and how many levels of the tree are climbed.
///
/// Larger: a page takes longer after the tree was rebuilt. Smaller: more readers have to begin again, although their forms
/// are the same.
const MAX_PLACEMENTS: i64 = 10_000;
const MAX_LEVELS: usize = 64;

/// Where a form is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placement {
    parent: Option<i64>,
    is_deleted: bool,
}

/// A form that was moved or deleted.
#[derive(Clone, Copy, Debug)]
struct Moved {
    before: Placement,
    after: Placement,
}

/// Whether a form that was moved or deleted after the number `seen` is no longer among some forms and their sub-forms, or is
/// now. A form that is gone only counts if the log has something of it after `position`.
pub(super) async fn has_changed(
    reader: &mut PooledConnection,
    forms: &[i64],
    seen: i64,
    position: i64,
) -> Result<bool, StoreError> {
    let Some(moved) = moved_since(reader, seen).await? else { return Ok(true) };
    if moved.is_empty() {
        return Ok(false);
    }
    let forms: BTreeSet<i64> = forms.iter().copied().collect();
    let Some(parents) = parents_of(reader, &moved, &forms).await? else { return Ok(true) };
    let mut gone = Vec::new();
    for (form, Moved { before, after }) in &moved {
        if before.is_deleted {
            continue;
        }
        let is_within = |now: fn(&Moved) -> Placement| {
            !now(&moved[form]).is_deleted
                && is_below(*form, &forms, |form| match moved.get(&form) {
                    Some(moved) => now(moved).parent,
                    None => parents.get(&form).copied().flatten(),
                })
        };
        let (was_within, is_within) = (is_within(|moved| moved.before), is_within(|moved| moved.after));
        match (was_within, is_within) {
            // Submissions of a form that the reader names are found all the same.
            (true, false) if after.is_deleted => {
                gone.extend(Some(*form).filter(|form| !forms.contains(form)));
            }
            (was_within, is_within) if was_within != is_within => return Ok(true),
            _ => {}
        }
    }
    if gone.is_empty() {
        return Ok(false);
    }
    let sql = sql!(
        "SELECT EXISTS (SELECT 1 FROM submission_changes WHERE seq > {position} AND form_id {in gone})
           OR EXISTS (SELECT 1 FROM submission_moves WHERE seq > {position} AND form_id {in gone})",
        position,
        gone,
    );
    Ok(reader.fetch_one(sql).await?.get(0)?)
}

/// The forms that were moved or deleted after a number. None: there are too many.
async fn moved_since(reader: &mut PooledConnection, seen: i64) -> Result<Option<BTreeMap<i64, Moved>>, StoreError> {
    // Forms without an older placement were inserted since.
    let sql = sql!(
        "SELECT form_id, seq, parent_id, deleted FROM form_placements p
         WHERE form_id IN (SELECT form_id FROM form_placements WHERE seq > {seen})
           AND EXISTS (SELECT 1 FROM form_placements o WHERE o.form_id = p.form_id AND o.seq <= {seen})
         ORDER BY form_id, seq LIMIT {limit}",
        seen,
        limit = MAX_PLACEMENTS + 1,
    );
    let rows = reader.fetch_all(sql).await?;
    if i64::try_from(rows.len()).is_ok_and(|rows| rows > MAX_PLACEMENTS) {
        return Ok(None);
    }
    let mut moved = BTreeMap::new();
    for row in rows {
        let (form, seq): (i64, i64) = (row.get(0)?, row.get(1)?);
        let placement = Placement { parent: row.get(2)?, is_deleted: row.get(3)? };
        let entry = moved.entry(form).or_insert(Moved { before: placement, after: placement });
        if seq <= seen {
            entry.before = placement;
        }
        entry.after = placement;
    }
    Ok(Some(moved))
}

/// The parents of the forms above those that were moved. None: there are too many levels.
async fn parents_of(
    reader: &mut PooledConnection,
    moved: &BTreeMap<i64, Moved>,
    forms: &BTreeSet<i64>,
) -> Result<Option<HashMap<i64, Option<i64>>>, StoreError> {
    let mut parents: HashMap<i64, Option<i64>> = HashMap::new();
    let mut above: BTreeSet<i64> =
        moved.values().flat_map(|moved| [moved.before.parent, moved.after.parent]).flatten().collect();
    for _ in 0..MAX_LEVELS {
        above.retain(|form| !moved.contains_key(form) && !forms.contains(form) && !parents.contains_key(form));
        if above.is_empty() {
            return Ok(Some(parents));
        }
        let ids: Vec<i64> = above.iter().copied().collect();
        let sql = sql!("SELECT id, parent_id FROM forms WHERE id {in ids}", ids = &ids);
        parents.extend(ids.iter().map(|id| (*id, None)));
        above.clear();
        for row in reader.fetch_all(sql).await? {
            let parent: Option<i64> = row.get(1)?;
            parents.insert(row.get(0)?, parent);
            above.extend(parent);
        }
    }
    Ok(None)
}

/// Whether a form is one of `forms` or below one. Forms whose parents go in a circle are below none that is not among them.
fn is_below(form: i64, forms: &BTreeSet<i64>, parent: impl Fn(i64) -> Option<i64>) -> bool {
    let (mut at, mut passed) = (form, BTreeSet::new());
    while passed.insert(at) {
        if forms.contains(&at) {
            return true;
        }
        let Some(above) = parent(at) else { return false };
        at = above;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_below_those_that_its_parents_lead_to() {
        let parents = HashMap::from([(3, 2), (2, 1), (5, 6), (6, 5)]);
        let parent = |form| parents.get(&form).copied();
        for (form, forms, expected) in
            [(3, &[1][..], true), (3, &[3], true), (1, &[2, 3], false), (5, &[1], false), (5, &[6], true)]
        {
            assert_eq!(is_below(form, &forms.iter().copied().collect(), parent), expected, "{form} {forms:?}");
        }
    }
}

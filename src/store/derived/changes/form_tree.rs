//! Whether the forms that a reader follows are still the same ones: a form can be moved below another one, or away from it,
//! with all its submissions, of which none changes.
//!
//! Settling keeps where each form was in the tree, by numbers of the log. Only forms that were moved since the reader's
//! number, or deleted, are looked at: every other form follows its parent. A form that was inserted since has no submission
//! that the reader could have missed.
//!
//! A reader can be limited twice: by the forms that it names, and by the reach of its token. Then the forms of one limit
//! follow their parents, too, in or out of the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::store::StoreError;
use crate::store::engine::PooledConnection;
use crate::store::reach::FormsBelow;
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

/// Whether a form that was moved or deleted after the number `seen` is no longer among the forms of every limit and their
/// sub-forms, or is now. A form that is gone only counts if the log has something of it after `position`, and it is not one of
/// `read`: those whose submissions are found although they are gone.
pub(super) async fn has_changed(
    reader: &mut PooledConnection,
    limits: &[&[i64]],
    read: &[i64],
    seen: i64,
    position: i64,
) -> Result<bool, StoreError> {
    let Some(moved) = moved_since(reader, seen).await? else { return Ok(true) };
    if moved.is_empty() {
        return Ok(false);
    }
    let limits: Vec<BTreeSet<i64>> = limits.iter().map(|forms| forms.iter().copied().collect()).collect();
    let mut looked_at: BTreeSet<i64> = moved.keys().copied().collect();
    if limits.len() > 1 {
        looked_at.extend(limits.iter().flatten());
    }
    let Some(parents) = parents_of(reader, &moved, &looked_at, &limits).await? else { return Ok(true) };
    let (moved, parents) = (&moved, &parents);
    let parent_then = |then: fn(&Moved) -> Placement| {
        move |form: i64| match moved.get(&form) {
            Some(moved) => then(moved).parent,
            None => parents.get(&form).copied().flatten(),
        }
    };
    let of_limits = |then: fn(&Moved) -> Placement| {
        limits.iter().map(|forms| FormsBelow::new(forms, parent_then(then))).collect::<Vec<_>>()
    };
    let mut below_before = of_limits(|moved| moved.before);
    let mut below_after = of_limits(|moved| moved.after);
    let mut gone = Vec::new();
    for form in looked_at {
        let moved = moved.get(&form);
        if moved.is_some_and(|moved| moved.before.is_deleted) {
            continue;
        }
        let is_deleted = moved.is_some_and(|moved| moved.after.is_deleted);
        let was_within = below_before.iter_mut().all(|below| below.has(form));
        let is_within = !is_deleted && below_after.iter_mut().all(|below| below.has(form));
        match (was_within, is_within) {
            // Submissions of a form that is read are found all the same.
            (true, false) if is_deleted => gone.extend(Some(form).filter(|form| !read.contains(form))),
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

/// The parents of the forms above some, as far as they were not moved and are not of every limit. None: there are too many
/// levels.
async fn parents_of(
    reader: &mut PooledConnection,
    moved: &BTreeMap<i64, Moved>,
    forms: &BTreeSet<i64>,
    limits: &[BTreeSet<i64>],
) -> Result<Option<HashMap<i64, Option<i64>>>, StoreError> {
    let mut parents: HashMap<i64, Option<i64>> = HashMap::new();
    let above_moved = moved.values().flat_map(|moved| [moved.before.parent, moved.after.parent]).flatten();
    let mut above: BTreeSet<i64> = above_moved.chain(forms.iter().copied()).collect();
    for _ in 0..MAX_LEVELS {
        above.retain(|form| {
            let is_of_all = limits.iter().all(|forms| forms.contains(form));
            !moved.contains_key(form) && !is_of_all && !parents.contains_key(form)
        });
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

//! Notes in the change log where forms are in the tree, so that readers of single forms learn that their set of forms
//! changed: [`crate::store::changes`].
//!
//! Writers note forms in a table of their own, since only such readers need to know, and searches don't wait for it. As with
//! submissions, what is there is compared with what was there when formgate looked before, so notes may be written for
//! nothing or in any order.

use std::collections::{BTreeSet, HashMap};

use super::Settler;
use super::numbering::{Events, Numbering};
use super::release::Taken;
use crate::store::StoreError;
use crate::store::engine::{Database, Transaction};
use crate::store::statement::{JsonRows, Sql, TableSpec, sql};

const PLACEMENTS: TableSpec = TableSpec {
    name: "form_placements",
    columns: &[("form_id", "bigint"), ("seq", "bigint"), ("parent_id", "bigint"), ("deleted", "boolean")],
    key: 2,
};

/// Which forms to look at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Placed<'f> {
    These(&'f BTreeSet<i64>),
    All,
}

/// Where a form is: below which one. None: it does not exist.
type Place = Option<Option<i64>>;

impl Numbering {
    /// Notes where forms are now. Forms that were moved or deleted take one number together.
    pub(super) async fn place(&mut self, transaction: &mut Transaction, forms: Placed<'_>) -> Result<(), StoreError> {
        let ids: Vec<i64> = match forms {
            Placed::These(forms) if forms.is_empty() => return Ok(()),
            Placed::These(forms) => forms.iter().copied().collect(),
            Placed::All => Vec::new(),
        };
        let is_wanted = |form: &'static str| match forms {
            Placed::These(_) => sql!("{+form} {in ids}", form = Sql::text(form), ids = &ids),
            Placed::All => sql!("TRUE {scans: any form may have been moved}"),
        };
        let sql = sql!("SELECT id, parent_id FROM forms WHERE {+is_wanted}", is_wanted = is_wanted("id"));
        let mut now: HashMap<i64, Option<i64>> = HashMap::new();
        for row in transaction.fetch_all(sql).await? {
            now.insert(row.get(0)?, row.get(1)?);
        }
        let sql = sql!(
            "SELECT form_id, parent_id, deleted FROM form_placements p
             WHERE seq = (SELECT max(seq) FROM form_placements n WHERE n.form_id = p.form_id) AND {+is_wanted}",
            is_wanted = is_wanted("form_id"),
        );
        let mut before: HashMap<i64, Place> = HashMap::new();
        for row in transaction.fetch_all(sql).await? {
            let place = if row.get(2)? { None } else { Some(row.get(1)?) };
            before.insert(row.get(0)?, place);
        }
        let number = self.following();
        let (mut rows, mut takes_number) = (JsonRows::new(), false);
        for form in now.keys().chain(before.keys()).copied().collect::<BTreeSet<i64>>() {
            let (known, place) = (before.get(&form).copied(), now.get(&form).copied());
            if known.unwrap_or(None) == place {
                continue;
            }
            // One that is seen for the first time may have been there for long.
            takes_number |= known.is_some();
            rows.push(&(form, if known.is_some() { number } else { 0 }, place.flatten(), place.is_none()));
        }
        PLACEMENTS.upsert(transaction, &rows).await?;
        if takes_number {
            self.take_number();
        }
        Ok(())
    }
}

/// Notes that any form may have been moved.
pub(super) async fn note_forms(transaction: &mut Transaction) -> Result<(), StoreError> {
    transaction.execute(sql!("INSERT INTO form_notes (form_id) VALUES (NULL)")).await?;
    Ok(())
}

/// Looks where the forms are that writers have noted.
pub(in crate::store) async fn place_noted(database: &Database) -> Result<(), StoreError> {
    let mut transaction = Settler::begin_for_a_request(database).await?;
    let mut numbering = Numbering::begin(&mut transaction, Events::Sent).await?;
    let rows = transaction.fetch_all(sql!("DELETE FROM form_notes RETURNING form_id {scans: takes all}")).await?;
    let noted: BTreeSet<Option<i64>> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let forms: BTreeSet<i64> = noted.iter().copied().flatten().collect();
    let placed = if noted.contains(&None) { Placed::All } else { Placed::These(&forms) };
    numbering.place(&mut transaction, placed).await?;
    numbering.end(&mut transaction, Taken::Some).await?;
    Ok(transaction.commit().await?)
}

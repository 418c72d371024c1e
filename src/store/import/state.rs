//! The part of the database that an import needs to check a batch, in memory.
//!
//! Before a batch is checked, [`ImportState::look_up`] reads everything that its records touch, with one statement per
//! kind of object. Each accepted record is added. So the checks see the database as if each record had been written
//! before the next one. Ids of users, labels, groups, flow steps and elements are kept for the whole import;
//! submissions and unique texts are looked up for each batch, so that memory does not grow with the number of
//! submissions.

use std::collections::{HashMap, HashSet};

use super::batch::Batch;
use super::record::FormRecord;
use super::touched::Touched;
use crate::store::StoreError;
use crate::store::TextList;
use crate::store::engine::Transaction;
use crate::store::mailbox::key;
use crate::store::statement::{Row, Sql, sql};

/// The rows of some ids.
type SelectById = fn(Vec<i64>) -> Sql;

/// What checks need to know about a form.
#[derive(Clone, Copy, Debug)]
pub(super) struct FormFacts {
    pub(super) parent: Option<i64>,
    pub(super) graduated: bool,
}

/// What checks need to know about a submission.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubmissionFacts {
    pub(super) form: i64,
    pub(super) parent: Option<i64>,
}

/// Texts that only one object can have, by object and by text.
#[derive(Debug, Default)]
pub(super) struct UniqueTexts {
    owner: HashMap<String, i64>,
    of: HashMap<i64, String>,
}

impl UniqueTexts {
    pub(super) fn owner(&self, text: &str) -> Option<i64> {
        self.owner.get(text).copied()
    }

    /// Sets or removes the text of an object, and frees its previous text.
    pub(super) fn set(&mut self, id: i64, text: Option<String>) {
        if let Some(old) = self.of.remove(&id) {
            self.owner.remove(&old);
        }
        if let Some(text) = text {
            self.owner.insert(text.clone(), id);
            self.of.insert(id, text);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ImportState {
    // For the whole import.
    pub(super) users: HashSet<i64>,
    pub(super) labels: HashSet<i64>,
    pub(super) groups: HashSet<i64>,
    pub(super) flow_steps: HashSet<i64>,
    pub(super) forms: HashMap<i64, FormFacts>,
    pub(super) built_in: i64,
    /// The form of an element.
    pub(super) form_of: HashMap<i64, i64>,
    /// The elements of the forms that were looked up.
    pub(super) elements_of: HashMap<i64, HashSet<i64>>,

    // For one batch.
    pub(super) emails: UniqueTexts,
    pub(super) external_ids: UniqueTexts,
    /// Elements that answers refer to.
    pub(super) answered: HashSet<i64>,
    /// Forms with a submission that has both a parent and children.
    pub(super) nested: HashSet<i64>,
    pub(super) submissions: HashMap<i64, SubmissionFacts>,
    pub(super) children: HashMap<i64, HashSet<i64>>,
    /// The submissions of the batch that the database has already.
    pub(super) stored: HashSet<i64>,
    /// Elements that a form no longer lists.
    pub(super) dropped: HashSet<i64>,
}

impl ImportState {
    /// The state before the first record: every form, and the id of the built-in group.
    pub(super) async fn load(transaction: &mut Transaction) -> Result<Self, StoreError> {
        let mut state = Self::default();
        let forms = sql!("SELECT id, parent_id, graduated FROM forms {scans: every form is kept in memory}");
        for row in transaction.fetch_all(forms).await? {
            state.forms.insert(row.get(0)?, FormFacts { parent: row.get(1)?, graduated: row.get(2)? });
        }
        for row in transaction.fetch_all(sql!("SELECT id FROM groups WHERE built_in {scans: once an import}")).await? {
            state.built_in = row.get(0)?;
        }
        Ok(state)
    }

    /// Reads what the records of a batch touch.
    pub(super) async fn look_up(&mut self, transaction: &mut Transaction, batch: &Batch) -> Result<(), StoreError> {
        let touched = Touched::of(batch);
        self.clear_batch();
        let simple: [(&mut HashSet<i64>, &HashSet<i64>, SelectById); 4] = [
            (&mut self.users, &touched.users, |ids| sql!("SELECT id FROM users WHERE id {in ids}", ids)),
            (&mut self.labels, &touched.labels, |ids| sql!("SELECT id FROM labels WHERE id {in ids}", ids)),
            (&mut self.groups, &touched.groups, |ids| sql!("SELECT id FROM groups WHERE id {in ids}", ids)),
            (&mut self.flow_steps, &touched.flow_steps, |ids| sql!("SELECT id FROM flow_steps WHERE id {in ids}", ids)),
        ];
        for (known, touched, select) in simple {
            for row in rows(transaction, touched.difference(known), select).await? {
                known.insert(row.get(0)?);
            }
        }
        self.look_up_unique(transaction, &touched).await?;
        self.look_up_elements(transaction, &touched).await?;
        self.look_up_unlisted(transaction, &touched).await?;
        self.look_up_submissions(transaction, &touched).await
    }

    fn clear_batch(&mut self) {
        self.emails = UniqueTexts::default();
        self.external_ids = UniqueTexts::default();
        self.answered.clear();
        self.nested.clear();
        self.submissions.clear();
        self.children.clear();
        self.stored.clear();
        self.dropped.clear();
    }

    async fn look_up_unique(&mut self, transaction: &mut Transaction, touched: &Touched<'_>) -> Result<(), StoreError> {
        let users = rows(transaction, &touched.written_users, |ids| {
            sql!(
                "SELECT id, email_folded FROM users WHERE email_folded IS NOT NULL AND id {in ids}
                 UNION SELECT id, email_folded FROM users WHERE email_folded {in emails}",
                ids,
                emails = touched.emails.iter().collect::<TextList>(),
            )
        });
        for row in users.await? {
            self.emails.set(row.get(0)?, Some(key(&row.get::<String>(1)?).into_owned()));
        }
        let groups = rows(transaction, &touched.written_groups, |ids| {
            sql!(
                "SELECT id, external_id FROM groups WHERE external_id IS NOT NULL AND id {in ids}
                 UNION SELECT id, external_id FROM groups WHERE external_id {in external_ids}",
                ids,
                external_ids = touched.external_ids.iter().collect::<TextList>(),
            )
        });
        for row in groups.await? {
            self.external_ids.set(row.get(0)?, Some(row.get(1)?));
        }
        Ok(())
    }

    async fn look_up_elements(
        &mut self,
        transaction: &mut Transaction,
        touched: &Touched<'_>,
    ) -> Result<(), StoreError> {
        let forms: Vec<i64> =
            touched.forms.iter().filter(|form| !self.elements_of.contains_key(form)).copied().collect();
        for &form in &forms {
            self.elements_of.insert(form, HashSet::new());
        }
        let of_forms = |forms: Vec<i64>| sql!("SELECT id, form_id FROM elements WHERE form_id {in forms}", forms);
        let mut found = rows(transaction, &forms, of_forms).await?;
        let unknown = touched.elements.iter().filter(|element| !self.form_of.contains_key(element));
        let of_ids = |ids: Vec<i64>| sql!("SELECT id, form_id FROM elements WHERE id {in ids}", ids);
        found.extend(rows(transaction, unknown, of_ids).await?);
        for row in found {
            let (element, form) = (row.get(0)?, row.get(1)?);
            self.form_of.insert(element, form);
            // A form that was not looked up is not added: it may have more elements than this one.
            if let Some(elements) = self.elements_of.get_mut(&form) {
                elements.insert(element);
            }
        }
        Ok(())
    }

    /// Looks up what would forbid a form's record: answers to an omitted element, and submissions that can't be
    /// graduated.
    async fn look_up_unlisted(
        &mut self,
        transaction: &mut Transaction,
        touched: &Touched<'_>,
    ) -> Result<(), StoreError> {
        let unlisted: Vec<i64> = touched.written_forms.iter().flat_map(|form| self.unlisted(form)).collect();
        let answered = rows(transaction, &unlisted, |ids| {
            sql!(
                "SELECT id FROM elements e
                 WHERE EXISTS (SELECT 1 FROM answers a WHERE a.element_id = e.id) AND id {in ids}",
                ids,
            )
        });
        for row in answered.await? {
            self.answered.insert(row.get(0)?);
        }
        let graduating = touched.written_forms.iter().filter(|form| self.graduates(form)).map(|form| &form.id);
        let nested = rows(transaction, graduating, |forms| {
            sql!(
                "SELECT DISTINCT p.form_id FROM submissions p
                 WHERE p.parent_id IS NOT NULL AND EXISTS (SELECT 1 FROM submissions c WHERE c.parent_id = p.id)
                   AND p.form_id {in forms}
                 {scans: a form seldom begins to be graduated}",
                forms,
            )
        });
        for row in nested.await? {
            self.nested.insert(row.get(0)?);
        }
        Ok(())
    }

    /// The elements of a form that its record omits.
    pub(super) fn unlisted(&self, form: &FormRecord) -> Vec<i64> {
        let Some(elements) = self.elements_of.get(&form.id) else { return Vec::new() };
        let listed: HashSet<i64> = form.elements.iter().map(|element| element.id).collect();
        elements.difference(&listed).copied().collect()
    }

    /// Whether a record makes an ungraduated form graduated.
    pub(super) fn graduates(&self, form: &FormRecord) -> bool {
        form.graduated && self.forms.get(&form.id).is_some_and(|facts| !facts.graduated)
    }

    async fn look_up_submissions(
        &mut self,
        transaction: &mut Transaction,
        touched: &Touched<'_>,
    ) -> Result<(), StoreError> {
        let ids = touched.submissions.union(&touched.parents);
        let of_ids = |ids: Vec<i64>| sql!("SELECT id, form_id, parent_id FROM submissions WHERE id {in ids}", ids);
        for row in rows(transaction, ids, of_ids).await? {
            let (id, facts) = (row.get(0)?, SubmissionFacts { form: row.get(1)?, parent: row.get(2)? });
            self.submissions.insert(id, facts);
            if touched.submissions.contains(&id) {
                self.stored.insert(id);
            }
        }
        // Children only matter for a stored submission that gets a parent.
        let stored = touched.below.iter().filter(|id| self.stored.contains(id));
        let below = |ids: Vec<i64>| sql!("SELECT parent_id, id FROM submissions WHERE parent_id {in ids}", ids);
        for row in rows(transaction, stored, below).await? {
            self.children.entry(row.get(0)?).or_default().insert(row.get(1)?);
        }
        Ok(())
    }
}

/// The rows that `select` selects by ids. Runs no statement if there are no ids.
async fn rows<'i>(
    transaction: &mut Transaction,
    ids: impl IntoIterator<Item = &'i i64>,
    select: impl FnOnce(Vec<i64>) -> Sql,
) -> Result<Vec<Row>, StoreError> {
    let ids: Vec<i64> = ids.into_iter().copied().collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    Ok(transaction.fetch_all(select(ids)).await?)
}

//! Reads submissions of any size in parts, so that an answer that shows them takes the same memory.
//!
//! Every part is a short statement or two on a connection of its own checkout; between two parts nothing is held. A
//! part ends before its answers exceed [`PART_BYTES`]; a single answer is never divided. Graduated children are read a
//! few dozen at a time.
//!
//! So the parts are no snapshot: a submission that changes meanwhile may show answers from before and after. One that
//! is deleted, becomes a draft or gets out of reach before its first part is left out.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::{Answer, Field, FormFields, ID, StoredAnswer, UPDATED_AT, answer_of, columns, shown};
use crate::store::statement::{Row, sql};
use crate::store::{Store, StoreError};

/// How many bytes of answers a part has at most, unless it is a single answer.
///
/// Larger: a part takes more memory. Smaller: more statements.
const PART_BYTES: i64 = 256 * 1024;

/// How many entries a part has at most, answered or not.
///
/// Larger: a part takes more memory. Smaller: more parts of forms with thousands of fields.
const PART_ENTRIES: usize = 1_000;

/// How many children are read by one statement.
///
/// Larger: they take more memory. Smaller: more statements for a parent of thousands.
const CHILDREN_AT_ONCE: i64 = 50;

/// How many bytes of answers a child may have to be read together with others.
///
/// Larger: they take more memory. Smaller: more children are read by statements of their own.
const CHILD_BYTES: &str = "16384";

/// A part of what a list of submissions shows.
#[derive(Debug)]
pub enum SubmissionPart {
    /// The beginning of a submission.
    Begin {
        /// The bare id.
        id: i64,
        /// Its form.
        form: i64,
        /// As the database spells it.
        status: String,
        /// When it was created.
        created_at: Timestamp,
        /// When it last changed.
        updated_at: Timestamp,
    },
    /// Entries of the submission that was begun, of one form.
    Entries {
        /// The fields of the form.
        fields: Arc<[Field<'static>]>,
        /// Entries of these fields.
        entries: Vec<Answer<'static>>,
    },
    /// The end of the submission.
    End,
}

/// Reads submissions one after another.
#[derive(Debug)]
pub struct SubmissionReader {
    store: Store,
    ids: VecDeque<i64>,
    parent: Option<Parent>,
    /// The fields of the form that was read last. Submissions of a page, and children, mostly share it.
    fields: Option<(i64, Arc<[Field<'static>]>)>,
}

/// The submission that was begun.
#[derive(Debug)]
struct Parent {
    id: i64,
    /// The submission itself and children, whose entries are not read yet.
    members: VecDeque<Member>,
    last_child: i64,
}

/// A submission whose entries are read.
#[derive(Debug)]
struct Member {
    id: i64,
    form: i64,
    updated_at: Timestamp,
    /// The next field.
    next: usize,
    answers: MemberAnswers,
}

#[derive(Debug)]
enum MemberAnswers {
    Unknown,
    /// All of them, by field.
    Read(HashMap<i64, StoredAnswer<'static>>),
    /// How many bytes each has, by field.
    Measured(HashMap<i64, i64>),
}

impl Store {
    /// Reads submissions in parts, in the order of the ids.
    #[must_use]
    pub fn read_in_parts(&self, ids: impl IntoIterator<Item = i64>) -> SubmissionReader {
        SubmissionReader { store: self.clone(), ids: ids.into_iter().collect(), parent: None, fields: None }
    }
}

impl SubmissionReader {
    /// The next part; None behind the last one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`], [`StoreError::MemorySpent`].
    pub async fn next(&mut self) -> Result<Option<SubmissionPart>, StoreError> {
        let Some(mut parent) = self.parent.take() else { return self.begin_next().await };
        loop {
            if parent.members.is_empty() && !self.store.elements().are_none() {
                self.read_children(&mut parent).await?;
            }
            let Some(mut member) = parent.members.pop_front() else { return Ok(Some(SubmissionPart::End)) };
            let fields = self.fields_of(member.form).await?;
            let entries = self.read_entries(&mut member, &fields).await?;
            if member.next < fields.len() {
                parent.members.push_front(member);
            }
            if !entries.is_empty() {
                self.parent = Some(parent);
                return Ok(Some(SubmissionPart::Entries { fields, entries }));
            }
        }
    }

    async fn begin_next(&mut self) -> Result<Option<SubmissionPart>, StoreError> {
        while let Some(id) = self.ids.pop_front() {
            let mut reader = self.store.database.reader().await?;
            let sql = sql!(
                "SELECT m.id, m.form_id, m.status, m.created_at, m.updated_at FROM ({+shown}) AS m",
                shown = shown(sql!("= {id}", id), self.store.reach()),
            );
            let Some(row) = reader.fetch_optional(sql).await? else { continue };
            let updated_at = row.get(4)?;
            let answers = MemberAnswers::Unknown;
            let form = row.get(1)?;
            let itself = Member { id, form, updated_at, next: 0, answers };
            let itself = (!self.store.elements().are_none()).then_some(itself);
            self.parent = Some(Parent { id, members: itself.into_iter().collect(), last_child: 0 });
            let (status, created_at) = (row.get(2)?, row.get(3)?);
            return Ok(Some(SubmissionPart::Begin { id, form, status, created_at, updated_at }));
        }
        Ok(None)
    }

    async fn read_children(&mut self, parent: &mut Parent) -> Result<(), StoreError> {
        let mut reader = self.store.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns}
             FROM (
               SELECT c.id, p.id AS child_of, c.form_id, c.status, {instant c.created_at} AS created_at,
                 {instant c.updated_at} AS updated_at
               FROM submissions p JOIN forms f ON f.id = p.form_id CROSS JOIN submissions c
               WHERE f.graduated AND c.parent_id = p.id AND NOT c.draft AND p.id = {parent} AND c.id > {last_child}{+in_reach}
               ORDER BY c.id LIMIT {limit}) AS m
             ORDER BY m.id",
            columns = columns(FormFields::Unread, self.store.elements(), CHILD_BYTES),
            parent = parent.id,
            last_child = parent.last_child,
            in_reach = self.store.reach().of_row("p.form_id"),
            limit = CHILDREN_AT_ONCE,
        );
        for row in reader.fetch_all(sql).await? {
            let (id, answers) = (row.get(ID)?, all_answers(&row)?);
            parent.last_child = id;
            let member = Member { id, form: row.get(super::FORM)?, updated_at: row.get(UPDATED_AT)?, next: 0, answers };
            parent.members.push_back(member);
        }
        Ok(())
    }

    async fn fields_of(&mut self, form: i64) -> Result<Arc<[Field<'static>]>, StoreError> {
        if let Some((known, fields)) = &self.fields
            && *known == form
        {
            return Ok(Arc::clone(fields));
        }
        let mut reader = self.store.database.reader().await?;
        let sql = sql!(
            "SELECT id, gid, name, type FROM elements WHERE form_id = {form}{+in_elements} ORDER BY position, id",
            form,
            in_elements = self.store.elements().of_row("id"),
        );
        let mut fields = Vec::new();
        for row in reader.fetch_all(sql).await? {
            let text = |column| row.get::<String>(column).map(Into::into);
            fields.push(Field { id: row.get(0)?, gid: text(1)?, name: text(2)?, kind: text(3)? });
        }
        let fields: Arc<[Field<'static>]> = fields.into();
        self.fields = Some((form, Arc::clone(&fields)));
        Ok(fields)
    }

    /// The entries of the next fields of a submission.
    async fn read_entries(
        &self,
        member: &mut Member,
        fields: &[Field<'static>],
    ) -> Result<Vec<Answer<'static>>, StoreError> {
        if matches!(member.answers, MemberAnswers::Unknown) {
            member.answers = MemberAnswers::Measured(self.measure(member.id).await?);
        }
        let rest = &fields[member.next.min(fields.len())..];
        let mut run = rest.len().min(PART_ENTRIES);
        let mut read;
        let answers = match &mut member.answers {
            MemberAnswers::Read(answers) => answers,
            MemberAnswers::Unknown => return Ok(Vec::new()),
            MemberAnswers::Measured(bytes) => {
                let mut sum = 0;
                let fits = |field: &&Field<'_>| {
                    sum += bytes.get(&field.id).copied().unwrap_or(0);
                    sum <= PART_BYTES
                };
                run = rest.iter().take(run).take_while(fits).count().max(1).min(rest.len());
                let wanted = rest[..run].iter().map(|field| field.id).filter(|id| bytes.contains_key(id));
                read = self.read_answers(member.id, wanted.collect()).await?;
                &mut read
            }
        };
        let mut entries = Vec::with_capacity(run);
        for (at, field) in rest[..run].iter().enumerate() {
            entries.push(answer_of(member.next + at, answers.remove(&field.id), member.updated_at)?);
        }
        member.next += run;
        Ok(entries)
    }

    /// How many bytes each answer of a submission has.
    async fn measure(&self, id: i64) -> Result<HashMap<i64, i64>, StoreError> {
        let mut reader = self.store.database.reader().await?;
        let sql = sql!(
            "SELECT element_id, CAST(octet_length(value) + coalesce(octet_length(CAST(files AS text)), 0) AS bigint)
             FROM answers WHERE submission_id = {id}{+in_elements}",
            id,
            in_elements = self.store.elements().of_row("element_id"),
        );
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, sqlx::Error>>()?)
    }

    async fn read_answers(
        &self,
        id: i64,
        elements: Vec<i64>,
    ) -> Result<HashMap<i64, StoredAnswer<'static>>, StoreError> {
        if elements.is_empty() {
            return Ok(HashMap::new());
        }
        let mut reader = self.store.database.reader().await?;
        let sql = sql!(
            "SELECT element_id, value, CAST(files AS text), {instant updated_at} AS updated_at
             FROM answers WHERE submission_id = {id} AND element_id {in elements}",
            id,
            elements,
        );
        let mut answers = HashMap::new();
        for row in reader.fetch_all(sql).await? {
            let at: Timestamp = row.get(3)?;
            let files = row.get::<Option<String>>(2)?.map(Into::into);
            let value = Some(row.get::<String>(1)?.into());
            answers.insert(row.get(0)?, StoredAnswer(row.get(0)?, value, files, at.as_microsecond()));
        }
        Ok(answers)
    }
}

/// All answers in a row, if it has them.
fn all_answers(row: &Row) -> Result<MemberAnswers, StoreError> {
    if row.is_null(super::ANSWERS)? {
        return Ok(MemberAnswers::Unknown);
    }
    let answers: Vec<StoredAnswer<'_>> = row.records(super::ANSWERS)?;
    if answers.iter().any(|answer| answer.1.is_none()) {
        return Ok(MemberAnswers::Unknown);
    }
    Ok(MemberAnswers::Read(answers.into_iter().map(|answer| (answer.0, answer.into_owned())).collect()))
}

//! A [`SubmissionFilter`] as SQL, for both databases.
//!
//! The count and the page are made by the same [`write_conditions`], so that they can't drift apart. A condition on a
//! list of rows elsewhere is an `IN (SELECT …)`, which lets the planner start from either side. Filters on answers see a
//! graduated child's answers through its parent: they find submissions by their own answers and then step up to
//! `child_of`; all others look at the parent alone.

use super::filter::{Keyword, SortBy, SortDirection, SubmissionFilter, Term};
use super::page::{Page, PageRequest};
use super::sql::{Dialect, Sql};
use super::submissions::{SUBMISSION_COLUMNS, Submission, SubmissionRow, with_entries};
use super::{Store, StoreError};

/// Joins the answers of one document; a keyword that has it can't be looked up there.
pub(super) const DOCUMENT_SEPARATOR: char = '\u{1f}';

/// The shortest text that trigrams can find.
const TRIGRAM: usize = 3;

/// How much of an answer the terms index holds; the rest is compared with the row.
const INDEXED_PREFIX: usize = 64;

impl Store {
    /// One page of the submissions that match, with their answers: three statements, however many rows there are.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn search(&self, filter: &SubmissionFilter, page: PageRequest) -> Result<Page<Submission>, StoreError> {
        if filter.terms.iter().any(|term| term.element.is_none()) {
            return Ok(Page { items: Vec::new(), total: 0 });
        }
        let mut reader = self.database.reader().await?;
        let mut count = reader.sql();
        count.push("SELECT count(*) FROM submissions s WHERE ");
        write_conditions(&mut count, filter);
        let total: i64 = reader.fetch_one(count).await?.get(0)?;
        let total = u64::try_from(total).expect("a count is not negative");

        if page.offset() >= i64::try_from(total).unwrap_or(i64::MAX) {
            return Ok(Page { items: Vec::new(), total });
        }
        let mut rows = reader.sql();
        write_page(&mut rows, filter, page);
        let rows = reader.fetch_all(rows).await?;
        let rows = rows.iter().map(SubmissionRow::read).collect::<Result<_, _>>()?;
        Ok(Page { items: with_entries(&mut reader, rows).await?, total })
    }
}

fn write_page(sql: &mut Sql, filter: &SubmissionFilter, page: PageRequest) {
    sql.push("SELECT ").push(SUBMISSION_COLUMNS).push(" FROM submissions s WHERE ");
    write_conditions(sql, filter);
    sql.push(match (filter.sort_by, filter.sort_direction) {
        (SortBy::UpdatedAt, SortDirection::Descending) => " ORDER BY s.updated_at DESC, s.id DESC",
        (SortBy::UpdatedAt, SortDirection::Ascending) => " ORDER BY s.updated_at, s.id",
        (SortBy::CreatedAt, SortDirection::Descending) => " ORDER BY s.created_at DESC, s.id DESC",
        (SortBy::CreatedAt, SortDirection::Ascending) => " ORDER BY s.created_at, s.id",
    });
    sql.push(" LIMIT ").bind(i64::from(page.size)).push(" OFFSET ").bind(page.offset());
}

/// What a submission must have to be returned by itself; the words are those of the partial indexes.
pub(super) const LISTED: &str = "NOT s.draft AND s.child_of IS NULL";

fn write_conditions(sql: &mut Sql, filter: &SubmissionFilter) {
    sql.push(LISTED);
    if !filter.forms.is_empty() {
        sql.push(" AND s.form_id IN (WITH RECURSIVE wanted (id) AS (SELECT id FROM forms WHERE id")
            .in_ids(&filter.forms);
        sql.push(" UNION SELECT f.id FROM forms f JOIN wanted ON f.parent_id = wanted.id) SELECT id FROM wanted)");
    }
    if !filter.statuses.is_empty() {
        sql.push(" AND s.status").in_texts(filter.statuses.iter().map(|status| status.as_str().to_owned()));
    }
    if !filter.submitters.is_empty() {
        sql.push(" AND s.submitter_id").in_ids(&filter.submitters);
    }
    let related: [(&[i64], &str, &str); 5] = [
        (&filter.pending, "SELECT submission_id FROM submission_pending WHERE user_id", ""),
        (&filter.participants, "SELECT submission_id FROM submission_participants WHERE user_id", ""),
        (&filter.labels, "SELECT submission_id FROM submission_labels WHERE label_id", " AND NOT shared"),
        (&filter.shared_labels, "SELECT submission_id FROM submission_labels WHERE label_id", " AND shared"),
        (&filter.flows, "SELECT submission_id FROM submission_flow_steps WHERE flow_step_id", ""),
    ];
    for (ids, select, and) in related {
        if !ids.is_empty() {
            sql.push(" AND s.id IN (").push(select).in_ids(ids).push(and).push(")");
        }
    }
    if let Some(start) = filter.start {
        sql.push(" AND s.created_at >= ").bind(start);
    }
    if let Some(end) = filter.end {
        sql.push(" AND s.created_at <= ").bind(end);
    }
    for term in &filter.terms {
        write_term(sql, term);
    }
    if let Some(keyword) = &filter.search {
        write_keyword(sql, keyword);
    }
}

/// The submission that shows the answers of submission `m`: itself, or the one it is a child of.
const SHOWN_IN: &str = "SELECT coalesce(m.child_of, m.id) FROM submissions m JOIN ";

fn write_term(sql: &mut Sql, term: &Term) {
    let element = term.element.expect("a search with a key that names no element finds nothing, and is not written");
    let prefixes = || term.answers.iter().map(|answer| answer.chars().take(INDEXED_PREFIX).collect());
    sql.push(" AND s.id IN (")
        .push(SHOWN_IN)
        .push("(SELECT submission_id FROM answers WHERE element_id = ")
        .bind(element);
    sql.push_either(" AND left(folded, 64)", " AND substr(folded, 1, 64)").in_texts(prefixes());
    sql.push(" AND folded").in_texts(term.answers.iter().cloned());
    sql.push(" UNION SELECT submission_id FROM answer_lines WHERE element_id = ").bind(element);
    sql.push_either(" AND left(line, 64)", " AND substr(line, 1, 64)").in_texts(prefixes());
    sql.push(" AND line").in_texts(term.answers.iter().cloned());
    sql.push(") a ON a.submission_id = m.id WHERE NOT m.draft)");
}

fn write_keyword(sql: &mut Sql, keyword: &Keyword) {
    let keyword = keyword.as_str();
    sql.push(" AND s.id IN (").push(SHOWN_IN);
    if keyword.contains(DOCUMENT_SEPARATOR) {
        // In a document it would match across two answers.
        sql.push("answers a ON a.submission_id = m.id WHERE ").push_either("strpos(a.folded, ", "instr(a.folded, ");
        sql.bind(keyword).push(") > 0");
    } else {
        match sql.dialect() {
            Dialect::Postgres => {
                sql.push("submission_documents d ON d.submission_id = m.id WHERE d.document LIKE ");
                sql.bind(format!("%{}%", escape_like(keyword)));
            }
            Dialect::Sqlite if keyword.chars().count() >= TRIGRAM => {
                sql.push("submission_trigrams d ON d.rowid = m.id WHERE submission_trigrams MATCH ");
                sql.bind(format!("\"{}\"", keyword.replace('"', "\"\"")));
            }
            Dialect::Sqlite => {
                sql.push("submission_documents d ON d.submission_id = m.id WHERE instr(d.document, ");
                sql.bind(keyword).push(") > 0");
            }
        }
    }
    sql.push(" AND NOT m.draft)");
}

/// Makes `%`, `_` and `\` ordinary characters of a LIKE pattern.
fn escape_like(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

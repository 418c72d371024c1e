//! What formgate keeps beside the plain tables, made anew where it differs from them.
//!
//! On SQLite a program that writes by SQL folds ASCII letters alone, so `formgate reindex` is a part of its work there;
//! on Postgres the triggers leave nothing to mend but what was done without them. Goes through the answers in bounded
//! transactions, so that writers and readers go on beside it, and changes only rows that are wrong.

use std::collections::HashMap;
use std::{fmt, mem};

use super::database::{Database, Row, Transaction};
use super::filter::fold;
use super::import::rest_triggers;
use super::import::rows::{Rows, Table};
use super::import::submissions::{DOCUMENTS, LINES, document};
use super::location::DatabaseLocation;
use super::sql::Dialect;
use super::{StoreError, schema};

/// How many submissions or users are read together. More, and long answers fill memory and writers wait; fewer, and the
/// statements' own cost counts.
const TOGETHER: i64 = 500;

/// What was made anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reindexed {
    /// Users whose folded e-mail address was wrong.
    pub users: u64,
    /// Answers whose folded value was wrong.
    pub answers: u64,
    /// Submissions whose document or lines were wrong.
    pub documents: u64,
    /// Counts of submissions, and labels in the order of the pages, that were wrong.
    pub counts: u64,
}

impl fmt::Display for Reindexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { users, answers, documents, counts } = self;
        write!(f, "mended {users} users, {answers} answers, {documents} documents, {counts} counts")
    }
}

/// Mends everything that is kept for searching.
///
/// Of two users whose addresses differ in case alone, which SQL could write on SQLite, the second keeps the address
/// that it has.
///
/// # Errors
/// [`StoreError::SchemaOlder`] before a migration; else that the database failed. What was mended until then stays.
pub async fn reindex(location: &DatabaseLocation) -> Result<Reindexed, StoreError> {
    let database = location.connect_for_long();
    schema::require_newest(&mut database.reader().await?).await?;
    mend_trigrams(&database).await?;
    let (users, counts) = (mend_users(&database).await?, mend_counts(&database).await?);
    let mut done = Reindexed { users, counts, ..Reindexed::default() };
    done.documents += delete_orphans(&database).await?;
    let mut last = 0;
    loop {
        let mut transaction = database.begin().await?;
        let submissions = next_submissions(&mut transaction, last).await?;
        let Some(&end) = submissions.last() else { break };
        mend(&mut transaction, &submissions, &mut done).await?;
        transaction.commit().await?;
        last = end;
    }
    database.close().await;
    Ok(done)
}

/// The index behind the keyword search: made where it is missing, or where it does not fit the documents.
async fn mend_trigrams(database: &Database) -> Result<(), StoreError> {
    match database.dialect() {
        Dialect::Postgres => {
            for statement in [
                "DO $$ BEGIN CREATE EXTENSION IF NOT EXISTS pg_trgm; \
                    EXCEPTION WHEN insufficient_privilege OR undefined_file OR feature_not_supported THEN NULL; END $$",
                "DO $$ BEGIN IF EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trgm') THEN \
                    CREATE INDEX IF NOT EXISTS submission_documents_trigrams \
                    ON submission_documents USING gin (document gin_trgm_ops); \
                    END IF; END $$",
            ] {
                execute(database, statement).await?;
            }
            Ok(())
        }
        Dialect::Sqlite => {
            // 1: compare with the documents as well.
            let check = "INSERT INTO submission_trigrams (submission_trigrams, rank) VALUES ('integrity-check', 1)";
            match execute(database, check).await {
                Err(StoreError::Unavailable(sqlx::Error::Database(error))) if is_corrupt(&*error) => {
                    execute(database, "INSERT INTO submission_trigrams (submission_trigrams) VALUES ('rebuild')")
                        .await?;
                    Ok(())
                }
                checked => checked.map(drop),
            }
        }
    }
}

/// `SQLITE_CORRUPT` and its extensions.
fn is_corrupt(error: &dyn sqlx::error::DatabaseError) -> bool {
    error.code().and_then(|code| code.parse::<i64>().ok()).is_some_and(|code| code & 0xff == 11)
}

async fn mend_users(database: &Database) -> Result<u64, StoreError> {
    if database.dialect() == Dialect::Postgres {
        let all = "UPDATE users SET email = email WHERE email_folded IS DISTINCT FROM formgate_fold(email)";
        return execute(database, all).await;
    }
    let mut mended = 0;
    let mut last = 0;
    loop {
        let mut transaction = database.begin().await?;
        let mut sql = transaction.sql();
        sql.push("SELECT id, email, email_folded FROM users WHERE id > ").bind(last);
        sql.push(" ORDER BY id LIMIT ").bind(TOGETHER);
        let users = transaction.fetch_all(sql).await?;
        let Some(end) = users.last() else { return Ok(mended) };
        last = end.get(0)?;
        for user in users {
            let (id, folded) = (user.get::<i64>(0)?, fold(&user.get::<String>(1)?));
            if user.get::<Option<String>>(2)?.as_ref() != Some(&folded) {
                let mut sql = transaction.sql();
                sql.push("UPDATE OR IGNORE users SET email_folded = ").bind(folded).push(" WHERE id = ").bind(id);
                mended += transaction.execute(sql).await?;
            }
        }
        transaction.commit().await?;
    }
}

/// How many counts and listed labels are not as they would be made anew.
const WRONG_COUNTS: &str = "WITH kept AS (SELECT counted, key, status, CAST(sum(listed) AS bigint) AS listed \
        FROM submission_counts GROUP BY counted, key, status HAVING sum(listed) <> 0), \
    anew AS (SELECT counted, key, status, listed FROM submission_counts_anew), \
    labels AS (SELECT submission_id, label_id, shared, updated_at FROM listed_labels), \
    labels_anew AS (SELECT submission_id, label_id, shared, updated_at FROM listed_labels_anew) \
    SELECT (SELECT count(*) FROM (SELECT * FROM kept EXCEPT SELECT * FROM anew) AS a) \
    + (SELECT count(*) FROM (SELECT * FROM anew EXCEPT SELECT * FROM kept) AS b) \
    + (SELECT count(*) FROM (SELECT * FROM labels EXCEPT SELECT * FROM labels_anew) AS c) \
    + (SELECT count(*) FROM (SELECT * FROM labels_anew EXCEPT SELECT * FROM labels) AS d)";

async fn mend_counts(database: &Database) -> Result<u64, StoreError> {
    if database.dialect() == Dialect::Postgres {
        // What writers left to whoever comes next.
        execute(database, "SELECT formgate_settle_counts()").await?;
        let unsettled = "SELECT formgate_list_labels(ARRAY (SELECT DISTINCT submission_id FROM unsettled_labels))";
        execute(database, unsettled).await?;
    }
    let mut reader = database.reader().await?;
    let mut sql = reader.sql();
    sql.push(WRONG_COUNTS);
    let wrong: i64 = reader.fetch_one(sql).await?.get(0)?;
    drop(reader);
    if wrong > 0 {
        let mut transaction = database.begin().await?;
        let anew: &[&'static str] = match database.dialect() {
            Dialect::Postgres => &["SELECT formgate_recount()"],
            Dialect::Sqlite => &[
                "DELETE FROM listed_labels",
                "INSERT INTO listed_labels (submission_id, label_id, shared, updated_at) \
                    SELECT submission_id, label_id, shared, updated_at FROM listed_labels_anew",
                "DELETE FROM submission_counts",
                "INSERT INTO submission_counts (counted, key, status, listed) \
                    SELECT counted, key, status, listed FROM submission_counts_anew",
            ],
        };
        for statement in anew {
            let mut sql = transaction.sql();
            sql.push(statement);
            transaction.execute(sql).await?;
        }
        transaction.commit().await?;
    }
    Ok(wrong.unsigned_abs())
}

/// Deletes documents and lines of submissions without answers, and tells how many documents there were.
async fn delete_orphans(database: &Database) -> Result<u64, StoreError> {
    let lines = "DELETE FROM answer_lines WHERE NOT EXISTS (SELECT 1 FROM answers a \
        WHERE a.submission_id = answer_lines.submission_id AND a.element_id = answer_lines.element_id)";
    execute(database, lines).await?;
    let documents = "DELETE FROM submission_documents WHERE NOT EXISTS (SELECT 1 FROM answers a \
        WHERE a.submission_id = submission_documents.submission_id)";
    execute(database, documents).await
}

async fn execute(database: &Database, statement: &'static str) -> Result<u64, StoreError> {
    let mut sql = database.sql();
    sql.push(statement);
    database.execute(sql).await
}

async fn next_submissions(transaction: &mut Transaction, last: i64) -> Result<Vec<i64>, StoreError> {
    let mut sql = transaction.sql();
    sql.push("SELECT DISTINCT submission_id FROM answers WHERE submission_id > ").bind(last);
    sql.push(" ORDER BY submission_id LIMIT ").bind(TOGETHER);
    Ok(transaction.fetch_all(sql).await?.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
}

/// A submission as its answers have it, and as the tables for searching have it.
#[derive(Default)]
struct Kept {
    folded: Vec<(i64, String)>,
    lines: Vec<(i64, String)>,
    stored_document: Option<String>,
    stored_lines: Vec<(i64, String)>,
}

const FOLDED: Table = Table {
    name: "answers",
    columns: &[("submission_id", "bigint"), ("element_id", "bigint"), ("folded", "text")],
    key: 2,
};

async fn mend(transaction: &mut Transaction, ids: &[i64], done: &mut Reindexed) -> Result<(), StoreError> {
    let mut kept: HashMap<i64, Kept> = HashMap::with_capacity(ids.len());
    let mut wrong_answers = Rows::new();
    // Postgres folds by itself: what differs there is what an older version of its function left.
    let fold_there =
        "SELECT submission_id, element_id, value, folded, formgate_fold(value) FROM answers WHERE submission_id";
    let fold_here = "SELECT submission_id, element_id, value, folded FROM answers WHERE submission_id";
    for row in read(transaction, fold_there, fold_here, ids).await? {
        let (id, element) = (row.get(0)?, row.get(1)?);
        let folded = match row {
            Row::Postgres(_) => row.get(4)?,
            Row::Sqlite(_) => fold(&row.get::<String>(2)?),
        };
        if row.get::<Option<String>>(3)?.as_ref() != Some(&folded) {
            wrong_answers.push(&(id, element, &folded));
            done.answers += 1;
        }
        let kept = kept.entry(id).or_default();
        if folded.contains('\n') {
            kept.lines.extend(folded.split('\n').map(|line| (element, line.to_owned())));
        }
        kept.folded.push((element, folded));
    }
    let select = "SELECT submission_id, document FROM submission_documents WHERE submission_id";
    for row in read(transaction, select, select, ids).await? {
        kept.entry(row.get(0)?).or_default().stored_document = Some(row.get(1)?);
    }
    let select = "SELECT submission_id, element_id, line FROM answer_lines WHERE submission_id";
    for row in read(transaction, select, select, ids).await? {
        kept.entry(row.get(0)?).or_default().stored_lines.push((row.get(1)?, row.get(2)?));
    }

    let (mut wrong, mut documents, mut lines) = (Vec::new(), Rows::new(), Rows::new());
    for (id, mut kept) in kept {
        let document = document(mem::take(&mut kept.folded));
        kept.lines.sort_unstable();
        kept.stored_lines.sort_unstable();
        if kept.stored_document.as_ref() != Some(&document) || kept.lines != kept.stored_lines {
            wrong.push(id);
            documents.push(&(id, document));
            kept.lines.iter().for_each(|(element, line)| lines.push(&(id, element, line)));
        }
    }
    done.documents += u64::try_from(wrong.len()).expect("memory is smaller than 2^64 bytes");
    write(transaction, &wrong_answers, &wrong, &documents, &lines).await
}

async fn read(
    transaction: &mut Transaction,
    postgres: &'static str,
    sqlite: &'static str,
    ids: &[i64],
) -> Result<Vec<Row>, StoreError> {
    let mut sql = transaction.sql();
    sql.push_either(postgres, sqlite).in_ids(ids);
    Ok(transaction.fetch_all(sql).await?)
}

async fn write(
    transaction: &mut Transaction,
    wrong_answers: &Rows,
    wrong: &[i64],
    documents: &Rows,
    lines: &Rows,
) -> Result<(), StoreError> {
    match transaction.dialect() {
        Dialect::Postgres => {
            if !wrong_answers.is_empty() {
                // A generated column is computed again when its row is written.
                let mut sql = transaction.sql();
                sql.push("UPDATE answers SET value = value FROM ");
                FOLDED.batch(&mut sql, wrong_answers);
                sql.push(
                    " WHERE answers.submission_id = batch.submission_id AND answers.element_id = batch.element_id",
                );
                transaction.execute(sql).await?;
            }
            if !wrong.is_empty() {
                let mut sql = transaction.sql();
                sql.push("SELECT formgate_rebuild_documents(array_agg(id)) FROM submissions WHERE id").in_ids(wrong);
                transaction.execute(sql).await?;
            }
        }
        Dialect::Sqlite => {
            rest_triggers(transaction, true).await?;
            if !wrong_answers.is_empty() {
                let mut sql = transaction.sql();
                sql.push("UPDATE answers SET folded = batch.folded FROM ");
                FOLDED.batch(&mut sql, wrong_answers);
                sql.push(
                    " WHERE answers.submission_id = batch.submission_id AND answers.element_id = batch.element_id",
                );
                transaction.execute(sql).await?;
            }
            DOCUMENTS.upsert(transaction, documents).await?;
            LINES.keep_only(transaction, wrong, &Rows::new()).await?;
            LINES.insert(transaction, lines).await?;
            rest_triggers(transaction, false).await?;
        }
    }
    Ok(())
}

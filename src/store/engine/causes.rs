//! Formats an error and its causes as one line, for the log and for people.
//!
//! Many libraries repeat the text of the source in their own, so printing every source repeats a cause two or three
//! times. sqlx also appends the line of Postgres's source code that raised the error, which looks like a line of the
//! configuration. Here each cause appears once, and a database's message is followed by its code.

use std::error::Error;

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

/// An error and all its sources, outermost first.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        let text = without_source(error);
        if !text.is_empty() && messages.last() != Some(&text) {
            messages.push(text);
        }
    }
    messages.join(": ")
}

/// The text of an error without that of its source, which follows separately.
fn without_source(error: &(dyn Error + 'static)) -> String {
    if let Some(database) = error.downcast_ref::<Box<dyn DatabaseError>>() {
        return of_database(&**database);
    }
    if let Some(sqlx::Error::Database(_) | sqlx::Error::Io(_)) = error.downcast_ref() {
        // The driver only adds that the error came from the database or the network.
        return String::new();
    }
    let text = error.to_string();
    let source = error.source().map(ToString::to_string).filter(|source| !source.is_empty());
    match source.and_then(|source| text.strip_suffix(&source).map(str::to_owned)) {
        Some(own) => own.trim_end_matches([' ', ':']).to_owned(),
        None => text,
    }
}

/// The message of a database: sqlx's `Display` adds a line of Postgres's source code.
fn of_database(error: &dyn DatabaseError) -> String {
    let message = error.message();
    let kind = if error.try_downcast_ref::<PgDatabaseError>().is_some() { "SQLSTATE" } else { "SQLite code" };
    match error.code() {
        Some(code) => format!("{message} ({kind} {code})"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use sqlx::migrate::MigrateError;

    use super::*;
    use crate::store::StoreError;

    #[test]
    fn each_cause_appears_once_however_often_the_libraries_repeat_it() {
        let refused = || sqlx::Error::Io(io::Error::other("refused"));
        for (error, expected) in [
            (StoreError::Unavailable(refused()), "the database is unavailable: refused"),
            (
                StoreError::Migration(MigrateError::ExecuteMigration(refused(), 4)),
                "the migration failed: while executing migration 4: refused",
            ),
            (
                StoreError::Unavailable(sqlx::Error::Tls("no certificate".into())),
                "the database is unavailable: error occurred while attempting to establish a TLS connection: no certificate",
            ),
            (StoreError::Locked { holder: None }, "another program holds the write lock of the SQLite file"),
        ] {
            assert_eq!(with_causes(&error), expected);
            let context = anyhow::Error::new(error).context("tenant `acme`");
            assert_eq!(with_causes(context.as_ref()), format!("tenant `acme`: {expected}"));
        }
    }
}

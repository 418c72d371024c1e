//! An error and its causes in one line, for the log and for people.
//!
//! Owns what is omitted from the texts of libraries. Many repeat the text of their source in their own, so a plain walk
//! along the sources says everything twice or three times; and sqlx appends the line of Postgres's source code at which
//! an error was raised, which reads as a line of the configuration. Each cause is said once, and a database's message is
//! followed by its code.

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

/// What an error says beyond its source, which follows it.
fn without_source(error: &(dyn Error + 'static)) -> String {
    if let Some(database) = error.downcast_ref::<Box<dyn DatabaseError>>() {
        return of_database(&**database);
    }
    if let Some(sqlx::Error::Database(_) | sqlx::Error::Io(_)) = error.downcast_ref() {
        // That the driver talked to a database is known.
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
    fn each_cause_is_said_once_however_often_the_libraries_repeat_it() {
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

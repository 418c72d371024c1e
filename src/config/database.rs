//! The address of a tenant's database.
//!
//! Which addresses there are, and when two are the same database, is the store's to say; here its answer gets a
//! place. Connects nowhere. What is reported never quotes the address or a driver's words about it: a password may
//! stand in it, also where a typing mistake moved it.

use std::path::Path;

use super::file::{LoadContext, StringValue};
use super::problem::Problem;
use crate::store::{DatabaseLocation, InvalidLocation};

/// An address that the store accepts.
pub(super) struct DatabaseAddress {
    pub(super) location: DatabaseLocation,
    /// Equal for two addresses of the same database; holds no password.
    pub(super) identity: String,
}

/// Reads an address; the path of a SQLite file is relative to the folder.
pub(super) fn read(text: &StringValue, folder: &Path, context: &LoadContext<'_>) -> Result<DatabaseAddress, Problem> {
    let url = text.value.as_str();
    let location = DatabaseLocation::parse(url, folder).map_err(|error| problem(text, &error))?;
    let identity = identity(&location, context);
    Ok(DatabaseAddress { location, identity })
}

/// What tells whether two addresses are one database; two paths can lead to one file.
pub(super) fn identity(location: &DatabaseLocation, context: &LoadContext<'_>) -> String {
    match location.file() {
        Some(file) => format!("sqlite {}", context.identity(file).display()),
        None => location.identity(),
    }
}

fn problem(text: &StringValue, error: &InvalidLocation) -> Problem {
    let problem = |title: &str| Problem::at(&text.span, title);
    match error {
        InvalidLocation::UnknownScheme => {
            problem("not the address of a database").label("expected `postgres://…` or `sqlite:PATH`")
        }
        InvalidLocation::NoFile => {
            problem("not the path of a SQLite file").label("expected `sqlite:PATH`, without parameters")
        }
        InvalidLocation::UnknownParameter { .. }
        | InvalidLocation::InvalidParameter { .. }
        | InvalidLocation::UnsupportedParameter { .. } => {
            problem("a faulty parameter of a Postgres URL").label(error.to_string())
        }
        InvalidLocation::SeveralHosts => problem("not the URL of one Postgres server").label(error.to_string()),
        InvalidLocation::NotAUrl => problem("not a Postgres URL")
            .label("expected `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, or for a socket `postgres://USER@/DATABASE?host=/FOLDER`")
            .help("special characters in the user and the password are percent-encoded"),
    }
}

//! The URL of a tenant's database.
//!
//! The store defines which URLs are valid and when two name the same database; this module turns its errors into
//! reports with a span. Connects nowhere. Reports never quote the URL or the parser's message, since either may
//! contain a password, also where a typing mistake moved it.

use std::path::Path;

use super::context::LoadContext;
use super::problem::Problem;
use super::table::StringValue;
use crate::store::{BESIDE, DatabaseLocation, FileId, InvalidLocation};

/// What the identity of a SQLite database begins with; its path follows.
pub(super) const SQLITE: &str = "sqlite ";

/// A valid database URL.
pub(super) struct DatabaseAddress {
    pub(super) location: DatabaseLocation,
    /// Equal for two URLs of the same database; contains no password.
    pub(super) identity: String,
}

/// Parses a URL; the path of a SQLite file is relative to the folder.
pub(super) fn read(text: &StringValue, folder: &Path, context: &LoadContext<'_>) -> Result<DatabaseAddress, Problem> {
    let url = text.value.as_str();
    let location = match context.tenant_variables {
        None => DatabaseLocation::parse(url, folder),
        Some(_) => DatabaseLocation::parse_without_environment(url, folder),
    };
    let location = location.map_err(|error| problem(text, &error))?;
    if context.tenant_variables.is_some() && location.is_postgres() {
        check_driver(text, context)?;
    }
    let identity = identity(&location, context);
    if location.file().is_some() && BESIDE.iter().any(|end| identity.ends_with(end)) {
        let problem = Problem::at(&text.span, "not the path of a SQLite file");
        return Err(problem.label("SQLite itself gives such a name to the files that it keeps next to a database"));
    }
    Ok(DatabaseAddress { location, identity })
}

/// Variables that the driver applies to every URL, whatever it says.
const DRIVER_VARIABLES: [&str; 3] = ["PGOPTIONS", "PGSSLCERT", "PGSSLKEY"];

/// Refuses a Postgres URL of a tenant of the registry on a node whose environment the driver would add to it.
fn check_driver(text: &StringValue, context: &LoadContext<'_>) -> Result<(), Problem> {
    let is_set = |variable: &&str| (context.environment)(variable).is_some();
    let Some(variable) = DRIVER_VARIABLES.into_iter().find(is_set) else { return Ok(()) };
    let title = format!("the environment variable `{variable}` of this node would apply to a tenant of the registry");
    let help = "unset it, and write its value into the URLs that need it, as `options`, `sslcert` and `sslkey`";
    Err(Problem::at(&text.span, title).help(help))
}

/// Equal for two URLs of the same database. SQLite paths are resolved first: two paths can name one file.
pub(super) fn identity(location: &DatabaseLocation, context: &LoadContext<'_>) -> String {
    match location.file() {
        Some(file) => format!("{SQLITE}{}", context.identity(file).display()),
        None => location.identity(),
    }
}

/// Whether a location leads to a database, or to a file that SQLite keeps next to it. Looks at the file system.
pub(super) fn is_file_of(location: &DatabaseLocation, database: &DatabaseLocation) -> bool {
    let context = LoadContext::empty();
    if identity(location, &context) == identity(database, &context) {
        return true;
    }
    let (Some(wanted), Some(file)) = (location.file().and_then(FileId::at), database.file()) else { return false };
    FileId::at(file).is_some_and(|(found, _)| found == wanted.0)
        || wanted.1 && FileId::beside(file).any(|found| found == wanted.0)
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
        InvalidLocation::LacksUserOrHost => problem("a Postgres URL without a user or a host")
            .label("tenants of the registry take nothing from the environment or the system user")
            .help("write `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, or for a socket `postgres://USER@/DATABASE?host=/FOLDER`"),
        InvalidLocation::NotAUrl => problem("not a Postgres URL")
            .label("expected `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, or for a socket `postgres://USER@/DATABASE?host=/FOLDER`")
            .help("special characters in the user and the password are percent-encoded"),
    }
}

//! The registry, which has tenants in addition to those of the files: the values of `registry`, `registry_snapshot` and
//! `tenant_variables` of `[gateway]`.

use std::path::{Path, PathBuf};

use super::context::LoadContext;
use super::database;
use super::places::Places;
use super::problem::Problem;
use super::source::SourceSpan;
use super::table::StringValue;
use super::tenant_variables::TenantVariables;
use crate::store::DatabaseLocation;

/// The registry.
#[derive(Clone, Debug, PartialEq)]
pub struct RegistryConfig {
    /// Its database.
    pub database: DatabaseLocation,
    /// The SQLite file in which this node keeps what it last read of the registry.
    pub snapshot: DatabaseLocation,
    /// The folder that relative paths of its tenants start at.
    pub folder: PathBuf,
    /// The environment variables that its tenants may use.
    pub variables: TenantVariables,
    /// Whether this node writes to it, and keeps the snapshot.
    pub is_written: bool,
}

impl RegistryConfig {
    /// Which database of the gateway's own one is, or is a file of. Looks at the file system.
    #[must_use]
    pub fn own(&self, wanted: &DatabaseLocation) -> Option<&'static str> {
        let own = [(&self.database, "the registry"), (&self.snapshot, "the snapshot of the registry")];
        own.into_iter().find(|(own, _)| database::is_file_of(wanted, own)).map(|(_, what)| what)
    }

    /// The snapshot, if this node keeps one.
    #[must_use]
    pub fn kept_snapshot(&self) -> Option<&DatabaseLocation> {
        self.is_written.then_some(&self.snapshot)
    }

    /// What a command reports that needs a registry and finds none. Never shows a password.
    #[must_use]
    pub fn missing(&self) -> String {
        format!(
            "the registry `{:?}` does not exist yet: a node creates it when it starts, and `formgate tenant import` when it \
             adds tenants; if it should exist, correct `registry` in `[gateway]`",
            self.database
        )
    }
}

/// Reads the values; `snapshot_at` is where the one of the snapshot is, if it is not the default.
pub(super) fn read(
    registry: &StringValue,
    (snapshot, snapshot_at): (&str, Option<&SourceSpan>),
    variables: TenantVariables,
    folder: &Path,
    places: &mut Places,
    context: &LoadContext<'_>,
) -> Option<RegistryConfig> {
    let read = database::read(registry, folder, context);
    let database = read.map_err(|problem| context.report(problem)).ok()?.location;
    let Ok(snapshot) = DatabaseLocation::parse(&format!("sqlite:{snapshot}"), folder) else {
        context.report(Problem::at(snapshot_at.unwrap_or(&registry.span), "not the path of a file"));
        return None;
    };
    places.registry = database.file().map(|file| (file.to_owned(), registry.span.clone()));
    if let Some((file, span)) = snapshot.file().zip(snapshot_at) {
        places.snapshot = Some((file.to_owned(), span.clone()));
    }
    if database::is_file_of(&database, &snapshot) {
        context.report(Problem::at(&registry.span, "the registry can't be its own snapshot"));
        return None;
    }
    Some(RegistryConfig { database, snapshot, folder: folder.to_owned(), variables, is_written: true })
}

/// Reads the patterns of the variables that its tenants may use.
pub(super) fn read_variables(patterns: Vec<StringValue>, context: &LoadContext<'_>) -> TenantVariables {
    let patterns = patterns.into_iter().filter(|pattern| {
        let start = pattern.value.strip_suffix('*').unwrap_or(&pattern.value);
        let is_pattern = start.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_pattern {
            let problem = Problem::at(&pattern.span, "not the name of an environment variable");
            context.report(problem.label("expected letters, digits and `_`; a `*` may only be at the end"));
        }
        is_pattern
    });
    TenantVariables(patterns.map(|pattern| pattern.value.into()).collect())
}

//! Warnings about files with secrets that other users may read. This can be intended, so `check` does not fail.
//!
//! SQLite files contain all answers and the digests of tokens, as do their write-ahead logs and shared memory files.
//! Private keys, and passwords in the configuration, let a reader act as the gateway. Checks only the mode of each
//! file: a folder that others can't enter protects a file only until the file is moved or the folder is opened.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{GatewayConfig, Sources, TenantConfig, holds_password};
use crate::owner_only::{OTHERS, OTHERS_OR_GROUP_WRITE, exposed_by};
use crate::regular_file::{self, MAX_TENANTS};
use crate::store::{LOG, SHARED_MEMORY, next_to};

/// The warnings: one per file, and one for a database with the files next to it.
pub(super) fn warnings(
    gateway: Option<&GatewayConfig>,
    tenants: &[Arc<TenantConfig>],
    sources: &Sources,
) -> Vec<String> {
    let with_password = |file: &PathBuf| {
        let text = regular_file::read(file, MAX_TENANTS).ok().and_then(|text| String::from_utf8(text).ok());
        text.is_some_and(|text| holds_password(&text))
    };
    let configuration = sources.files().into_iter().filter(with_password).collect::<BTreeSet<_>>();
    let own = gateway.and_then(|gateway| gateway.certificate.as_ref()).into_iter();
    let of_tenants = tenants.iter().flat_map(|tenant| tenant.certificates.iter().map(|(_, files)| files));
    let keys: BTreeSet<&Path> = own.chain(of_tenants).map(|files| &*files.private_key).collect();
    let databases = tenants.iter().filter_map(|tenant| tenant.database.file()).filter_map(database);
    let configuration = configuration.iter().filter_map(|file| one(file, "holds a password or a key"));
    configuration.chain(keys.into_iter().filter_map(|file| one(file, "is a private key"))).chain(databases).collect()
}

/// Whether a file is a SQLite database: changing the mode of any other file could do harm.
fn is_database(file: &Path) -> bool {
    let mut head = [0; 16];
    file.is_file()
        && File::open(file).and_then(|mut file| file.read_exact(&mut head)).is_ok()
        && head == *b"SQLite format 3\0"
}

fn one(file: &Path, what: &str) -> Option<String> {
    let mode = exposed_by(file, OTHERS_OR_GROUP_WRITE)?;
    let file = file.display();
    Some(format!("warning: `{file}` {what}, and its mode {mode:04o} opens it to others: chmod g-w,o= {file}"))
}

fn database(file: &Path) -> Option<String> {
    let file = file.canonicalize().ok().filter(|file| is_database(file))?;
    let all = [file.clone(), next_to(&file, LOG), next_to(&file, SHARED_MEMORY)];
    let exposed: Vec<_> = all.iter().filter_map(|file| Some((file.display(), exposed_by(file, OTHERS)?))).collect();
    let (_, mode) = exposed.first()?;
    let files = exposed.iter().map(|(file, _)| format!("`{file}`")).collect::<Vec<_>>().join(", ");
    let (answers, its) = if exposed.len() == 1 { ("holds answers", "its") } else { ("hold answers", "their") };
    Some(format!(
        "warning: {files} {answers} and token digests, and {its} mode {mode:04o} lets others read: chmod o= {}*",
        file.display()
    ))
}

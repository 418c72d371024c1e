//! The files of a configuration: the first one, and those that its `include` brings.
//!
//! Owns finding, reading and parsing files, and which of them may hold what. Each file is read once however many
//! patterns match it, in the order of the patterns and sorted within one, so that reports keep an order.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use super::file::{Reading, Table, Text};
use super::gateway::{self, Gateway};
use super::problem::Problem;
use super::source::{Place, Source};
use super::tenant::{self, Tenant};

/// What stands in all files together, each part checked by itself.
#[derive(Default)]
pub(super) struct Written {
    pub(super) gateway: Option<Gateway>,
    pub(super) tenants: Vec<Tenant>,
    /// The folders of all files, and those that a pattern looks into.
    pub(super) folders: BTreeSet<PathBuf>,
}

/// Reads the first file and what it includes.
pub(super) fn read(path: &Path, reading: &Reading<'_>) -> Written {
    let mut written = Written { folders: BTreeSet::from([folder_of(path)]), ..Written::default() };
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) => {
            let problem = Problem::of_file(path, "can't read the configuration").label(error.to_string());
            reading.report(problem);
            return written;
        }
    };
    let mut patterns = Vec::new();
    read_text(path, 0, text, reading, |mut root| {
        let folder = folder_of(path);
        if !root.contains("tenant") && !root.contains("include") {
            root.reading().report(Problem::at(root.place(), "there is no tenant").help("add a `[[tenant]]` table"));
        }
        patterns = root.texts("include");
        written.gateway = root.required_table("gateway").map(|table| gateway::read(table, &folder));
        written.tenants = root.tables("tenant").into_iter().map(|table| tenant::read(table, &folder)).collect();
        root.finish();
    });
    let mut seen = HashSet::from([identity(path)]);
    let included = patterns.iter().flat_map(|pattern| {
        let files = matching(pattern, &folder_of(path), reading);
        files.into_iter().map(move |file| (file, &pattern.place))
    });
    written.folders.extend(patterns.iter().map(|pattern| fixed_folder(&folder_of(path).join(&pattern.value))));
    for (order, (path, pattern)) in (1..).zip(included) {
        written.folders.insert(folder_of(&path));
        if seen.insert(identity(&path)) {
            read_included(&path, order, pattern, reading, &mut written.tenants);
        }
    }
    written
}

/// Reads a file that may hold tenants only.
fn read_included(path: &Path, order: usize, pattern: &Place, reading: &Reading<'_>, tenants: &mut Vec<Tenant>) {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) => {
            let title = format!("can't read the included file `{}`", path.display());
            reading.report(Problem::at(pattern, title).label(error.to_string()));
            return;
        }
    };
    read_text(path, order, text, reading, |mut root| {
        let folder = folder_of(path);
        tenants.extend(root.tables("tenant").into_iter().map(|table| tenant::read(table, &folder)));
        root.refuse("gateway", "an included file can't hold `gateway`: it may hold `[[tenant]]` tables only");
        root.refuse("include", "an included file can't hold `include`: it may hold `[[tenant]]` tables only");
        root.finish();
    });
}

/// Parses a file; one that is no TOML yields the faults of its syntax alone, since what it says is not known.
fn read_text<'r>(
    path: &Path,
    order: usize,
    bytes: Vec<u8>,
    reading: &'r Reading<'r>,
    read: impl FnOnce(Table<'r, '_>),
) {
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let sound = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(&error.as_bytes()[..sound]);
            let place = Place::new(&Source::broken(path, order, &text), sound..sound);
            return reading.report(Problem::at(&place, "the file is not UTF-8"));
        }
    };
    let (document, errors) = DeTable::parse_recoverable(&text);
    if errors.is_empty() {
        let source = Source::new(path, order, &text, document.get_ref());
        return read(Table::root(reading, &source, document.into_inner()));
    }
    let source = Source::broken(path, order, &text);
    for error in errors {
        let place = Place::new(&source, error.span().unwrap_or(0..0));
        reading.report(Problem::at(&place, error.message()));
    }
}

/// The files that a pattern matches, sorted.
fn matching(pattern: &Text, folder: &Path, reading: &Reading<'_>) -> Vec<PathBuf> {
    let problem = |title: &str| Problem::at(&pattern.place, title);
    let written = &pattern.value;
    let whole = if Path::new(written).is_absolute() {
        written.clone()
    } else {
        format!("{}/{written}", glob::Pattern::escape(&folder.to_string_lossy()))
    };
    let entries = match glob::glob(&whole) {
        Ok(entries) => entries,
        Err(error) => {
            reading.report(problem("not a pattern of file names").label(error.msg));
            return Vec::new();
        }
    };
    let mut files = Vec::new();
    for entry in entries {
        match entry {
            Ok(file) => files.push(file),
            Err(error) => reading
                .report(problem("can't read a folder that the pattern leads to").label(error.error().to_string())),
        }
    }
    if files.is_empty() && !written.contains(['*', '?', '[']) {
        reading.report(problem("the included file does not exist"));
    }
    files
}

/// The folder below which a pattern looks: its part before the first wildcard.
fn fixed_folder(pattern: &Path) -> PathBuf {
    let is_fixed = |part: &std::path::Component<'_>| !part.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    let fixed: PathBuf = pattern.components().take_while(is_fixed).collect();
    if fixed == pattern { folder_of(pattern) } else { fixed }
}

/// The folder to which the paths in a file are relative.
fn folder_of(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.parent().unwrap_or(Path::new("/")).to_owned()
}

/// What tells whether two paths are one file.
pub(super) fn identity(path: &Path) -> PathBuf {
    if let Ok(file) = path.canonicalize() {
        return file;
    }
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    folder.zip(path.file_name()).map_or_else(|| path.to_owned(), |(folder, name)| folder.join(name))
}

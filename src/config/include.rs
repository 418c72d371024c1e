//! The files of a configuration: the main file and the files that its `include` patterns match.
//!
//! Owns finding, reading and parsing files, and which tables each may contain. Each file is read once, however many
//! patterns match it, in the order of the patterns and sorted within each, so that reports have a stable order.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use toml::de::{DeTable, Error};

use super::context::LoadContext;
use super::declaration::keys;
use super::folders::folder_of;
use super::gateway::{self, GatewayTable};
use super::problem::Problem;
use super::sections;
use super::source::{SourceFile, SourceSpan};
use super::table::{StringValue, TableReader};
use super::tenant::{self, TenantTable};
use crate::file_stamp::FileStamp;
use crate::regular_file::{self, MAX_TENANTS};

/// How many syntax errors of a file are reported. Larger: a file that is not TOML at all gets a report many times its size.
/// Smaller: an operator fixes the errors in more rounds.
const MAX_ERRORS: usize = 1000;

/// The largest file of which all syntax errors are reported and not only the first, in bytes. Larger: a file that is not TOML at
/// all holds up a reload for seconds. Smaller: an operator fixes the errors of a file of many tenants in more rounds.
const MAX_RECOVERED: usize = 1024 * 1024;

keys! { key:
    include = strings().default("[]"),
        "patterns of further files, such as `[\"tenants.d/*.toml\"]`. These files may contain only `[[tenant]]` tables. A pattern \
         without matches is a warning";
    gateway = table(gateway::key::KEYS).without("required, but not in included files"), "[the gateway](#the-gateway)";
    tenant = tables(tenant::key::KEYS).without("required without `include` and a registry"),
        "[a tenant](#tenants); all files together may have 10,000";
}

/// The tables of all files, each checked on its own.
#[derive(Default)]
pub(super) struct LoadedFiles {
    pub(super) gateway: Option<GatewayTable>,
    pub(super) tenants: Vec<TenantTable>,
    /// The folders of all files, and those that patterns search.
    pub(super) folders: BTreeSet<PathBuf>,
    /// The files that were read, to detect later whether they changed.
    pub(super) sources: Sources,
    pub(super) warnings: Vec<Problem>,
}

/// The files of a configuration and a fingerprint of their state when they were read.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    path: PathBuf,
    patterns: Vec<String>,
    stamp: u64,
}

impl Sources {
    /// Whether all files are unchanged and the patterns match no others. Blocks on a `stat` of each file.
    #[must_use]
    pub fn are_unchanged(&self) -> bool {
        stamp(FileStamp::of(&self.path), &self.included()) == self.stamp
    }

    /// All files. Blocks on listing each folder.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = self.included();
        files.push(self.path.clone());
        files
    }

    fn included(&self) -> Vec<PathBuf> {
        let folder = folder_of(&self.path);
        let found = |pattern: &String| find(&whole_pattern(pattern, &folder)).ok();
        self.patterns.iter().filter_map(found).flatten().flatten().collect()
    }
}

fn stamp(first: Option<FileStamp>, included: &[PathBuf]) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let mut hasher = KEYS.build_hasher();
    first.hash(&mut hasher);
    included.iter().for_each(|path| (path, FileStamp::of(path)).hash(&mut hasher));
    hasher.finish()
}

/// Reads the main file and the files it includes.
pub(super) fn read(path: &Path, context: &LoadContext<'_>) -> LoadedFiles {
    let folder = folder_of(path);
    let mut loaded = LoadedFiles { folders: BTreeSet::from([folder.clone()]), ..LoadedFiles::default() };
    loaded.sources.path = path.to_owned();
    // Before reading: a write in between must count as a change.
    let first = FileStamp::of(path);
    let text = match regular_file::read(path, MAX_TENANTS) {
        Ok(text) => text,
        Err(error) => {
            let problem = Problem::of_file(path, "can't read the configuration").label(error.to_string());
            context.report(problem);
            return loaded;
        }
    };
    let mut patterns = Vec::new();
    loaded.tenants = read_text(path, 0, text, context, |root| {
        let has_tenants = root.contains(&key::tenant) || root.contains(&key::include);
        patterns = root.strings(&key::include);
        if !root.contains(&key::gateway) {
            root.context().report(Problem::at(root.span(), "missing table `gateway`"));
        }
        loaded.gateway = root.table(&key::gateway).map(|table| gateway::read(table, &folder));
        if !has_tenants && loaded.gateway.as_ref().is_none_or(|gateway| gateway.registry.is_none()) {
            let problem = Problem::at(root.span(), "there is no tenant");
            root.context().report(problem.help("add a `[[tenant]]` table, or a registry: `registry` in `[gateway]`"));
        }
    });
    let mut seen = HashSet::from([context.identity(path)]);
    let (mut included, mut spans) = (Vec::new(), Vec::new());
    for pattern in &patterns {
        let Some(files) = matching(pattern, &folder, context) else { continue };
        if files.is_empty() {
            let problem = Problem::at(&pattern.span, "no file matches this pattern").into_warning();
            let help = format!("a relative pattern starts at `{}`; `*` does not match `/`", folder.display());
            loaded.warnings.push(problem.help(help));
        }
        spans.extend(std::iter::repeat_n(&pattern.span, files.len()));
        included.extend(files);
    }
    loaded.sources.patterns = patterns.iter().map(|pattern| pattern.value.clone()).collect();
    loaded.sources.stamp = stamp(first, &included);
    loaded.folders.extend(patterns.iter().map(|pattern| fixed_folder(&folder.join(&pattern.value))));
    let mut files = Vec::new();
    for (order, (path, pattern)) in (1..).zip(included.into_iter().zip(spans)) {
        loaded.folders.insert(folder_of(&path));
        if seen.insert(context.identity(&path)) {
            files.push((path, order, pattern));
        }
    }
    for (path, order, pattern) in files {
        loaded.tenants.extend(read_included(&path, order, pattern, context));
    }
    loaded
}

/// Reads an included file, which may contain `[[tenant]]` tables only.
fn read_included(path: &Path, order: usize, pattern: &SourceSpan, context: &LoadContext<'_>) -> Vec<TenantTable> {
    let text = match regular_file::read(path, MAX_TENANTS) {
        Ok(text) => text,
        Err(error) => {
            let title = format!("can't read the included file `{}`", path.display());
            context.report(Problem::at(pattern, title).label(error.to_string()));
            return Vec::new();
        }
    };
    read_text(path, order, text, context, |root| {
        root.refuse(&key::gateway, "an included file can't hold `gateway`: it may hold `[[tenant]]` tables only");
        root.refuse(&key::include, "an included file can't hold `include`: it may hold `[[tenant]]` tables only");
    })
}

/// Reads the tenants of a file; `read_others` reads its other keys. For a file that is not valid TOML, only the syntax errors are reported, since its contents are unknown.
fn read_text<'r>(
    path: &Path,
    order: usize,
    bytes: Vec<u8>,
    context: &'r LoadContext<'r>,
    read_others: impl FnOnce(&mut TableReader<'r, '_>),
) -> Vec<TenantTable> {
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
            let span = SourceSpan::new(&SourceFile::new(path, order, text, key::KEYS), valid..valid);
            context.report(Problem::at(&span, "the file is not UTF-8"));
            return Vec::new();
        }
    };
    read_file(&SourceFile::new(path, order, text, key::KEYS), context, read_others)
}

/// The same of a text that was decoded.
pub(super) fn read_file<'r>(
    file: &Arc<SourceFile>,
    context: &'r LoadContext<'r>,
    read_others: impl FnOnce(&mut TableReader<'r, '_>),
) -> Vec<TenantTable> {
    let document = match DeTable::parse(file.text()) {
        Ok(document) => document.into_inner(),
        Err(first) => {
            report_syntax(file, first, context);
            return Vec::new();
        }
    };
    let mut root = TableReader::root(context, file, document);
    read_others(&mut root);
    let tenants = root.tables(&key::tenant).into_iter().map(|table| tenant::read(table, file.folder())).collect();
    root.finish();
    tenants
}

/// What the parser reports at a key that a table has already.
const DUPLICATE: &str = "duplicate key";

/// Reports the syntax errors of a text that is not valid TOML.
fn report_syntax(file: &Arc<SourceFile>, first: Error, context: &LoadContext<'_>) {
    let single = sections::single_brackets(file.text());
    for span in &single {
        let problem =
            Problem::at(&SourceSpan::new(file, span.clone()), "expected an array of tables").label("found a table");
        context.report(problem.help("write `[[tenant]]`, with two pairs of brackets, for each tenant"));
    }
    // Such a header, which has its own report, leads to errors about keys that are there twice.
    let follows = |message: &str| !single.is_empty() && message == DUPLICATE;
    let is_small = file.text().len() <= MAX_RECOVERED;
    let errors = if is_small { DeTable::parse_recoverable(file.text()).1 } else { vec![first] };
    for error in errors.iter().take(MAX_ERRORS).filter(|error| !follows(error.message())) {
        let at = error.span().unwrap_or_default();
        // The parser does not name the key.
        let key = file.text().get(at.clone()).filter(|_| error.message() == DUPLICATE);
        let title = key.map_or_else(|| error.message().to_owned(), |key| format!("the key `{key}` is given twice"));
        context.report(Problem::at(&SourceSpan::new(file, at), title));
    }
}

/// The files that a pattern matches, sorted. Reports an error and returns `None` if they can't be determined.
fn matching(pattern: &StringValue, folder: &Path, context: &LoadContext<'_>) -> Option<Vec<PathBuf>> {
    let problem = |title: &str| Problem::at(&pattern.span, title);
    let written = &pattern.value;
    let entries = match find(&whole_pattern(written, folder)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            context.report(problem("not a pattern of file names").label(error.to_string()));
            return None;
        }
        Err(error) => {
            context.report(problem("can't read a folder that the pattern leads to").label(error.to_string()));
            return None;
        }
    };
    let (mut files, mut is_known) = (Vec::new(), true);
    for entry in entries {
        match entry {
            Ok(file) => files.push(file),
            Err(error) => {
                is_known = false;
                context
                    .report(problem("can't read a folder that the pattern leads to").label(error.error().to_string()));
            }
        }
    }
    if files.is_empty() && !written.contains(['*', '?', '[']) {
        context.report(problem("the included file does not exist"));
        return None;
    }
    (is_known || !files.is_empty()).then_some(files)
}

/// The absolute form of a pattern; a relative one starts at the folder.
fn whole_pattern(written: &str, folder: &Path) -> String {
    if Path::new(written).is_absolute() {
        return written.to_owned();
    }
    format!("{}/{written}", glob::Pattern::escape(&folder.to_string_lossy()))
}

/// What a whole pattern matches, and the folders that can't be read.
///
/// # Errors
/// [`ErrorKind::InvalidInput`]: it is no pattern. [`ErrorKind::TimedOut`]: a file system does not answer.
fn find(pattern: &str) -> io::Result<Vec<glob::GlobResult>> {
    let entries = glob::glob(pattern).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error.msg))?;
    // By its own path, so that a folder that hangs is asked once.
    let anything = fixed_folder(Path::new(pattern)).join("*");
    regular_file::search(&anything, move |_| Ok(entries.collect()))
}

/// The folder that a pattern searches: its part before the first wildcard.
fn fixed_folder(pattern: &Path) -> PathBuf {
    let is_fixed = |part: &std::path::Component<'_>| !part.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    let fixed: PathBuf = pattern.components().take_while(is_fixed).collect();
    if fixed == pattern { folder_of(pattern) } else { fixed }
}

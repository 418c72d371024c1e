//! The TOML as written: tables from which values are taken by key, each with its place.
//!
//! Owns types, ranges, `${NAME}` and unknown keys; what a value means is checked elsewhere. serde stops at the first
//! fault, so the document is walked by hand: a reader takes what it knows, every fault is reported on the way and the
//! reading goes on, and what [`Table::finish`] finds left is an unknown key. A taken value that was faulty reads as
//! absent or as its default; that is sound because no configuration is made once a fault is reported.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Served;
use super::folders::Folders;
use super::keys;
use super::problem::Problem;
use super::secret::{self, Environment};
use super::source::{Place, Source, SourceFile};

/// What files of one configuration are read with: the environment, what is served already, and the faults so far. Each
/// thread that reads has one of its own.
pub(super) struct Reading<'e> {
    environment: Environment<'e>,
    served: Option<&'e Served<'e>>,
    threads: usize,
    folders: Folders,
    problems: RefCell<Vec<Problem>>,
    /// The keys that tables were asked for, as they were finished.
    known: RefCell<Vec<&'static str>>,
}

impl<'e> Reading<'e> {
    pub(super) fn new(environment: Environment<'e>, served: Option<&'e Served<'e>>, threads: usize) -> Self {
        let (folders, problems, known) = (Folders::default(), RefCell::default(), RefCell::default());
        Self { environment, served, threads, folders, problems, known }
    }

    /// A reading of the same whose faults may still be thrown away.
    pub(super) fn apart(&self) -> Self {
        Self::new(self.environment, self.served, self.threads)
    }

    /// Takes over the faults of another.
    pub(super) fn join(&self, other: &Self) {
        self.problems.borrow_mut().extend(other.take_problems());
    }

    pub(super) fn report(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    pub(super) fn take_problems(&self) -> Vec<Problem> {
        self.problems.take()
    }

    pub(super) fn take_known(&self) -> Vec<&'static str> {
        self.known.take()
    }

    pub(super) fn served(&self) -> Option<&'e Served<'e>> {
        self.served
    }

    /// What tells whether two paths are one file.
    pub(super) fn identity(&self, path: &Path) -> PathBuf {
        self.folders.identity(path)
    }

    /// Reads items, side by side where there are many, and shows what they yield to `keep`, in their order.
    ///
    /// Some are read and then kept at a time, and whoever keeps them frees nothing: what the allocator gets back from a
    /// thread it gives that thread again. Else what is kept would come to lie all over what is read and gone, and very many
    /// tenants would take a third more.
    pub(super) fn each<T: Sync, R: Send>(
        &self,
        items: &[T],
        read: impl Fn(&Reading<'_>, &T) -> R + Sync,
        mut keep: impl FnMut(&mut R),
    ) {
        if self.threads <= 1 || items.len() < AT_ONCE {
            for some in items.chunks(AT_ONCE) {
                let mut done: Vec<R> = some.iter().map(|item| read(self, item)).collect();
                done.iter_mut().for_each(&mut keep);
            }
            return;
        }
        let (environment, served, read) = (self.environment, self.served, &read);
        let mut done = Vec::new();
        for some in items.chunks(AT_ONCE * self.threads).chain([&[][..]]) {
            done = std::thread::scope(|scope| {
                let part = |items| {
                    scope.spawn(move || {
                        let own = Reading::new(environment, served, 1);
                        let done: Vec<R> = <[T]>::iter(items).map(|item| read(&own, item)).collect();
                        (done, own.take_problems())
                    })
                };
                let parts: Vec<_> = some.chunks(some.len().div_ceil(self.threads).max(1)).map(part).collect();
                // What was read before, while the next is.
                done.iter_mut().for_each(&mut keep);
                scope.spawn(move || drop(done));
                let mut done = Vec::with_capacity(some.len());
                for part in parts {
                    let (some, problems) = part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    done.extend(some);
                    self.problems.borrow_mut().extend(problems);
                }
                done
            });
        }
    }
}

/// How many tables or files a thread reads at a time. With fewer, starting threads costs as much as they read; with more,
/// more is in memory at a time.
const AT_ONCE: usize = 512;

/// A string with its variables expanded. No `Debug`: it may be a secret.
pub(super) struct Text {
    pub(super) value: String,
    pub(super) place: Place,
    /// Whether the environment had a part in it.
    pub(super) from_environment: bool,
}

/// An item of an array that may hold strings and tables.
pub(super) enum Entry<'r, 't> {
    Text(Text),
    Table(Table<'r, 't>),
}

/// A table whose values are taken one by one.
pub(super) struct Table<'r, 't> {
    reading: &'r Reading<'r>,
    source: Arc<Source>,
    /// The header, or the whole of an inline table.
    place: Place,
    values: DeTable<'t>,
    known: Vec<&'static str>,
}

impl<'r, 't> Table<'r, 't> {
    /// The table that is a whole file.
    pub(super) fn root(reading: &'r Reading<'r>, source: &Arc<Source>, document: DeTable<'t>) -> Self {
        let place = Place::new(source, 0..0);
        Self { reading, source: Arc::clone(source), place, values: document, known: Vec::new() }
    }

    /// A table without keys, which is nowhere.
    pub(super) fn empty(reading: &'r Reading<'r>) -> Self {
        let file = SourceFile::new(Path::new(""), 0, String::new());
        Self::root(reading, &Source::new(&file, 0), DeTable::new())
    }

    pub(super) fn reading(&self) -> &'r Reading<'r> {
        self.reading
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// A string that may be left out.
    pub(super) fn text(&mut self, key: &'static str) -> Option<Text> {
        let value = self.take(key)?;
        self.read_text(value)
    }

    /// A string that must be there.
    pub(super) fn required_text(&mut self, key: &'static str) -> Option<Text> {
        self.require(key, "key");
        self.text(key)
    }

    /// An array of strings; one that is left out is empty.
    pub(super) fn texts(&mut self, key: &'static str) -> Vec<Text> {
        let Some((place, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            self.reading.report(Problem::at(&place, "expected an array of strings").label(found(&value)));
            return Vec::new();
        };
        items.into_iter().filter_map(|item| self.read_text(self.placed(item))).collect()
    }

    /// An array of at least one string.
    pub(super) fn required_texts(&mut self, key: &'static str) -> Vec<Text> {
        self.require_items(key);
        self.texts(key)
    }

    /// An array of at least one string or table.
    pub(super) fn required_entries(&mut self, key: &'static str) -> Vec<Entry<'r, 't>> {
        self.require_items(key);
        let Some((place, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            self.reading.report(Problem::at(&place, "expected an array of strings or tables").label(found(&value)));
            return Vec::new();
        };
        let read = |item| match self.placed(item) {
            table @ (_, DeValue::Table(_)) => self.read_table(table).map(Entry::Table),
            text @ (_, DeValue::String(_)) => self.read_text(text).map(Entry::Text),
            (place, other) => {
                self.reading.report(Problem::at(&place, "expected a string or a table").label(found(&other)));
                None
            }
        };
        items.into_iter().filter_map(read).collect()
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, key: &'static str, default: bool) -> bool {
        let Some((place, value)) = self.take(key) else { return default };
        value.as_bool().unwrap_or_else(|| {
            self.reading.report(Problem::at(&place, "expected `true` or `false`").label(found(&value)));
            default
        })
    }

    /// A whole number within a range.
    pub(super) fn integer(&mut self, key: &'static str, range: RangeInclusive<u32>, default: u32) -> u32 {
        let Some((place, value)) = self.take(key) else { return default };
        let DeValue::Integer(integer) = &value else {
            self.reading.report(Problem::at(&place, "expected an integer").label(found(&value)));
            return default;
        };
        let value = i64::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(|n| u32::try_from(n).ok());
        value.filter(|n| range.contains(n)).unwrap_or_else(|| {
            let (least, most) = (range.start(), range.end());
            self.reading.report(Problem::at(&place, format!("`{key}` must be from {least} to {most}")));
            default
        })
    }

    /// A table that may be left out.
    pub(super) fn table(&mut self, key: &'static str) -> Option<Table<'r, 't>> {
        let value = self.take(key)?;
        if let (place, DeValue::Array(_)) = &value {
            let problem = Problem::at(place, "expected a table").label("found an array of tables");
            self.reading.report(problem.help(format!("there is only one: write `{key}` with one pair of brackets")));
            return None;
        }
        self.read_table(value)
    }

    /// A table that must be there.
    pub(super) fn required_table(&mut self, key: &'static str) -> Option<Table<'r, 't>> {
        self.require(key, "table");
        self.table(key)
    }

    /// An array of tables: `[[key]]`.
    pub(super) fn tables(&mut self, key: &'static str) -> Vec<Table<'r, 't>> {
        let Some((place, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            let problem = Problem::at(&place, "expected an array of tables").label(found(&value));
            self.reading.report(problem.help(format!("write `[[{key}]]`, with two pairs of brackets, for each {key}")));
            return Vec::new();
        };
        items.into_iter().filter_map(|item| self.read_table(self.placed(item))).collect()
    }

    /// The tables under keys that the operator chooses, with the keys.
    pub(super) fn entries(self) -> Vec<(Text, Table<'r, 't>)> {
        let Self { reading, source, values, .. } = self;
        let read = |(key, value): (Spanned<_>, Spanned<DeValue<'t>>)| {
            let place = Place::new(&source, key.span());
            let value_place = Place::new(&source, value.span());
            if !value.get_ref().is_table() {
                let problem = Problem::at(&value_place, "expected a table").label(found(value.get_ref()));
                reading.report(problem.help("the keys here are hosts, each with a table: `[tenant.tls.\"HOST\"]`"));
                return None;
            }
            let table = read_table(reading, &source, (value_place, value.into_inner()))?;
            Some((Text { value: String::from(key.into_inner()), place, from_environment: false }, table))
        };
        values.into_iter().filter_map(read).collect()
    }

    /// Takes a key that has no place here.
    pub(super) fn refuse(&mut self, key: &'static str, title: &str) {
        if let Some((key, _)) = self.values.remove_entry(key) {
            self.reading.report(Problem::at(&Place::new(&self.source, key.span()), title));
        }
    }

    /// Where a key is, whatever its value.
    pub(super) fn place_of(&self, key: &str) -> Option<Place> {
        let (key, _) = self.values.get_key_value(key)?;
        Some(Place::new(&self.source, key.span()))
    }

    /// Whether a key is there, whatever its value.
    pub(super) fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Reports what nobody took.
    pub(super) fn finish(self) {
        for (key, value) in &self.values {
            let name = key.get_ref();
            let place = Place::new(&self.source, key.span());
            let problem = Problem::at(&place, format!("unknown key `{name}`"));
            let homes = keys::homes_of(name).join(" or ");
            self.reading.report(match nearest(name, &self.known) {
                _ if !homes.is_empty() => {
                    let problem = problem.label(format!("it belongs in {homes}"));
                    problem.help(match homes.strip_prefix("`[").and_then(|home| home.strip_suffix("]`")) {
                        Some(home) if value.get_ref().is_table() => format!("write `[{home}.{name}]`"),
                        _ => "in TOML a key belongs to the last header above it: move it there".to_owned(),
                    })
                }
                Some(near) => problem.label(format!("did you mean `{near}`?")),
                None => problem.help(format!("the keys here are {}", listed(&self.known))),
            });
        }
        self.reading.known.borrow_mut().extend(&self.known);
    }

    fn take(&mut self, key: &'static str) -> Option<(Place, DeValue<'t>)> {
        self.known.push(key);
        self.values.remove(key).map(|value| self.placed(value))
    }

    fn require(&self, key: &str, kind: &str) {
        if !self.contains(key) {
            self.reading.report(Problem::at(&self.place, format!("missing {kind} `{key}`")));
        }
    }

    fn require_items(&self, key: &str) {
        self.require(key, "key");
        let value = self.values.get(key);
        if let Some(value) = value.filter(|value| value.get_ref().as_array().is_some_and(|items| items.is_empty())) {
            let place = Place::new(&self.source, value.span());
            self.reading.report(Problem::at(&place, format!("`{key}` needs at least one entry")));
        }
    }

    fn placed(&self, value: Spanned<DeValue<'t>>) -> (Place, DeValue<'t>) {
        (Place::new(&self.source, value.span()), value.into_inner())
    }

    fn read_text(&self, (place, value): (Place, DeValue<'t>)) -> Option<Text> {
        let DeValue::String(written) = &value else {
            self.reading.report(Problem::at(&place, "expected a string").label(found(&value)));
            return None;
        };
        match secret::expand(written, self.reading.environment) {
            Ok(value) if value.trim().is_empty() => {
                self.reading.report(Problem::at(&place, "expected a string that is not empty"));
                None
            }
            Ok(value) => {
                let from_environment = matches!(value, Cow::Owned(_));
                Some(Text { value: value.into_owned(), place, from_environment })
            }
            Err(errors) => {
                errors.iter().for_each(|error| self.reading.report(Problem::at(&place, error.to_string())));
                None
            }
        }
    }

    fn read_table(&self, value: (Place, DeValue<'t>)) -> Option<Table<'r, 't>> {
        read_table(self.reading, &self.source, value)
    }
}

fn read_table<'r, 't>(
    reading: &'r Reading<'r>,
    source: &Arc<Source>,
    (place, value): (Place, DeValue<'t>),
) -> Option<Table<'r, 't>> {
    let DeValue::Table(values) = value else {
        reading.report(Problem::at(&place, "expected a table").label(found(&value)));
        return None;
    };
    Some(Table { reading, source: Arc::clone(source), place, values, known: Vec::new() })
}

fn found(value: &DeValue<'_>) -> String {
    format!("found {} {}", if value.is_integer() || value.is_array() { "an" } else { "a" }, value.type_str())
}

/// The known key that was probably meant: at most one slip in three characters.
fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let distances = known.iter().map(|key| (strsim::damerau_levenshtein(name, key), *key));
    distances.filter(|(distance, key)| distance * 3 <= key.len()).min().map(|(_, key)| key)
}

fn listed(keys: &[&str]) -> String {
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}

//! Builds a statement's text together with its values.
//!
//! Both databases accept `$1`, and SQLite silently binds a missing value as NULL. So [`Sql::bind`] adds a placeholder
//! and its value in one call. [`Sql::push`] accepts only `'static` text, so no text of a client can become SQL.
//! Differences in syntax that recur (lists, row batches, limits) are resolved here by [`Dialect`]; `crate::store`
//! lists where else the databases differ.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::Arguments;
use sqlx::postgres::{PgArguments, PgBindIterExt};
use sqlx::sqlite::SqliteArguments;

use super::page::PageScan;
use super::texts::Texts;

/// Which database a statement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Dialect {
    Postgres,
    Sqlite,
}

impl Dialect {
    /// The label value in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }
}

/// A value of a statement.
#[derive(Clone, Debug)]
pub(crate) enum Bind {
    Integer(i64),
    Text(String),
    Bytes(Vec<u8>),
    Time(Timestamp),
    /// Lists are shared with the caller, and with the copy of the statement that is sent again after a lost
    /// connection.
    Integers(Arc<[i64]>),
    Texts(Arc<Texts>),
    /// The same for a long text.
    SharedText(Arc<str>),
    OptionalText(Option<String>),
    OptionalInteger(Option<i64>),
    OptionalTime(Option<Timestamp>),
    Truth(bool),
}

impl From<i64> for Bind {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<&str> for Bind {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<&Arc<str>> for Bind {
    fn from(value: &Arc<str>) -> Self {
        Self::SharedText(Arc::clone(value))
    }
}

impl From<String> for Bind {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<Option<String>> for Bind {
    fn from(value: Option<String>) -> Self {
        Self::OptionalText(value)
    }
}

impl From<Option<i64>> for Bind {
    fn from(value: Option<i64>) -> Self {
        Self::OptionalInteger(value)
    }
}

impl From<bool> for Bind {
    fn from(value: bool) -> Self {
        Self::Truth(value)
    }
}

impl From<Vec<u8>> for Bind {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(value)
    }
}

impl From<Vec<i64>> for Bind {
    fn from(value: Vec<i64>) -> Self {
        Self::Integers(value.into())
    }
}

impl From<&Arc<[i64]>> for Bind {
    fn from(value: &Arc<[i64]>) -> Self {
        Self::Integers(Arc::clone(value))
    }
}

impl From<Texts> for Bind {
    fn from(value: Texts) -> Self {
        Self::Texts(value.into())
    }
}

impl From<&Arc<Texts>> for Bind {
    fn from(value: &Arc<Texts>) -> Self {
        Self::Texts(Arc::clone(value))
    }
}

impl From<Option<Timestamp>> for Bind {
    fn from(value: Option<Timestamp>) -> Self {
        Self::OptionalTime(value)
    }
}

impl From<Timestamp> for Bind {
    fn from(value: Timestamp) -> Self {
        Self::Time(value)
    }
}

/// A statement under construction.
#[derive(Clone, Debug)]
pub(crate) struct Sql {
    dialect: Dialect,
    text: String,
    binds: Vec<Bind>,
    custom_plan: bool,
    is_kept: bool,
}

/// The initial capacity of the text, in bytes.
///
/// Larger: short statements waste memory. Smaller: more statements have to grow their buffer.
const INITIAL_CAPACITY: usize = 1024;

impl Sql {
    /// An empty statement.
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            text: String::with_capacity(INITIAL_CAPACITY),
            binds: Vec::new(),
            custom_plan: false,
            is_kept: false,
        }
    }

    /// Has Postgres plan this statement for its values each time: the right plan for one keyword or form is wrong for
    /// another. Other statements get a generic plan after a few executions, which halves the cost of short ones. Call
    /// this before the first limit. The statement itself must not end with a limit.
    pub(crate) fn force_custom_plan(&mut self) -> &mut Self {
        self.custom_plan = true;
        self
    }

    /// Has SQLite keep the compiled statement, as it does outside transactions by itself.
    pub(in crate::store) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Whether SQLite keeps the compiled statement also in a transaction.
    pub(in crate::store) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Adds text that is a constant of the program.
    pub(crate) fn push(&mut self, text: &'static str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    /// Adds text that differs between the databases.
    pub(crate) fn push_either(&mut self, postgres: &'static str, sqlite: &'static str) -> &mut Self {
        match self.dialect {
            Dialect::Postgres => self.push(postgres),
            Dialect::Sqlite => self.push(sqlite),
        }
    }

    /// The same of an expression that is used in several places.
    pub(crate) fn push_each(&mut self, [postgres, sqlite]: [&'static str; 2]) -> &mut Self {
        self.push_either(postgres, sqlite)
    }

    /// Adds a value and its placeholder.
    pub(crate) fn bind(&mut self, value: impl Into<Bind>) -> &mut Self {
        self.binds.push(value.into());
        // SQLite plans with the value of a bare placeholder in LIMIT, so it would prepare the statement again each time.
        if self.dialect == Dialect::Sqlite && self.text.ends_with("LIMIT ") {
            return self.push("CAST(").bind_again().push(" AS INTEGER)");
        }
        self.bind_again()
    }

    /// Adds the placeholder of the last bound value again, without sending the value twice.
    pub(crate) fn bind_again(&mut self) -> &mut Self {
        self.text.push('$');
        self.text.push_str(&self.binds.len().to_string());
        self
    }

    /// Adds ` LIMIT … OFFSET …`. The numbers are text if Postgres may use a generic plan, which depends on how much is
    /// read.
    pub(crate) fn limit(&mut self, scan: &PageScan) -> &mut Self {
        self.push(" LIMIT ").number(scan.length).push(" OFFSET ").number(scan.offset)
    }

    fn number(&mut self, number: i64) -> &mut Self {
        if self.dialect == Dialect::Postgres && !self.custom_plan {
            self.text.push_str(&number.to_string());
            self
        } else {
            self.bind(number)
        }
    }

    /// Adds ` IN` with a list of ids of any length, bound as one value.
    pub(crate) fn in_ids(&mut self, ids: &[i64]) -> &mut Self {
        self.in_list(Bind::Integers(ids.into()))
    }

    /// Adds ` NOT IN` with a list of ids of any length, bound as one value.
    pub(crate) fn not_in_ids(&mut self, ids: &[i64]) -> &mut Self {
        self.push_either(" <> ALL (", " NOT IN (SELECT value FROM json_each(");
        self.bind(Bind::Integers(ids.into())).push_either(")", "))")
    }

    /// Adds a timestamp of the plain tables, limited to what can be shown: a program may have turned off the
    /// constraints that refuse others.
    pub(crate) fn push_instant(&mut self, column: &'static str) -> &mut Self {
        self.push_either("greatest('0001-01-01 00:00:00+00', least(", "max(-62135596800000000, min(").push(column);
        self.push_either(", '9999-12-30 22:00:00+00'))", ", 253402207200000000))")
    }

    /// Like [`Self::in_ids`], but Postgres uses one generic plan for lists of any length. The subquery hides the
    /// length of the list from the planner. Otherwise Postgres estimates a custom plan for each short list as cheaper,
    /// and planning takes many times as long as looking up one id.
    pub(crate) fn in_ids_with_generic_plan(&mut self, ids: &[i64]) -> &mut Self {
        match self.dialect {
            Dialect::Postgres => self.push(" = ANY ((SELECT ").bind(ids.to_vec()).push("::bigint[])::bigint[])"),
            Dialect::Sqlite => self.in_ids(ids),
        }
    }

    /// Adds ` IN` with a list of texts of any length, bound as one value.
    pub(crate) fn in_texts(&mut self, texts: impl IntoIterator<Item: AsRef<str>>) -> &mut Self {
        self.in_list(texts.into_iter().collect::<Texts>().into())
    }

    fn in_list(&mut self, list: Bind) -> &mut Self {
        match self.dialect {
            Dialect::Postgres => self.push(" = ANY (").bind(list).push(")"),
            Dialect::Sqlite => self.push(" IN (SELECT value FROM json_each(").bind(list).push("))"),
        }
    }

    /// Adds the instant that is `later` from now, by the clock of the database server: what several nodes compare must
    /// not depend on their clocks. A SQLite file has the clock of this machine.
    pub(crate) fn push_now_plus(&mut self, later: Duration) -> &mut Self {
        let milliseconds = i64::try_from(later.as_millis()).unwrap_or(i64::MAX);
        match self.dialect {
            Dialect::Postgres => {
                self.push("(clock_timestamp() + ").bind(milliseconds).push("::bigint * interval '1 millisecond')")
            }
            Dialect::Sqlite => self.bind(Timestamp::now() + later),
        }
    }

    /// Adds the instant that is `earlier` before now, by the same clock.
    pub(crate) fn push_now_minus(&mut self, earlier: Duration) -> &mut Self {
        let milliseconds = i64::try_from(earlier.as_millis()).unwrap_or(i64::MAX);
        match self.dialect {
            Dialect::Postgres => {
                self.push("(clock_timestamp() - ").bind(milliseconds).push("::bigint * interval '1 millisecond')")
            }
            Dialect::Sqlite => self.bind(Timestamp::now() - earlier),
        }
    }

    /// Adds a condition: the instant of a column has passed, is NULL, or is further ahead than the `longest` time for which
    /// it is written. Such an instant is from before the clock was set back, and would hold for as long as that step.
    pub(crate) fn push_has_passed(&mut self, column: &'static str, longest: Duration) -> &mut Self {
        self.push("(").push(column).push(" IS NULL OR ").push(column).push(" <= ").push_now_plus(Duration::ZERO);
        self.push(" OR ").push(column).push(" > ").push_now_plus(longest).push(")")
    }

    /// Adds a subquery over a JSON array of arrays, bound as one value, from which one statement can insert a whole
    /// batch. `columns` are names and Postgres types.
    pub(crate) fn push_rows(&mut self, rows: String, columns: &[(&'static str, &'static str)]) -> &mut Self {
        match self.dialect {
            Dialect::Postgres => {
                self.push("(SELECT ");
                for (at, (name, kind)) in columns.iter().enumerate() {
                    self.push(if at == 0 { "(item->>" } else { ", (item->>" });
                    self.text.push_str(&at.to_string());
                    self.push(")::").push(kind).push(" AS ").push(name);
                }
                self.push(" FROM jsonb_array_elements(")
                    .bind(rows)
                    .push("::jsonb) WITH ORDINALITY AS batch (item, line) ORDER BY line)")
            }
            Dialect::Sqlite => {
                self.push("(SELECT ");
                for (at, (name, _)) in columns.iter().enumerate() {
                    self.push(if at == 0 { "value->>" } else { ", value->>" });
                    self.text.push_str(&at.to_string());
                    self.push(" AS ").push(name);
                }
                self.push(" FROM json_each(").bind(rows).push("))")
            }
        }
    }

    /// The size of its values in bytes: about what the driver copies.
    pub(in crate::store) fn bytes(&self) -> usize {
        let of = |bind: &Bind| match bind {
            Bind::Text(text) | Bind::OptionalText(Some(text)) => text.len(),
            Bind::Bytes(bytes) => bytes.len(),
            Bind::Texts(texts) => texts.bytes(),
            Bind::SharedText(text) => text.len(),
            Bind::Integers(list) => size_of_val(&**list),
            Bind::Integer(_) | Bind::Time(_) | Bind::Truth(_) => 0,
            Bind::OptionalText(None) | Bind::OptionalInteger(_) | Bind::OptionalTime(_) => 0,
        };
        self.binds.iter().map(of).sum()
    }

    /// The database for which the statement is.
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The text and the values for the Postgres driver.
    pub(in crate::store) fn into_postgres(mut self) -> Result<(String, PgArguments), sqlx::error::BoxDynError> {
        if self.custom_plan {
            // Postgres switches to a generic plan if it expects it to cost no more than custom plans did. A generic
            // plan has to assume this limit, whose subquery makes it expensive; in a custom plan the limit is folded
            // to none. So the statement is parsed once and planned each time.
            self.push(" LIMIT CASE WHEN ").bind(true);
            self.push(" THEN NULL ELSE (SELECT count(*) FROM generate_series(1, 1000000000000)) END");
        }
        let mut arguments = PgArguments::default();
        for bind in self.binds {
            match bind {
                Bind::Integer(value) => arguments.add(value)?,
                Bind::Text(value) => arguments.add(value)?,
                Bind::Bytes(value) => arguments.add(value)?,
                Bind::Time(value) => arguments.add(jiff_sqlx::Timestamp::from(value))?,
                Bind::Integers(value) => arguments.add(&value[..])?,
                Bind::Texts(value) => arguments.add(value.iter().bind_iter())?,
                Bind::SharedText(value) => arguments.add(&*value)?,
                Bind::OptionalText(value) => arguments.add(value)?,
                Bind::OptionalInteger(value) => arguments.add(value)?,
                Bind::OptionalTime(value) => arguments.add(value.map(jiff_sqlx::Timestamp::from))?,
                Bind::Truth(value) => arguments.add(value)?,
            }
        }
        Ok((self.text, arguments))
    }

    /// The text and the values for the SQLite driver: timestamps as microseconds, lists as JSON.
    pub(in crate::store) fn into_sqlite(self) -> Result<(String, SqliteArguments), sqlx::error::BoxDynError> {
        let mut arguments = SqliteArguments::default();
        for bind in self.binds {
            match bind {
                Bind::Integer(value) => arguments.add(value)?,
                Bind::Text(value) => arguments.add(value)?,
                Bind::Bytes(value) => arguments.add(value)?,
                Bind::Time(value) => arguments.add(value.as_microsecond())?,
                Bind::Integers(value) => arguments.add(serde_json::to_string(&*value)?)?,
                Bind::Texts(value) => arguments.add(serde_json::to_string(&*value)?)?,
                Bind::SharedText(value) => arguments.add(value)?,
                Bind::OptionalText(value) => arguments.add(value)?,
                Bind::OptionalInteger(value) => arguments.add(value)?,
                Bind::OptionalTime(value) => arguments.add(value.map(Timestamp::as_microsecond))?,
                Bind::Truth(value) => arguments.add(value)?,
            }
        }
        Ok((self.text, arguments))
    }
}

//! A statement's text and its values, built together.
//!
//! Both databases take `$1`, and SQLite binds a missing value silently as NULL; so text and values are never apart:
//! [`Sql::bind`] writes the placeholder and keeps the value in one call. [`Sql::push`] takes only text that stands in
//! the program, so no caller's text can become SQL. Where the two databases differ, the [`Dialect`] decides, here.

use std::sync::Arc;

use jiff::Timestamp;
use sqlx::Arguments;
use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;

use super::page::PageScan;
use super::texts::Texts;

/// Which database a statement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Postgres,
    Sqlite,
}

impl Dialect {
    /// As metrics call the database.
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
    /// Lists are shared with whoever asks, and with the statement that is sent again.
    Integers(Arc<[i64]>),
    Texts(Arc<Texts>),
    /// The same for a long text.
    SharedText(Arc<str>),
    OptionalText(Option<String>),
    OptionalInteger(Option<i64>),
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

impl From<Timestamp> for Bind {
    fn from(value: Timestamp) -> Self {
        Self::Time(value)
    }
}

/// A statement in the making.
#[derive(Clone, Debug)]
pub(crate) struct Sql {
    dialect: Dialect,
    text: String,
    binds: Vec<Bind>,
    custom_plan: bool,
}

/// How many bytes a statement is given room for at first: most have fewer, and the others need more once.
const INITIAL_CAPACITY: usize = 1024;

impl Sql {
    /// An empty statement.
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self { dialect, text: String::with_capacity(INITIAL_CAPACITY), binds: Vec::new(), custom_plan: false }
    }

    /// Has Postgres plan the statement for the values that it has: what is right for one keyword or form is wrong for the
    /// next. All others keep their plan after a few times, which for short statements is half of what they cost. Said
    /// before the first limit; the statement itself ends without one.
    pub(crate) fn force_custom_plan(&mut self) -> &mut Self {
        self.custom_plan = true;
        self
    }

    /// Adds text of the program's own.
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

    /// Adds a value and its placeholder.
    pub(crate) fn bind(&mut self, value: impl Into<Bind>) -> &mut Self {
        self.binds.push(value.into());
        self.text.push('$');
        self.text.push_str(&self.binds.len().to_string());
        self
    }

    /// Adds the placeholder of the value that was bound last, which is not sent twice.
    pub(crate) fn bind_again(&mut self) -> &mut Self {
        self.text.push('$');
        self.text.push_str(&self.binds.len().to_string());
        self
    }

    /// Adds ` LIMIT … OFFSET …`: as text where Postgres keeps its plan, since that counts on how much is read.
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

    /// Adds ` IN` and a list of ids, bound as one value however many they are.
    pub(crate) fn in_ids(&mut self, ids: &[i64]) -> &mut Self {
        self.in_list(Bind::Integers(ids.into()))
    }

    /// The same where Postgres is to keep one plan for lists of any length. The plan can't look at this list, and so costs
    /// for each what it costs for another; else Postgres plans each short list anew, being told of that plan that it is
    /// cheaper, and planning takes many times as long as looking up one id.
    pub(crate) fn in_ids_with_generic_plan(&mut self, ids: &[i64]) -> &mut Self {
        match self.dialect {
            Dialect::Postgres => self.push(" = ANY ((SELECT ").bind(ids.to_vec()).push("::bigint[])::bigint[])"),
            Dialect::Sqlite => self.in_ids(ids),
        }
    }

    /// Adds ` IN` and a list of texts, bound as one value however many they are.
    pub(crate) fn in_texts(&mut self, texts: impl IntoIterator<Item: AsRef<str>>) -> &mut Self {
        self.in_list(texts.into_iter().collect::<Texts>().into())
    }

    fn in_list(&mut self, list: Bind) -> &mut Self {
        match self.dialect {
            Dialect::Postgres => self.push(" = ANY (").bind(list).push(")"),
            Dialect::Sqlite => self.push(" IN (SELECT value FROM json_each(").bind(list).push("))"),
        }
    }

    /// Adds a select list over a JSON array of arrays, bound as one value: `FROM` it every column of a batch can be
    /// inserted with one statement. `columns` are names and Postgres types.
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

    /// The length of its texts in bytes, which is about what the driver copies.
    pub(in crate::store) fn bytes(&self) -> usize {
        let of = |bind: &Bind| match bind {
            Bind::Text(text) | Bind::OptionalText(Some(text)) => text.len(),
            Bind::Bytes(bytes) => bytes.len(),
            Bind::Texts(texts) => texts.bytes(),
            Bind::SharedText(text) => text.len(),
            Bind::Integers(list) => size_of_val(&**list),
            Bind::Integer(_) | Bind::Time(_) | Bind::OptionalText(None) | Bind::OptionalInteger(_) | Bind::Truth(_) => {
                0
            }
        };
        self.binds.iter().map(of).sum()
    }

    /// The database that the statement is for.
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The text, and the values as the Postgres driver takes them.
    pub(in crate::store) fn into_postgres(mut self) -> Result<(String, PgArguments), sqlx::error::BoxDynError> {
        if self.custom_plan {
            // Postgres keeps a plan that it expects to cost less than those for the values did. No plan that leaves this
            // limit open does; in one for its value there is none. So the statement is parsed once and planned each time.
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
                Bind::Texts(value) => arguments.add(&*value)?,
                Bind::SharedText(value) => arguments.add(&*value)?,
                Bind::OptionalText(value) => arguments.add(value)?,
                Bind::OptionalInteger(value) => arguments.add(value)?,
                Bind::Truth(value) => arguments.add(value)?,
            }
        }
        Ok((self.text, arguments))
    }

    /// The text, and the values as the SQLite driver takes them: instants as microseconds, lists as JSON.
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
                Bind::Truth(value) => arguments.add(value)?,
            }
        }
        Ok((self.text, arguments))
    }
}

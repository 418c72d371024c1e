//! A statement: constant text with its values.
//!
//! [`sql!`] makes one of a [template](super::template): `sql!("DELETE FROM tokens WHERE id = {id}", id)`. It is the same for
//! both databases until a connection runs it, and becomes text and values of its own kind then. So a part of a statement is a
//! statement too, which a place `{+part}` of another one takes.
//!
//! Both databases accept `$1`, and SQLite silently binds a missing value as NULL. So a placeholder and its value are added in
//! one step, where the text is written.

use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;

use super::argument::Argument;
use super::template::Template;
use super::writer::Writer;

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

/// A statement or a part of one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sql {
    pub(super) pieces: Vec<Piece>,
    custom_plan: bool,
    is_kept: bool,
}

/// A template with its values, or text without places.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Template(&'static Template, Vec<Argument>),
    Text(&'static str),
    /// The rows of a JSON array of arrays, and their columns: names and Postgres types.
    Rows(String, &'static [(&'static str, &'static str)]),
}

/// A statement of a text with places, whose values have names: `sql!("… WHERE id = {id}", id = self.id)`. The language is
/// described in `statement/template.rs`.
macro_rules! sql {
    ($text:literal $(, $name:ident $(= $value:expr)?)* $(,)?) => {{
        const SQL_NAMES: &[&str] = &[$(stringify!($name)),*];
        const SQL_TOKENS: usize = $crate::store::statement::Template::count($text, SQL_NAMES);
        const TEMPLATE: &$crate::store::statement::Template = &$crate::store::statement::Template::new(
            $text,
            &$crate::store::statement::Template::read::<SQL_TOKENS>($text, SQL_NAMES),
        );
        $crate::store::statement::Sql::of(TEMPLATE, vec![$($crate::store::statement::sql!(@ $name $($value)?)),*])
    }};
    (@ $name:ident) => { $name.into() };
    (@ $name:ident $value:expr) => { $value.into() };
}
pub(in crate::store) use sql;

impl Sql {
    /// Called by [`sql!`].
    pub(in crate::store) fn of(template: &'static Template, values: Vec<Argument>) -> Self {
        Self { pieces: vec![Piece::Template(template, values)], ..Self::default() }
    }

    /// A part without values: a constant of the program that several statements have, such as the name of a column.
    pub(in crate::store) fn text(text: &'static str) -> Self {
        Self { pieces: vec![Piece::Text(text)], ..Self::default() }
    }

    /// Several parts with a constant between them, such as conditions with ` AND `.
    pub(in crate::store) fn joined(parts: impl IntoIterator<Item = Self>, between: &'static str) -> Self {
        let mut joined = Self::default();
        for (at, part) in parts.into_iter().enumerate() {
            if at > 0 {
                joined.pieces.push(Piece::Text(between));
            }
            joined.append(part);
        }
        joined
    }

    /// Adds what follows.
    pub(in crate::store) fn append(&mut self, part: Self) -> &mut Self {
        self.custom_plan |= part.custom_plan;
        self.is_kept |= part.is_kept;
        self.pieces.extend(part.pieces);
        self
    }

    /// A subquery of the rows in a JSON array of arrays, bound as one value, from which one statement can insert a whole
    /// batch: `{rows …}` of columns that are known as data.
    pub(super) fn rows(rows: String, columns: &'static [(&'static str, &'static str)]) -> Self {
        Self { pieces: vec![Piece::Rows(rows, columns)], ..Self::default() }
    }

    /// Has Postgres plan this statement for its values each time: the right plan for one keyword or form is wrong for
    /// another. Other statements get a generic plan after a few executions, which halves the cost of short ones. The
    /// statement itself must not end with a limit.
    pub(in crate::store) fn with_custom_plan(mut self) -> Self {
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

    fn needs_custom_plan(&self) -> bool {
        let of_part = |argument: &Argument| matches!(argument, Argument::Part(part) if part.needs_custom_plan());
        let of_piece = |piece: &Piece| matches!(piece, Piece::Template(_, values) if values.iter().any(of_part));
        self.custom_plan || self.pieces.iter().any(of_piece)
    }

    /// Whether it has no values.
    pub(super) fn is_constant(&self) -> bool {
        self.pieces.iter().all(|piece| match piece {
            Piece::Template(_, values) => values.is_empty(),
            Piece::Text(_) => true,
            Piece::Rows(..) => false,
        })
    }

    /// The size of its values in bytes: about what the driver copies.
    pub(in crate::store) fn bytes(&self) -> usize {
        let of = |piece: &Piece| match piece {
            Piece::Template(_, values) => values.iter().map(Argument::bytes).sum(),
            Piece::Text(_) => 0,
            Piece::Rows(rows, _) => rows.len(),
        };
        self.pieces.iter().map(of).sum()
    }

    /// The text and the values for the Postgres driver.
    pub(in crate::store) fn into_postgres(self) -> Result<(String, PgArguments), BoxDynError> {
        let custom_plan = self.needs_custom_plan();
        let mut written = Writer::new(Dialect::Postgres, custom_plan);
        written.write(self);
        if custom_plan {
            // Postgres switches to a generic plan if it expects it to cost no more than custom plans did. A generic
            // plan has to assume this limit, whose subquery makes it expensive; in a custom plan the limit is folded
            // to none. So the statement is parsed once and planned each time.
            written.text.push_str(" LIMIT CASE WHEN ");
            written.bind(true.into());
            written.text.push_str(" THEN NULL ELSE (SELECT count(*) FROM generate_series(1, 1000000000000)) END");
        }
        let mut arguments = PgArguments::default();
        for value in written.values {
            value.add_to_postgres(&mut arguments)?;
        }
        Ok((written.text, arguments))
    }

    /// The text and the values for the SQLite driver.
    pub(in crate::store) fn into_sqlite(self) -> Result<(String, SqliteArguments), BoxDynError> {
        let mut written = Writer::new(Dialect::Sqlite, false);
        written.write(self);
        let mut arguments = SqliteArguments::default();
        for value in written.values {
            value.add_to_sqlite(&mut arguments)?;
        }
        Ok((written.text, arguments))
    }

    /// The statement with its values in the text, as `psql` and `sqlite3` take it.
    pub(in crate::store) fn pasteable(self, dialect: Dialect) -> String {
        let mut written = Writer::new(dialect, false);
        written.literals = true;
        written.write(self);
        written.text
    }
}

//! A statement: constant text with its values.
//!
//! [`sql!`] makes one of a [template](super::template): `sql!("DELETE FROM tokens WHERE id = {id}", id)`. It is the same for
//! both databases until a connection runs it, and becomes text and values of its own kind then. So a part of a statement is a
//! statement too, which a place `{+part}` of another one takes.
//!
//! Both databases accept `$1`, and SQLite silently binds a missing value as NULL. So a placeholder and its value are added in
//! one step, where the text is written.

use std::time::Duration;

use jiff::Timestamp;
use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;

use super::argument::Argument;
use super::template::{Span, Template, Token, next_token};

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
    pieces: Vec<Piece>,
    custom_plan: bool,
    is_kept: bool,
}

/// A template with its values, or text without places.
#[derive(Clone, Debug)]
enum Piece {
    Template(&'static Template, Vec<Argument>),
    Text(&'static str),
    /// The rows of a JSON array of arrays, and their columns: names and Postgres types.
    Rows(String, &'static [(&'static str, &'static str)]),
}

/// A statement of a text with places, whose values have names: `sql!("… WHERE id = {id}", id = self.id)`. The language is
/// described in `statement/template.rs`.
macro_rules! sql {
    ($text:literal $(, $name:ident $(= $value:expr)?)* $(,)?) => {{
        const TEMPLATE: &$crate::store::statement::Template =
            &$crate::store::statement::Template::new($text, &[$(stringify!($name)),*]);
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
    fn is_constant(&self) -> bool {
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
        let mut written = Writer { literals: true, ..Writer::new(dialect, false) };
        written.write(self);
        written.text
    }
}

/// The initial capacity of the text, in bytes.
///
/// Larger: short statements waste memory. Smaller: more statements have to grow their buffer.
const INITIAL_CAPACITY: usize = 1024;

/// A statement for one database, as far as it is written.
struct Writer {
    dialect: Dialect,
    /// Whether Postgres plans it each time.
    custom_plan: bool,
    /// Whether values are written into the text.
    literals: bool,
    text: String,
    values: Vec<Argument>,
    /// One for the whole statement.
    now: Option<Timestamp>,
}

/// A value of a template, on its way into the statement.
enum Slot {
    Given(Argument),
    /// It is bound at this position.
    Bound(usize),
}

impl Writer {
    fn new(dialect: Dialect, custom_plan: bool) -> Self {
        let text = String::with_capacity(INITIAL_CAPACITY);
        Self { dialect, custom_plan, literals: false, text, values: Vec::new(), now: None }
    }

    fn write(&mut self, sql: Sql) {
        for piece in sql.pieces {
            match piece {
                Piece::Template(template, values) => self.write_template(template, values),
                Piece::Text(text) => self.text.push_str(text),
                Piece::Rows(rows, columns) => self.write_rows(rows.into(), columns.iter().copied()),
            }
        }
    }

    /// Writes a part without values, which may be written several times.
    fn write_constant(&mut self, part: &Sql) {
        for piece in &part.pieces {
            match piece {
                Piece::Text(text) => self.text.push_str(text),
                Piece::Template(template, _) => self.write_template(template, Vec::new()),
                Piece::Rows(..) => unreachable!("rows are a value"),
            }
        }
    }

    fn write_template(&mut self, template: &'static Template, values: Vec<Argument>) {
        let Template { text, names } = template;
        let mut slots: Vec<Slot> = values.into_iter().map(Slot::Given).collect();
        let slot_of = |name: Span| {
            let name = name.of(text);
            names.iter().position(|candidate| *candidate == name).expect("checked when it was compiled")
        };
        let (mut at, mut is_other_side) = (0, false);
        while at < text.len() {
            let (token, next) = next_token(text, at);
            at = next;
            match token {
                Token::Either(is_of_sqlite) => is_other_side = is_of_sqlite != (self.dialect == Dialect::Sqlite),
                Token::Other => is_other_side = self.dialect == Dialect::Postgres,
                Token::End => is_other_side = false,
                _ if is_other_side => {}
                Token::Text(span) => self.text.push_str(span.of(text)),
                Token::Break => self.text.push(' '),
                Token::Value(name) => self.place(&mut slots[slot_of(name)]),
                Token::Part(name) => {
                    let slot = &mut slots[slot_of(name)];
                    match slot {
                        Slot::Given(Argument::Part(part)) if part.is_constant() => self.write_constant(part),
                        _ => match std::mem::replace(slot, Slot::Bound(0)) {
                            Slot::Given(Argument::Part(part)) => self.write(part),
                            other => unreachable!("{} is no part that is written once: {text}", other.name()),
                        },
                    }
                }
                Token::In(name) => self.write_list(["= ANY (", ")"], &mut slots[slot_of(name)]),
                Token::InUnsized(name) => {
                    self.write_list(["= ANY ((SELECT ", "::bigint[])::bigint[])"], &mut slots[slot_of(name)]);
                }
                Token::NotIn(name) => match self.dialect {
                    Dialect::Postgres => self.write_list(["<> ALL (", ")"], &mut slots[slot_of(name)]),
                    Dialect::Sqlite => {
                        self.text.push_str("NOT ");
                        self.write_list(["", ""], &mut slots[slot_of(name)]);
                    }
                },
                Token::Clock => match self.dialect {
                    Dialect::Postgres => self.text.push_str("clock_timestamp()"),
                    Dialect::Sqlite => self.bind_instant(|now| now),
                },
                Token::ClockPlus(name) => self.write_clock("+", &slots[slot_of(name)]),
                Token::ClockMinus(name) => self.write_clock("-", &slots[slot_of(name)]),
                Token::Passed { column, longest } => {
                    let column = column.of(text);
                    self.text.extend(["(", column, " IS NULL OR ", column, " <= "]);
                    self.write_clock("+", &Slot::Given(Duration::ZERO.into()));
                    self.text.extend([" OR ", column, " > "]);
                    self.write_clock("+", &slots[slot_of(longest)]);
                    self.text.push(')');
                }
                Token::Instant(column) => {
                    let [before, after] = match self.dialect {
                        Dialect::Postgres => {
                            ["greatest('0001-01-01 00:00:00+00', least(", ", '9999-12-30 22:00:00+00'))"]
                        }
                        Dialect::Sqlite => ["max(-62135596800000000, min(", ", 253402207200000000))"],
                    };
                    self.text.extend([before, column.of(text), after]);
                }
                Token::Rows { batch, columns } => {
                    let Slot::Given(rows) = std::mem::replace(&mut slots[slot_of(batch)], Slot::Bound(0)) else {
                        unreachable!("a batch is written once: {text}")
                    };
                    let columns = columns.of(text).split(',').map(str::trim);
                    self.write_rows(rows, columns.map(|column| column.split_once(' ').expect("a name and a type")));
                }
                Token::Records(fields) => self.write_records(fields.of(text)),
                Token::Page(name) => match &slots[slot_of(name)] {
                    Slot::Given(Argument::Page(page)) => {
                        let (length, offset) = (page.length, page.offset);
                        self.text.push_str(" LIMIT ");
                        self.number(length);
                        self.text.push_str(" OFFSET ");
                        self.number(offset);
                    }
                    other => unreachable!("{} is no page: {text}", other.name()),
                },
                Token::Scans => {}
            }
        }
    }

    /// Binds a value where it occurs first, and writes its placeholder.
    fn place(&mut self, slot: &mut Slot) {
        match std::mem::replace(slot, Slot::Bound(self.values.len())) {
            Slot::Given(value) => self.bind(value),
            Slot::Bound(position) => {
                *slot = Slot::Bound(position);
                self.write_placeholder(position);
            }
        }
    }

    fn bind(&mut self, value: Argument) {
        self.values.push(value);
        self.write_placeholder(self.values.len() - 1);
    }

    fn write_placeholder(&mut self, position: usize) {
        // SQLite plans with the value of a bare placeholder in LIMIT, so it would prepare the statement again each time.
        let is_limit = self.dialect == Dialect::Sqlite && self.text.ends_with("LIMIT ");
        if is_limit {
            self.text.push_str("CAST(");
        }
        if self.literals {
            let literal = self.values[position].literal(self.dialect);
            self.text.push_str(&literal);
        } else {
            self.text.push('$');
            self.text.push_str(&(position + 1).to_string());
        }
        if is_limit {
            self.text.push_str(" AS INTEGER)");
        }
    }

    /// A number of a page. It is text if Postgres may use a generic plan, which depends on how much is read.
    fn number(&mut self, number: i64) {
        if self.dialect == Dialect::Postgres && !self.custom_plan {
            self.text.push_str(&number.to_string());
        } else {
            self.bind(number.into());
        }
    }

    /// A list as one value: between two texts on Postgres.
    fn write_list(&mut self, [before, after]: [&str; 2], slot: &mut Slot) {
        let [before, after] = match self.dialect {
            Dialect::Postgres => [before, after],
            Dialect::Sqlite => ["IN (SELECT value FROM json_each(", "))"],
        };
        self.text.push_str(before);
        self.place(slot);
        self.text.push_str(after);
    }

    fn write_clock(&mut self, sign: &str, slot: &Slot) {
        let Slot::Given(Argument::Span(span)) = slot else { unreachable!("{} is no time", slot.name()) };
        match self.dialect {
            Dialect::Postgres => {
                self.text.extend(["(clock_timestamp() ", sign, " "]);
                self.bind((*span).into());
                self.text.push_str("::bigint * interval '1 millisecond')");
            }
            Dialect::Sqlite if sign == "+" => self.bind_instant(|now| now + *span),
            Dialect::Sqlite => self.bind_instant(|now| now - *span),
        }
    }

    fn bind_instant(&mut self, of: impl Fn(Timestamp) -> Timestamp) {
        let now = *self.now.get_or_insert_with(Timestamp::now);
        self.bind(of(now).into());
    }

    fn write_rows<'c>(&mut self, rows: Argument, columns: impl Iterator<Item = (&'c str, &'c str)>) {
        self.text.push_str("(SELECT ");
        for (at, (name, kind)) in columns.enumerate() {
            let (comma, at) = (if at == 0 { "" } else { ", " }, at.to_string());
            match self.dialect {
                Dialect::Postgres => self.text.extend([comma, "(item->>", &*at, ")::", kind, " AS ", name]),
                Dialect::Sqlite => self.text.extend([comma, "value->>", &*at, " AS ", name]),
            }
        }
        let [before, after] = match self.dialect {
            Dialect::Postgres => {
                [" FROM jsonb_array_elements(", "::jsonb) WITH ORDINALITY AS batch (item, line) ORDER BY line)"]
            }
            Dialect::Sqlite => [" FROM json_each(", "))"],
        };
        self.text.push_str(before);
        self.bind(rows);
        self.text.push_str(after);
    }

    /// Writes `SELECT` and one value with a list of records; see [`super::records`].
    fn write_records(&mut self, fields: &str) {
        let fields = match self.dialect {
            Dialect::Postgres => ["SELECT ROW (array_agg(", &fields.replace(", ", "), array_agg("), "))"],
            Dialect::Sqlite => ["SELECT json_group_array(json_array(", fields, "))"],
        };
        self.text.extend(fields);
    }
}

impl Slot {
    fn name(&self) -> &'static str {
        match self {
            Self::Given(Argument::Part(_)) => "a part",
            Self::Given(Argument::Page(_)) => "a page",
            Self::Given(_) => "a value",
            Self::Bound(_) => "what was written before",
        }
    }
}

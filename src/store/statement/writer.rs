//! Writes a statement for one database: its text, and the values in the order of their placeholders.

use std::time::Duration;

use jiff::Timestamp;

use super::argument::Argument;
use super::sql::{Dialect, Piece, Sql};
use super::template::{Placed, Template, Token};

/// The initial capacity of the text, in bytes.
///
/// Larger: short statements waste memory. Smaller: more statements have to grow their buffer.
const INITIAL_CAPACITY: usize = 1024;

/// The part of a statement that is already written, for one database.
pub(super) struct Writer {
    dialect: Dialect,
    /// Whether Postgres plans it each time.
    custom_plan: bool,
    /// Whether values are written into the text.
    pub(super) literals: bool,
    pub(super) text: String,
    pub(super) values: Vec<Argument>,
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
    pub(super) fn new(dialect: Dialect, custom_plan: bool) -> Self {
        let text = String::with_capacity(INITIAL_CAPACITY);
        Self { dialect, custom_plan, literals: false, text, values: Vec::new(), now: None }
    }

    pub(super) fn write(&mut self, sql: Sql) {
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
        let Template { text, tokens } = template;
        let mut slots: Vec<Slot> = values.into_iter().map(Slot::Given).collect();
        let mut is_other_side = false;
        for Placed { token, value } in *tokens {
            match *token {
                Token::Either(is_of_sqlite) => is_other_side = is_of_sqlite != (self.dialect == Dialect::Sqlite),
                Token::Other => is_other_side = self.dialect == Dialect::Postgres,
                Token::End => is_other_side = false,
                _ if is_other_side => {}
                Token::Text(span) => self.text.push_str(span.of(text)),
                Token::Break => self.text.push(' '),
                Token::Value(_) => self.place(&mut slots[*value]),
                Token::Part(_) => {
                    let slot = &mut slots[*value];
                    match slot {
                        Slot::Given(Argument::Part(part)) if part.is_constant() => self.write_constant(part),
                        _ => match std::mem::replace(slot, Slot::Bound(0)) {
                            Slot::Given(Argument::Part(part)) => self.write(part),
                            other => unreachable!("{} is no part that is written once: {text}", other.name()),
                        },
                    }
                }
                Token::In(_) => self.write_list(["= ANY (", ")"], &mut slots[*value]),
                Token::InUnsized(_) => {
                    self.write_list(["= ANY ((SELECT ", "::bigint[])::bigint[])"], &mut slots[*value]);
                }
                Token::NotIn(_) => match self.dialect {
                    Dialect::Postgres => self.write_list(["<> ALL (", ")"], &mut slots[*value]),
                    Dialect::Sqlite => {
                        self.text.push_str("NOT ");
                        self.write_list(["", ""], &mut slots[*value]);
                    }
                },
                Token::Clock => match self.dialect {
                    Dialect::Postgres => self.text.push_str("clock_timestamp()"),
                    Dialect::Sqlite => self.bind_instant(|now| now),
                },
                Token::ClockPlus(_) => self.write_clock("+", &slots[*value]),
                Token::ClockMinus(_) => self.write_clock("-", &slots[*value]),
                Token::Passed { column, .. } => {
                    let column = column.of(text);
                    self.text.extend(["(", column, " IS NULL OR ", column, " <= "]);
                    self.write_clock("+", &Slot::Given(Duration::ZERO.into()));
                    self.text.extend([" OR ", column, " > "]);
                    self.write_clock("+", &slots[*value]);
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
                Token::Rows { columns, .. } => {
                    let Slot::Given(rows) = std::mem::replace(&mut slots[*value], Slot::Bound(0)) else {
                        unreachable!("a batch is written once: {text}")
                    };
                    let columns = columns.of(text).split(',').map(str::trim);
                    self.write_rows(rows, columns.map(|column| column.split_once(' ').expect("a name and a type")));
                }
                Token::Records(fields) => self.write_records(fields.of(text)),
                Token::Page(_) => match &slots[*value] {
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

    pub(super) fn bind(&mut self, value: Argument) {
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

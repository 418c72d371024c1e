//! The language of the statements' texts, which [`sql!`](super::sql) takes.
//!
//! A text is SQL with places in braces:
//!
//! | place | stands for | value |
//! | --- | --- | --- |
//! | `{host}` | a bound value; the same name again is the same value | any |
//! | `{+conditions}` | another statement or a part of one, with its own values; in several places if it has none | `Sql` |
//! | `{pg: … \| lite: …}` | text for one database; either side may be missing, and have places of its own | |
//! | `{in ids}`, `{not in ids}` | ` = ANY (…)` and the like: a list of any length, bound as one value | a list |
//! | `{in unsized ids}` | the same, but Postgres uses one generic plan for all lengths (below) | numbers |
//! | `{clock}`, `{clock + pause}`, `{clock - pause}` | an instant by the clock of the database (below) | `Duration` |
//! | `{passed leased_until, longest}` | the instant in a column has passed (below) | `Duration` |
//! | `{instant s.created_at}` | an instant of a plain table, limited to what can be shown | |
//! | `{rows batch: id bigint, name text}` | a subquery of the rows in a JSON array of arrays | text |
//! | `{records: id, name}` | `SELECT` and one value with a list of records, up to `FROM` | |
//! | `{page scan}` | ` LIMIT … OFFSET …` | `PageScan` |
//! | `{scans: why}` | nothing: says why the statement may read a whole table that grows | |
//! | `{{`, `}}` | a brace | |
//!
//! A line break is one space, with the indentation after it.
//!
//! - **Lists without a size.** Postgres estimates a custom plan for each short list as cheaper than a generic one, and then
//!   plans for many times as long as it looks up one id. A subquery hides the length of the list from the planner.
//! - **Clock.** What several nodes compare must not depend on their clocks: so it is the clock of the Postgres server. A SQLite
//!   file has the clock of this machine.
//! - **Passed.** Also an instant that is NULL, or further ahead than the longest time for which it is written: that one is from
//!   before the clock was set back, and would hold for as long as that step.
//! - **Instants of plain tables.** A program may have turned off the constraints that refuse others.
//!
//! Places and names are held to each other when the program is compiled. Values are bound, never part of the text, which is
//! a constant of the program: no text of a client can become SQL.

/// The text of a statement, read when the program is compiled.
#[derive(Debug)]
pub(in crate::store) struct Template {
    pub(super) text: &'static str,
    pub(super) tokens: &'static [Placed],
}

/// A token, and which value its name stands for.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Placed {
    pub(super) token: Token,
    pub(super) value: usize,
}

impl Template {
    /// A text with the tokens that [`read`](Self::read) found in it.
    pub(in crate::store) const fn new(text: &'static str, tokens: &'static [Placed]) -> Self {
        Self { text, tokens }
    }

    /// Reads a text of as many tokens as it has.
    pub(in crate::store) const fn read<const TOKENS: usize>(text: &str, names: &[&str]) -> [Placed; TOKENS] {
        let mut tokens = [Placed::NONE; TOKENS];
        Self::read_into(&mut tokens, text, names);
        tokens
    }

    pub(super) const fn read_into(tokens: &mut [Placed], text: &str, names: &[&str]) {
        let (mut at, mut count) = (0, 0);
        while at < text.len() {
            let (token, next) = next_token(text, at);
            let value = match token.name() {
                Some(name) => position(text, name, names),
                None => usize::MAX,
            };
            tokens[count] = Placed { token, value };
            (at, count) = (next, count + 1);
        }
    }

    /// Checks a text, and counts its tokens.
    ///
    /// # Panics
    /// If the text is malformed, a place has no value or a value no place. In a constant this is an error of the compiler.
    pub(in crate::store) const fn count(text: &str, names: &[&str]) -> usize {
        let mut count = 0;
        let mut used = 0_u64;
        let mut depth = 0_u32;
        let mut at = 0;
        while at < text.len() {
            let (token, next) = next_token(text, at);
            assert!(next > at);
            (at, count) = (next, count + 1);
            match token {
                Token::Either(_) => {
                    assert!(depth == 0, "{{pg: …}} in another one");
                    depth += 1;
                }
                Token::Other => assert!(depth == 1, "| lite: outside {{pg: …}}"),
                Token::End => {
                    assert!(depth == 1, "a brace that nothing opens; a brace of the SQL is doubled");
                    depth -= 1;
                }
                _ => {}
            }
            if let Some(name) = token.name() {
                let position = position(text, name, names);
                assert!(position < names.len(), "a place without a value");
                used |= 1 << position;
            }
        }
        assert!(depth == 0, "{{pg: …}} without an end");
        assert!(names.len() < 64 && used == (1 << names.len()) - 1, "a value without a place");
        count
    }
}

impl Placed {
    /// For the elements of an array that is not filled yet.
    pub(super) const NONE: Self = Self { token: Token::Scans, value: usize::MAX };
}

/// A part of a template's text: bytes from, and up to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span(pub(super) usize, pub(super) usize);

impl Span {
    pub(super) fn of(self, text: &str) -> &str {
        &text[self.0..self.1]
    }
}

/// A piece of a template.
#[derive(Clone, Copy, Debug)]
pub(super) enum Token {
    Text(Span),
    /// A line break and the indentation after it.
    Break,
    /// `{pg:` or `{lite:`, which has true.
    Either(bool),
    /// `| lite:`
    Other,
    /// The end of either.
    End,
    Value(Span),
    Part(Span),
    In(Span),
    InUnsized(Span),
    NotIn(Span),
    Clock,
    ClockPlus(Span),
    ClockMinus(Span),
    Passed {
        column: Span,
        longest: Span,
    },
    Instant(Span),
    Rows {
        batch: Span,
        columns: Span,
    },
    Records(Span),
    Page(Span),
    Scans,
}

impl Token {
    const fn name(self) -> Option<Span> {
        match self {
            Self::Value(name)
            | Self::Part(name)
            | Self::In(name)
            | Self::InUnsized(name)
            | Self::NotIn(name)
            | Self::ClockPlus(name)
            | Self::ClockMinus(name)
            | Self::Passed { longest: name, .. }
            | Self::Rows { batch: name, .. }
            | Self::Page(name) => Some(name),
            _ => None,
        }
    }
}

/// The token at a position, and the position after it.
///
/// # Panics
/// If the text is malformed there.
pub(super) const fn next_token(text: &str, at: usize) -> (Token, usize) {
    let bytes = text.as_bytes();
    match bytes[at] {
        b'{' if at + 1 < bytes.len() && bytes[at + 1] == b'{' => (Token::Text(Span(at, at + 1)), at + 2),
        b'}' if at + 1 < bytes.len() && bytes[at + 1] == b'}' => (Token::Text(Span(at, at + 1)), at + 2),
        b'{' => place(text, at),
        b'}' => (Token::End, at + 1),
        b'\n' => (Token::Break, skip_spaces(bytes, at + 1)),
        _ if starts_with(bytes, at, b" | lite:") => (Token::Other, skip_space(bytes, at + 8)),
        _ if starts_with(bytes, at, b"| lite:") => (Token::Other, skip_space(bytes, at + 7)),
        _ => {
            let mut end = at + 1;
            while end < bytes.len()
                && !matches!(bytes[end], b'{' | b'}' | b'\n')
                && !starts_with(bytes, end, b" | lite:")
            {
                end += 1;
            }
            (Token::Text(Span(at, end)), end)
        }
    }
}

/// The place whose brace is at a position.
const fn place(text: &str, open: usize) -> (Token, usize) {
    let bytes = text.as_bytes();
    let at = open + 1;
    if starts_with(bytes, at, b"pg:") {
        return (Token::Either(false), skip_space(bytes, at + 3));
    }
    if starts_with(bytes, at, b"lite:") {
        return (Token::Either(true), skip_space(bytes, at + 5));
    }
    let mut end = at;
    while end < bytes.len() && bytes[end] != b'}' {
        end += 1;
    }
    assert!(end < bytes.len(), "a place without an end");
    let token = if starts_with(bytes, at, b"+") {
        Token::Part(Span(at + 1, end))
    } else if starts_with(bytes, at, b"in unsized ") {
        Token::InUnsized(Span(at + 11, end))
    } else if starts_with(bytes, at, b"in ") {
        Token::In(Span(at + 3, end))
    } else if starts_with(bytes, at, b"not in ") {
        Token::NotIn(Span(at + 7, end))
    } else if starts_with(bytes, at, b"clock + ") {
        Token::ClockPlus(Span(at + 8, end))
    } else if starts_with(bytes, at, b"clock - ") {
        Token::ClockMinus(Span(at + 8, end))
    } else if starts_with(bytes, at, b"clock}") {
        Token::Clock
    } else if starts_with(bytes, at, b"passed ") {
        let comma = find(bytes, at, end, b',');
        Token::Passed { column: Span(at + 7, comma), longest: Span(skip_space(bytes, comma + 1), end) }
    } else if starts_with(bytes, at, b"instant ") {
        Token::Instant(Span(at + 8, end))
    } else if starts_with(bytes, at, b"rows ") {
        let colon = find(bytes, at, end, b':');
        Token::Rows { batch: Span(at + 5, colon), columns: Span(skip_space(bytes, colon + 1), end) }
    } else if starts_with(bytes, at, b"records: ") {
        Token::Records(Span(at + 9, end))
    } else if starts_with(bytes, at, b"page ") {
        Token::Page(Span(at + 5, end))
    } else if starts_with(bytes, at, b"scans: ") {
        Token::Scans
    } else {
        Token::Value(Span(at, end))
    };
    (token, end + 1)
}

/// The position of a name among those of the values; their number if it is none of them.
const fn position(text: &str, name: Span, names: &[&str]) -> usize {
    let mut position = 0;
    while position < names.len() {
        let candidate = names[position].as_bytes();
        if candidate.len() == name.1 - name.0 && starts_with(text.as_bytes(), name.0, candidate) {
            return position;
        }
        position += 1;
    }
    position
}

const fn starts_with(bytes: &[u8], at: usize, prefix: &[u8]) -> bool {
    let mut length = 0;
    while length < prefix.len() {
        if at + length >= bytes.len() || bytes[at + length] != prefix[length] {
            return false;
        }
        length += 1;
    }
    true
}

const fn find(bytes: &[u8], mut at: usize, end: usize, byte: u8) -> usize {
    while at < end && bytes[at] != byte {
        at += 1;
    }
    assert!(at < end, "a place that lacks its second part");
    at
}

const fn skip_space(bytes: &[u8], at: usize) -> usize {
    if at < bytes.len() && bytes[at] == b' ' { at + 1 } else { at }
}

const fn skip_spaces(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && matches!(bytes[at], b' ' | b'\n') {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::store::statement::{Dialect, Sql, sql};

    fn on_both(sql: &Sql) -> [String; 2] {
        [sql.clone().into_postgres().unwrap().0, sql.clone().into_sqlite().unwrap().0]
    }

    fn logged(sql: &Sql) -> [String; 2] {
        [Dialect::Postgres, Dialect::Sqlite].map(|dialect| sql.clone().pasteable(dialect))
    }

    #[test]
    fn the_same_name_is_the_same_value() {
        let (host, slug) = ("a.example", "acme");
        let sql = sql!("UPDATE t SET a = {host}, b = {host} WHERE c = {slug} AND d <> {host}", host, slug);
        let text = "UPDATE t SET a = $1, b = $1 WHERE c = $2 AND d <> $1".to_owned();
        assert_eq!(on_both(&sql), [text.clone(), text]);
        let text = "UPDATE t SET a = 'a.example', b = 'a.example' WHERE c = 'acme' AND d <> 'a.example'".to_owned();
        assert_eq!(logged(&sql), [text.clone(), text]);
    }

    #[test]
    fn a_side_is_written_for_its_database_only_and_binds_only_there() {
        let sql =
            sql!("a{pg: ::{x} | lite: -{y}} {lite: only {y}}{pg: FOR UPDATE | lite:} || {{}}", x = 1_i64, y = 2_i64);
        assert_eq!(on_both(&sql), ["a::$1 FOR UPDATE || {}", "a-$1 only $1 || {}"]);
        assert_eq!(logged(&sql), ["a::1 FOR UPDATE || {}", "a-2 only 2 || {}"]);
    }

    #[test]
    fn parts_have_their_own_values_and_are_numbered_where_they_stand() {
        let conditions = [sql!("a = {id}", id = 7_i64), sql!("b {in ids}", ids = vec![1_i64, 2])];
        let sql = sql!(
            "SELECT {+column} FROM t
             WHERE {+conditions} AND c = {id}",
            column = Sql::text("id"),
            conditions = Sql::joined(conditions, " AND "),
            id = "it's",
        );
        let sqlite = "SELECT id FROM t WHERE a = $1 AND b IN (SELECT value FROM json_each($2)) AND c = $3";
        assert_eq!(on_both(&sql), ["SELECT id FROM t WHERE a = $1 AND b = ANY ($2) AND c = $3", sqlite]);
        let postgres = "SELECT id FROM t WHERE a = 7 AND b = ANY ('{1,2}'::bigint[]) AND c = 'it''s'";
        let sqlite = "SELECT id FROM t WHERE a = 7 AND b IN (SELECT value FROM json_each('[1,2]')) AND c = 'it''s'";
        assert_eq!(logged(&sql), [postgres, sqlite]);
    }

    #[test]
    fn a_part_without_values_can_be_in_several_places() {
        for column in [Sql::text("id"), sql!("id")] {
            let sql = sql!("SELECT {+column} FROM t ORDER BY {+column}", column);
            let text = "SELECT id FROM t ORDER BY id".to_owned();
            assert_eq!(on_both(&sql), [text.clone(), text]);
        }
    }

    #[test]
    fn a_number_of_a_limit_does_not_change_the_plan_of_sqlite() {
        let sql = sql!("SELECT {n} LIMIT {n}", n = 3_i64);
        assert_eq!(on_both(&sql), ["SELECT $1 LIMIT $1", "SELECT $1 LIMIT CAST($1 AS INTEGER)"]);
    }

    #[test]
    fn one_statement_has_one_instant_and_an_instant_far_ahead_has_passed() {
        let sql = sql!("{clock} {passed at, longest}", longest = Duration::from_secs(2));
        let [postgres, sqlite] = logged(&sql);
        assert_eq!(
            postgres,
            "clock_timestamp() (at IS NULL OR at <= (clock_timestamp() + 0::bigint * interval '1 millisecond') OR at > \
             (clock_timestamp() + 2000::bigint * interval '1 millisecond'))"
        );
        let (now, rest) = sqlite.split_once(' ').unwrap();
        let ahead = now.parse::<i64>().unwrap() + 2_000_000;
        assert_eq!(rest, format!("(at IS NULL OR at <= {now} OR at > {ahead})"));
    }

    #[test]
    fn a_secret_is_not_logged() {
        let sql = sql!("a = {secret}", secret = crate::store::statement::Argument::Secret("whsec_1".into()));
        assert_eq!(logged(&sql), ["a = '…'", "a = '…'"]);
    }
}

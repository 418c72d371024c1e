//! The statements of a template as each database gets them, for the test that prepares every statement of the program.

use std::time::Duration;

use super::argument::Argument;
use super::page::{PageScan, SortDirection};
use super::sql::Sql;
use super::template::{Placed, Template, Token, next_token};

/// The text of a template on Postgres and on SQLite, with a placeholder for each value. `part` gives a part by its name, as
/// a template without values.
///
/// # Panics
/// If the template is malformed.
#[must_use]
pub fn statement_texts(template: &str, part: &dyn Fn(&str) -> String) -> [String; 2] {
    let sql = listed(template, part);
    [sql.clone().into_postgres(), sql.into_sqlite().map(|(text, _)| (text, Default::default()))]
        .map(|written| written.expect("numbers and texts can be bound").0)
}

fn listed(template: &str, part: &dyn Fn(&str) -> String) -> Sql {
    let mut values: Vec<(&'static str, Argument)> = Vec::new();
    // A test lists each once.
    let text: &'static str = template.to_owned().leak();
    let mut at = 0;
    while at < text.len() {
        let (token, next) = next_token(text, at);
        at = next;
        let (name, value) = match token {
            Token::Value(name) => (name, None::<String>.into()),
            Token::Part(name) => (name, listed(&part(name.of(text)), part).into()),
            Token::In(name) | Token::InUnsized(name) | Token::NotIn(name) => (name, Vec::<i64>::new().into()),
            Token::ClockPlus(name) | Token::ClockMinus(name) | Token::Passed { longest: name, .. } => {
                (name, Duration::ZERO.into())
            }
            Token::Rows { batch, .. } => (batch, "[]".into()),
            Token::Page(name) => {
                let direction = SortDirection::Ascending;
                (name, PageScan { direction, offset: 0, length: 1, behind: None }.into())
            }
            _ => continue,
        };
        if values.iter().all(|(known, _)| *known != name.of(text)) {
            values.push((name.of(text), value));
        }
    }
    let (names, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
    let mut tokens = vec![Placed::NONE; Template::count(text, &names)];
    Template::read_into(&mut tokens, text, &names);
    Sql::of(Box::leak(Box::new(Template::new(text, tokens.leak()))), values)
}

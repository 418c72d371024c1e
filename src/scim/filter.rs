//! Parses filters (RFC 7644, section 3.4.2.2) and the paths of PATCH, which contain filters.
//!
//! Of the operators, those that directories send are supported: `eq`, `sw` and `co`, with `and`, `or`, `not` and brackets.
//! Another operator is a fault, so that no list is longer or shorter than the client believes. Names of attributes are
//! returned in lower case, without the URN of a core schema before them, and with a dot before a sub-attribute.

use std::fmt;

use serde_json::{Deserializer, Value};

use super::error::{Fault, FaultKind};
use crate::store::{Comparison, Filter};

/// How deep filters may be nested.
///
/// Larger: a filter takes more stack, here and in the database. Smaller: filters of generators are refused.
const MAX_DEPTH: usize = 20;

/// How many comparisons a filter may have.
///
/// Larger: a request takes longer in the database. Smaller: directories look up fewer resources at once.
const MAX_TESTS: usize = 200;

/// What precedes attributes in their long form, in lower case.
const CORE: &str = "urn:ietf:params:scim:schemas:core:2.0:";

/// A comparison, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) attribute: String,
    pub(super) comparison: Comparison,
    pub(super) value: Literal,
}

/// What an attribute is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    Null,
    Truth(bool),
    Text(String),
}

/// A path of PATCH: `members[value eq "usr_1"]`, `emails[type eq "work"].value`, `name.givenName`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// The attribute, with a sub-attribute without a filter.
    pub(super) attribute: String,
    /// Which of its values are meant.
    pub(super) filter: Option<Filter<Test>>,
    /// The sub-attribute after a filter.
    pub(super) sub_attribute: Option<String>,
}

/// Parses a filter.
pub(super) fn parse(text: &str) -> Result<Filter<Test>, Fault> {
    let mut parser = Parser::new(text, FaultKind::Filter);
    let filter = parser.alternatives("", 0)?;
    parser.end()?;
    Ok(filter)
}

/// Parses a path.
pub(super) fn parse_path(text: &str) -> Result<Path, Fault> {
    let mut parser = Parser::new(text, FaultKind::Path);
    let attribute = parser.attribute()?;
    let (mut filter, mut sub_attribute) = (None, None);
    if parser.takes('[') {
        filter = Some(parser.alternatives("", 1)?);
        parser.expect(']')?;
        if parser.takes('.') {
            sub_attribute = Some(parser.attribute()?);
        }
    }
    parser.end()?;
    Ok(Path { attribute, filter, sub_attribute })
}

/// The name of an attribute in lower case, without the URN of a core schema.
pub(super) fn canonical(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let of_core = name.strip_prefix(CORE).and_then(|rest| {
        let rest = rest.strip_prefix("user").or_else(|| rest.strip_prefix("group"))?;
        if rest.is_empty() { Some("") } else { rest.strip_prefix(':') }
    });
    of_core.map(ToOwned::to_owned).unwrap_or(name)
}

struct Parser<'t> {
    rest: &'t str,
    kind: FaultKind,
    tests: usize,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str, kind: FaultKind) -> Self {
        Self { rest: text, kind, tests: 0 }
    }

    fn fault(&self, what: impl fmt::Display) -> Fault {
        let rest: String = self.rest.trim_start().chars().take(40).collect();
        let place = if rest.is_empty() { "at its end".to_owned() } else { format!("before {rest:?}") };
        let name = if self.kind == FaultKind::Path { "path" } else { "filter" };
        Fault::new(self.kind, format!("The {name} is not understood {place}: {what}."))
    }

    /// `or` between the parts.
    fn alternatives(&mut self, prefix: &str, depth: usize) -> Result<Filter<Test>, Fault> {
        if depth > MAX_DEPTH {
            return Err(self.fault("it is nested too deep"));
        }
        let mut parts = vec![self.all(prefix, depth)?];
        while self.takes_word("or") {
            parts.push(self.all(prefix, depth)?);
        }
        Ok(single_or(parts, Filter::Any))
    }

    /// `and` between the parts.
    fn all(&mut self, prefix: &str, depth: usize) -> Result<Filter<Test>, Fault> {
        let mut parts = vec![self.part(prefix, depth)?];
        while self.takes_word("and") {
            parts.push(self.part(prefix, depth)?);
        }
        Ok(single_or(parts, Filter::All))
    }

    fn part(&mut self, prefix: &str, depth: usize) -> Result<Filter<Test>, Fault> {
        if self.takes('(') {
            let inner = self.alternatives(prefix, depth + 1)?;
            self.expect(')')?;
            return Ok(inner);
        }
        let before = self.rest;
        if self.takes_word("not") {
            if self.takes('(') {
                let inner = self.alternatives(prefix, depth + 1)?;
                self.expect(')')?;
                return Ok(Filter::Not(Box::new(inner)));
            }
            self.rest = before;
        }
        let name = self.attribute()?;
        let attribute = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        if !self.takes('[') {
            return self.comparison(attribute);
        }
        if !prefix.is_empty() {
            return Err(self.fault("a value filter is inside another one"));
        }
        let inner = self.alternatives(&attribute, depth + 1)?;
        self.expect(']')?;
        if !self.takes('.') {
            return Ok(inner);
        }
        let sub_attribute = self.attribute()?;
        let test = self.comparison(format!("{attribute}.{sub_attribute}"))?;
        Ok(Filter::All(vec![inner, test]))
    }

    fn comparison(&mut self, attribute: String) -> Result<Filter<Test>, Fault> {
        self.tests += 1;
        if self.tests > MAX_TESTS {
            return Err(self.fault(format_args!("it has more than {MAX_TESTS} comparisons")));
        }
        let operator = self.word();
        let comparison = match operator.to_ascii_lowercase().as_str() {
            "eq" => Comparison::Equal,
            "sw" => Comparison::Begins,
            "co" => Comparison::Contains,
            _ => return Err(self.fault("the operators are eq, sw and co, with and, or and not")),
        };
        let after = self.rest.trim_start()[operator.len()..].trim_start();
        let value = if after.starts_with('"') {
            let mut texts = Deserializer::from_str(after).into_iter::<String>();
            let text = texts.next().and_then(Result::ok);
            self.rest = &after[texts.byte_offset()..];
            text.filter(|text| !text.contains('\0')).map(Literal::Text)
        } else {
            let end = after.find(|letter: char| letter.is_whitespace() || ")]".contains(letter)).unwrap_or(after.len());
            self.rest = &after[end..];
            match serde_json::from_str(&after[..end]) {
                Ok(Value::Null) => Some(Literal::Null),
                Ok(Value::Bool(truth)) => Some(Literal::Truth(truth)),
                Ok(Value::Number(number)) => Some(Literal::Text(number.to_string())),
                Ok(Value::String(_) | Value::Array(_) | Value::Object(_)) | Err(_) => None,
            }
        };
        let value = value.ok_or_else(|| self.fault("a value is a text in quotes, a number, true, false or null"))?;
        if value != Literal::Null || comparison == Comparison::Equal {
            return Ok(Filter::Test(Test { attribute, comparison, value }));
        }
        Err(self.fault("null can only be compared with eq"))
    }

    fn attribute(&mut self) -> Result<String, Fault> {
        let text = self.rest.trim_start();
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "_-.:$".contains(letter);
        let end = text.find(|letter| !is_of_name(letter)).unwrap_or(text.len());
        let name = &text[..end];
        // Inside a value filter an operator is no attribute, so a name begins with a letter or `$`.
        if !name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '$') {
            return Err(self.fault("the name of an attribute is missing"));
        }
        self.rest = &text[end..];
        Ok(canonical(name))
    }

    fn word(&self) -> &'t str {
        let text = self.rest.trim_start();
        &text[..text.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(text.len())]
    }

    /// Takes a word that is not part of a longer name.
    fn takes_word(&mut self, wanted: &str) -> bool {
        let word = self.word();
        let after = &self.rest.trim_start()[word.len()..];
        let is_it = word.eq_ignore_ascii_case(wanted) && after.starts_with([' ', '(', '\t']);
        if is_it {
            self.rest = after;
        }
        is_it
    }

    fn takes(&mut self, wanted: char) -> bool {
        let rest = self.rest.trim_start().strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, wanted: char) -> Result<(), Fault> {
        if self.takes(wanted) { Ok(()) } else { Err(self.fault(format_args!("`{wanted}` is missing"))) }
    }

    fn end(&self) -> Result<(), Fault> {
        if self.rest.trim().is_empty() { Ok(()) } else { Err(self.fault("it goes on where it should end")) }
    }
}

fn single_or(mut parts: Vec<Filter<Test>>, of: fn(Vec<Filter<Test>>) -> Filter<Test>) -> Filter<Test> {
    if parts.len() == 1 { parts.remove(0) } else { of(parts) }
}

impl<T> Filter<T> {
    /// The same filter with every test replaced.
    pub(super) fn resolve<R>(self, of: &impl Fn(T) -> Result<Filter<R>, Fault>) -> Result<Filter<R>, Fault> {
        let each = |parts: Vec<Self>| parts.into_iter().map(|part| part.resolve(of)).collect::<Result<Vec<_>, _>>();
        Ok(match self {
            Self::All(parts) => Filter::All(each(parts)?),
            Self::Any(parts) => Filter::Any(each(parts)?),
            Self::Not(part) => Filter::Not(Box::new(part.resolve(of)?)),
            Self::Test(test) => of(test)?,
        })
    }
}

impl Test {
    /// A filter on a text; a text is never null.
    pub(super) fn on_text<T>(self, of: impl FnOnce(Comparison, String) -> T) -> Result<Filter<T>, Fault> {
        match self.value {
            Literal::Null => Ok(Filter::none()),
            Literal::Truth(truth) => Ok(Filter::Test(of(self.comparison, truth.to_string()))),
            Literal::Text(text) => Ok(Filter::Test(of(self.comparison, text))),
        }
    }

    /// A filter on a truth.
    pub(super) fn on_truth<T>(&self, of: impl FnOnce(bool) -> Filter<T>) -> Result<Filter<T>, Fault> {
        let truth = match &self.value {
            Literal::Truth(truth) => Some(*truth),
            Literal::Text(text) if text.eq_ignore_ascii_case("true") => Some(true),
            Literal::Text(text) if text.eq_ignore_ascii_case("false") => Some(false),
            Literal::Null | Literal::Text(_) => None,
        };
        match truth.filter(|_| self.comparison == Comparison::Equal) {
            Some(truth) => Ok(of(truth)),
            None => Err(Fault::new(
                FaultKind::Filter,
                format!("The attribute {} can only be compared with true and false, by eq.", self.attribute),
            )),
        }
    }

    /// A filter on a text that all resources of a type have, in lower case.
    pub(super) fn on_constant<T>(self, constant: &str) -> Result<Filter<T>, Fault> {
        let is_met = |comparison, text: String| {
            let text = text.to_ascii_lowercase();
            match comparison {
                Comparison::Equal => constant == text,
                Comparison::Begins => constant.starts_with(&text),
                Comparison::Contains => constant.contains(&text),
            }
        };
        self.on_text(is_met).map(|filter| if filter == Filter::Test(true) { Filter::all() } else { Filter::none() })
    }

    /// The fault that a filter names an attribute that is not stored.
    pub(super) fn unknown(&self) -> Fault {
        Fault::new(FaultKind::Filter, format!("The attribute {} can't be filtered by.", self.attribute))
    }
}

#[cfg(test)]
mod tests;

//! Expands `${NAME}` in the strings of a configuration, so that secrets can come from the environment.
//!
//! Owns the syntax, in which `$${` stands for `${`; reads no files. The environment is a parameter, so that tests need not
//! set variables of the process. Which strings are expanded is decided by [`super::table`].

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::tenant_variables::TenantVariables;

/// How many errors of one string are returned. Larger: a string of nothing but variables that are not set gets a report
/// many times its size. Smaller: a URL with several such variables takes several rounds.
const MAX_ERRORS: usize = 8;

/// The longest name of a variable, in bytes. Larger: a report that names it is hard to read. Smaller: names that are in use
/// are refused.
const MAX_NAME: usize = 255;

/// Looks up a variable.
pub(super) type Environment<'e> = &'e (dyn Fn(&str) -> Option<String> + Sync);

/// A string that can't be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExpansionError {
    /// The variable is not set, or its value is not UTF-8.
    #[error("the environment variable `{0}` is not set")]
    Unset(String),
    /// The variable is not among those that tenants of the registry may use, whether it is set or not.
    #[error("tenants of the registry may not use the environment variable `{0}`")]
    NotAllowed(String),
    /// `${` without a name and `}` after it.
    #[error("`${{` without a variable's name and `}}`")]
    Malformed,
}

/// Replaces each `${NAME}` by the variable's value, and `$${` by `${`. Values are not expanded again, and a `$` without `{`
/// is kept. With `allowed`, only these variables are looked up.
///
/// # Errors
/// Each fault once, up to [`MAX_ERRORS`].
pub(super) fn expand<'t>(
    text: &'t str,
    environment: Environment<'_>,
    allowed: Option<&TenantVariables>,
) -> Result<Cow<'t, str>, Vec<ExpansionError>> {
    if !text.contains("${") {
        return Ok(Cow::Borrowed(text));
    }
    let (mut expanded, mut errors) = (String::with_capacity(text.len()), Vec::new());
    for part in parts(text) {
        let error = match part {
            Part::Text(text) => {
                expanded.push_str(text);
                continue;
            }
            Part::Malformed => ExpansionError::Malformed,
            Part::Variable(name) if allowed.is_some_and(|allowed| !allowed.allow(name)) => {
                ExpansionError::NotAllowed(name.to_owned())
            }
            Part::Variable(name) => match environment(name) {
                Some(value) => {
                    expanded.push_str(&value);
                    continue;
                }
                None => ExpansionError::Unset(name.to_owned()),
            },
        };
        if errors.len() < MAX_ERRORS && !errors.contains(&error) {
            errors.push(error);
        }
    }
    if errors.is_empty() { Ok(Cow::Owned(expanded)) } else { Err(errors) }
}

/// A part of a string.
enum Part<'t> {
    Text(&'t str),
    /// The name of a variable.
    Variable(&'t str),
    /// `${` without a name and `}` after it.
    Malformed,
}

/// The parts of a string, in time linear in its length.
fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (part, length) = match rest.find("${") {
            None if rest.is_empty() => return None,
            None => (Part::Text(rest), rest.len()),
            Some(0) => match name_at(&rest[2..]) {
                Some(name) => (Part::Variable(name), name.len() + 3),
                None => (Part::Malformed, 2),
            },
            Some(1) if rest.starts_with('$') => (Part::Text(&rest[1..3]), 3),
            // The next part is `$${`.
            Some(at) if rest[..at].ends_with('$') => (Part::Text(&rest[..at - 1]), at - 1),
            Some(at) => (Part::Text(&rest[..at]), at),
        };
        rest = &rest[length..];
        Some(part)
    })
}

/// The name that a text begins with, if `}` follows it. A shell can set it: letters, digits and `_`, not starting with a
/// digit.
fn name_at(text: &str) -> Option<&str> {
    let is_in_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let length = text.bytes().take(MAX_NAME + 1).take_while(is_in_name).count();
    let name = &text[..length];
    let is_name = (1..=MAX_NAME).contains(&length) && !name.starts_with(|c: char| c.is_ascii_digit());
    (is_name && text[length..].starts_with('}')).then_some(name)
}

/// Whether a configuration file contains a secret itself rather than the name of a variable: in a URL, as a URL's
/// parameter, or under a key whose values are secrets. Returns false for invalid TOML, which is already a fault.
pub(super) fn holds_password(text: &str, secrets: &BTreeSet<&str>) -> bool {
    let within = |(key, value): (&String, &toml::Value)| contains_secret(key, value, secrets);
    text.parse::<toml::Table>().is_ok_and(|table| table.iter().any(within))
}

fn contains_secret(key: &str, value: &toml::Value, secrets: &BTreeSet<&str>) -> bool {
    match value {
        toml::Value::String(text) => {
            let text = without_variables(text);
            secrets.contains(key) && !text.is_empty() || url_has_password(&text)
        }
        toml::Value::Array(values) => values.iter().any(|value| contains_secret(key, value, secrets)),
        toml::Value::Table(table) => table.iter().any(|(key, value)| contains_secret(key, value, secrets)),
        _ => false,
    }
}

fn url_has_password(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let user = authority.rsplit_once('@').and_then(|(user, _)| user.split_once(':'));
    let parameters = rest.split_once('?').map_or("", |(_, parameters)| parameters);
    let parameter = parameters.split('&').any(|pair| pair.strip_prefix("password=").is_some_and(|it| !it.is_empty()));
    user.is_some_and(|(_, password)| !password.is_empty()) || parameter
}

fn without_variables(text: &str) -> String {
    let plain = |part| match part {
        Part::Text(text) => Some(text),
        Part::Variable(_) | Part::Malformed => None,
    };
    parts(text).filter_map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(name: &str) -> Option<String> {
        [("USER", "ana"), ("PASSWORD", "${USER}"), ("EMPTY", "")]
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn variables_are_replaced_wherever_they_stand_and_only_once() {
        for (text, expected) in [
            ("plain $ { }", "plain $ { }"),
            ("${USER}", "ana"),
            ("postgres://${USER}:${PASSWORD}@db/x", "postgres://ana:${USER}@db/x"),
            ("${EMPTY}", ""),
            ("$${USER} ${USER}$${", "${USER} ana${"),
            ("$$${USER}$", "$${USER}$"),
            ("ä$${ö", "ä${ö"),
        ] {
            assert_eq!(expand(text, &environment, None).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_password_is_found_where_it_is_written_and_not_where_a_variable_is() {
        for (line, expected) in [
            ("database = 'postgres://app:secret@db/x'", true),
            ("database = 'postgres://app:${PASSWORD}@db/x'", false),
            ("database = 'postgres://app:a${PASSWORD}@${HOST}/x'", true),
            ("database = 'postgres://app@db/x?password=secret'", true),
            ("database = 'postgres://app@db:5432/x?sslmode=require'", false),
            ("database = 'sqlite:a:b@c.db'", false),
            ("redis_cluster = ['redis://a', 'redis://:secret@b']", true),
            ("[redis_sentinel]\npassword = 'secret'", true),
            ("[redis_sentinel]\npassword = '${PASSWORD}'", false),
            ("[gateway.webhooks]\nsecret_key = 'c2VjcmV0'", true),
            ("[gateway.webhooks]\nsecret_key = '${KEY}'", false),
            ("[gateway.acme]\nseal_keys = ['${KEY}', 'c2VjcmV0']", true),
            ("[gateway.acme]\nseal_keys = ['${KEY}']", false),
            ("[[gateway.acme.ca]]\neab = { key_id = 'a', hmac_key = 'c2VjcmV0' }", true),
            ("[tenant.oidc]\nclient_secret = 'secret'", true),
            ("[tenant.oidc]\nclient_secret = '${SECRET}'", false),
            ("[tenant.oidc]\nclient_secret = '$${SECRET}'", true),
            ("no toml", false),
        ] {
            assert_eq!(crate::config::holds_password(line), expected, "{line}");
        }
    }

    #[test]
    fn every_missing_variable_is_named() {
        let unset = |name: &str| ExpansionError::Unset(name.to_owned());
        assert_eq!(expand("${A}${USER}${B}${A}", &environment, None), Err(vec![unset("A"), unset("B")]));
        let long = format!("${{{}}}", "A".repeat(MAX_NAME + 1));
        for text in ["${", "${}", "${USER", "${1A}", "${A-b}", "${ä}", "${${", &long] {
            assert_eq!(expand(text, &environment, None), Err(vec![ExpansionError::Malformed]), "{text}");
        }
        let many: String = (0..100_000).map(|number| format!("${{A{number}}}${{")).collect();
        assert_eq!(expand(&many, &environment, None).unwrap_err().len(), MAX_ERRORS);
    }

    #[test]
    fn tenants_get_no_variable_but_those_that_are_allowed() {
        let allowed = TenantVariables::default();
        let environment = |name: &str| Some(name.to_lowercase());
        let expand = |text: &str| expand(text, &environment, Some(&allowed)).map(Cow::into_owned);
        assert_eq!(expand("a ${FORMGATE_TENANT_DB} $${USER}"), Ok("a formgate_tenant_db ${USER}".to_owned()));
        for name in ["USER", "FORMGATE_TENANT", "FORMGATE_SEAL_KEY", "XFORMGATE_TENANT_A", "formgate_tenant_a"] {
            let refused = Err(vec![ExpansionError::NotAllowed(name.to_owned())]);
            assert_eq!(expand(&format!("${{{name}}}")), refused, "{name}");
        }
    }
}

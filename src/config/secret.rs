//! Expands `${NAME}` in the strings of a configuration, so that secrets can come from the environment.
//!
//! Owns the syntax; reads no files. The environment is a parameter, so that tests need not set variables of the
//! process.

use std::borrow::Cow;

/// Looks up a variable.
pub(super) type Environment<'e> = &'e (dyn Fn(&str) -> Option<String> + Sync);

/// A string that can't be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExpansionError {
    /// The variable is not set, or its value is not UTF-8.
    #[error("the environment variable `{0}` is not set")]
    Unset(String),
    /// `${` without a name and `}` after it.
    #[error("`${{` without a variable's name and `}}`")]
    Malformed,
}

/// Replaces each `${NAME}` by the variable's value. Values are not expanded again, and a `$` without `{` is kept.
///
/// # Errors
/// All faults, not only the first.
pub(super) fn expand<'t>(text: &'t str, environment: Environment<'_>) -> Result<Cow<'t, str>, Vec<ExpansionError>> {
    if !text.contains("${") {
        return Ok(Cow::Borrowed(text));
    }
    let mut parts = text.split("${");
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    let mut errors = Vec::new();
    for part in parts {
        match part.split_once('}').filter(|(name, _)| is_name(name)) {
            None => errors.push(ExpansionError::Malformed),
            Some((name, rest)) => match environment(name) {
                None => errors.push(ExpansionError::Unset(name.to_owned())),
                Some(value) => expanded.extend([value.as_str(), rest]),
            },
        }
    }
    if errors.is_empty() { Ok(Cow::Owned(expanded)) } else { Err(errors) }
}

/// The keys whose values are secrets.
const SECRET_KEYS: [&str; 4] = ["password", "secret_key", "previous_secret_key", "client_secret"];

/// Whether a configuration file contains a secret itself rather than the name of a variable: in a URL, as a URL's
/// parameter, or under one of `SECRET_KEYS`. Returns false for invalid TOML, which is already a fault.
#[must_use]
pub fn holds_password(text: &str) -> bool {
    fn within(key: &str, value: &toml::Value) -> bool {
        match value {
            toml::Value::String(text) => {
                let text = without_variables(text);
                SECRET_KEYS.contains(&key) && !text.is_empty() || url_has_password(&text)
            }
            toml::Value::Array(values) => values.iter().any(|value| within(key, value)),
            toml::Value::Table(table) => table.iter().any(|(key, value)| within(key, value)),
            _ => false,
        }
    }
    text.parse::<toml::Table>().is_ok_and(|table| table.iter().any(|(key, value)| within(key, value)))
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
    let mut parts = text.split("${");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('}').map_or(part, |(_, rest)| rest))
}

/// A name that a shell can set: letters, digits and `_`, not starting with a digit.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
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
        ] {
            assert_eq!(expand(text, &environment).unwrap(), expected, "{text}");
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
            ("[tenant.oidc]\nclient_secret = 'secret'", true),
            ("[tenant.oidc]\nclient_secret = '${SECRET}'", false),
            ("no toml", false),
        ] {
            assert_eq!(holds_password(line), expected, "{line}");
        }
    }

    #[test]
    fn every_missing_variable_is_named() {
        let unset = |name: &str| ExpansionError::Unset(name.to_owned());
        assert_eq!(expand("${A}${USER}${B}", &environment), Err(vec![unset("A"), unset("B")]));
        for text in ["${", "${}", "${USER", "${1A}", "${A-b}"] {
            assert_eq!(expand(text, &environment), Err(vec![ExpansionError::Malformed]), "{text}");
        }
    }
}

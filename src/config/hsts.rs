//! The `hsts` key: the value of the `Strict-Transport-Security` header (RFC 6797, section 6.1).
//!
//! Owns its grammar. The header is sent exactly as configured, so a value that browsers would ignore is refused: one
//! without `max-age`, with a repeated directive, or with an unknown directive, which is usually a typing mistake.

use http::HeaderValue;

use super::context::LoadContext;
use super::problem::Problem;
use super::table::StringValue;

/// Reads a value; `None` if it is faulty.
pub(super) fn read(text: StringValue, context: &LoadContext<'_>) -> Option<HeaderValue> {
    match check(&text.value) {
        Ok(()) => HeaderValue::try_from(text.value).ok(),
        Err(fault) => {
            let problem = Problem::at(&text.span, "not a value of `Strict-Transport-Security`").label(fault);
            let help = "write `max-age=` and seconds, and after it, where it holds, `; includeSubDomains; preload`";
            context.report(problem.help(help));
            None
        }
    }
}

/// The maximum number of digits of `max-age`: three centuries. Larger: browsers that count with 32 or 64 bits ignore
/// the value. Smaller: long durations that browsers understand are refused.
const MAX_DIGITS: usize = 10;

/// Compares names and values as browsers do: case-insensitively, with or without quotes around a value.
fn check(value: &str) -> Result<(), String> {
    let mut seen = Vec::new();
    for directive in value.split(';').map(|part| part.trim_matches([' ', '\t'])).filter(|part| !part.is_empty()) {
        let (name, value) = match directive.split_once('=') {
            Some((name, value)) => (name.trim_end_matches([' ', '\t']), Some(value.trim_start_matches([' ', '\t']))),
            None => (directive, None),
        };
        let name = name.to_ascii_lowercase();
        match (name.as_str(), value) {
            ("max-age", Some(age)) => {
                let quoted = age.strip_prefix('"').and_then(|age| age.strip_suffix('"'));
                let seconds = quoted.unwrap_or(age);
                if seconds.is_empty() || !seconds.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err("`max-age` needs a number of seconds".to_owned());
                }
                if seconds.len() > MAX_DIGITS {
                    return Err(format!("`max-age` has more than {MAX_DIGITS} digits"));
                }
            }
            ("max-age", None) => return Err("`max-age` needs a number of seconds".to_owned()),
            ("includesubdomains" | "preload", None) => {}
            ("includesubdomains" | "preload", Some(_)) => return Err("this directive has no value".to_owned()),
            _ => return Err("expected `max-age`, `includeSubDomains` or `preload`".to_owned()),
        }
        if seen.contains(&name) {
            return Err("a directive is given twice".to_owned());
        }
        seen.push(name);
    }
    if seen.iter().any(|name| name == "max-age") { Ok(()) } else { Err("`max-age` is missing".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_browsers_accept_is_accepted() {
        for value in [
            "max-age=0",
            "max-age=31536000",
            "max-age=\"9999999999\"",
            "max-age=63072000; includeSubDomains; preload",
            "INCLUDESUBDOMAINS;Max-Age = \"300\" ;",
            " max-age=1\t;; ",
        ] {
            assert_eq!(check(value), Ok(()), "{value:?}");
            assert!(HeaderValue::try_from(value).is_ok(), "{value:?}");
        }
    }

    #[test]
    fn a_value_that_browsers_ignore_is_refused() {
        for value in [
            ";",
            "31536000",
            "includeSubDomains",
            "max-age",
            "max-age=",
            "max-age=\"\"",
            "max-age=\"5",
            "max-age=-1",
            "max-age=1y",
            "max-age=99999999999",
            "max-age=99999999999999999999",
            "max-age=1, includeSubDomains",
            "max-age=1; max-age=1",
            "max-age=1; includeSubDomains; INCLUDESUBDOMAINS",
            "max-age=1; includeSubDomains=1",
            "max-age=1; includeSubDomain",
            "max-age=1\r\nx: y",
        ] {
            assert!(check(value).is_err(), "{value:?}");
        }
    }
}

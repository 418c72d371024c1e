//! The query of a request: percent-decoded parameters by name. If a name is repeated, the last value counts.

use std::borrow::Cow;

use super::Call;
use crate::error::Faults;

/// A parameter's value.
pub(super) fn value<'a>(call: &'a Call<'_>, name: &str) -> Option<Cow<'a, str>> {
    let pairs = form_urlencoded::parse(call.query.as_bytes());
    pairs.filter(|(known, _)| known == name).last().map(|(_, value)| value)
}

/// The other parameters, re-encoded, each followed by `&`.
pub(super) fn without(call: &Call<'_>, name: &str) -> String {
    let pairs = form_urlencoded::parse(call.query.as_bytes()).filter(|(known, _)| known != name);
    let mut others = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    if !others.is_empty() {
        others.push('&');
    }
    others
}

/// A flag: `1` or `true` is on; `0`, `false` or absent is off.
pub(super) fn flag(call: &Call<'_>, name: &str, faults: &mut Faults) -> bool {
    match value(call, name).as_deref() {
        None | Some("0" | "false") => false,
        Some("1" | "true") => true,
        Some(_) => {
            faults.add(name, format_args!("The {name} must be 1 or 0."));
            false
        }
    }
}

//! The query of a request: parameters by name, percent-decoded. The last one counts where a name stands more than once.

use std::borrow::Cow;

use super::Call;
use crate::error::Faults;

/// A parameter's value.
pub(super) fn value<'a>(call: &'a Call<'_>, name: &str) -> Option<Cow<'a, str>> {
    let pairs = form_urlencoded::parse(call.query.as_bytes());
    pairs.filter(|(known, _)| known == name).last().map(|(_, value)| value)
}

/// Everything but one parameter, encoded anew, each followed by `&`.
pub(super) fn without(call: &Call<'_>, name: &str) -> String {
    let pairs = form_urlencoded::parse(call.query.as_bytes()).filter(|(known, _)| known != name);
    let mut others = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    if !others.is_empty() {
        others.push('&');
    }
    others
}

/// A switch: `1` or `true` is on, `0`, `false` and none are off.
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

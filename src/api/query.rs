//! The query of a request: percent-decoded parameters by name.
//!
//! Which of several values is meant can't be known, and a call with `dry_run=1&dry_run=0` must not write. So a parameter
//! that is given more than once is a fault, unless it is a list: then all its values count.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use super::Call;
use crate::error::Faults;

/// Every value of a parameter, in the order of the query.
pub(super) fn values<'a>(call: &'a Call<'_>, name: &str) -> impl Iterator<Item = Cow<'a, str>> {
    form_urlencoded::parse(call.query.as_bytes()).filter(move |(known, _)| known == name).map(|(_, value)| value)
}

/// The value of a parameter that can be given once.
pub(super) fn value<'a>(call: &'a Call<'_>, name: &str, faults: &mut Faults) -> Option<Cow<'a, str>> {
    let mut values = values(call, name);
    let value = values.next();
    if values.next().is_some() {
        faults.add(name, format_args!("The {name} must be given once."));
        return None;
    }
    value
}

/// The other parameters, re-encoded, each followed by `&`.
pub(super) fn without(call: &Call<'_>, name: &str) -> String {
    without_any(call, &[name])
}

/// The same for several parameters.
pub(super) fn without_any(call: &Call<'_>, names: &[&str]) -> String {
    let pairs = form_urlencoded::parse(call.query.as_bytes()).filter(|(known, _)| !names.contains(&&**known));
    let mut others = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    if !others.is_empty() {
        others.push('&');
    }
    others
}

/// An integer in a range, if it is given and sound.
pub(super) fn integer(call: &Call<'_>, name: &str, range: RangeInclusive<u32>, faults: &mut Faults) -> Option<u32> {
    let value = value(call, name, faults)?;
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse().ok().filter(|number| digits && range.contains(number));
    if number.is_none() {
        let (from, to) = range.into_inner();
        faults.add(name, format_args!("The {name} must be an integer from {from} to {to}."));
    }
    number
}

/// A flag: `1` or `true` is on; `0`, `false` or absent is off.
pub(super) fn flag(call: &Call<'_>, name: &str, faults: &mut Faults) -> bool {
    match value(call, name, faults).as_deref() {
        None | Some("0" | "false") => false,
        Some("1" | "true") => true,
        Some(_) => {
            faults.add(name, format_args!("The {name} must be 1 or 0."));
            false
        }
    }
}

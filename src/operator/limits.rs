//! What a token is limited to, as bodies write it: of a new token, and of a change of one.
//!
//! The four keys are those that every list shows. A `null` lifts a limit.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::refusal::OperatorRefusal;
use crate::config::registered::json::Faults;
use crate::store::{FormReach, LimitFault, ListFault, Networks, Scopes, TokenLimits};

/// The limits that a body has. `None`: the key is absent; `Some(None)`: it is `null`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GivenLimits {
    #[serde(default, deserialize_with = "given")]
    pub(super) scopes: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) forms: Option<Option<Vec<FormId>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) networks: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) requests_per_minute: Option<Option<u64>>,
}

fn given<'v, T: Deserialize<'v>, D: Deserializer<'v>>(value: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// A form's id: `for_1`, `1` as text or a number.
#[derive(Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct FormId(String);

impl TryFrom<Value> for FormId {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        match value {
            Value::String(text) => Ok(Self(text)),
            Value::Number(number) if number.is_i64() => Ok(Self(number.to_string())),
            _ => Err("must be the id of a form, such as \"for_1\""),
        }
    }
}

impl GivenLimits {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        let Self { scopes, forms, networks, requests_per_minute } = self;
        scopes.is_none() && forms.is_none() && networks.is_none() && requests_per_minute.is_none()
    }

    /// The limits that a token of an account can have.
    ///
    /// # Errors
    /// Each fault by its key.
    pub(super) fn read(&self, of_account: u32) -> Result<ChangedLimits, OperatorRefusal> {
        let mut faults = Faults::new();
        let scopes =
            of_list("scopes", &self.scopes, &mut faults, |names| Scopes::parse(names.iter().map(String::as_str)));
        let forms = of_list("forms", &self.forms, &mut faults, |ids| FormReach::parse(ids.iter().map(|id| &*id.0)));
        let networks =
            of_list("networks", &self.networks, &mut faults, |texts| Networks::parse(texts.iter().map(String::as_str)));
        let parse = |own: Option<u64>| own.map(|own| TokenLimits::parse_budget(own, of_account)).transpose();
        let requests_per_minute = self.requests_per_minute.map(parse).transpose().unwrap_or_else(|fault| {
            add(&mut faults, "requests_per_minute".to_owned(), &fault);
            None
        });
        if faults.is_empty() {
            Ok(ChangedLimits { scopes, forms, networks, requests_per_minute })
        } else {
            Err(OperatorRefusal::Faults(faults))
        }
    }
}

/// The value of a list that is given: without any limit if it is `null`.
fn of_list<I, T: Default>(
    key: &str,
    given: &Option<Option<Vec<I>>>,
    faults: &mut Faults,
    parse: impl FnOnce(&[I]) -> Result<T, ListFault>,
) -> Option<T> {
    let Some(list) = given.as_ref()? else { return Some(T::default()) };
    match parse(list) {
        Ok(value) => Some(value),
        Err(ListFault { at, fault }) => {
            add(faults, at.map_or_else(|| key.to_owned(), |at| format!("{key}.{at}")), &fault);
            None
        }
    }
}

fn add(faults: &mut Faults, key: String, fault: &LimitFault) {
    faults.entry(key).or_default().push(fault.to_string());
}

/// Limits to change. `None`: it stays.
pub(super) struct ChangedLimits {
    scopes: Option<Scopes>,
    forms: Option<FormReach>,
    networks: Option<Networks>,
    requests_per_minute: Option<Option<u32>>,
}

impl ChangedLimits {
    /// Limits with what is changed.
    pub(super) fn of(&self, limits: TokenLimits) -> TokenLimits {
        TokenLimits {
            scopes: self.scopes.unwrap_or(limits.scopes),
            forms: self.forms.clone().unwrap_or(limits.forms),
            networks: self.networks.clone().unwrap_or(limits.networks),
            requests_per_minute: self.requests_per_minute.unwrap_or(limits.requests_per_minute),
        }
    }
}

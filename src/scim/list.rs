//! The parameters of a list, from the query or from the body of `POST /.search`, and the response with its resources.

use http::StatusCode;
use serde_json::Value;

use super::Call;
use super::error::Fault;
use super::filter::{self, Test, canonical};
use super::json::{Object, whole};
use super::projection::Projection;
use crate::error::abbreviate;
use crate::reply::{ContentType, Reply};
use crate::store::filter::SortDirection;
use crate::store::{Filter, Listing};

/// How many resources a list has if the client does not say.
///
/// Larger: a response takes longer and more memory. Smaller: a directory sends more requests.
const DEFAULT_COUNT: u32 = 100;

/// The most resources of a list, which `ServiceProviderConfig` promises.
///
/// Larger: a response takes longer and more memory. Smaller: a directory sends more requests.
pub(super) const MAX_COUNT: u32 = 1_000;

/// The attributes that have data but no order here, in lower case.
const UNSORTED: [&str; 3] = ["members", "meta", "schemas"];

/// The schema of a list.
const SCHEMA: &str = "urn:ietf:params:scim:api:messages:2.0:ListResponse";

/// The parameters of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct ListRequest {
    filter: Option<String>,
    sort_by: Option<String>,
    sort_order: Option<String>,
    start_index: Option<i64>,
    count: Option<i64>,
    /// Which attributes the resources have.
    pub(super) projection: Projection,
}

/// The value of a parameter of the query; the first, if there are several.
fn parameter(call: &Call<'_>, name: &str) -> Option<String> {
    form_urlencoded::parse(call.query.as_bytes()).find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
}

fn names(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect()
}

/// Which attributes the response to a request has, by its query.
pub(super) fn projection(call: &Call<'_>) -> Projection {
    let names = |name| parameter(call, name).map(|text| names(&text)).unwrap_or_default();
    Projection::new(&names("attributes"), &names("excludedAttributes"))
}

impl ListRequest {
    /// Reads the query.
    pub(super) fn of_query(call: &Call<'_>) -> Result<Self, Fault> {
        let number = |name| {
            let text = parameter(call, name).filter(|text| !text.is_empty());
            let parse =
                |text: String| text.parse().map_err(|_| Fault::value(format!("{name} must be a whole number.")));
            text.map(parse).transpose()
        };
        Ok(Self {
            filter: parameter(call, "filter"),
            sort_by: parameter(call, "sortBy"),
            sort_order: parameter(call, "sortOrder"),
            start_index: number("startIndex")?,
            count: number("count")?,
            projection: projection(call),
        })
    }

    /// Reads the body of a search.
    pub(super) fn of_body(body: &[u8]) -> Result<Self, Fault> {
        const KEYS: [&str; 7] =
            ["filter", "sortby", "sortorder", "startindex", "count", "attributes", "excludedattributes"];
        let body = Object::of_body(body, |key| KEYS.contains(&key))?;
        let value = |key| body.get(key).map(|value| whole(key, value)).transpose();
        let text = |key| match value(key)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Fault::value(format!("{key} must be a text."))),
        };
        let number = |key| match value(key)? {
            None => Ok(None),
            Some(number) => {
                number.as_i64().map(Some).ok_or_else(|| Fault::value(format!("{key} must be a whole number.")))
            }
        };
        let list = |key| match value(key)? {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(names(&text)),
            Some(Value::Array(items)) => Ok(items.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect()),
            Some(_) => Err(Fault::value(format!("{key} must be a list of names."))),
        };
        Ok(Self {
            filter: text("filter")?,
            sort_by: text("sortby")?,
            sort_order: text("sortorder")?,
            start_index: number("startindex")?,
            count: number("count")?,
            projection: Projection::new(&list("attributes")?, &list("excludedattributes")?),
        })
    }

    /// What is listed. `test` gives the meaning of a comparison, `None` if there is no such attribute, and `order` that of
    /// an attribute by which lists are sorted.
    ///
    /// No resource has data for an attribute that is not stored, so that all are equal and in the order of their ids (RFC
    /// 7644, section 3.4.2.3).
    pub(super) fn listing<T, O: Default>(
        &self,
        test: &impl Fn(Test) -> Result<Option<Filter<T>>, Fault>,
        order: impl FnOnce(&str) -> Option<O>,
    ) -> Result<Listing<T, O>, Fault> {
        let filter = match &self.filter {
            Some(text) => filter::parse(text)?.resolve(&|comparison: Test| {
                let unknown = comparison.unknown();
                test(comparison)?.ok_or(unknown)
            })?,
            None => Filter::all(),
        };
        let sort_by = self.sort_by.as_ref().map(|name| canonical(name.trim()));
        let order = match sort_by.as_deref() {
            Some(name) if UNSORTED.contains(&name.split('.').next().unwrap_or_default()) => {
                return Err(Fault::value(format!("Lists can't be sorted by {}.", abbreviate(name))));
            }
            Some(name) => order(name).unwrap_or_default(),
            None => O::default(),
        };
        let is_descending = self.sort_order.as_ref().is_some_and(|order| order.eq_ignore_ascii_case("descending"));
        Ok(Listing {
            filter,
            order,
            direction: if is_descending { SortDirection::Descending } else { SortDirection::Ascending },
            offset: self.start_index().saturating_sub(1),
            limit: self.count(),
        })
    }

    fn start_index(&self) -> u64 {
        self.start_index.and_then(|index| u64::try_from(index).ok()).unwrap_or(1).max(1)
    }

    fn count(&self) -> u32 {
        let Some(count) = self.count else { return DEFAULT_COUNT };
        u32::try_from(count.max(0)).unwrap_or(u32::MAX).min(MAX_COUNT)
    }

    /// The response with resources as JSON.
    pub(super) fn reply(&self, resources: &[Vec<u8>], total: u64) -> Reply {
        let (start, length) = (self.start_index(), resources.len());
        let mut body = format!(
            "{{\"schemas\":[\"{SCHEMA}\"],\"totalResults\":{total},\"startIndex\":{start},\"itemsPerPage\":{length},\
             \"Resources\":["
        )
        .into_bytes();
        body.extend(resources.join(&b','));
        body.extend(b"]}");
        Reply::of_type(StatusCode::OK, ContentType::Scim, body.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_begins_at_one_and_has_at_most_a_thousand() {
        for (start_index, count, expected) in [
            (None, None, (0, 100)),
            (Some(1), Some(0), (0, 0)),
            (Some(0), Some(-3), (0, 0)),
            (Some(-7), Some(1000), (0, 1000)),
            (Some(101), Some(1001), (100, 1000)),
            (Some(i64::MAX), Some(i64::MAX), (i64::MAX as u64 - 1, 1000)),
        ] {
            let request = ListRequest { start_index, count, ..ListRequest::default() };
            let listing: Listing<(), ()> = request.listing(&|_| Ok(None), |_| None).unwrap();
            assert_eq!((listing.offset, listing.limit), expected, "{start_index:?} {count:?}");
        }
    }

    #[test]
    fn a_search_has_the_parameters_of_a_list_in_its_body() {
        let body = br#"{"schemas": ["urn:ietf:params:scim:api:messages:2.0:SearchRequest"], "filter": "a eq 1",
            "attributes": ["userName"], "startIndex": 3, "count": 2, "sortBy": "userName", "sortOrder": "descending"}"#;
        let request = ListRequest::of_body(body).unwrap();
        assert_eq!(request.projection, Projection::Only(vec!["username".to_owned()]));
        let listing = request.listing(&|_| Ok(Some(Filter::Test(()))), |name| (name == "username").then_some(()));
        let listing: Listing<(), ()> = listing.unwrap();
        assert_eq!((listing.offset, listing.limit, listing.direction), (2, 2, SortDirection::Descending));
        for faulty in [&br#"{"count": "2"}"#[..], br#"{"filter": 7}"#, b"[]", br#"{"startIndex": 1.5}"#] {
            assert!(ListRequest::of_body(faulty).is_err());
        }
    }
}

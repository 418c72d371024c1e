//! Pages of a list: the `page` parameter and the envelope of the response.

use std::num::NonZeroU64;

use http::StatusCode;
use serde::Serialize;

use super::json::Json;
use super::{Call, query};
use crate::error::Faults;
use crate::reply::Reply;
use crate::store::{Page, PageRequest};

/// A size that most pages fit in: 20 submissions with 9 answers each. Larger: wasted memory. Smaller: pages are copied
/// as they grow.
pub(super) const TYPICAL_BYTES: usize = 40 << 10;

/// Parses `?page=n`; defaults to the first page.
pub(super) fn parse(call: &Call<'_>, size: u32, faults: &mut Faults) -> PageRequest {
    let mut number = NonZeroU64::MIN;
    if let Some(value) = query::value(call, "page", faults) {
        let digits = value.bytes().all(|byte| byte.is_ascii_digit());
        match value.parse().ok().filter(|_| digits) {
            Some(page) => number = page,
            None => faults.add("page", "The page must be a positive integer."),
        }
    }
    PageRequest { number, size }
}

#[derive(Debug, Serialize)]
struct Links {
    first: String,
    last: String,
    prev: Option<String>,
    next: Option<String>,
    /// Where pages by cursor begin, of a list that has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

#[derive(Debug, Serialize)]
struct Meta {
    current_page: u64,
    last_page: u64,
    per_page: u32,
    total: u64,
    from: Option<u64>,
    to: Option<u64>,
    path: String,
}

/// Builds the response `{data, links, meta}`, with items written by `write`. `path` is the path of the list. Links are
/// absolute, on the origin that the client used, and keep its other parameters. On a page past the last, `prev` links
/// to the last one.
pub(super) fn reply<T>(
    call: &Call<'_>,
    path: &str,
    request: PageRequest,
    page: Page<T>,
    write: impl FnMut(&mut Json, T),
) -> Reply {
    let envelope = Envelope::new(call, path, request, page.total);
    let items = page.items.len();
    let shown = items as u64;
    let mut json = Json::with_capacity(TYPICAL_BYTES);
    json.raw("{\"data\":").list(page.items, write);
    envelope.write_end(&mut json, shown);
    json.reply(StatusCode::OK).with_rows(items)
}

/// What follows the data of a page.
#[derive(Debug)]
pub(super) struct Envelope {
    request: PageRequest,
    total: u64,
    url: String,
    others: String,
    has_cursors: bool,
}

impl Envelope {
    /// The envelope of a page of a list of `total` items.
    pub(super) fn new(call: &Call<'_>, path: &str, request: PageRequest, total: u64) -> Self {
        let (url, others) = (format!("{}{path}", call.origin), query::without(call, "page"));
        Self { request, total, url, others, has_cursors: false }
    }

    /// With a link to pages by cursor.
    pub(super) fn with_cursors(self) -> Self {
        Self { has_cursors: true, ..self }
    }

    /// Writes the links and the figures of a page that shows `shown` items, and closes it.
    pub(super) fn write_end(&self, json: &mut Json, shown: u64) {
        let Self { request, total, url, others, has_cursors } = self;
        let link = |number: u64| format!("{url}?{others}page={number}");
        let (number, size) = (request.number.get(), u64::from(request.size));
        let last = total.div_ceil(size).max(1);
        let before = (number - 1).saturating_mul(size);
        let links = Links {
            first: link(1),
            last: link(last),
            prev: (number > 1).then(|| link((number - 1).min(last))),
            next: (number < last).then(|| link(number + 1)),
            cursor: has_cursors.then(|| format!("{url}?{others}cursor=")),
        };
        let meta = Meta {
            current_page: number,
            last_page: last,
            per_page: request.size,
            total: *total,
            from: (shown > 0).then(|| before + 1),
            to: (shown > 0).then(|| before + shown),
            path: url.clone(),
        };
        json.raw(",\"links\":").value(&links).raw(",\"meta\":").value(&meta).raw("}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock, OnceLock};
    use std::time::Duration;

    use bytes::Bytes;
    use http::Method;
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::api::{ENDPOINTS, IgnoredParameters};
    use crate::gate::Origin;
    use crate::host::HostName;
    use crate::memory::{MemoryShare, RowMemory};
    use crate::metrics::Metrics;
    use crate::outbound::{Client, Guard, Settings, TestRequests};
    use crate::quota::{Budget, Quota};
    use crate::seal::Seals;
    use crate::tenant::{NoticedWrites, SubscriptionChanges};

    static STOPPING: LazyLock<CancellationToken> = LazyLock::new(CancellationToken::new);
    static TARGETS: LazyLock<Guard> = LazyLock::new(Guard::default);
    static TESTS: LazyLock<TestRequests> = LazyLock::new(|| {
        let client = Client::new(&Settings::default(), Guard::default().into());
        TestRequests::new(client.into(), Duration::MAX)
    });
    static SEALS: LazyLock<Seals> = LazyLock::new(Seals::default);
    static SUBSCRIPTION_CHANGES: LazyLock<SubscriptionChanges> = LazyLock::new(|| SubscriptionChanges::channel(None).0);
    static NOTICED_WRITES: LazyLock<Arc<NoticedWrites>> = LazyLock::new(Arc::default);
    static ROWS: LazyLock<RowMemory> = LazyLock::new(|| RowMemory::new(MemoryShare::unlimited()));
    static QUOTA: LazyLock<Quota> = LazyLock::new(|| Quota::new(Duration::MAX, None, Metrics::default()));
    static SPENT: OnceLock<Budget> = OnceLock::new();
    static IGNORED: OnceLock<IgnoredParameters> = OnceLock::new();

    fn call<'c>(origin: Origin<'c>, query: &'c str) -> Call<'c> {
        Call {
            segments: ENDPOINTS.find(&Method::GET, "/form").unwrap().segments,
            rows: &ROWS,
            origin,
            is_head: false,
            query,
            body: Bytes::new(),
            ignored: &IGNORED,
            quota: &QUOTA,
            spent: &SPENT,
            stopping: &STOPPING,
            targets: &TARGETS,
            tests: &TESTS,
            seals: &SEALS,
            subscription_changes: &SUBSCRIPTION_CHANGES,
            noticed_writes: &NOTICED_WRITES,
        }
    }

    fn envelope(query: &str, items: usize, total: u64) -> Value {
        let host = HostName::parse("acme.test").unwrap();
        let origin = Origin { host: &host, port: Some("8443") };
        let call = call(origin, query);
        let request = parse(&call, 20, &mut Faults::default());
        let page = Page { items: vec![0; items], total };
        let reply = reply(&call, "/api/v1/submission", request, page, |json, item| _ = json.value(&item));
        serde_json::from_slice(&reply.body).unwrap()
    }

    #[test]
    fn links_and_counts_of_the_first_a_middle_and_the_last_page() {
        let first = envelope("", 20, 41);
        assert_eq!(first["links"]["prev"], Value::Null);
        assert_eq!(first["links"]["next"], "https://acme.test:8443/api/v1/submission?page=2");
        assert_eq!(first["links"]["last"], "https://acme.test:8443/api/v1/submission?page=3");
        assert_eq!(
            first["meta"],
            json!({"current_page": 1, "last_page": 3, "per_page": 20, "total": 41, "from": 1, "to": 20, "path": "https://acme.test:8443/api/v1/submission"})
        );
        let middle = envelope("page=2", 20, 41);
        assert_eq!((&middle["meta"]["from"], &middle["meta"]["to"]), (&json!(21), &json!(40)));
        let last = envelope("page=3", 1, 41);
        assert_eq!((&last["links"]["next"], &last["meta"]["to"]), (&Value::Null, &json!(41)));
    }

    #[test]
    fn links_keep_the_other_parameters() {
        let page = envelope("managed=1&external_id=a%26b+c&page=2&x", 20, 41);
        let url = "https://acme.test:8443/api/v1/submission";
        assert_eq!(page["links"]["next"], format!("{url}?managed=1&external_id=a%26b+c&x=&page=3"));
        assert_eq!(page["meta"]["path"], url);
    }

    #[test]
    fn a_page_past_the_last_is_empty_and_leads_back() {
        for query in ["page=9", "page=18446744073709551615"] {
            let past = envelope(query, 0, 41);
            assert_eq!((&past["meta"]["from"], &past["links"]["next"]), (&Value::Null, &Value::Null));
            assert_eq!(past["links"]["prev"], "https://acme.test:8443/api/v1/submission?page=3");
        }
        assert_eq!(envelope("", 0, 0)["meta"]["last_page"], 1);
    }

    #[test]
    fn a_page_that_is_not_a_positive_integer_is_a_fault() {
        for query in [
            "page=",
            "page=0",
            "page=-1",
            "page=%2B1",
            "page=1.5",
            "page=x",
            "page=18446744073709551616",
            "page[]=1&page=x",
            "page=1&page=1",
            "page=1&x=2&p%61ge=2",
        ] {
            let mut faults = Faults::default();
            let host = HostName::parse("acme.test").unwrap();
            let origin = Origin { host: &host, port: None };
            parse(&call(origin, query), 20, &mut faults);
            assert!(faults.into_result(()).is_err(), "{query}");
        }
    }
}

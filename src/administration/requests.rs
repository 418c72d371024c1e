//! The log of requests: the last ones of the account with filters, and one of them.

use askama::Template;
use http::StatusCode;

use super::audit::border_of;
use super::forms::{parameter, parse_id};
use super::frame::{Frame, page};
use super::texts::{RequestTexts, RequestsTexts};
use super::times::Moment;
use super::visit::Member;
use crate::error::Refusal;
use crate::reply::Reply;
use crate::shown_text::shown_name;
use crate::store::{LoggedRequest, RequestFilter, RequestKey, TokenRecord};

/// How many rows a page has. Larger: a page takes longer. Smaller: more pages.
const PAGE: u32 = 100;

/// How many tokens can be chosen, the newest ones. Larger: the page of an account with thousands is longer. Smaller: the
/// requests of an old token are found on the page of that token only.
const TOKENS: usize = 200;

/// The statuses that can be chosen.
const STATUSES: [&str; 9] = ["2xx", "4xx", "5xx", "401", "403", "404", "422", "429", "503"];

struct RequestRow {
    /// The segment of its page.
    key: String,
    at: Moment,
    /// The number and the name of the token.
    token: Option<(i64, String)>,
    prefix: Option<String>,
    method: String,
    route: Option<String>,
    status: u16,
    milliseconds: u32,
    rows: Option<u32>,
    network: Option<String>,
    agent: Option<String>,
    reason: Option<String>,
    counted: Option<u32>,
    /// The id of the request.
    id: String,
}

impl RequestRow {
    fn of(request: LoggedRequest, member: &Member<'_>) -> Self {
        let name = |id: i64| request.token_name.as_deref().map_or_else(|| id.to_string(), shown_name);
        Self {
            key: format!("{}-{}", request.key.at, request.key.number),
            at: member.moment_with_second(request.key.instant()),
            token: request.token.map(|id| (id, name(id))),
            prefix: request.prefix,
            method: request.method,
            route: request.route,
            status: request.status,
            milliseconds: request.duration_ms,
            rows: request.rows,
            network: request.network,
            agent: request.agent.as_deref().map(shown_name),
            reason: request.reason,
            counted: request.counted.filter(|counted| *counted > 1),
            id: request.id,
        }
    }

    /// What the reason means. One that a newer version stored is shown unchanged.
    fn meaning<'r>(&'r self, frame: &Frame) -> Option<&'r str> {
        let reason = self.reason.as_deref()?;
        Some(frame.texts.refusals.get(reason).map_or(reason, |text| &**text))
    }
}

/// The filter as it was chosen.
struct ChosenFilter {
    token: String,
    status: String,
    since: String,
    fault: Option<&'static str>,
}

impl ChosenFilter {
    fn of(member: &Member<'_>) -> (Self, RequestFilter) {
        let query = member.visit.head.uri.query();
        let chosen = |name| parameter(query, name).trim().to_owned();
        let mut chosen = Self { token: chosen("token"), status: chosen("status"), since: chosen("since"), fault: None };
        let text = &member.area.texts.requests;
        let mut filter = RequestFilter::default();
        if !chosen.token.is_empty() {
            filter.token = parse_id(&chosen.token);
            chosen.fault = if filter.token.is_none() { Some(&text.bad_filter) } else { None };
        }
        if !chosen.status.is_empty() {
            filter.statuses = RequestFilter::parse_statuses(&chosen.status);
            chosen.fault = if filter.statuses.is_none() { Some(&text.bad_filter) } else { chosen.fault };
        }
        if !chosen.since.is_empty() {
            filter.since = border_of(&chosen.since, false, member);
            chosen.fault = if filter.since.is_none() { Some(&member.area.texts.audit.bad_day) } else { chosen.fault };
        }
        (chosen, filter)
    }

    fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in [("token", &self.token), ("status", &self.status), ("since", &self.since)] {
            if !value.is_empty() {
                query.append_pair(name, value);
            }
        }
        query.finish()
    }
}

#[derive(Template)]
#[template(path = "requests.html", config = "src/administration/askama.toml")]
struct RequestsPage {
    frame: Frame,
    text: &'static RequestsTexts,
    chosen: ChosenFilter,
    is_filtered: bool,
    /// The numbers and names of the tokens that can be chosen.
    tokens: Vec<(String, String)>,
    statuses: Vec<String>,
    rows: Vec<RequestRow>,
    /// The query of the next page.
    next: Option<String>,
    /// Whether requests are logged.
    is_on: bool,
}

#[derive(Template)]
#[template(path = "request.html", config = "src/administration/askama.toml")]
struct RequestPage {
    frame: Frame,
    text: &'static RequestTexts,
    request: RequestRow,
}

pub(super) async fn list(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    let (chosen, filter) = ChosenFilter::of(member);
    let after = read_key(&parameter(member.visit.head.uri.query(), "after"));
    let mut listed = match chosen.fault {
        // What is not written is taken before what is stored is read.
        None => {
            let held = member.visit.tenant.tokens.requests.unwritten();
            member.store.list_requests(&filter, after, PAGE + 1, held, member.now).await?
        }
        Some(_) => Vec::new(),
    };
    let has_more = listed.len() > PAGE as usize;
    listed.truncate(PAGE as usize);
    let query = chosen.query();
    let next = listed.last().filter(|_| has_more).map(|last| {
        let separator = if query.is_empty() { "" } else { "&" };
        format!("?{query}{separator}after={}-{}", last.key.at, last.key.number)
    });
    let tokens = member.store.list_tokens().await?.into_iter().rev();
    let is_offered = |at: usize, id: i64| at < TOKENS || filter.token == Some(id);
    let tokens = tokens.enumerate().filter(|(at, token)| is_offered(*at, token.id)).map(|(_, token)| token);
    // A rotated token and its successor have one name.
    let shown = |token: TokenRecord| format!("{} ({}…)", shown_name(&token.name), token.prefix);
    let tokens = tokens.map(|token| (token.id.to_string(), shown(token))).collect();
    let mut statuses: Vec<_> = STATUSES.map(ToOwned::to_owned).to_vec();
    if filter.statuses.is_some() && !statuses.contains(&chosen.status) {
        statuses.push(chosen.status.clone());
    }
    let requests_page = RequestsPage {
        frame: Frame::of(member, "requests"),
        text: &member.area.texts.requests,
        is_filtered: !query.is_empty() || after.is_some(),
        tokens,
        statuses,
        rows: listed.into_iter().map(|request| RequestRow::of(request, member)).collect(),
        next,
        is_on: member.visit.logs_requests,
        chosen,
    };
    let is_faulty = requests_page.chosen.fault.is_some();
    Ok(page(if is_faulty { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK }, &requests_page))
}

pub(super) async fn show(member: &Member<'_>, key: &str) -> Result<Reply, Refusal> {
    let text = &member.area.texts.request;
    let Some(key) = read_key(key) else { return Ok(member.area.unknown(&text.unknown)) };
    let held = member.visit.tenant.tokens.requests.unwritten();
    match member.store.find_request(key, held, member.now).await? {
        Some(request) => {
            let request = RequestRow::of(request, member);
            Ok(page(StatusCode::OK, &RequestPage { frame: Frame::of(member, "requests"), text, request }))
        }
        None => Ok(member.area.unknown(&text.unknown)),
    }
}

/// The key of a request, as its link has it.
fn read_key(text: &str) -> Option<RequestKey> {
    let (at, number) = text.split_once('-')?;
    let key = RequestKey { at: parse_id(at)?, number: parse_id(number)? };
    jiff::Timestamp::from_microsecond(key.at).is_ok().then_some(key)
}

#[cfg(test)]
mod tests {
    use crate::administration::texts::Texts;
    use crate::config::Language;
    use crate::error::RefusalReason;

    #[test]
    fn every_reason_is_explained_in_every_language_and_nothing_else() {
        for language in Language::ALL {
            let texts = &Texts::of(language).refusals;
            let reasons = RefusalReason::ALL.iter().map(|reason| reason.as_str());
            assert!(reasons.clone().all(|reason| texts.contains_key(reason)), "{language:?}");
            assert_eq!(texts.len(), reasons.count(), "{language:?}");
        }
    }
}

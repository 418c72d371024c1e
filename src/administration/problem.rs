//! Pages that say why there is no page, and what to do about it.
//!
//! They have no navigation: who gets one may not be signed in. A refusal of the steps before (an unreachable database,
//! a full gateway, a panic) becomes a page with the status and the headers that an API client would get.

use askama::Template;
use http::StatusCode;
use http::header::{LOCATION, SET_COOKIE};

use super::frame::{Assets, page, page_with};
use super::protection::{Referrer, protect};
use super::visit::Visit;
use super::{Area, cookie};
use crate::error::Refusal;
use crate::reply::{ContentType, Reply};

#[derive(Template)]
#[template(path = "problem.html", config = "src/administration/askama.toml")]
pub(super) struct ProblemPage {
    assets: Assets,
    title: &'static str,
    sentences: Vec<String>,
    ways_on: Vec<WayOn>,
}

/// A link, and what it says.
pub(super) struct WayOn {
    pub(super) href: String,
    pub(super) label: String,
}

impl WayOn {
    fn new(href: impl Into<String>, label: &str) -> Self {
        Self { href: href.into(), label: label.to_owned() }
    }
}

/// What a refusal page says.
pub(super) struct Problem {
    title: &'static str,
    sentences: Vec<String>,
}

impl Problem {
    pub(super) fn new(title: &'static str, sentences: &[&str]) -> Self {
        Self { title, sentences: sentences.iter().map(|&sentence| sentence.to_owned()).collect() }
    }
}

impl Area {
    pub(super) fn problem(&self, problem: Problem, ways_on: Vec<WayOn>) -> ProblemPage {
        let Problem { title, sentences } = problem;
        ProblemPage { assets: Assets::below(self.path()), title, sentences, ways_on }
    }

    fn to_overview(&self) -> Vec<WayOn> {
        vec![WayOn::new(self.path(), "Go to the overview")]
    }

    /// The ways to sign in: first the page of `sign_in_url`, then the OpenID provider.
    fn to_sign_in(&self, visit: &Visit<'_>) -> (String, Vec<WayOn>) {
        let product = self.settings.config.sign_in_url(&visit.tenant.slug).map(|url| WayOn::new(url, "Sign in"));
        let ways: Vec<_> = product.into_iter().chain(self.way_to_provider(visit)).collect();
        let sentence = if ways.is_empty() {
            "Open a new sign-in link. Whoever operates this service for you can create one."
        } else {
            "Sign in, and you are brought back here."
        };
        (sentence.to_owned(), ways)
    }

    /// For a page that needs a session.
    pub(super) fn not_signed_in(&self, visit: &Visit<'_>, had_cookie: bool) -> Reply {
        let (next, ways_on) = self.to_sign_in(visit);
        let (title, first) = if had_cookie {
            (
                "Your session has ended",
                "You were signed out, or the page was not used for a while. Nothing was changed.",
            )
        } else {
            ("You are not signed in", "This page is for administrators of this account.")
        };
        let reply = page(
            StatusCode::UNAUTHORIZED,
            &self.problem(Problem { title, sentences: vec![first.to_owned(), next] }, ways_on),
        );
        if had_cookie { reply.with_header(SET_COOKIE, cookie::clear()) } else { reply }
    }

    /// For a link that leads nowhere.
    pub(super) fn unknown_link(&self, visit: &Visit<'_>) -> Reply {
        let (next, ways_on) = self.to_sign_in(visit);
        let first = "A sign-in link works once and only for a while. This one was used, has expired, or was not copied \
                     completely.";
        let problem = Problem { title: "This link does not work", sentences: vec![first.to_owned(), next] };
        page_with(StatusCode::NOT_FOUND, &self.problem(problem, ways_on), Referrer::Nothing)
    }

    /// After signing out.
    pub(super) fn signed_out(&self, visit: &Visit<'_>) -> Reply {
        let product = self.settings.config.sign_in_url(&visit.tenant.slug).map(|url| WayOn::new(url, "Sign in again"));
        let ways_on = product.into_iter().chain(self.way_to_provider(visit)).collect();
        let problem = Problem::new("You are signed out", &["You can close this page."]);
        page(StatusCode::OK, &self.problem(problem, ways_on)).with_header(SET_COOKIE, cookie::clear())
    }

    /// For a POST that does not come from a page of this area.
    pub(super) fn foreign_origin(&self) -> Reply {
        let problem = Problem::new(
            "This request was refused",
            &[
                "It does not come from a page of this site, or your browser hides where it comes from. Nothing was \
                 changed.",
                "Open the page here, and send the form again.",
            ],
        );
        page(StatusCode::FORBIDDEN, &self.problem(problem, self.to_overview()))
    }

    /// For a form of another session, or of one before.
    pub(super) fn stale_form(&self) -> Reply {
        let problem = Problem::new(
            "This form is out of date",
            &[
                "It was opened before you signed in. Nothing was changed.",
                "Open the page again, and send the form again.",
            ],
        );
        page(StatusCode::FORBIDDEN, &self.problem(problem, self.to_overview()))
    }

    /// For a viewer who tries to change something.
    pub(super) fn only_viewer(&self) -> Reply {
        let problem = Problem::new(
            "You may look, but not change anything",
            &["Your role is viewer. Nothing was changed.", "Ask an administrator of this account to make the change."],
        );
        page(StatusCode::FORBIDDEN, &self.problem(problem, self.to_overview()))
    }

    /// For a body that is no form.
    pub(super) fn no_form(&self, fault: super::forms::FormFault) -> Reply {
        let (status, sentence) = match fault {
            super::forms::FormFault::Type => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "A form is sent as application/x-www-form-urlencoded.")
            }
            super::forms::FormFault::Content => {
                (StatusCode::BAD_REQUEST, "It is not UTF-8, has too many fields, or one of them twice.")
            }
        };
        let problem = Problem::new("This form can't be read", &[sentence, "Nothing was changed."]);
        page(status, &self.problem(problem, self.to_overview()))
    }

    /// For something that does not exist.
    pub(super) fn unknown(&self, what: &'static str) -> Reply {
        let problem = Problem::new("There is no such page", &[what]);
        page(StatusCode::NOT_FOUND, &self.problem(problem, self.to_overview()))
    }

    /// 303: the browser gets another page.
    pub(super) fn see_other(&self, path: &str) -> Reply {
        redirect(&format!("{}{path}", self.path()))
    }
}

/// 303 (RFC 9110, section 15.4.4) to a target of which every byte is known to be valid in a header.
pub(super) fn redirect(target: &str) -> Reply {
    let reply = Reply::of_type(StatusCode::SEE_OTHER, ContentType::Html, bytes::Bytes::new());
    match http::HeaderValue::try_from(target) {
        Ok(target) => protect(reply, Referrer::SameOrigin).with_header(LOCATION, target),
        Err(_) => protect(Refusal::UnknownPath.reply(), Referrer::SameOrigin),
    }
}

/// A refusal as a page, with the same status and headers.
#[must_use]
pub fn page_of_refusal(area: &Area, path: &str, refusal: &Refusal) -> Reply {
    let reply = refusal.reply();
    let problem = problem_of(reply.status, refusal);
    let is_secret = ["/enter", "/callback"].iter().any(|secret| area.rest(path).starts_with(secret));
    let referrer = if is_secret { Referrer::Nothing } else { Referrer::SameOrigin };
    let mut page = page_with(reply.status, &area.problem(problem, area.to_overview()), referrer);
    page.headers.extend(reply.headers);
    page
}

fn problem_of(status: StatusCode, refusal: &Refusal) -> Problem {
    let check = "If you were changing something, look whether it was done before you repeat it.";
    match status {
        StatusCode::NOT_FOUND => Problem::new("There is no such page", &["The address may be mistyped."]),
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
            Problem::new("This page can't be used like this", &["Open it from the overview. Nothing was changed."])
        }
        StatusCode::PAYLOAD_TOO_LARGE => {
            Problem::new("This form is too large", &["Shorten what you typed. Nothing was changed."])
        }
        StatusCode::TOO_MANY_REQUESTS => {
            let first = match refusal {
                Refusal::TooManyPages { .. } => "This session opened too many pages within a minute.",
                _ => "Too many wrong links or cookies came from your network.",
            };
            let wait = match refusal {
                Refusal::TooManyPages { wait } | Refusal::TooManyBadTokens { wait } => wait.as_secs() + 1,
                _ => 60,
            };
            let second = format!("Try again in {wait} seconds. Nothing was changed.");
            Problem { title: "Too many requests", sentences: vec![first.to_owned(), second] }
        }
        StatusCode::SERVICE_UNAVAILABLE => Problem::new(
            "This page is not available just now",
            &["The database of this account can't be reached, or is busy. Try again in a moment.", check],
        ),
        StatusCode::GATEWAY_TIMEOUT => Problem::new("This page took too long", &["Try again in a moment.", check]),
        status if status.is_server_error() => Problem::new(
            "Something failed here",
            &["It is a fault of this service, and was logged. Try again in a moment.", check],
        ),
        _ => Problem::new("This request can't be read", &["Open the page from the overview. Nothing was changed."]),
    }
}

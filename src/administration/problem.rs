//! Pages that say why there is no page, and what to do about it.
//!
//! They have no navigation: who gets one may not be signed in. A refusal of the steps before (an unreachable database,
//! a full gateway, a panic) becomes a page with the status and the headers that an API client would get.

use std::time::Duration;

use askama::Template;
use http::StatusCode;
use http::header::{CONTENT_LANGUAGE, HeaderValue, LOCATION, SET_COOKIE, VARY};

use super::area::Area;
use super::cookie;
use super::forms::FormFault;
use super::frame::{Assets, page, page_with};
use super::protection::{Referrer, protect};
use super::texts::{ProblemText, ProblemsTexts, Text};
use super::visit::Visit;
use crate::error::Refusal;
use crate::reply::{ContentType, Reply};

/// How long to wait if a refusal does not say.
const UNKNOWN_WAIT: Duration = Duration::from_secs(59);

#[derive(Template)]
#[template(path = "problem.html", config = "src/administration/askama.toml")]
pub(super) struct ProblemPage {
    assets: Assets,
    language: &'static str,
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

/// What a page says in place of the one that was asked for.
pub(super) struct Problem {
    title: &'static str,
    sentences: Vec<String>,
}

impl Problem {
    pub(super) fn of(text: &'static ProblemText) -> Self {
        Self { title: &text.title, sentences: text.sentences.iter().map(ToString::to_string).collect() }
    }

    /// Both kinds of having to wait.
    fn of_wait(text: &'static ProblemText, wait: Duration) -> Self {
        let seconds = wait.as_secs() + 1;
        let sentences = text.sentences.iter().map(|sentence| sentence.with("seconds", seconds));
        Self { title: &text.title, sentences: sentences.collect() }
    }

    fn and(mut self, sentence: &Text) -> Self {
        self.sentences.push(sentence.to_string());
        self
    }
}

impl Area {
    pub(super) fn problem(&self, problem: Problem, ways_on: Vec<WayOn>) -> ProblemPage {
        let Problem { title, sentences } = problem;
        let language = self.language.tag();
        ProblemPage { assets: Assets::below(self.path()), language, title, sentences, ways_on }
    }

    fn to_overview(&self) -> Vec<WayOn> {
        vec![WayOn::new(self.path(), &self.texts.problems.to_overview)]
    }

    /// The ways to sign in: first the page of `sign_in_url`, then the OpenID provider.
    fn to_sign_in(&self, visit: &Visit<'_>) -> (&'static Text, Vec<WayOn>) {
        let text = &self.texts.problems;
        let product = self.settings.config.sign_in_url(&visit.tenant.slug).map(|url| WayOn::new(url, &text.sign_in));
        let ways: Vec<_> = product.into_iter().chain(self.way_to_provider(visit)).collect();
        (if ways.is_empty() { &text.new_link } else { &text.brought_back }, ways)
    }

    /// For a page that needs a session.
    pub(super) fn not_signed_in(&self, visit: &Visit<'_>, had_cookie: bool) -> Reply {
        let (next, ways_on) = self.to_sign_in(visit);
        let problems = &self.texts.problems;
        let text = if had_cookie { &problems.session_ended } else { &problems.not_signed_in };
        let reply = page(StatusCode::UNAUTHORIZED, &self.problem(Problem::of(text).and(next), ways_on));
        if had_cookie { reply.with_header(SET_COOKIE, cookie::clear()) } else { reply }
    }

    /// For a link that leads nowhere.
    pub(super) fn unknown_link(&self, visit: &Visit<'_>) -> Reply {
        let (next, ways_on) = self.to_sign_in(visit);
        let problem = Problem::of(&self.texts.problems.unknown_link).and(next);
        page_with(StatusCode::NOT_FOUND, &self.problem(problem, ways_on), Referrer::Nothing)
    }

    /// After signing out.
    pub(super) fn signed_out(&self, visit: &Visit<'_>) -> Reply {
        let text = &self.texts.problems;
        let product = self.settings.config.sign_in_url(&visit.tenant.slug);
        let product = product.map(|url| WayOn::new(url, &text.sign_in_again));
        let ways_on = product.into_iter().chain(self.way_to_provider(visit)).collect();
        let problem = Problem::of(&text.signed_out);
        page(StatusCode::OK, &self.problem(problem, ways_on)).with_header(SET_COOKIE, cookie::clear())
    }

    /// For a POST that does not come from a page of this area.
    pub(super) fn foreign_origin(&self) -> Reply {
        self.back_to_overview(StatusCode::FORBIDDEN, &self.texts.problems.foreign_origin)
    }

    /// For a form of another session, or of one before.
    pub(super) fn stale_form(&self) -> Reply {
        self.back_to_overview(StatusCode::FORBIDDEN, &self.texts.problems.stale_form)
    }

    /// For a viewer who tries to change something.
    pub(super) fn only_viewer(&self) -> Reply {
        self.back_to_overview(StatusCode::FORBIDDEN, &self.texts.problems.only_viewer)
    }

    /// For a body that is no form.
    pub(super) fn no_form(&self, fault: FormFault) -> Reply {
        let problems = &self.texts.problems;
        match fault {
            FormFault::Type => self.back_to_overview(StatusCode::UNSUPPORTED_MEDIA_TYPE, &problems.form_type),
            FormFault::Content => self.back_to_overview(StatusCode::BAD_REQUEST, &problems.form_content),
        }
    }

    /// For a query that has a parameter twice.
    pub(super) fn unreadable(&self) -> Reply {
        self.back_to_overview(StatusCode::UNPROCESSABLE_ENTITY, &self.texts.problems.unreadable)
    }

    /// For something that does not exist.
    pub(super) fn unknown(&self, what: &str) -> Reply {
        let problem = Problem { title: &self.texts.problems.no_such_page, sentences: vec![what.to_owned()] };
        page(StatusCode::NOT_FOUND, &self.problem(problem, self.to_overview()))
    }

    fn back_to_overview(&self, status: StatusCode, text: &'static ProblemText) -> Reply {
        page(status, &self.problem(Problem::of(text), self.to_overview()))
    }

    /// Adds the headers about the language of a page, if the answer is one.
    pub(super) fn name_language(&self, reply: Reply) -> Reply {
        if reply.content != ContentType::Html || reply.body.is_empty() {
            return reply;
        }
        let reply = reply.with_header(CONTENT_LANGUAGE, HeaderValue::from_static(self.language.tag()));
        match self.settings.config.language {
            Some(_) => reply,
            None => reply.with_header(VARY, HeaderValue::from_static("accept-language")),
        }
    }

    /// 303: the browser gets another page.
    pub(super) fn see_other(&self, path: &str) -> Reply {
        redirect(&format!("{}{path}", self.path()))
    }
}

/// 303 (RFC 9110, section 15.4.4) to a target of which every byte is known to be valid in a header.
pub(super) fn redirect(target: &str) -> Reply {
    let reply = Reply::of_type(StatusCode::SEE_OTHER, ContentType::Html, bytes::Bytes::new());
    match HeaderValue::try_from(target) {
        Ok(target) => protect(reply, Referrer::SameOrigin).with_header(LOCATION, target),
        Err(_) => protect(Refusal::UnknownPath.reply(), Referrer::SameOrigin),
    }
}

/// A refusal as a page, with the same status and headers.
#[must_use]
pub fn page_of_refusal(area: &Area, path: &str, refusal: &Refusal) -> Reply {
    let reply = refusal.reply();
    let problem = problem_of(reply.status, refusal, &area.texts.problems);
    let is_secret = ["/enter", "/callback"].iter().any(|secret| area.rest(path).starts_with(secret));
    let referrer = if is_secret { Referrer::Nothing } else { Referrer::SameOrigin };
    let page = page_with(reply.status, &area.problem(problem, area.to_overview()), referrer);
    let mut page = area.name_language(page);
    page.headers.extend(reply.headers);
    page
}

fn problem_of(status: StatusCode, refusal: &Refusal, text: &'static ProblemsTexts) -> Problem {
    Problem::of(match status {
        StatusCode::NOT_FOUND => &text.mistyped,
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => &text.method,
        StatusCode::CONFLICT => &text.export_running,
        StatusCode::PAYLOAD_TOO_LARGE => &text.too_large,
        StatusCode::TOO_MANY_REQUESTS => {
            return match refusal {
                Refusal::TooManyPages { wait } => Problem::of_wait(&text.too_many_pages, *wait),
                Refusal::TooManyBadTokens { wait } => Problem::of_wait(&text.too_many_attempts, *wait),
                _ => Problem::of_wait(&text.too_many_attempts, UNKNOWN_WAIT),
            };
        }
        StatusCode::SERVICE_UNAVAILABLE => &text.unavailable,
        StatusCode::GATEWAY_TIMEOUT => &text.too_slow,
        status if status.is_server_error() => &text.fault,
        _ => &text.unreadable,
    })
}

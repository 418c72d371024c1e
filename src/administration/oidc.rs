//! Signing in through an OpenID provider: the way there, and the way back.
//!
//! The way there is a redirect and a cookie, and stores nothing. On the way back, the person that the provider signed in
//! gets a one-time link of their own, and is sent to its page: it says who they are, and its button signs them in, like
//! any other link. So a session still begins with a POST from a page of this area, and the address with the provider's
//! code leaves the history of the browser.
//!
//! Each attempt has a cookie of its own, since several tabs may be on their way at once: a browser that is started
//! again opens all of its tabs. Only the answer to an attempt, which knows its `state`, removes its cookie.
//!
//! The provider is the tenant's, or else the gateway's. What a provider answers is on no page; the log has the reason.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{COOKIE, HeaderValue, SET_COOKIE};
use http::{Method, StatusCode};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::area::Area;
use super::forms::parameter;
use super::frame::page_with;
use super::problem::{Problem, WayOn, redirect};
use super::protection::Referrer;
use super::visit::Visit;
use crate::config::OidcConfig;
use crate::error::Refusal;
use crate::gate::Origin;
use crate::oidc::{ATTEMPT_LIFETIME, BrowserResponse, Identified, OidcError, SignInAttempt};
use crate::outbound::Target;
use crate::reply::Reply;
use crate::store::{AdminLink, Identity};

/// What the names of the cookies of sign-ins on their way begin with; [`SignInAttempt::id`] follows. Lax, since the
/// provider sends the browser back from another site.
const COOKIE_PREFIX: &str = "__Host-formgate-sign-in-";
const ATTRIBUTES: &str = "Path=/; Secure; HttpOnly; SameSite=Lax";

/// How many sign-ins of one browser are on their way at once; the oldest one makes room for another.
///
/// Larger: whoever makes a browser begin many fills its requests with cookies until they are refused as too large, each
/// being up to 1.4 KB. Smaller: one of many tabs that are opened at once has to begin again.
const MAX_ATTEMPTS: usize = 5;

/// The parameter with the page to come back to.
const TO: &str = "to";

impl Area {
    /// The provider of a tenant's administrators, if any is asked.
    pub(super) fn provider<'v>(&'v self, visit: &Visit<'v>) -> Option<&'v OidcConfig> {
        let config = &self.settings.config;
        visit.tenant.oidc.as_deref().or(config.oidc.as_deref()).filter(|_| config.asks_providers)
    }

    /// The link to the provider, on pages for those who are not signed in, which leads back to the page of the request.
    pub(super) fn way_to_provider(&self, visit: &Visit<'_>) -> Option<WayOn> {
        let config = self.provider(visit)?;
        let uri = &visit.head.uri;
        let here = self.rest(uri.path());
        let here = uri.query().map_or_else(|| here.to_owned(), |query| format!("{here}?{query}"));
        let is_get = [Method::GET, Method::HEAD].contains(&visit.head.method);
        let to = Some(page_inside(self.shared.is_page, &here)).filter(|to| is_get && !to.is_empty());
        let query =
            to.map(|to| form_urlencoded::Serializer::for_suffix("?".to_owned(), 1).append_pair(TO, to).finish());
        let href = format!("{}/sign-in{}", self.path(), query.unwrap_or_default());
        Some(WayOn { href, label: self.texts.problems.sign_in_with.with("provider", host_of(&config.issuer)) })
    }
}

/// The host of an issuer, which people know a provider by.
pub(super) fn host_of(issuer: &str) -> String {
    Target::parse(issuer).map_or_else(|_| issuer.to_owned(), |target| target.host().to_string())
}

/// A page of this area that may be shown after signing in, below the area's path; the overview for anything else.
fn page_inside(is_page: fn(&str) -> bool, page: &str) -> &str {
    let path = page.split('?').next().unwrap_or_default();
    let is_plain = page.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#' && byte != b'\\');
    if is_plain && is_page(path) { page } else { "" }
}

/// The way there.
pub(super) async fn begin(area: &Area, visit: &Visit<'_>, _: &str) -> Result<Reply, Refusal> {
    let Some(config) = area.provider(visit) else { return Err(Refusal::UnknownPath) };
    let attempt = SignInAttempt::begin(&page_after(area, visit), Timestamp::now());
    // Refuses an address that fails all the time.
    visit.gate.attempt(visit.connection, visit.tenant, Sha256::digest(attempt.cookie()).into())?.put_back();
    let provider = area.shared.providers.find(config).await;
    match provider.authorization_url(config, &attempt, &redirect_uri(area, visit)).await {
        Ok(url) => {
            let mut reply = redirect(&url).with_header(SET_COOKIE, set(&attempt));
            let mut others: Vec<_> = presented(visit).collect();
            others.sort_by_key(SignInAttempt::began);
            for oldest in &others[..others.len().saturating_sub(MAX_ATTEMPTS - 1)] {
                reply.headers.append(SET_COOKIE, clear(oldest));
            }
            Ok(reply)
        }
        Err(error) => Ok(failed(area, visit, config, &error)),
    }
}

/// The way back.
pub(super) async fn callback(area: &Area, visit: &Visit<'_>, _: &str) -> Result<Reply, Refusal> {
    let Some(config) = area.provider(visit) else { return Err(Refusal::UnknownPath) };
    let query = visit.head.uri.query().unwrap_or_default();
    let limited = visit.gate.attempt(visit.connection, visit.tenant, Sha256::digest(query).into());
    let limited = limited.inspect_err(|_| count(area, "limited"))?;
    let answer = match BrowserResponse::find(config, presented(visit), query) {
        Ok(answer) => answer,
        Err(error) => {
            limited.failed();
            return Ok(failed(area, visit, config, &error));
        }
    };
    let (attempt, provider) = (answer.attempt(), area.shared.providers.find(config).await);
    let person = match provider.identify(config, &answer, &redirect_uri(area, visit)).await {
        Ok(person) => person,
        Err(error) => {
            if is_fault_of_provider(&error) {
                limited.put_back();
            } else {
                limited.failed();
            }
            return Ok(failed(area, visit, config, &error).with_header(SET_COOKIE, clear(attempt)));
        }
    };
    limited.put_back();
    let secret = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    offer(visit, config, person, &secret).await.inspect_err(|_| count(area, "failed"))?;
    let page = page_inside(area.shared.is_page, attempt.page());
    Ok(area.see_other(&enter_path(&secret, page)).with_header(SET_COOKIE, clear(attempt)))
}

/// Stores a link that signs the person in.
async fn offer(visit: &Visit<'_>, config: &OidcConfig, person: Identified, secret: &str) -> Result<(), Refusal> {
    let now = Timestamp::now();
    let link = AdminLink {
        email: person.email,
        name: person.name,
        role: person.role,
        identity: Some(Identity { issuer: config.issuer.to_string(), subject: person.subject }),
        expires_at: now + ATTEMPT_LIFETIME,
    };
    let (store, _permit) = visit.tenant.database.store_for_look_up().await?;
    Ok(store.offer_admin_session(&Sha256::digest(secret).into(), &link, now).await?)
}

/// The path of a link's page below that of the area, which leads to another page after signing in.
fn enter_path(secret: &str, page: &str) -> String {
    let path = format!("/enter/{secret}");
    if page.is_empty() {
        return path;
    }
    let begin = path.len() + 1;
    form_urlencoded::Serializer::for_suffix(path + "?", begin).append_pair(TO, page).finish()
}

/// The page that a link leads to after signing in.
pub(super) fn page_after(area: &Area, visit: &Visit<'_>) -> String {
    page_inside(area.shared.is_page, &parameter(visit.head.uri.query(), TO)).to_owned()
}

/// The sign-ins of this browser that are on their way.
fn presented(visit: &Visit<'_>) -> impl Iterator<Item = SignInAttempt> {
    let fields = visit.head.headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = fields.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| name.starts_with(COOKIE_PREFIX)).filter_map(|(_, value)| SignInAttempt::parse(value))
}

fn set(attempt: &SignInAttempt) -> HeaderValue {
    let (id, value, seconds) = (attempt.id(), attempt.cookie(), ATTEMPT_LIFETIME.as_secs());
    let cookie = format!("{COOKIE_PREFIX}{id}={value}; Max-Age={seconds}; {ATTRIBUTES}");
    let mut cookie = HeaderValue::try_from(cookie).expect("Base64 is visible ASCII");
    cookie.set_sensitive(true);
    cookie
}

fn clear(attempt: &SignInAttempt) -> HeaderValue {
    HeaderValue::try_from(format!("{COOKIE_PREFIX}{}=; Max-Age=0; {ATTRIBUTES}", attempt.id())).expect("visible ASCII")
}

/// Where the provider sends the browser back to, which it has to know: always at the sign-in address.
fn redirect_uri(area: &Area, visit: &Visit<'_>) -> String {
    let port = area.port(visit);
    let origin = Origin { host: &visit.tenant.address, port: port.as_deref() };
    format!("{origin}{}/callback", area.path())
}

fn count(area: &Area, result: &str) {
    area.shared.metrics.administration.sign_ins.with_label_values(&["oidc", result]).inc();
}

/// Whether a failure says nothing about the caller.
fn is_fault_of_provider(error: &OidcError) -> bool {
    matches!(error, OidcError::Unreachable(..) | OidcError::Status(..) | OidcError::Malformed(..))
}

/// The page for a failure, which is logged and counted.
fn failed(area: &Area, visit: &Visit<'_>, config: &OidcConfig, error: &OidcError) -> Reply {
    let problems = &area.texts.problems;
    let (result, status, text) = match error {
        OidcError::Unreachable(..) | OidcError::Status(..) | OidcError::Malformed(..) => {
            ("provider", StatusCode::BAD_GATEWAY, &problems.provider_failed)
        }
        OidcError::ForeignResponse | OidcError::NoCode | OidcError::RefusedCode => {
            ("refused", StatusCode::BAD_REQUEST, &problems.sign_in_lost)
        }
        OidcError::Expired => ("refused", StatusCode::BAD_REQUEST, &problems.sign_in_expired),
        OidcError::Denied(_) => ("denied", StatusCode::FORBIDDEN, &problems.sign_in_denied),
        OidcError::WrongIssuer | OidcError::Token(_) => ("refused", StatusCode::FORBIDDEN, &problems.sign_in_refused),
        OidcError::NoRole { .. } => ("no_role", StatusCode::FORBIDDEN, &problems.no_role),
    };
    count(area, result);
    let (tenant, issuer, network) = (&*visit.tenant.slug, &*config.issuer, visit.network());
    tracing::warn!(tenant, issuer, network, reason = %error, "a sign-in through an OpenID provider failed");
    let way_on = WayOn { href: format!("{}/sign-in", area.path()), label: problems.sign_in_again.to_string() };
    page_with(status, &area.problem(Problem::of(text), vec![way_on]), Referrer::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::administration::endpoints::is_page;

    #[test]
    fn only_a_page_of_the_area_is_come_back_to() {
        for page in ["", "/tokens", "/tokens/7", "/tokens/7/revoke", "/audit?actor=ana%40acme.example&since="] {
            assert_eq!(page_inside(is_page, page), page);
        }
        for page in [
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "@evil.example",
            ".evil.example",
            "/tokens\\",
            "/tokens#x",
            "/tokens\r\nset-cookie: a=b",
            "/tokens ?a",
            "/sign-in",
            "/sign-out",
            "/callback",
            "/enter/secret",
            "/style/x",
            "/nothing",
            "/tökens",
        ] {
            assert_eq!(page_inside(is_page, page), "", "{page}");
        }
    }
}

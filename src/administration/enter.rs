//! Signing in by a one-time link, which a command or a sign-in at an OpenID provider has created.
//!
//! Opening a link shows a page with one button and uses up nothing: mail scanners and link previews open links too. The
//! button redeems the link, once on whichever node that is. The address of the page is a secret, so it is never
//! sent as a referrer, and neither log nor metrics contain it.

use askama::Template;
use http::StatusCode;
use http::header::SET_COOKIE;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::area::Area;
use super::cookie::SessionSecret;
use super::frame::{Assets, page_with};
use super::oidc;
use super::protection::Referrer;
use super::texts::EnterTexts;
use super::visit::Visit;
use crate::error::Refusal;
use crate::gate::Attempt;
use crate::reply::Reply;
use crate::store::{AdminRole, Identity, NewAdminSession, Store, StoreError};

/// The longest secret of a link. Larger: more bytes are hashed for nothing. Smaller: valid links are refused.
const MAX_SECRET: usize = 200;

/// What is stored of a caller whose address is unknown.
const UNKNOWN_NETWORK: &str = "unknown";

#[derive(Template)]
#[template(path = "enter.html", config = "src/administration/askama.toml")]
struct EnterPage {
    assets: Assets,
    language: &'static str,
    text: &'static EnterTexts,
    account: String,
    name: Option<String>,
    email: String,
    is_viewer: bool,
    /// The OpenID provider that says who this is.
    provider: Option<String>,
}

/// The page with the button.
pub(super) async fn show(area: &Area, visit: &Visit<'_>, secret: &str) -> Result<Reply, Refusal> {
    let now = Timestamp::now();
    let found = with_link(area, visit, secret, async |store, link| store.find_admin_link(&link, now).await).await?;
    let Some(link) = found else { return Ok(area.unknown_link(visit)) };
    let page = EnterPage {
        assets: Assets::below(area.path()),
        language: area.language.tag(),
        text: &area.texts.enter,
        account: visit.tenant.name.clone(),
        name: link.name,
        email: link.email,
        is_viewer: link.role == AdminRole::Viewer,
        provider: link.identity.map(|identity| oidc::host_of(&identity.issuer)),
    };
    Ok(page_with(StatusCode::OK, &page, Referrer::Nothing))
}

/// The button: a new session, and the way to the overview.
pub(super) async fn sign_in(area: &Area, visit: &Visit<'_>, secret: &str) -> Result<Reply, Refusal> {
    let (now, config) = (Timestamp::now(), &area.settings.config);
    let cookie = SessionSecret::generate();
    let new = NewAdminSession {
        digest: cookie.digest(),
        expires_at: now + config.session,
        network: visit.network().unwrap_or_else(|| UNKNOWN_NETWORK.to_owned()),
        user_agent: visit.user_agent(),
    };
    let signed_in =
        with_link(area, visit, secret, async |store, link| store.sign_in_by_link(&link, &new, config.idle, now).await);
    let signed_in = signed_in.await;
    let sign_ins = &area.shared.metrics.administration.sign_ins;
    let tenant = &*visit.tenant.slug;
    match signed_in {
        Ok(Some(session)) => {
            let by = if session.identity.is_some() { "oidc" } else { "link" };
            sign_ins.with_label_values(&[by, "done"]).inc();
            let (actor, role, network) = (session.email, session.role.as_str(), session.network);
            match session.identity {
                Some(Identity { issuer, subject }) => tracing::info!(
                    tenant,
                    actor,
                    role,
                    network,
                    issuer,
                    subject,
                    "an administrator signed in by an OpenID provider"
                ),
                None => tracing::info!(tenant, actor, role, network, "an administrator signed in by a link"),
            }
            Ok(area.see_other(&oidc::page_after(area, visit)).with_header(SET_COOKIE, cookie.set()))
        }
        Ok(None) => {
            sign_ins.with_label_values(&["link", "unknown_link"]).inc();
            tracing::warn!(tenant, network = new.network, "a sign-in link was refused: unknown, used or expired");
            Ok(area.unknown_link(visit))
        }
        Err(refusal) => {
            sign_ins.with_label_values(&["link", "failed"]).inc();
            Err(refusal)
        }
    }
}

/// Looks a link up by its digest. Wrong ones count as attempts of the caller's address, as bad tokens do.
async fn with_link<T>(
    area: &Area,
    visit: &Visit<'_>,
    secret: &str,
    look_up: impl AsyncFnOnce(&Store, [u8; 32]) -> Result<Option<T>, StoreError>,
) -> Result<Option<T>, Refusal> {
    if secret.len() > MAX_SECRET {
        return Ok(None);
    }
    let digest: [u8; 32] = Sha256::digest(secret).into();
    let attempt = visit.gate.attempt(visit.connection, visit.tenant, digest).inspect_err(|_| {
        area.shared.metrics.administration.sign_ins.with_label_values(&["link", "limited"]).inc();
    })?;
    let found = async {
        let (store, _permit) = visit.tenant.database.store_for_look_up().await?;
        look_up(&store, digest).await
    };
    conclude(&attempt, found.await)
}

fn conclude<T>(attempt: &Attempt<'_>, found: Result<Option<T>, StoreError>) -> Result<Option<T>, Refusal> {
    match &found {
        // It is not remembered as valid: it will not be for long.
        Ok(Some(_)) | Err(_) => attempt.put_back(),
        Ok(None) => attempt.failed(),
    }
    Ok(found?)
}

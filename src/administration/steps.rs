//! The steps of a request to the area, once and in order.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, request};
use jiff::Timestamp;

use super::area::Area;
use super::cookie::SessionSecret;
use super::endpoints::{Answering, ENDPOINTS, Needs, Page};
use super::forms::{Form, repeats_a_parameter};
use super::problem;
use super::protection::{Referrer, is_from_own_page};
use super::visit::{Change, Member, Visit};
use crate::endpoint::{Matched, NoEndpoint};
use crate::error::Refusal;
use crate::gate::Origin;
use crate::reply::Reply;
use crate::store::AdminRole;

/// How old the time of a session's last use may get before it is written. A session with a short idle limit is written
/// more often.
///
/// Larger: the list of sessions is less exact, and sessions end earlier than configured. Smaller: more writes.
const SEEN_INTERVAL: Duration = Duration::from_secs(60);

impl Area {
    /// The redirect to the sign-in address, for a request to another address of the tenant.
    #[must_use]
    pub fn redirect(&self, visit: &Visit<'_>) -> Option<Reply> {
        let (host, address) = (visit.authority.host(), &visit.tenant.address);
        if host == address {
            return None;
        }
        let port = self.port(visit);
        let port = port.as_deref();
        let target = visit.head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        Some(problem::redirect(&format!("{}{target}", Origin { host: address, port })))
    }

    /// The endpoint of a request.
    ///
    /// # Errors
    /// [`NoEndpoint`].
    pub fn find<'h>(&self, head: &'h request::Parts) -> Result<Matched<'h, Page>, NoEndpoint> {
        ENDPOINTS.find(&head.method, self.rest(head.uri.path()))
    }

    /// The response.
    ///
    /// # Errors
    /// What keeps the area from responding: the database, a limit.
    pub async fn answer(&self, visit: Visit<'_>, found: Matched<'_, Page>, body: Bytes) -> Result<Reply, Refusal> {
        Ok(self.name_language(self.page(visit, found, body).await?))
    }

    async fn page(
        &self,
        visit: Visit<'_>,
        Matched { endpoint, segments }: Matched<'_, Page>,
        body: Bytes,
    ) -> Result<Reply, Refusal> {
        let (Page { needs, answer }, segment) = (endpoint.handler, segments.first());
        let referrer = if needs == Needs::Link { Referrer::Nothing } else { Referrer::SameOrigin };
        let is_change = endpoint.method == Method::POST;
        if is_change && !is_from_own_page(visit.head, &visit.authority.origin(), referrer) {
            return Ok(self.foreign_origin());
        }
        let form = match is_change.then(|| Form::parse(visit.head, &body)).transpose() {
            Ok(form) => form,
            Err(fault) => return Ok(self.no_form(fault)),
        };
        if let Answering::Open(open) = answer {
            return open(self, &visit, segment).await;
        }
        let Some(secret) = SessionSecret::presented(&visit.head.headers) else {
            return Ok(self.not_signed_in(&visit, false));
        };
        let Some(member) = Box::pin(self.member(visit, secret)).await? else {
            return Ok(self.not_signed_in(&visit, true));
        };
        match (form, answer) {
            (None, _) if repeats_a_parameter(member.visit.head.uri.query()) => Ok(self.unreadable()),
            (None, Answering::Shown(shown)) => shown(&member, segment).await,
            (Some(form), _) if !member.secret.accepts(form.field("form_token")) => Ok(self.stale_form()),
            (Some(_), _) if needs == Needs::Admin && member.session.role != AdminRole::Admin => Ok(self.only_viewer()),
            (Some(form), Answering::Change(change)) => {
                let actor = member.session.actor(visit.network());
                change(&Change { member, form, actor }, segment).await
            }
            // No endpoint is such.
            _ => Err(Refusal::UnknownPath),
        }
    }

    /// The administrator whose session a cookie is for; `None` if it has ended.
    async fn member<'v>(&'v self, visit: Visit<'v>, secret: SessionSecret) -> Result<Option<Member<'v>>, Refusal> {
        let digest = secret.digest();
        self.shared.rates.check(&digest, Instant::now())?;
        let attempt = visit.gate.attempt(visit.connection, visit.tenant, digest)?;
        let now = Timestamp::now();
        let idle = self.settings.config.idle;
        let look_up = async {
            let (store, _permit) = visit.tenant.database.store_for_look_up().await?;
            Ok((store.find_admin_session(&digest, idle, now).await?, store.counting(visit.rows)))
        };
        let (session, store) = match look_up.await {
            Ok((Some(session), store)) => {
                attempt.succeeded();
                (session, store)
            }
            Ok((None, _)) => {
                attempt.failed();
                return Ok(None);
            }
            Err(error) => {
                attempt.put_back();
                return Err(error);
            }
        };
        self.shared.rates.count(digest, Instant::now());
        let interval = SEEN_INTERVAL.min(idle / 6);
        let unwritten = Duration::try_from(now.duration_since(session.last_seen_at)).unwrap_or_default();
        // A database that can only be read still shows its pages.
        if unwritten >= interval
            && let Err(error) = store.touch_admin_session(session.id, now).await
        {
            tracing::debug!(tenant = &*visit.tenant.slug, %error, "the last use of a session was not written");
        }
        Ok(Some(Member { area: self, visit, store, session, secret, now }))
    }
}

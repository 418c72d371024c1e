//! Who is signed in, and signing out: oneself, another administrator, or all.

use askama::Template;
use http::StatusCode;

use super::frame::{Frame, page};
use super::texts::SessionsTexts;
use super::times::Moment;
use super::visit::{Change, Member};
use crate::error::Refusal;
use crate::reply::Reply;
use crate::store::{AdminRole, EndedSessions};

struct SessionRow {
    id: i64,
    email: String,
    name: Option<String>,
    role: AdminRole,
    created: Moment,
    last_seen: Moment,
    ends: Moment,
    network: String,
    user_agent: String,
    is_own: bool,
}

#[derive(Template)]
#[template(path = "sessions.html", config = "src/administration/askama.toml")]
struct SessionsPage {
    frame: Frame,
    text: &'static SessionsTexts,
    rows: Vec<SessionRow>,
}

pub(super) async fn show(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    let sessions = member.store.list_admin_sessions(member.area.settings.config.idle, member.now).await?;
    let rows = sessions.into_iter().map(|session| SessionRow {
        is_own: session.id == member.session.id,
        id: session.id,
        email: session.email,
        name: session.name,
        role: session.role,
        created: member.moment(session.created_at),
        last_seen: member.moment(session.last_seen_at),
        ends: member.moment(session.expires_at),
        network: session.network,
        user_agent: session.user_agent,
    });
    let rows = rows.collect();
    Ok(page(
        StatusCode::OK,
        &SessionsPage { frame: Frame::of(member, "sessions"), text: &member.area.texts.sessions, rows },
    ))
}

/// Ends the session in the field `session`, or with `all` every one.
pub(super) async fn end(change: &Change<'_>, _: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let which = match change.form.field("session") {
        "all" => EndedSessions::All,
        id => match id.parse() {
            Ok(id) => EndedSessions::One(id),
            Err(_) => return Ok(member.area.unknown(&member.area.texts.sessions.no_session)),
        },
    };
    let ended = member.store.end_admin_sessions(which, member.now, &change.actor).await?;
    let tenant = &*member.visit.tenant.slug;
    tracing::info!(tenant, actor = change.actor.name, ended, "an administrator ended sessions");
    if [EndedSessions::All, EndedSessions::One(member.session.id)].contains(&which) {
        return Ok(member.area.signed_out(&member.visit));
    }
    Ok(member.area.see_other("/sessions"))
}

pub(super) async fn sign_out(change: &Change<'_>, _: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let own = EndedSessions::One(member.session.id);
    member.store.end_admin_sessions(own, member.now, &change.actor).await?;
    let tenant = &*member.visit.tenant.slug;
    tracing::info!(tenant, actor = change.actor.name, "an administrator signed out");
    Ok(member.area.signed_out(&member.visit))
}

//! What surrounds each page: its head, the navigation, and the name of the signed-in administrator.

use std::fmt::Display;

use askama::Template;
use http::StatusCode;

use super::protection::{Referrer, protect};
use super::style;
use super::texts::Texts;
use super::visit::Member;
use crate::reply::{ContentType, Reply};
use crate::store::AdminRole;

/// What every page of a signed-in administrator needs.
#[derive(Debug)]
pub(super) struct Frame {
    /// The path of the overview.
    pub(super) base: String,
    /// The account's name.
    pub(super) account: String,
    /// Who is signed in.
    pub(super) who: String,
    /// Whether they may change anything.
    pub(super) may_change: bool,
    /// What each form has to send back.
    pub(super) form_token: String,
    /// The entry of the navigation that the page belongs to.
    pub(super) here: &'static str,
    /// Whether there is a page of domains.
    pub(super) has_domains: bool,
    pub(super) assets: Assets,
    pub(super) texts: &'static Texts,
    /// The tag of the language.
    pub(super) language: &'static str,
}

/// The paths of the files that pages load.
#[derive(Debug)]
pub(super) struct Assets {
    pub(super) style: String,
    pub(super) icon: String,
}

impl Assets {
    pub(super) fn below(base: &str) -> Self {
        let (style, icon) = style::paths();
        Self { style: format!("{base}{style}"), icon: format!("{base}{icon}") }
    }
}

impl Frame {
    pub(super) fn of(member: &Member<'_>, here: &'static str) -> Self {
        let base = member.area.path();
        Self {
            base: base.to_owned(),
            account: member.visit.tenant.name.clone(),
            who: member.session.name.clone().unwrap_or_else(|| member.session.email.clone()),
            may_change: member.session.role == AdminRole::Admin,
            form_token: member.secret.form_token(),
            here,
            has_domains: member.visit.domains.is_some(),
            assets: Assets::below(base),
            texts: member.area.texts,
            language: member.area.language.tag(),
        }
    }

    /// A number, with a separator between thousands.
    pub(super) fn number(&self, number: impl Display) -> String {
        self.texts.numbers.show(number)
    }

    /// What a role is called.
    pub(super) fn role(&self, role: &AdminRole) -> &'static str {
        match role {
            AdminRole::Admin => &self.texts.roles.admin,
            AdminRole::Viewer => &self.texts.roles.viewer,
        }
    }

    /// What a state of a token or a webhook is called. A state that a newer version stored is shown unchanged.
    pub(super) fn state<'s>(&self, state: &'s str) -> &'s str {
        let states = &self.texts.states;
        match state {
            "active" => &states.active,
            "expired" => &states.expired,
            "revoked" => &states.revoked,
            "failing" => &states.failing,
            "paused" => &states.paused,
            "disabled" => &states.disabled,
            "gone" => &states.gone,
            other => other,
        }
    }
}

/// An answer with a page.
pub(super) fn page(status: StatusCode, page: &impl Template) -> Reply {
    page_with(status, page, Referrer::SameOrigin)
}

/// An answer with a page whose address may be a secret.
pub(super) fn page_with(status: StatusCode, page: &impl Template, referrer: Referrer) -> Reply {
    let html = page.render().expect("writing to memory does not fail");
    protect(Reply::of_type(status, ContentType::Html, html.into()), referrer)
}

//! The overview: what the account may still do now, what it was used for, and what needs attention.

use askama::Template;
use http::StatusCode;

use super::chart::Chart;
use super::frame::{Frame, page};
use super::texts::OverviewTexts;
use super::usage;
use super::visit::Member;
use crate::error::Refusal;
use crate::reply::Reply;
use crate::store::{AdminRole, TokenCounts};

#[derive(Template)]
#[template(path = "overview.html", config = "src/administration/askama.toml")]
struct OverviewPage {
    frame: Frame,
    text: &'static OverviewTexts,
    email: String,
    role: AdminRole,
    remaining: u32,
    limit: u32,
    tokens: TokenCounts,
    failing: i64,
    disabled: i64,
    charts: [Chart; 2],
}

impl OverviewPage {
    fn needs_attention(&self) -> bool {
        [self.tokens.expire_soon, self.tokens.unused, self.failing, self.disabled].into_iter().any(|count| count > 0)
    }
}

pub(super) async fn show(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    let tokens = member.store.count_tokens(member.now).await?;
    let (failing, disabled) = member.store.count_troubled_subscriptions().await?;
    // A look: nothing is spent.
    let budget = member.visit.gate.budget(member.visit.tenant).await;
    let overview = OverviewPage {
        frame: Frame::of(member, "overview"),
        text: &member.area.texts.overview,
        email: member.session.email.clone(),
        role: member.session.role,
        remaining: budget.remaining,
        limit: budget.limit,
        tokens,
        failing,
        disabled,
        charts: usage::charts(member).await?,
    };
    Ok(page(StatusCode::OK, &overview))
}

//! The overview: what the account may still do now, what it was used for, and what needs attention.
//!
//! The domains are in the registry. The overview waits for it only briefly, and is shown without it.

use std::time::Duration;

use askama::Template;
use http::StatusCode;

use super::chart::Chart;
use super::domains::{HostRow, domains_of};
use super::frame::{Frame, page};
use super::texts::OverviewTexts;
use super::usage;
use super::visit::Member;
use crate::domains::DomainSummary;
use crate::error::Refusal;
use crate::quota::Interface;
use crate::reply::Reply;
use crate::store::{AdminRole, TokenCounts};

/// How many domains that need attention are named. Larger: an account with many sees nothing else. Smaller: fewer are
/// found without another click.
const SHOWN_DOMAINS: usize = 5;

/// How long the overview waits for the registry. Larger: while the registry hangs, the overview is slow. Smaller: a busy
/// registry is reported as unreachable.
const DOMAINS_LIMIT: Duration = Duration::from_secs(2);

/// The domains that need attention.
#[derive(Default)]
struct TroubledDomains {
    /// The first of them.
    shown: Vec<HostRow>,
    /// How many others there are.
    more: usize,
    /// How many are not served yet, although nobody has to act.
    waiting: usize,
    /// Whether they could not be read.
    are_unknown: bool,
}

impl TroubledDomains {
    async fn of(member: &Member<'_>) -> Self {
        let Ok(domains) = domains_of(member) else { return Self::default() };
        let read = tokio::time::timeout(DOMAINS_LIMIT, domains.summary()).await;
        let DomainSummary { troubled, waiting } = match read {
            Ok(Ok(summary)) => summary,
            Ok(Err(_)) | Err(_) => return Self { are_unknown: true, ..Self::default() },
        };
        let more = troubled.len().saturating_sub(SHOWN_DOMAINS);
        let shown = troubled.iter().take(SHOWN_DOMAINS).map(|host| HostRow::of(host, &domains, member));
        Self { shown: shown.collect(), more, waiting, are_unknown: false }
    }
}

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
    held: u64,
    domains: TroubledDomains,
    charts: [Chart; 2],
}

impl OverviewPage {
    fn needs_attention(&self) -> bool {
        let counts = [self.tokens.expire_soon, self.tokens.unused, self.failing, self.disabled];
        counts.into_iter().any(|count| count > 0)
            || self.held > 0
            || !self.domains.shown.is_empty()
            || self.domains.are_unknown
    }
}

pub(super) async fn show(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    let tokens = member.store.count_tokens(member.now).await?;
    let (failing, disabled) = member.store.count_troubled_subscriptions().await?;
    // A look: nothing is spent.
    let budget = member.visit.gate.budget(member.visit.tenant, Interface::Api).await;
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
        held: member.store.count_held().await?,
        domains: TroubledDomains::of(member).await,
        charts: usage::charts(member).await?,
    };
    Ok(page(StatusCode::OK, &overview))
}

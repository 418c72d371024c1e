//! Exports: choosing one, and the link to it, which works once.
//!
//! Who chooses gets a link in the answer; it is stored in the row of the session, so it works in this browser only, on every
//! node. Its GET uses it up, unlike all others: what it does is recorded in the audit log, and a second one would read the
//! whole account again. An export takes the place that an export of the API would take, and spends nothing of its budget.
//!
//! Only administrators with the role for changes get a link: nothing else on these pages shows what was submitted.

use askama::Template;
use bytes::Bytes;
use futures_util::StreamExt;
use http::header::CONTENT_DISPOSITION;
use http::{Method, StatusCode};
use jiff::SignedDuration;

use super::audit::border_of;
use super::forms::{Form, parse_id};
use super::frame::{Frame, page};
use super::protection::{Referrer, protect};
use super::texts::ExportTexts;
use super::times::Moment;
use super::visit::{Change, Member};
use crate::api::export::{self, BeginError, ExportParts, ExportQuery, FormatKind, Selection};
use crate::error::Refusal;
use crate::reply::Reply;
use crate::shown_text::shown_name;
use crate::store::filter::SubmissionFilter;
use crate::store::{AdminExport, ExportError, ExportRequest};

/// How many forms can be chosen, those with the smallest ids.
///
/// Larger: the page of an account with thousands of forms is longer. Smaller: fewer forms can be exported on it.
const FORMS: i64 = 2_000;

/// How long a link works.
///
/// Larger: a window that somebody leaves open can be used by others for longer. Smaller: some links have expired before they
/// are clicked on.
const VALID: SignedDuration = SignedDuration::from_mins(10);

/// What was chosen, as it was sent.
#[derive(Default)]
struct TypedExport {
    form: String,
    format: String,
    since: String,
    until: String,
    excel: bool,
    fault: Option<&'static str>,
}

impl TypedExport {
    fn of(form: &Form) -> Self {
        let field = |name| form.field(name).trim().to_owned();
        let (chosen, format) = (field("form"), field("format"));
        let excel = !form.field("excel").is_empty();
        Self { form: chosen, format, since: field("since"), until: field("until"), excel, fault: None }
    }

    /// The export, or why there can be none.
    async fn parse(&self, member: &Member<'_>) -> Result<Result<AdminExport, &'static str>, Refusal> {
        let text = &member.area.texts.export;
        let Some(kind) = FormatKind::parse(&self.format) else { return Ok(Err(&text.bad_format)) };
        let form = match &*self.form {
            "" if kind.has_columns() => return Ok(Err(&text.no_form)),
            "" => None,
            id => match parse_id(id) {
                Some(id) if member.store.find_form(id).await?.is_some() => Some(id),
                _ => return Ok(Err(&text.bad_form)),
            },
        };
        let (mut start, mut end) = (None, None);
        for (day, is_end, border) in [(&self.since, false, &mut start), (&self.until, true, &mut end)] {
            if !day.is_empty() {
                *border = border_of(day, is_end, member);
                if border.is_none() {
                    return Ok(Err(&member.area.texts.audit.bad_day));
                }
            }
        }
        if start.zip(end).is_some_and(|(start, end)| end < start) {
            return Ok(Err(&text.bad_period));
        }
        let (key, expires_at) = (format!("{:032x}", rand::random::<u128>()), member.now + VALID);
        let format = kind.name().to_owned();
        Ok(Ok(AdminExport { key, expires_at, format, form, start, end, excel: self.excel }))
    }
}

/// The link to an export.
struct Link {
    key: String,
    expires: Moment,
}

#[derive(Template)]
#[template(path = "export.html", config = "src/administration/askama.toml")]
struct ExportPage {
    frame: Frame,
    text: &'static ExportTexts,
    typed: TypedExport,
    /// The ids and names of the forms that can be chosen.
    forms: Vec<(String, String)>,
    /// The names of the formats, and what they are for.
    formats: [(&'static str, &'static str); 3],
    link: Option<Link>,
}

pub(super) async fn show(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    shown(member, TypedExport { format: FormatKind::Csv.name().to_owned(), ..TypedExport::default() }, None).await
}

async fn shown(member: &Member<'_>, typed: TypedExport, link: Option<Link>) -> Result<Reply, Refusal> {
    let text = &member.area.texts.export;
    let forms = member.store.list_all_form_names(FORMS).await?;
    let named = |(id, name): (i64, String)| (id.to_string(), format!("{} (for_{id})", shown_name(&name)));
    let status = match (&typed.fault, &link) {
        (Some(_), _) => StatusCode::UNPROCESSABLE_ENTITY,
        (None, Some(_)) => StatusCode::CREATED,
        (None, None) => StatusCode::OK,
    };
    let formats = FormatKind::ALL.map(|kind| {
        let what = match kind {
            FormatKind::Csv => &text.csv,
            FormatKind::Parquet => &text.parquet,
            FormatKind::Ndjson => &text.ndjson,
        };
        (kind.name(), &**what)
    });
    let forms = forms.into_iter().map(named).collect();
    Ok(page(status, &ExportPage { frame: Frame::of(member, "export"), text, typed, forms, formats, link }))
}

/// Creates a link.
pub(super) async fn choose(change: &Change<'_>, _: &str) -> Result<Reply, Refusal> {
    let member = &change.member;
    let mut typed = TypedExport::of(&change.form);
    match typed.parse(member).await? {
        Err(fault) => {
            typed.fault = Some(fault);
            shown(member, typed, None).await
        }
        Ok(export) => {
            member.store.offer_admin_export(member.session.id, &export).await?;
            let link = Link { key: export.key, expires: member.moment(export.expires_at) };
            shown(member, typed, Some(link)).await
        }
    }
}

/// The export behind a link.
pub(super) async fn download(member: &Member<'_>, key: &str) -> Result<Reply, Refusal> {
    let gone = || Ok(member.area.unknown(&member.area.texts.export.gone));
    let (visit, session) = (&member.visit, member.session.id);
    let Some(chosen) = member.store.find_admin_export(session, key, member.now).await? else { return gone() };
    let Some(kind) = FormatKind::parse(&chosen.format) else { return gone() };
    let name = export::disposition(visit.tenant, kind, chosen.form);
    let named = |reply: Reply| protect(reply, Referrer::SameOrigin).with_header(CONTENT_DISPOSITION, name);
    if visit.head.method == Method::HEAD {
        // Without a length, which is not known.
        let reply = Reply::of_type(StatusCode::OK, kind.content(), Bytes::new());
        return Ok(named(reply.with_parts(futures_util::stream::empty().boxed())));
    }
    let filter = SubmissionFilter { start: chosen.start, end: chosen.end, ..SubmissionFilter::default() };
    let (form, is_form_alone) = (chosen.form, kind.has_columns());
    let request = ExportRequest { form, is_form_alone, filter, ..ExportRequest::default() };
    let (excel, selection) = (chosen.excel, Selection::ALL);
    let query = ExportQuery { kind, request, excel, raw: false, selection };
    let lease = visit.gate.begin_export(visit.tenant).await?;
    let permit = visit.rows.reserve(export::memory_of(kind))?;
    let parts = match ExportParts::begin(&member.store, query, &visit.tenant.timezone).await {
        Ok(parts) => parts,
        Err(error) if error.is_too_long() => {
            let fault = Some(&*member.area.texts.export.too_long);
            return shown(member, TypedExport { fault, ..TypedExport::default() }, None).await;
        }
        Err(error) => return Err(refusal(error)),
    };
    // Only now: an export that can't begin uses up nothing.
    if !member.store.redeem_admin_export(session, &chosen, &member.session.actor(visit.network()), member.now).await? {
        return gone();
    }
    Ok(named(export::reply_of(parts.holding(lease, permit), kind).await?))
}

fn refusal(error: BeginError) -> Refusal {
    match error {
        BeginError::Export(ExportError::Store(error)) => error.into(),
        BeginError::NoForm | BeginError::NoColumns => Refusal::FormNotFound,
        BeginError::Unreadable(error) => Refusal::ExportFailed(error),
        // It has no cursor.
        BeginError::Export(ExportError::Lost(_)) => Refusal::UnknownPath,
    }
}

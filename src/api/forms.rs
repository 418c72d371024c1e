//! `GET /form` and `GET /form/{id}`.

use http::StatusCode;
use serde::Serialize;
use serde_json::json;

use super::id::{Id, Kind};
use super::page::{self, Envelope};
use super::{Call, store};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::Reply;
use crate::store::{Element, FormSummary};

/// Forms on a page, as the service description fixes it.
const PAGE_SIZE: u32 = 100;

#[derive(Serialize)]
struct SummaryJson {
    id: Id,
    name: String,
    anonymous: bool,
}

#[derive(Serialize)]
struct FormJson {
    #[serde(flatten)]
    summary: SummaryJson,
    elements: Vec<ElementJson>,
}

#[derive(Serialize)]
struct ElementJson {
    id: i64,
    gid: String,
    name: String,
    r#type: String,
}

impl From<FormSummary> for SummaryJson {
    fn from(form: FormSummary) -> Self {
        Self { id: Kind::Form.show(form.id), name: form.name, anonymous: form.anonymous }
    }
}

impl From<Element> for ElementJson {
    fn from(element: Element) -> Self {
        Self { id: element.id, gid: element.gid, name: element.name, r#type: element.kind }
    }
}

pub(super) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let mut faults = Faults::default();
    let request = page::requested(call, PAGE_SIZE, &mut faults);
    let request = faults.or_else(request)?;
    let forms = store(admitted).await?.list_forms(request).await?;
    let forms = forms.map(SummaryJson::from);
    Ok(Reply::json(StatusCode::OK, &Envelope::new(call, "/api/v1/form", request, forms)))
}

pub(super) async fn show(admitted: &Admitted, id: &str) -> Result<Reply, Refusal> {
    let id = Kind::Form.parse(id).ok_or(Refusal::FormNotFound)?;
    let form = store(admitted).await?.find_form(id).await?.ok_or(Refusal::FormNotFound)?;
    let form =
        FormJson { summary: form.summary.into(), elements: form.elements.into_iter().map(ElementJson::from).collect() };
    Ok(Reply::json(StatusCode::OK, &json!({ "data": form })))
}

//! `GET /form` and `GET /form/{id}`: active forms, and one form with its elements.
//!
//! Owns the JSON of a form. Which forms are active is the store's decision.

use http::StatusCode;

use super::id::IdKind;
use super::json::Json;
use super::{Call, page};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::Reply;
use crate::store::{Element, FormSummary};

/// The number of forms on a page, as in the service description.
///
/// Larger: a response takes longer and more memory. Smaller: listing all forms takes more requests of the budget.
const PAGE_SIZE: u32 = 100;

fn write_summary(json: &mut Json, form: &FormSummary) {
    json.raw("\"id\":").id(IdKind::Form.id(form.id)).raw(",\"name\":").text(&form.name);
    json.raw(",\"anonymous\":").value(&form.anonymous);
}

fn write_element(json: &mut Json, element: &Element) {
    json.raw("{\"id\":").value(&element.id).raw(",\"gid\":").text(&element.gid);
    json.raw(",\"name\":").text(&element.name).raw(",\"type\":").text(&element.kind).raw("}");
}

pub(super) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let mut faults = Faults::default();
    let request = page::parse(call, PAGE_SIZE, &mut faults);
    let request = faults.into_result(request)?;
    let forms = call.store(admitted).await?.list_forms(request).await?;
    Ok(page::reply(call, "/api/v1/form", request, forms, |json, form| {
        json.raw("{");
        write_summary(json, &form);
        json.raw("}");
    }))
}

pub(super) async fn show(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = IdKind::Form.parse(call.id()).ok_or(Refusal::FormNotFound)?;
    let form = call.store(admitted).await?.find_form(id).await?.ok_or(Refusal::FormNotFound)?;
    let mut json = Json::with_capacity(2048);
    json.raw("{\"data\":{");
    write_summary(&mut json, &form.summary);
    json.raw(",\"elements\":").list(&form.elements, write_element).raw("}}");
    Ok(json.reply(StatusCode::OK).with_rows(1))
}

//! `GET /submission/{id}/readers`: which tokens' responses contained a submission, by the ledger of reads.

use http::StatusCode;

use super::IdKind;
use crate::api::Call;
use crate::error::Refusal;
use crate::gate::Admitted;
use crate::reply::Reply;

pub(in crate::api) async fn list(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = IdKind::Submission.parse(call.id()).ok_or(Refusal::SubmissionNotFound)?;
    let store = call.store(admitted).await?;
    // Before the ledger is read: what is written meanwhile is in both.
    let held = admitted.tenant().tokens.reads.of_submission(id);
    let readers = store.submission_readers(id, held).await?.ok_or(Refusal::SubmissionNotFound)?;
    Ok(Reply::json(StatusCode::OK, &readers.to_json()).with_rows(readers.readers.len()))
}

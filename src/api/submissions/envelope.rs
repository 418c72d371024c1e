//! The body of a webhook: the event, the subscription, and the submission as `GET /submission/{id}` shows it.
//!
//! The id of an event is a digest of everything else in its body, so an id never has two bodies: not even if a node
//! dies between sending and writing that it did, and the submission changes before another node sends it.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};

use super::{FieldsJson, Selection};
use crate::api::changes::cursor_text;
use crate::api::id::IdKind;
use crate::api::json::Json;
use crate::host::HostName;
use crate::store::{
    ChangeCursor, Event, FormReach, Store, StoreError, Submission, SubmissionPart, Submissions, SubmissionsView,
};

/// How long a body may be. A longer one has no answers.
///
/// Larger: receivers and their proxies refuse it; many limit bodies to 1 MiB or less. Smaller: more receivers have to
/// get the submission themselves.
const MAX_BYTES: usize = 256 * 1024;

/// An event for one subscription.
#[derive(Clone, Debug)]
pub struct Envelope<'e> {
    /// What happened.
    pub event: Event,
    /// When.
    pub changed_at: Timestamp,
    /// The account's id.
    pub account: &'e str,
    /// A host of the account, for a link.
    pub host: &'e HostName,
    /// The bare id of the subscription.
    pub subscription: i64,
    /// The form of the subscription; none for every form.
    pub of_form: Option<i64>,
    /// What its reader reaches.
    pub reach: &'e FormReach,
    /// The submission's form.
    pub form: i64,
    /// The submission.
    pub submission: i64,
    /// Where the feed goes on after this event.
    pub cursor: &'e ChangeCursor,
    /// Whether it only tests the receiver.
    pub is_test: bool,
}

/// The bytes that are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvelopeBody {
    /// The event's id.
    pub id: String,
    /// The JSON.
    pub json: String,
}

/// Submissions that envelopes show.
pub struct ShownSubmissions<'v> {
    view: SubmissionsView<'v>,
    fields: FieldsJson,
    zone: &'v TimeZone,
}

/// What an envelope says about its submission.
enum Data<'d> {
    Shown(&'d Submission<'d>, &'d ShownSubmissions<'d>),
    /// Too long to be shown: the status, and when it was created and updated.
    Cut(&'d str, [Timestamp; 2]),
    /// Only its id.
    Deleted,
}

impl<'v> ShownSubmissions<'v> {
    /// Submissions with times of day in a time zone.
    #[must_use]
    pub fn new(view: SubmissionsView<'v>, zone: &'v TimeZone) -> Self {
        let fields = FieldsJson::new(&view.fields);
        Self { view, fields, zone }
    }
}

impl Envelope<'_> {
    /// The body with its submission; none if that is not among those.
    #[must_use]
    pub fn with_submission(&self, shown: &ShownSubmissions<'_>) -> Option<EnvelopeBody> {
        let submission = shown.view.submissions.iter().find(|submission| submission.id == self.submission)?;
        let body = self.write(&Data::Shown(submission, shown));
        if body.json.len() <= MAX_BYTES {
            return Some(body);
        }
        Some(self.without_answers(submission.status, [submission.created_at, submission.updated_at]))
    }

    /// The body of an event, with its submission as it was read; none if that is gone meanwhile.
    ///
    /// # Errors
    /// Those of reading it.
    pub async fn body(
        &self,
        store: &Store,
        submissions: &Submissions,
        zone: &TimeZone,
    ) -> Result<Option<EnvelopeBody>, StoreError> {
        if self.event == Event::SubmissionDeleted {
            return Ok(Some(self.of_deletion()));
        }
        if let Some(view) = submissions.read()? {
            return Ok(self.with_submission(&ShownSubmissions::new(view, zone)));
        }
        self.of_long_submission(store).await
    }

    /// The body of an event whose submission is too long to be read whole; none if that is gone meanwhile.
    ///
    /// # Errors
    /// Those of reading it.
    pub async fn of_long_submission(&self, store: &Store) -> Result<Option<EnvelopeBody>, StoreError> {
        Ok(match store.within(self.reach).read_in_parts([self.submission]).next().await? {
            Some(SubmissionPart::Begin { status, created_at, updated_at, .. }) => {
                Some(self.without_answers(&status, [created_at, updated_at]))
            }
            _ => None,
        })
    }

    /// The body with the submission but without its answers: it is too long. `times` are when it was created and
    /// updated.
    fn without_answers(&self, status: &str, times: [Timestamp; 2]) -> EnvelopeBody {
        self.write(&Data::Cut(status, times))
    }

    /// The body of a deletion.
    #[must_use]
    pub fn of_deletion(&self) -> EnvelopeBody {
        self.write(&Data::Deleted)
    }

    fn write(&self, data: &Data<'_>) -> EnvelopeBody {
        let mut json = Json::with_capacity(4 * 1024);
        json.raw("{\"type\":").text(self.event.as_str()).raw(",\"timestamp\":").instant(self.changed_at);
        let before = json.take_part();
        json.raw(",\"account\":").text(self.account);
        json.raw(",\"subscription\":").id(IdKind::Subscription.id(self.subscription));
        json.raw(",\"form\":").id(IdKind::Form.id(self.form));
        let forms: Vec<i64> = self.of_form.into_iter().collect();
        json.raw(",\"cursor\":").text(&cursor_text(self.cursor, &forms, self.reach));
        json.raw(if self.is_test { ",\"test\":true,\"data\":" } else { ",\"data\":" });
        match data {
            Data::Shown(submission, shown) => shown.fields.write(&mut json, submission, &Selection::ALL, shown.zone),
            Data::Cut(status, [created_at, updated_at]) => {
                Selection::WITHOUT_ANSWERS.write_head(&mut json, self.submission, status, *created_at, *updated_at);
                json.raw("},\"truncated\":true,\"href\":").text(&self.href());
            }
            Data::Deleted => _ = json.raw("{\"id\":").id(IdKind::Submission.id(self.submission)).raw("}"),
        }
        json.raw("}");
        let after = json.take_part();
        let digest = Sha256::new().chain_update(&before).chain_update(&after).finalize();
        let digest = u128::from_be_bytes(*digest.first_chunk().expect("SHA-256 has 32 bytes"));
        let id = format!("evt_{digest:032x}");
        let mut body = before.to_vec();
        body.extend_from_slice(format!(",\"id\":\"{id}\"").as_bytes());
        body.extend_from_slice(&after);
        EnvelopeBody { id, json: String::from_utf8(body).expect("JSON is UTF-8") }
    }

    /// Where the submission is shown whole.
    fn href(&self) -> String {
        format!("https://{}/api/v1/submission/{}", self.host, IdKind::Submission.id(self.submission))
    }
}

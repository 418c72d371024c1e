//! `POST /subscribe/{id}/replay`: sends events again. Owns the body; the store decides what there is to send.

use super::managing::{reply, subscription_id};
use super::shown::parse_replay_start;
use crate::api::Call;
use crate::api::body::{Body, BodyEntry};
use crate::api::id::IdKind;
use crate::api::reader::Scalar;
use crate::api::values::{self, FieldPath};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::Reply;
use crate::store::{Replay, Replayed};

/// The maximum number of submissions whose events are sent again by one request.
///
/// Larger: a statement takes longer, and more events are sent out of their order. Smaller: more requests of the budget.
const MAX_SUBMISSIONS: usize = 100;

const KEYS: [&str; 4] = ["event", "submissions", "since", "failed"];

pub(in crate::api) async fn replay(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let id = subscription_id(call.id())?;
    let body = Body::of(call, &KEYS)?;
    let mut entries = body.entries();
    let (Some(entry), None) = (entries.next(), entries.next()) else {
        return Err(Faults::single("body", "The body must have one of event, submissions, since and failed."));
    };
    let mut faults = Faults::default();
    let wanted = read(entry, admitted, &mut faults)?;
    let wanted = faults.into_result(wanted)?.ok_or_else(|| Faults::single(entry.name, "There is nothing to send."))?;
    if let Replay::Submissions(ids) = &wanted
        && !(1..=MAX_SUBMISSIONS).contains(&ids.len())
    {
        let fault = format_args!("The submissions must be 1 to {MAX_SUBMISSIONS} ids.");
        return Err(Faults::single("submissions", fault));
    }
    let store = call.store(admitted).await?;
    match store.replay(id, &wanted, None).await? {
        Replayed::Due => {}
        Replayed::UnknownSubscription => return Err(Refusal::SubscriptionNotFound),
        Replayed::UnknownEvent => {
            return Err(Faults::single("event", "The event was not sent to this subscription, or can't be any more."));
        }
        Replayed::UnknownSubmissions(unknown) => {
            let mut faults = Faults::default();
            let Replay::Submissions(asked) = &wanted else { return Err(Refusal::SubscriptionNotFound) };
            for at in (0..asked.len()).filter(|at| unknown.contains(&asked[*at])) {
                faults.add(
                    format_args!("submissions.{at}"),
                    format_args!("The submissions.{at} has no event for this subscription."),
                );
            }
            faults.into_result(())?;
        }
        Replayed::LostCursor => {
            return Err(Faults::single("since", "The since is a cursor of another log, or ahead of this one."));
        }
    }
    call.subscription_changes.announce(&admitted.tenant().slug);
    reply(store.find_subscription(id).await?, None)
}

/// What an entry asks for; none if it has a fault.
fn read(entry: &BodyEntry<'_>, admitted: &Admitted, faults: &mut Faults) -> Result<Option<Replay>, Refusal> {
    Ok(match entry.name {
        "event" => {
            values::scalar(entry, faults, |value, path, faults| values::text(value, path, faults).map(str::to_owned))?
                .map(Replay::Event)
        }
        "submissions" => Some(Replay::Submissions(values::list(entry, faults, submission)?)),
        "since" => values::scalar(entry, faults, |value, path, faults| {
            let text = values::text(value, path, faults)?;
            let wanted = parse_replay_start(text, &admitted.tenant().timezone);
            if wanted.is_none() {
                faults.add(path, format_args!("The {path} must be a date, an RFC 3339 date-time or a cursor."));
            }
            wanted
        })?,
        _ => {
            if entry.json.get() != "true" {
                faults.add("failed", "The failed must be true.");
            }
            Some(Replay::Failed)
        }
    })
}

fn submission(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<i64> {
    values::id(value, path, IdKind::Submission, faults)
}

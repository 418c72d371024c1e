//! What an attempt means for its event and for its subscription, and when the next one is due.

use std::time::Duration;

use http::StatusCode;
use rand::RngExt;

use crate::outbound::{Attempt, DeliveryReason, SendError};

/// The pauses after consecutive failures; the last one is repeated.
const PAUSES: [Duration; 7] = [
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_mins(2),
    Duration::from_mins(5),
    Duration::from_mins(15),
    Duration::from_mins(30),
    Duration::from_hours(1),
];

/// By how much a pause is lengthened or shortened at random, so that a receiver that works again does not get all requests at
/// once.
const JITTER: f64 = 0.2;

/// What an attempt means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The receiver has the event.
    Accepted,
    /// The receiver no longer exists.
    Gone,
    /// The receiver works, but refuses this event.
    Refused(DeliveryReason),
    /// No event can be delivered now.
    Unreachable {
        /// Why.
        reason: DeliveryReason,
        /// How long the receiver asks to wait.
        retry_after: Option<Duration>,
    },
}

impl Outcome {
    pub(super) fn of(attempt: &Attempt) -> Self {
        match &attempt.outcome {
            Ok(answer) if answer.status.is_success() => Self::Accepted,
            Ok(answer) => match answer.status {
                StatusCode::GONE => Self::Gone,
                StatusCode::BAD_REQUEST
                | StatusCode::CONFLICT
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::UNSUPPORTED_MEDIA_TYPE
                | StatusCode::UNPROCESSABLE_ENTITY => Self::Refused(answered(answer.status)),
                status => Self::Unreachable { reason: answered(status), retry_after: answer.retry_after },
            },
            Err(error) => Self::Unreachable { reason: (*error).into(), retry_after: None },
        }
    }

    /// The value of the metric's label `result`.
    pub(super) fn label(&self, attempt: &Attempt) -> &'static str {
        match (self, &attempt.outcome) {
            (Self::Accepted, _) => "accepted",
            (Self::Gone, _) => "gone",
            (Self::Refused(_), _) => "refused",
            (Self::Unreachable { .. }, Ok(_)) => "status",
            (Self::Unreachable { .. }, Err(error)) => SendError::kind(*error),
        }
    }
}

fn answered(status: StatusCode) -> DeliveryReason {
    DeliveryReason::Status { status: status.as_u16() }
}

/// The pause after a number of failures, from 1; or the pause that the receiver asks for, if that is longer.
pub(super) fn pause(failures: u32, retry_after: Option<Duration>) -> Duration {
    let at = usize::try_from(failures.saturating_sub(1)).unwrap_or(usize::MAX).min(PAUSES.len() - 1);
    let pause = PAUSES[at].mul_f64(rand::rng().random_range(1.0 - JITTER..=1.0 + JITTER));
    pause.max(retry_after.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::Answer;

    fn outcome(status: u16) -> Outcome {
        let status = StatusCode::from_u16(status).unwrap();
        let answer = Answer { status, retry_after: Some(Duration::from_secs(7)), excerpt: String::new() };
        Outcome::of(&Attempt { outcome: Ok(answer), took: Duration::ZERO })
    }

    #[test]
    fn only_2xx_is_a_success() {
        assert!((200..300).all(|status| outcome(status) == Outcome::Accepted));
        assert!((300..600).all(|status| outcome(status) != Outcome::Accepted));
        assert_eq!(outcome(410), Outcome::Gone);
    }

    #[test]
    fn some_refusals_are_of_the_event_and_others_of_the_receiver() {
        for status in [400, 409, 413, 415, 422] {
            assert!(matches!(outcome(status), Outcome::Refused(_)), "{status}");
        }
        for status in [301, 401, 403, 404, 405, 408, 429, 500, 503] {
            let Outcome::Unreachable { retry_after, .. } = outcome(status) else { panic!("{status}") };
            assert_eq!(retry_after, Some(Duration::from_secs(7)));
        }
    }

    #[test]
    fn pauses_grow_to_an_hour_and_are_at_least_what_the_receiver_asks_for() {
        for _ in 0..100 {
            let pauses: Vec<_> = (1..=9).map(|failures| pause(failures, None).as_secs_f64()).collect();
            assert!((4.0..=6.0).contains(&pauses[0]), "{pauses:?}");
            assert!(pauses[..7].is_sorted(), "{pauses:?}");
            assert!(pauses.iter().all(|pause| *pause <= 4320.0) && pauses[8] >= 2880.0, "{pauses:?}");
            assert_eq!(pause(1, Some(Duration::from_secs(60))), Duration::from_secs(60));
        }
    }
}

//! The states of a subscription, and what moves it from one to another.
//!
//! A subscription is delivered in the states `active` and `failing` only. [`super::managing`] writes the changes that its
//! owner asks for, and [`super::progress`] those of a sender. A sender may write after the owner has paused the
//! subscription: then the state of the owner stays. That a token has ended is not written: [`super::owner`] tells it from the
//! token. A test runs each event in each state.

/// Every state, as the database spells it.
pub const SUBSCRIPTION_STATES: [&str; 5] = ["active", "failing", "paused", "disabled", "gone"];

/// What changes the state of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionEvent {
    /// The owner pauses it.
    Paused,
    /// The owner resumes it, from where it stopped.
    Resumed,
    /// The token to which it is bound was revoked, or has expired. It can't be resumed then.
    TokenEnded,
    /// The receiver accepted an event.
    Accepted,
    /// The receiver could not be reached.
    Failed,
    /// The receiver could not be reached for too long, or the subscription can't be used.
    FailedForTooLong,
    /// The receiver responded 410 Gone.
    ReceiverGone,
}

/// The state after each event, for every state in the order of [`SUBSCRIPTION_STATES`].
#[rustfmt::skip]
pub const SUBSCRIPTION_TRANSITIONS: [(SubscriptionEvent, [&str; 5]); 7] = [
    //                                     active      failing     paused    disabled    gone
    (SubscriptionEvent::Paused,           ["paused",   "paused",   "paused", "disabled", "gone"]),
    (SubscriptionEvent::Resumed,          ["active",   "active",   "active", "active",   "active"]),
    (SubscriptionEvent::TokenEnded,       ["paused",   "paused",   "paused", "disabled", "gone"]),
    (SubscriptionEvent::Accepted,         ["active",   "active",   "paused", "disabled", "gone"]),
    (SubscriptionEvent::Failed,           ["failing",  "failing",  "paused", "disabled", "gone"]),
    (SubscriptionEvent::FailedForTooLong, ["disabled", "disabled", "paused", "disabled", "gone"]),
    (SubscriptionEvent::ReceiverGone,     ["gone",     "gone",     "paused", "disabled", "gone"]),
];

//! Webhook subscriptions of automation tools to events of forms: creating, finding and deleting them.
//!
//! A sender finds out which subscriptions have something to deliver ([`ahead`]), leases one ([`lease`]), reads what is
//! [`due`], delivers it, and writes its [`progress`]. Callers of the API look at how far it has got ([`pending`],
//! [`attempts`]), stop it and let it go on ([`managing`]), and have events sent again ([`replay`]). An operator finds out
//! with [`inspected`] why events do not arrive.

mod ahead;
mod attempts;
mod carried;
mod due;
mod inspected;
mod lease;
mod lost;
mod managing;
mod owner;
mod pending;
mod progress;
mod replay;
mod states;

use jiff::Timestamp;

use super::engine::{Transaction, retry};
use super::statement::{Argument, Dialect, Page, PageRequest, Row, Sql, sql};
use super::{FormReach, Store, StoreError};
use crate::outbound::{DeliveryReason, url_identity};
pub use ahead::EventsAhead;
pub use attempts::AttemptRecord;
pub use carried::CarriedSubscriptions;
pub(super) use carried::carry_subscriptions;
pub use due::{DueEvent, DueEvents, SentBody};
pub use inspected::{HasSubscriptions, InspectedSubscription, SampleSubmission, SubscriptionCounts};
pub use lease::LeasedSubscription;
pub(super) use lost::note_lost_deletions;
pub use managing::Resumed;
pub(super) use owner::{end_leases, hand_over};
pub use pending::PendingEvents;
use pending::count_pending;
pub use progress::{FailedEvent, Progress, Standing, Written};
pub use replay::{Replay, Replayed};
pub use states::{SUBSCRIPTION_STATES, SUBSCRIPTION_TRANSITIONS, SubscriptionEvent};

/// How many subscriptions an account may have.
///
/// Larger: every change may be sent as often, and a list of them takes longer. Smaller: accounts with many tools can't
/// connect all.
pub const MAX_SUBSCRIPTIONS: u32 = 100;

/// One subscriber at a time for each database, so that no two count at once. Accounts that share a database have a schema
/// each, and so a lock each. The number is arbitrary.
const LOCK: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended(coalesce(current_schema(), ''), 4902271983651120443))";

/// The event that a subscription delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Event {
    /// A submission was created.
    #[default]
    SubmissionCreated,
    /// A submission changed.
    SubmissionUpdated,
    /// A submission was deleted, became a draft again, or a child of a submission of a graduated form.
    SubmissionDeleted,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 3] = [Self::SubmissionCreated, Self::SubmissionUpdated, Self::SubmissionDeleted];

    /// The event as the API and the database spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SubmissionCreated => "submission.created",
            Self::SubmissionUpdated => "submission.updated",
            Self::SubmissionDeleted => "submission.deleted",
        }
    }

    /// The column of the change log that has the number of a submission's newest event of this kind.
    fn column(self) -> Sql {
        Sql::text(match self {
            Self::SubmissionCreated => "created_event",
            Self::SubmissionUpdated => "updated_event",
            Self::SubmissionDeleted => "deleted_event",
        })
    }

    /// The event with this spelling.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == text)
    }
}

/// What identifies a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionKey {
    /// Where to deliver.
    pub target_url: String,
    /// What to deliver.
    pub event: Event,
    /// Of which form; none for every form.
    pub form: Option<i64>,
}

/// A stored subscription. Its secret stays in the database.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The bare id.
    pub id: i64,
    /// Where to deliver.
    pub target_url: String,
    /// As the database spells it.
    pub event: String,
    /// Of which form; none for every form.
    pub form: Option<i64>,
    /// When it was created.
    pub created_at: Timestamp,
    /// As the database spells it: `active`, `paused`, `failing`, `disabled` or `gone`.
    pub state: String,
    /// Why it is in this state, unless it is active.
    pub reason: Option<DeliveryReason>,
    /// Since when attempts to reach the receiver fail.
    pub failing_since: Option<Timestamp>,
    /// When a receiver that fails is tried again.
    pub next_attempt_at: Option<Timestamp>,
    /// When the receiver last accepted an event.
    pub last_success_at: Option<Timestamp>,
    /// How many deletions it was not sent while the change log kept them.
    pub lost_deletions: u64,
    /// When the newest of these happened.
    pub lost_until: Option<Timestamp>,
    /// How many events it has yet to be sent; large numbers are not counted to their end.
    pub pending: u64,
    /// The token that made it, if one did.
    pub made_by: Option<MakingToken>,
    /// Whether it ends with its token.
    pub bound: bool,
    /// What it may be sent: what its token reaches.
    pub reach: FormReach,
    position: Option<i64>,
    done_beyond: Vec<i64>,
}

/// The token that made a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MakingToken {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub name: String,
}

/// Which subscriptions to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsubscription {
    /// The one with this id.
    Id(i64),
    /// Every one of a URL, in whichever spelling, narrowed by event and form.
    Target {
        /// Where it delivers.
        target_url: String,
        /// Only this event.
        event: Option<Event>,
        /// Only this form. `Some(None)` is the subscription to every form.
        form: Option<Option<i64>>,
    },
}

/// The outcome of subscribing.
#[derive(Clone, Debug)]
pub enum Subscribed {
    /// It is new.
    Created(Subscription),
    /// It was there before.
    Existing(Subscription),
    /// There is no such form.
    UnknownForm,
    /// The account has [`MAX_SUBSCRIPTIONS`] already.
    TooMany,
}

/// The columns of a subscription, as they are at an instant. The position is what [`LeasedSubscription`] would begin with.
fn columns(now: Timestamp) -> Sql {
    sql!(
        "id, target_url, event, form_id, created_at, state, reason, failing_since,
         CASE WHEN state = 'failing' THEN next_attempt_at END, last_success_at,
         CASE WHEN position > (SELECT last_seq FROM change_state) THEN NULL ELSE position END, done_beyond,
         lost_deletions, lost_until, {+has_ended}, bound, token_id, (SELECT t.name FROM tokens t WHERE t.id = token_id),
         {+forms_of_token}",
        has_ended = owner::has_ended(now),
        forms_of_token = Sql::text(owner::FORMS),
    )
}

impl Subscription {
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        let (token, name): (Option<i64>, Option<String>) = (row.get(16)?, row.get(17)?);
        let forms: Option<String> = row.get(18)?;
        let read = Self {
            id: row.get(0)?,
            target_url: row.get(1)?,
            event: row.get(2)?,
            form: row.get(3)?,
            created_at: row.get(4)?,
            state: row.get(5)?,
            reason: row.get::<Option<String>>(6)?.as_deref().map(DeliveryReason::read),
            failing_since: row.get(7)?,
            next_attempt_at: row.get(8)?,
            last_success_at: row.get(9)?,
            pending: 0,
            made_by: token.zip(name).map(|(id, name)| MakingToken { id, name }),
            bound: row.get(15)?,
            reach: FormReach::read(forms.as_deref())?,
            position: row.get(10)?,
            done_beyond: serde_json::from_str(&row.get::<String>(11)?).unwrap_or_default(),
            lost_deletions: row.get::<i64>(12)?.max(0).unsigned_abs(),
            lost_until: row.get(13)?,
        };
        Ok(if row.get(14)? { read.ended() } else { read })
    }

    /// The same once its token has ended.
    fn ended(self) -> Self {
        if !matches!(self.state.as_str(), "active" | "failing") {
            return self;
        }
        let reason = Some(DeliveryReason::TokenEnded);
        Self { state: "paused".to_owned(), reason, failing_since: None, next_attempt_at: None, ..self }
    }
}

impl Store {
    /// Creates a subscription with a secret, or finds the existing one, which is bound from then on if that is asked for.
    ///
    /// # Errors
    /// [`StoreError::Unsettled`] if what was written before can't be numbered in time; [`StoreError::Unavailable`],
    /// [`StoreError::Statement`].
    pub async fn subscribe(
        &self,
        key: &SubscriptionKey,
        bound: bool,
        secret: &str,
        now: Timestamp,
    ) -> Result<Subscribed, StoreError> {
        // What happened before gets its number now, and is not delivered.
        self.settle().await?;
        retry::run(|| async move {
            loop {
                let mut transaction = self.database.begin().await?;
                if let Some(form) = key.form {
                    // Locked, so that the form can't be deleted before the commit.
                    let lock = sql!(
                        "SELECT id FROM forms WHERE id = {form}{+in_reach} {pg: FOR KEY SHARE}",
                        form,
                        in_reach = self.reach().of_row("forms.id"),
                    );
                    if transaction.fetch_all(lock).await?.is_empty() {
                        return Ok(Subscribed::UnknownForm);
                    }
                }
                if transaction.dialect() == Dialect::Postgres {
                    transaction.command(LOCK).await?;
                }
                let same = spelled_alike(&mut transaction, &key.target_url, Some(key.event), Some(key.form), now).await?;
                if let Some(mut found) = self.the_same(same, bound) {
                    if bound && !found.bound {
                        let bind = sql!("UPDATE subscriptions SET bound = TRUE WHERE id = {id}", id = found.id);
                        transaction.execute(bind).await?;
                        found.bound = true;
                    }
                    let mut found = [found];
                    count_pending(transaction.connection(), &mut found).await?;
                    transaction.commit().await?;
                    let [found] = found;
                    return Ok(Subscribed::Existing(found));
                }
                let insert = sql!(
                    "INSERT INTO subscriptions (target_url, event, form_id, secret, created_at, token_id, bound, position)
                     SELECT {target_url}, {event}, {form}{pg: ::bigint}, {secret}, {now}, {token}{pg: ::bigint}, {bound}, last_seq
                     FROM change_state
                     WHERE (SELECT count(*) FROM subscriptions) < {most}
                     ON CONFLICT DO NOTHING
                     RETURNING {+columns}",
                    target_url = &key.target_url,
                    event = key.event.as_str(),
                    form = key.form,
                    secret = Argument::Secret(secret.to_owned()),
                    now,
                    token = self.caller.token,
                    bound,
                    most = MAX_SUBSCRIPTIONS,
                    columns = columns(now),
                );
                if let Some(row) = transaction.fetch_all(insert).await?.pop() {
                    let subscription = Subscription::read(&row)?;
                    transaction.commit().await?;
                    return Ok(Subscribed::Created(subscription));
                }
                let count = sql!("SELECT count(*) >= {most} FROM subscriptions", most = MAX_SUBSCRIPTIONS);
                if transaction.connection().fetch_one(count).await?.get(0)? {
                    return Ok(Subscribed::TooMany);
                }
                // One has just been deleted, so it can be created now.
            }
        })
        .await
    }

    /// Deletes subscriptions. Returns how many.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn unsubscribe(&self, which: &Unsubscription) -> Result<u64, StoreError> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let ids = match which {
                Unsubscription::Id(id) => vec![*id],
                Unsubscription::Target { target_url, event, form } => {
                    let found = spelled_alike(&mut transaction, target_url, *event, *form, Timestamp::now()).await?;
                    found.iter().filter(|known| self.manages(known)).map(|known| known.id).collect()
                }
            };
            if ids.is_empty() {
                return Ok(0);
            }
            let delete = sql!("DELETE FROM subscriptions WHERE id {in ids}{+own}", ids, own = self.own());
            let deleted = transaction.execute(delete).await?;
            transaction.commit().await?;
            Ok(deleted)
        })
        .await
    }

    /// One page of the subscriptions, by id.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_subscriptions(&self, page: PageRequest) -> Result<Page<Subscription>, StoreError> {
        self.number_before_reading().await?;
        let mut reader = self.database.reader().await?;
        let count = sql!("SELECT count(*) FROM subscriptions WHERE TRUE{+own}", own = self.own());
        let total: i64 = reader.fetch_one(count).await?.get(0)?;
        let sql = sql!(
            "SELECT {+columns} FROM subscriptions WHERE TRUE{+own} ORDER BY id LIMIT {size} OFFSET {offset}",
            columns = columns(Timestamp::now()),
            own = self.own(),
            size = page.size,
            offset = page.offset(),
        );
        let rows = reader.fetch_all(sql).await?;
        let mut items = rows.iter().map(Subscription::read).collect::<Result<Vec<_>, _>>()?;
        count_pending(&mut reader, &mut items).await?;
        Ok(Page { items, total: u64::try_from(total).expect("a count is not negative") })
    }

    /// One subscription.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_subscription(&self, id: i64) -> Result<Option<Subscription>, StoreError> {
        self.number_before_reading().await?;
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM subscriptions WHERE id = {id}{+own}",
            columns = columns(Timestamp::now()),
            id,
            own = self.own(),
        );
        let Some(row) = reader.fetch_optional(sql).await? else { return Ok(None) };
        let mut found = [Subscription::read(&row)?];
        count_pending(&mut reader, &mut found).await?;
        let [found] = found;
        Ok(Some(found))
    }
}

/// The subscriptions to a URL in any spelling, narrowed by event and form, by id. There are at most
/// [`MAX_SUBSCRIPTIONS`] to compare.
async fn spelled_alike(
    transaction: &mut Transaction,
    target_url: &str,
    event: Option<Event>,
    form: Option<Option<i64>>,
    now: Timestamp,
) -> Result<Vec<Subscription>, StoreError> {
    let sql = sql!("SELECT {+columns} FROM subscriptions ORDER BY id", columns = columns(now));
    let rows = transaction.fetch_all(sql).await?;
    let mut found = rows.iter().map(Subscription::read).collect::<Result<Vec<_>, _>>()?;
    let wanted = url_identity(target_url);
    found.retain(|subscription| {
        event.is_none_or(|event| subscription.event == event.as_str())
            && form.is_none_or(|form| subscription.form == form)
            && url_identity(&subscription.target_url) == wanted
    });
    Ok(found)
}

//! What the authorities allow, counted over all nodes.
//!
//! Each budget is a token bucket, stored as the instant at which it is full again (the generic cell rate algorithm): so a
//! budget is one row, and one that is full needs none. Budgets are taken in the transaction that begins an order, all of
//! them or none. After the clock was set back, a budget may seem to be full later than in its whole period: then it counts as full.
//!
//! Of a budget that all accounts have together, an account takes at most as many as it leaves: one that orders a thousand gets
//! half at once and every second that comes back, the next one half of the rest, and one that comes after many finds one.

use std::time::Duration;

use jiff::Timestamp;

use super::Registry;
use super::domains::{DomainRecord, Lease, write};
use crate::store::StoreError;
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::statement::sql;

/// A budget, and how much of it an order may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// What it is for, such as `orders letsencrypt`.
    pub name: String,
    /// How many there are when it is full.
    pub capacity: u32,
    /// The time in which it becomes full from empty.
    pub period: Duration,
    /// How many are kept for orders that matter more.
    pub reserve: u32,
    /// The name of what the account has used that orders, if all accounts have the budget together.
    pub account: Option<String>,
}

impl Budget {
    /// The time in which one token comes back.
    fn interval(&self) -> Duration {
        self.period / self.capacity.max(1)
    }

    /// When it is full again, by what is stored: at the earliest now.
    fn full_at(&self, stored: Timestamp, now: Timestamp) -> Timestamp {
        if stored > now + self.period { now } else { stored.max(now) }
    }

    /// From when on a token may be taken, if the bucket is full at an instant.
    fn free_at(&self, full_at: Timestamp) -> Timestamp {
        full_at - self.usable()
    }

    /// How long before it is full the first token may be taken.
    fn usable(&self) -> Duration {
        self.interval() * self.capacity.saturating_sub(self.reserve).saturating_sub(1)
    }

    /// From when on an account may take a token that has used so much: it leaves at least as many as it takes. Both are full
    /// one interval earlier with each that passes.
    fn free_for(&self, full_at: Timestamp, used_until: Timestamp) -> Timestamp {
        let both = used_until.duration_since(full_at - self.usable());
        let evened = full_at - self.usable() + both / 2;
        self.free_at(full_at).max(evened)
    }
}

/// What became of taking budgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All were taken, and the row was written.
    Yes,
    /// The lease was not its own any more.
    NotOwn,
    /// A budget is used up, until this instant.
    Until {
        /// Which one.
        budget: String,
        /// From when on it has a token.
        at: Timestamp,
    },
}

impl Registry {
    /// Takes one token of each budget and writes a row, or does neither.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn take_budgets(&self, budgets: &[Budget], domain: &DomainRecord) -> Result<Taken, StoreError> {
        let mut transaction = self.database.begin().await?;
        let now = now(transaction.connection()).await?;
        for budget in budgets {
            if let Some(at) = take(&mut transaction, budget, now).await? {
                transaction.roll_back().await?;
                return Ok(Taken::Until { budget: budget.name.clone(), at });
            }
        }
        if !write(&mut transaction, domain, Lease::Keep).await? {
            transaction.roll_back().await?;
            return Ok(Taken::NotOwn);
        }
        transaction.commit().await?;
        Ok(Taken::Yes)
    }

    /// Takes a token even if none is there: something was counted by the authority.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn use_budget(&self, budget: &Budget) -> Result<(), StoreError> {
        let mut transaction = self.database.begin().await?;
        let now = now(transaction.connection()).await?;
        let full_at = full_at(&mut transaction, budget, &budget.name, now).await?;
        // At most used up.
        let full_at = (full_at + budget.interval()).min(now + budget.period);
        fill_at(&mut transaction, &budget.name, full_at).await?;
        Ok(transaction.commit().await?)
    }

    /// Uses a budget up: from this instant on, and not before, a token may be taken. It is no later than the period.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn exhaust_budget(&self, budget: &Budget, until: Timestamp) -> Result<(), StoreError> {
        let mut transaction = self.database.begin().await?;
        let now = now(transaction.connection()).await?;
        let full_at = full_at(&mut transaction, budget, &budget.name, now).await?;
        let until = full_at.max(until + budget.usable()).min(now + budget.period);
        fill_at(&mut transaction, &budget.name, until).await?;
        Ok(transaction.commit().await?)
    }

    /// Gives a token of each budget back.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn give_back(&self, budgets: &[Budget]) -> Result<(), StoreError> {
        if budgets.is_empty() {
            return Ok(());
        }
        let mut transaction = self.database.begin().await?;
        let now = now(transaction.connection()).await?;
        for budget in budgets {
            let full = full_at(&mut transaction, budget, &budget.name, now).await?;
            fill_at(&mut transaction, &budget.name, (full - budget.interval()).max(now)).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// Forgets the budgets that are full, or full later than any can be: a row says nothing then. Returns how many.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn forget_full_budgets(&self) -> Result<u64, StoreError> {
        let sql = sql!(
            "DELETE FROM registry_budgets WHERE {passed full_at, longest} {scans: it has what was used of late}",
            longest = DomainRecord::LONGEST_PAUSE,
        );
        self.database.execute(sql).await
    }

    /// How many tokens of a budget there are, and from when on one may be taken if there is none now.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn budget_left(&self, budget: &Budget) -> Result<(u32, Option<Timestamp>), StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT full_at, {clock} FROM registry_budgets WHERE name = {name}", name = &budget.name);
        let Some(row) = reader.fetch_optional(sql).await? else { return Ok((budget.capacity, None)) };
        let (stored, now): (Timestamp, Timestamp) = (row.get(0)?, row.get(1)?);
        let full_at = budget.full_at(stored, now);
        let missing = full_at.duration_since(now).as_secs_f64() / budget.interval().as_secs_f64();
        // Rounded up: a token that is partly there can't be taken.
        let missing = if missing < f64::from(budget.capacity) { missing.ceil() } else { f64::from(budget.capacity) };
        let free_at = budget.free_at(full_at);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and the capacity")]
        Ok((budget.capacity - missing as u32, (free_at > now).then_some(free_at)))
    }
}

/// Takes a token of a budget. Returns from when on it has one, if it has none now.
pub(super) async fn take(
    transaction: &mut Transaction,
    budget: &Budget,
    now: Timestamp,
) -> Result<Option<Timestamp>, sqlx::Error> {
    let full = full_at(transaction, budget, &budget.name, now).await?;
    let mut at = budget.free_at(full);
    if let Some(account) = &budget.account {
        let used_until = full_at(transaction, budget, account, now).await?;
        at = budget.free_for(full, used_until);
        if at <= now {
            fill_at(transaction, account, used_until + budget.interval()).await?;
        }
    }
    if at > now {
        return Ok(Some(at));
    }
    fill_at(transaction, &budget.name, full + budget.interval()).await?;
    Ok(None)
}

/// Lets others who take the same budget wait until the transaction ends.
pub(super) async fn lock(transaction: &mut Transaction, budget: &Budget, now: Timestamp) -> Result<(), sqlx::Error> {
    full_at(transaction, budget, &budget.name, now).await.map(drop)
}

/// Writes when a budget is full again.
async fn fill_at(transaction: &mut Transaction, name: &str, at: Timestamp) -> Result<(), sqlx::Error> {
    transaction.execute(sql!("UPDATE registry_budgets SET full_at = {at} WHERE name = {name}", at, name)).await?;
    Ok(())
}

/// Now, by the clock of the registry.
pub(super) async fn now(connection: &mut PooledConnection) -> Result<Timestamp, sqlx::Error> {
    connection.fetch_one(sql!("SELECT {clock}")).await?.get(0)
}

/// When a budget, or what an account has used of it, is full again, at the earliest now. Other takers wait until the transaction ends.
async fn full_at(
    transaction: &mut Transaction,
    budget: &Budget,
    name: &str,
    now: Timestamp,
) -> Result<Timestamp, sqlx::Error> {
    let sql = sql!(
        "INSERT INTO registry_budgets AS known (name, full_at) VALUES ({name}, {now})
         ON CONFLICT (name) DO UPDATE SET full_at = known.full_at RETURNING full_at",
        name,
        now,
    );
    let row = transaction.connection().fetch_one(sql).await?;
    Ok(budget.full_at(row.get(0)?, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_takes_at_most_as_many_as_it_leaves() {
        let budget =
            Budget { name: String::new(), capacity: 20, period: Duration::from_secs(20), reserve: 4, account: None };
        let now = Timestamp::UNIX_EPOCH;
        let mut full = now;
        let takes = [8, 4, 2, 1, 1, 0].map(|_| {
            let (mut used, mut taken) = (now, 0);
            while budget.free_for(full, used) <= now {
                (full, used) = (full + budget.interval(), used + budget.interval());
                taken += 1;
            }
            taken
        });
        assert_eq!(takes, [8, 4, 2, 1, 1, 0]);
        let (used, of_all) = (now + Duration::from_secs(8), now + Duration::from_secs(8));
        assert_eq!(budget.free_for(of_all, used), now + Duration::from_millis(500), "both become fewer");
    }
}

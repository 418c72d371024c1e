//! The life of domains: from a claim to a certificate that renews itself.
//!
//! Every host that no file gives a certificate has a row in the registry. [`DomainWorker`] takes rows that are due, under
//! leases, and walks each one step further:
//!
//! ```text
//! claimed → dns → verified → queued → issuing → live → failing → removed
//! ```
//!
//! - `needed`: which hosts have rows.
//! - `life` advances a row: `check` asks DNS, `ownership` decides which tenant has the domain, `beginning` chooses the CA of
//!   an order, `orders` obtains the certificate, `failures` decides what follows a failed order, and `transition` has the
//!   table of states. `renewal` and `schedule` decide when the row is next.
//! - `authorities`: which CAs work; `budgets`: what each allows.
//! - [`Reason`]: what is wrong; `steps`: what to do, in the same words everywhere; [`describe`] shows a row.
//! - [`AccountDomains`]: what the administrators of an account see and may do; `told` is what they read of a reason.
//! - `challenges` responds to the CAs, on any node. `client` has the account key, and notices that `new_account` replaced it.
//! - `resealing` is for a change of `seal_keys`; `stored_keys` finds keys that are missing there, and
//!   `unopenable` reports it on a running node. `trouble`: why a node can't do the work.
//!
//! A check that could not ask DNS changes no state. A certificate is never obtained inside a handshake.

mod account;
mod account_key;
mod authorities;
mod beginning;
mod budgets;
mod challenges;
mod check;
mod claim;
mod client;
mod described;
mod error;
mod failures;
mod life;
mod needed;
mod new_account;
mod orders;
mod ownership;
mod plan;
mod reason;
mod renewal;
mod resealing;
mod schedule;
mod shared;
mod steps;
mod stored_keys;
mod told;
mod transition;
mod trouble;
mod unopenable;
mod worker;

pub use account::{AccountDomains, AccountHost, DomainSummary, HostAddition, HostCheck, Serving};
pub use claim::{Claimed, DomainClaim, await_check, chosen, claim, entry_of_added, entry_of_removed};
pub use described::{describe, describe_event, describe_unwatched, new_proof};
pub use error::DomainsError;
pub use new_account::{NewAccount, replace_account};
pub use plan::{AuthorityStatus, Plan, status};
pub use reason::{CA_ACCOUNT, OtherReason, Reason, proof_of, proof_record};
pub use resealing::{Resealed, UnopenedKey, reseal};
pub use shared::{Domains, GatewayCovers};
pub use steps::StepPart;
pub use stored_keys::{MissingKey, UnreadyNodes, missing_keys, unready_nodes};
pub use worker::DomainWorker;

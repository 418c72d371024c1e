//! The tenants of the registry on this node: takes over changes, and checks new ones.
//!
//! [`store::Registry`](crate::store::Registry) has the rows and their revisions; [`crate::config`] reads a row's text as
//! it reads a file. Here they become tenants that are served: `following` takes the increments into the
//! [directory](crate::tenant::Directory), next to the tenants of the files, and keeps a `snapshot` on disk, so that a node
//! starts while the registry is unavailable. `obtained` has the certificates of domains. `keepers` divides the work for tenants
//! between the nodes, and `subscribed` knows which of them have subscriptions. `missing_rights` has what the role of this node may
//! not do. [`editing`] checks a change before it is written, and [`erasing`] has an account go away for good, for the operator API and
//! for commands alike.
//!
//! A tenant belongs to a file or to the registry. The registry can't change a tenant of a file, and a file that claims
//! what the registry has is refused whole: [`FileTenants`] has the claims of the files.

mod claimed;
mod described;
pub mod editing;
pub mod erasing;
mod follow_task;
mod following;
mod keepers;
mod loading;
mod missing_rights;
mod node_name;
mod obtained;
mod presence;
mod snapshot;
mod subscribed;
mod with_files;

pub use claimed::{FileTenants, conflicts};
pub use described::describe;
pub use follow_task::FollowRegistry;
pub use following::{FollowError, Followed, Following, Rows, Unready};
pub use keepers::{Duty, Keepers, KeptTenants};
pub use loading::{LoadError, Loaded, load, load_existing};
pub use missing_rights::MissingRights;
pub use node_name::NodeName;
pub use obtained::{
    ObtainedCertificate, ObtainedCertificates, ObtainedError, OpenedPair, RegistrySeals, UnopenedCertificate,
};
pub use subscribed::SubscribedTenants;

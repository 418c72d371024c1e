//! The body of a 410: a cursor of the change feed leads nowhere.

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

/// Why a reader of the change feed has to begin again, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostChanges {
    /// `expired`, `reset` or `ahead`.
    pub reason: &'static str,
    /// The same as a sentence.
    pub message: &'static str,
    /// The URL of the first page.
    pub restart: String,
}

impl Serialize for LostChanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Links<'l> {
            restart: &'l str,
        }
        let mut json = serializer.serialize_struct("LostChanges", 3)?;
        json.serialize_field("message", self.message)?;
        json.serialize_field("reason", self.reason)?;
        json.serialize_field("links", &Links { restart: &self.restart })?;
        json.end()
    }
}

//! An account that requests are sent for.

use serde::{Deserialize, Serialize};

use crate::order::Request;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) slug: String,
    pub(crate) host: String,
    pub(crate) token: String,
}

impl Account {
    /// A request with its host and token.
    pub(crate) fn ask(&self, method: &str, path: &str) -> Request {
        Request::new(method, &self.host, &self.token, path)
    }
}

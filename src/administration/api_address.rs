//! Where the account's API is, and its description for whoever has no token at hand.

use super::protection::{Referrer, protect};
use super::visit::Member;
use crate::api::description;
use crate::error::Refusal;
use crate::gate::Origin;
use crate::reply::Reply;

impl Member<'_> {
    /// The address of the account's API.
    pub(super) fn api_address(&self) -> String {
        format!("{}/api/v1", self.origin())
    }

    fn origin(&self) -> String {
        let port = self.area.port(&self.visit);
        Origin { host: &self.visit.tenant.address, port: port.as_deref() }.to_string()
    }
}

/// The OpenAPI document, which the API itself shows only to a caller with a token.
pub(super) async fn show(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    Ok(protect(description(member.origin(), member.visit.tenant), Referrer::SameOrigin))
}

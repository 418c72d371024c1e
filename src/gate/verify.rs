//! The token of a request: verified from memory, or in the tenant's database.
//!
//! Owns the order in which the limiter of bad tokens, the memory of good ones and the database are asked. A request whose
//! header can't be a token never reaches the database.

use std::sync::Arc;

use http::request;

use super::{Connection, Gate};
use crate::error::Refusal;
use crate::tenant::token::PresentedToken;
use crate::tenant::{Tenant, Token};

impl Gate {
    /// The token that a request came with.
    ///
    /// # Errors
    /// [`Refusal::Unauthenticated`], [`Refusal::TooManyBadTokens`], [`Refusal::DatabaseUnavailable`].
    pub async fn verify(
        &self,
        connection: &Connection,
        tenant: &Tenant,
        head: &request::Parts,
    ) -> Result<Arc<Token>, Refusal> {
        let address = connection.caller;
        let Some(presented) = presented(head) else {
            self.bad_tokens.take(address)?;
            return Err(Refusal::Unauthenticated);
        };
        let digest = presented.digest();
        if let Some(token) = self.tokens.recall(tenant, &digest).await {
            return Ok(token);
        }
        let attempt = self.bad_tokens.attempt(address, tenant.tokens.generation, digest)?;
        // Boxed: it is rarely needed, and large.
        match Box::pin(self.tokens.verify(tenant, digest)).await {
            Ok(Some(token)) => {
                attempt.was_good();
                Ok(token)
            }
            Ok(None) => {
                attempt.was_bad();
                Err(Refusal::Unauthenticated)
            }
            // A database that can't say is no fault of the token's.
            Err(error) => {
                attempt.put_back();
                Err(Refusal::DatabaseUnavailable(error))
            }
        }
    }
}

/// The token that a request presents, if that can be one.
fn presented(head: &request::Parts) -> Option<PresentedToken> {
    let mut values = head.headers.get_all(http::header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    PresentedToken::from_authorization(value.as_bytes())
}

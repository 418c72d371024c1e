//! Verifies a request's token, from the cache or in the tenant's database.
//!
//! Owns the order: the cache of known tokens, the limiter of bad tokens, the database. A request whose header can't
//! be a token never reaches the database.
//!
//! A token that is used from a wrong network takes the steps of an unknown one: it is an attempt of the client's address,
//! and looked up if an unknown one would be. Neither the response nor its time tells that the token is valid elsewhere.

use std::sync::Arc;

use http::request;

use super::{Connection, Gate};
use crate::error::{BadToken, Refusal};
use crate::rare;
use crate::tenant::token::PresentedToken;
use crate::tenant::{Tenant, Token};

impl Gate {
    /// The request's token.
    ///
    /// # Errors
    /// [`Refusal::Unauthenticated`], [`Refusal::WrongNetwork`], [`Refusal::TooManyBadTokens`],
    /// [`Refusal::DatabaseUnavailable`].
    pub async fn verify(
        &self,
        connection: &Connection,
        tenant: &Arc<Tenant>,
        head: &request::Parts,
    ) -> Result<Arc<Token>, Refusal> {
        let address = connection.caller;
        let Some(presented) = presented(head) else {
            self.bad_tokens.take(address)?;
            return Err(Refusal::Unauthenticated(match head.headers.get(http::header::AUTHORIZATION) {
                Some(_) => BadToken::Malformed,
                None => BadToken::Missing,
            }));
        };
        let digest = presented.digest();
        let is_accepted = |token: &Token| token.limits.networks.allow(address);
        let recalled = self.tokens.recall(tenant, &digest).await;
        let attempt = match recalled {
            Some(token) if is_accepted(&token) => return Ok(token),
            Some(_) => self.bad_tokens.attempt_unproven(address, tenant.tokens.generation, digest)?,
            None => self.bad_tokens.attempt(address, tenant.tokens.generation, digest)?,
        };
        match rare::boxed(|| self.tokens.verify(tenant, digest, is_accepted)).await {
            Ok(Some(token)) if is_accepted(&token) => {
                attempt.succeeded();
                Ok(token)
            }
            Ok(Some(token)) => {
                attempt.misplaced()?;
                Err(self.limits.refuse_network(tenant, &token, address))
            }
            Ok(None) => {
                attempt.failed();
                Err(Refusal::Unauthenticated(BadToken::Unknown))
            }
            // A failed database says nothing about the token.
            Err(error) => {
                attempt.put_back();
                Err(Refusal::DatabaseUnavailable(error))
            }
        }
    }
}

/// The token that a request presents, if its form is valid.
fn presented(head: &request::Parts) -> Option<PresentedToken> {
    let mut values = head.headers.get_all(http::header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    PresentedToken::from_authorization(value.as_bytes())
}

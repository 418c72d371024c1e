//! Who is sent the submissions of a response, for the ledger of reads.

use std::sync::Arc;

use http::{Method, StatusCode, request};

use super::RequestContext;
use crate::reply::{ReadSubmission, Reply};
use crate::tenant::{Tenant, Token};

/// The token whose request is answered.
#[derive(Debug)]
pub(super) struct ReadBy {
    tenant: Arc<Tenant>,
    token: Arc<Token>,
}

impl ReadBy {
    /// The reader of a reply, if it may contain submissions that are sent.
    pub(super) fn of(reply: &Reply, head: &request::Parts, context: &RequestContext) -> Option<Self> {
        if (reply.read.is_empty() && reply.rest.is_none()) || reply.status != StatusCode::OK {
            return None;
        }
        let (tenant, token) = (context.tenant.as_ref()?, context.token.as_ref()?);
        (head.method != Method::HEAD).then(|| Self { tenant: Arc::clone(tenant), token: Arc::clone(token) })
    }

    /// Notes what is sent now.
    pub(super) fn note(&self, read: &[ReadSubmission]) {
        self.tenant.note_reads(self.token.id, read);
    }
}

//! A TLS proxy before a [`Pebble`] that does what Pebble can't: rate limits, failures, hanging, lost answers, renewal
//! information (ARI). It records every request.
//!
//! It keeps `Host`, from which Pebble makes its URLs, so that all of them lead through the proxy. A fault applies to a
//! kind of request, for a number of requests or until it is healed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::child::GLANCE;
use super::pebble::Pebble;
use super::{certificate, folder, tls_server};

/// Longer than anything takes that works, also on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Where the proxy answers ARI.
const RENEWAL_PATH: &str = "/renewal-info";

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Directory,
    Nonce,
    Account,
    AccountUpdate,
    NewOrder,
    Order,
    Authorization,
    Challenge,
    Finalize,
    Certificate,
    RenewalInfo,
}

impl Kind {
    /// Every kind.
    pub(crate) const ALL: [Self; 11] = [
        Self::Directory,
        Self::Nonce,
        Self::Account,
        Self::AccountUpdate,
        Self::NewOrder,
        Self::Order,
        Self::Authorization,
        Self::Challenge,
        Self::Finalize,
        Self::Certificate,
        Self::RenewalInfo,
    ];

    fn of(path: &str) -> Option<Self> {
        let known = [
            ("/dir", Self::Directory),
            ("/nonce-plz", Self::Nonce),
            ("/sign-me-up", Self::Account),
            ("/my-account/", Self::AccountUpdate),
            ("/order-plz", Self::NewOrder),
            ("/my-order/", Self::Order),
            ("/authZ/", Self::Authorization),
            ("/chalZ/", Self::Challenge),
            ("/finalize-order/", Self::Finalize),
            ("/certZ/", Self::Certificate),
            (RENEWAL_PATH, Self::RenewalInfo),
        ];
        known.into_iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, kind)| kind)
    }
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It is answered with a problem document, and not forwarded.
    Problem {
        /// The status.
        status: u16,
        /// The type without its prefix.
        kind: &'static str,
        /// The explanation.
        detail: &'static str,
        /// The value of `Retry-After`.
        retry_after: Option<&'static str>,
    },
    /// It is answered with this body and status, and not forwarded.
    Answer(u16, &'static str),
    /// It is not answered, and not forwarded.
    Hang,
    /// It is forwarded; the answer is lost with the connection.
    LoseAnswer,
    /// It is forwarded; the answer is held back until the fault ends.
    HoldAnswer,
}

impl Fault {
    /// A rate limit.
    pub(crate) fn limit(retry_after: &'static str) -> Self {
        Self::Problem { status: 429, kind: "rateLimited", detail: "too many", retry_after: Some(retry_after) }
    }

    /// A refusal of what was asked.
    pub(crate) fn refusal(status: u16, kind: &'static str, detail: &'static str) -> Self {
        Self::Problem { status, kind, detail, retry_after: None }
    }
}

/// A request that passed.
#[derive(Clone, Debug)]
pub(crate) struct Passed {
    /// Its kind, if it has one.
    pub(crate) kind: Option<Kind>,
    /// Its path.
    pub(crate) path: String,
    /// The payload of its signed body.
    pub(crate) payload: Option<Value>,
    /// The status of the authority's answer; none if it was not forwarded.
    pub(crate) status: Option<StatusCode>,
}

#[derive(Default)]
struct State {
    faults: HashMap<Kind, (usize, Fault)>,
    passed: Vec<Passed>,
    renewal: Option<Value>,
    retry_after: Option<String>,
}

/// A running proxy. It ends with the runtime of its test.
#[derive(Clone)]
pub(crate) struct AcmeProxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl AcmeProxy {
    /// Starts a proxy before an authority.
    pub(crate) async fn start(pebble: &Pebble) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there are free ports");
        let address = listener.local_addr().expect("a bound socket has an address");
        let proxy = Self { address, state: Arc::default() };
        let (serving, upstream, name) = (proxy.clone(), pebble.address, pebble.name.clone());
        let folder = folder::temporary("acme-proxy");
        let identity = certificate::issue(folder.path(), &["127.0.0.1", "localhost"]);
        tls_server::accept(listener, identity, &[b"http/1.1"], move |handshake| {
            let (proxy, name) = (serving.clone(), name.clone());
            async move {
                let Ok(stream) = handshake.await else { return };
                let service = service_fn(|request| proxy.answer(request, upstream, &name));
                // An error of the service closes the connection without an answer.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            }
        });
        proxy
    }

    /// The URL of the directory, for a client that trusts [`certificate::authority`].
    pub(crate) fn directory(&self) -> String {
        format!("https://{}/dir", self.address)
    }

    /// Applies a fault to every request of a kind from now on.
    pub(crate) fn break_all(&self, kind: Kind, fault: Fault) {
        self.break_next(usize::MAX, kind, fault);
    }

    /// Applies a fault to the next requests of a kind.
    pub(crate) fn break_next(&self, count: usize, kind: Kind, fault: Fault) {
        self.state().faults.insert(kind, (count, fault));
    }

    /// Applies a fault to every request from now on.
    pub(crate) fn break_everything(&self, fault: &Fault) {
        for kind in Kind::ALL {
            self.break_all(kind, fault.clone());
        }
    }

    /// Ends the faults of a kind.
    pub(crate) fn heal_kind(&self, kind: Kind) {
        self.state().faults.remove(&kind);
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        self.state().faults.clear();
    }

    /// Suggests a window to renew every certificate in, in place of ARI that Pebble does not have; none ends ARI.
    pub(crate) fn suggest(&self, window: Option<(&str, &str)>, retry_after: Option<&str>) {
        let mut state = self.state();
        state.renewal = window.map(|(start, end)| json!({ "suggestedWindow": { "start": start, "end": end } }));
        state.retry_after = retry_after.map(ToOwned::to_owned);
    }

    /// Every request so far.
    pub(crate) fn passed(&self) -> Vec<Passed> {
        self.state().passed.clone()
    }

    /// How many requests of a kind arrived, faults and refusals included.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.state().passed.iter().filter(|passed| passed.kind == Some(kind)).count()
    }

    /// How many orders the authority opened.
    pub(crate) fn orders(&self) -> usize {
        self.created(Kind::NewOrder).count()
    }

    /// How many accounts the authority registered.
    pub(crate) fn accounts(&self) -> usize {
        self.created(Kind::Account).count()
    }

    /// How many orders were finalized: as many certificates were issued.
    pub(crate) fn finalized(&self) -> usize {
        let is_finalized =
            |passed: &&Passed| passed.kind == Some(Kind::Finalize) && passed.status == Some(StatusCode::OK);
        self.state().passed.iter().filter(is_finalized).count()
    }

    /// The certificates that orders replace, in the order of the requests.
    pub(crate) fn replaced(&self) -> Vec<String> {
        let orders = self.passed().into_iter().filter(|passed| passed.kind == Some(Kind::NewOrder));
        orders.filter_map(|passed| Some(passed.payload?["replaces"].as_str()?.to_owned())).collect()
    }

    /// Waits until as many requests of a kind have arrived.
    pub(crate) async fn wait_for(&self, kind: Kind, count: usize) {
        let start = Instant::now();
        while self.count(kind) < count {
            assert!(start.elapsed() < LIMIT, "{count} × {kind:?}: {:?}", self.passed());
            tokio::time::sleep(GLANCE).await;
        }
    }

    fn created(&self, kind: Kind) -> impl Iterator<Item = Passed> {
        let is_created = move |passed: &Passed| passed.kind == Some(kind) && passed.status == Some(StatusCode::CREATED);
        self.passed().into_iter().filter(is_created)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics with the lock")
    }

    /// Records a request, and takes the fault that applies to it.
    fn arrive(&self, request: &Request<Bytes>) -> (usize, Option<Fault>) {
        let mut state = self.state();
        let kind = Kind::of(request.uri().path());
        let path = request.uri().path().to_owned();
        state.passed.push(Passed { kind, path, payload: payload(request.body()), status: None });
        let index = state.passed.len() - 1;
        let fault = kind.and_then(|kind| {
            let (left, fault) = state.faults.get_mut(&kind).filter(|(left, _)| *left > 0)?;
            *left -= 1;
            Some(fault.clone())
        });
        (index, fault)
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        upstream: SocketAddr,
        name: &str,
    ) -> Result<Response<Full<Bytes>>, std::io::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
        let request = Request::from_parts(head, body);
        let (index, fault) = self.arrive(&request);
        match &fault {
            Some(Fault::Problem { status, kind, detail, retry_after }) => {
                let problem = json!({ "type": format!("urn:ietf:params:acme:error:{kind}"), "detail": detail });
                let mut answer = Response::builder().status(*status).header("Content-Type", "application/problem+json");
                if let Some(retry_after) = retry_after {
                    answer = answer.header("Retry-After", *retry_after);
                }
                return Ok(answer.body(problem.to_string().into()).expect("a valid answer"));
            }
            Some(Fault::Answer(status, body)) => {
                return Ok(Response::builder().status(*status).body((*body).into()).expect("a valid answer"));
            }
            Some(Fault::Hang) => {
                let never: Infallible = std::future::pending().await;
                match never {}
            }
            Some(Fault::LoseAnswer | Fault::HoldAnswer) | None => {}
        }
        if request.uri().path().starts_with(RENEWAL_PATH)
            && let Some(answer) = self.renewal_info()
        {
            return Ok(answer);
        }
        let request_kind = Kind::of(request.uri().path());
        let replaces = payload(request.body()).and_then(|payload| payload.get("replaces").cloned());
        let answer = Pebble::send(upstream, name, request).await?;
        self.state().passed[index].status = Some(answer.status());
        match fault {
            Some(Fault::LoseAnswer) => return Err(std::io::Error::other("the answer is lost")),
            Some(Fault::HoldAnswer) => self.wait_for_the_end_of_a_fault(request_kind).await,
            _ => {}
        }
        Ok(self.with_renewal(answer, replaces).map(Full::new))
    }

    async fn wait_for_the_end_of_a_fault(&self, kind: Option<Kind>) {
        while kind.is_some_and(|kind| self.state().faults.contains_key(&kind)) {
            tokio::time::sleep(GLANCE).await;
        }
    }

    fn renewal_info(&self) -> Option<Response<Full<Bytes>>> {
        let state = self.state();
        let mut answer = Response::builder().header("Content-Type", "application/json");
        if let Some(retry_after) = &state.retry_after {
            answer = answer.header("Retry-After", retry_after);
        }
        Some(answer.body(state.renewal.as_ref()?.to_string().into()).expect("a valid answer"))
    }

    /// What an authority with ARI answers: its resource is in the directory, and an order names what it replaces.
    fn with_renewal(&self, answer: Response<Bytes>, replaces: Option<Value>) -> Response<Bytes> {
        if self.state().renewal.is_none() || !answer.status().is_success() {
            return answer;
        }
        let (mut head, body) = answer.into_parts();
        let Ok(Value::Object(mut document)) = serde_json::from_slice(&body) else {
            return Response::from_parts(head, body);
        };
        if document.contains_key("newOrder") {
            document.insert("renewalInfo".to_owned(), format!("https://{}{RENEWAL_PATH}", self.address).into());
        }
        if let Some(replaces) = replaces {
            document.insert("replaces".to_owned(), replaces);
        }
        head.headers.remove("content-length");
        Response::from_parts(head, Value::Object(document).to_string().into())
    }
}

/// The payload of a signed request.
fn payload(body: &Bytes) -> Option<Value> {
    let signed: Value = serde_json::from_slice(body).ok()?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(signed["payload"].as_str()?).ok()?).ok()
}

//! One node with a tenant whose database is about to fail, and one beside it that must not notice.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use formgate::tenant::token::PresentedToken;
use futures_util::future::join_all;

use crate::support::answer::Answer;
use crate::support::busy::takes_less_than;
use crate::support::client::{Client, operator_count};
use crate::support::connection::Protocol;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, Tenant};
use crate::support::process::Node;

/// Less than any wait for a database that is away, and more than an answer takes on a busy machine, if not always.
const AT_ONCE: Duration = Duration::from_millis(900);

/// Twice as long as anybody waits for a database that hangs: for a connection, or for the answer to a ping, and then for a
/// new connection. Less than a statement may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(9);

/// How long anything may take that happens by itself, on a busy machine.
pub(super) const BY_ITSELF: Duration = Duration::from_secs(30);

/// The requests that were refused without a look at their database.
const REFUSED_BY_BREAKER: &str = r#"formgate_database_refused_total{reason="breaker"}"#;

/// The node, and the tenants `acme`, which is about to break, and `globex`, which is not.
pub(super) struct Scene {
    pub(super) site: Site,
    pub(super) node: Node,
    pub(super) acme: Client,
    globex: Client,
}

impl Scene {
    /// Both tenants on new databases.
    pub(super) fn on(engine: Engine) -> Self {
        Self::with(Site::new(), engine, |tenant| tenant)
    }

    /// The same, with a site and a tenant that are not like others.
    pub(super) fn with(site: Site, engine: Engine, differ: impl FnOnce(Tenant) -> Tenant) -> Self {
        let site = site.tenant_with("acme", engine, differ).tenant("globex", Engine::Sqlite);
        let site = site.requests_per_minute(100_000).write();
        let node = site.start();
        Self::of(site, node)
    }

    /// A node that was started on a site with both tenants.
    pub(super) fn of(site: Site, node: Node) -> Self {
        let client = |slug: &str| node.client().to(&site.host(slug)).with(&site.token(slug, "tests"));
        Self { acme: client("acme"), globex: client("globex"), site, node }
    }

    /// A request that asks the database for forms, whose answer takes no longer than `limit`.
    pub(super) async fn ask_within(&self, limit: Duration) -> Answer {
        let began = Instant::now();
        let answer = self.acme.get("/api/v1/form").send().await;
        assert!(began.elapsed() < limit, "{} after {:?}", answer.status, began.elapsed());
        if answer.status == 503 {
            assert!(answer.number("retry-after") >= Some(1), "{answer:?}");
        }
        answer
    }

    /// Writes a new group; the status.
    pub(super) async fn write(&self) -> u16 {
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        let name = format!("Staff {}", GROUPS.fetch_add(1, Ordering::Relaxed));
        let group = serde_json::json!({"name": name, "members": [{"email": "nia@acme.example"}]});
        self.acme.put("/api/v1/group").json(&group).send().await.status.as_u16()
    }

    /// The tenant is refused, soon at once, and the other one does not notice.
    pub(super) async fn is_refused(&mut self) {
        const TOGETHER: usize = 20;
        let began = Instant::now();
        while self.ask_within(PATIENCE).await.status != 503 {
            assert!(began.elapsed() < BY_ITSELF, "a broken database serves");
        }
        for _ in 0..30 {
            self.others_are_served().await;
            // One caller a second pays for the try.
            assert_eq!(self.ask_within(PATIENCE).await.status, 503);
        }
        // Over one connection, which this opens.
        let acme = self.acme.over(Protocol::Http2);
        assert_eq!(acme.get("/api/v1/form").send().await.status, 503);
        let (before, began) = (self.count(REFUSED_BY_BREAKER).await, Instant::now());
        // Each with a token of its own, since requests with the same one share its look-up.
        let call = |_| acme.with(PresentedToken::generate().expose()).get("/api/v1/form").send();
        for answer in join_all((0..TOGETHER).map(call)).await {
            assert_eq!(answer.status, 503);
        }
        let (tries, seconds) = (1 + began.elapsed().as_secs(), began.elapsed().as_secs_f64());
        let at_once = self.count(REFUSED_BY_BREAKER).await - before;
        assert!(at_once + tries >= TOGETHER as u64, "only {at_once} were refused at once in {seconds:.1} s");
    }

    /// The tenant that is not broken is served as ever: who waits for the broken database waits every time.
    pub(super) async fn others_are_served(&self) {
        takes_less_than(AT_ONCE, "an answer to the other tenant", async || {
            let began = Instant::now();
            assert_eq!(self.globex.get("/api/v1/form").send().await.status, 200, "the other tenant");
            began.elapsed()
        })
        .await;
    }

    /// The tenant is served again, by itself.
    pub(super) async fn comes_back(&self) {
        let mended = Instant::now();
        while self.acme.get("/api/v1/form").send().await.status != 200 {
            assert!(mended.elapsed() < BY_ITSELF, "still refused");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.others_are_served().await;
    }

    /// Waits until the node has stored that the tenant's token was used, which it does after the answer.
    pub(super) async fn wait_until_use_is_stored(&self) {
        let database = Database::connect(self.site.database_url("acme")).await;
        let began = Instant::now();
        while database.integers("SELECT count(*) FROM tokens WHERE last_used_at IS NULL").await != [0] {
            assert!(began.elapsed() < BY_ITSELF, "the use of the token is not stored");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        database.close().await;
    }

    /// How often the log says something.
    pub(super) fn said(&mut self, text: &str) -> usize {
        self.node.log().lines().filter(|line| line.contains(text)).count()
    }

    /// A series of the metrics.
    pub(super) async fn count(&mut self, series: &str) -> u64 {
        operator_count(self.node.operator_address(), series).await
    }
}

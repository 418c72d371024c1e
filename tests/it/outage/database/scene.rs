//! One node with a tenant whose database is about to fail, and one beside it that must not notice.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::answer::Answer;
use crate::support::client::{Client, operator_count};
use crate::support::fixture::{Engine, Site, Tenant};
use crate::support::process::Node;

/// Far more than an answer takes on a loaded machine, far less than any wait for a database that is away.
pub(super) const AT_ONCE: Duration = Duration::from_millis(500);

/// The longest that anybody waits for a database that hangs: for a connection, or for the answer to a ping, and then
/// for a new connection.
pub(super) const PATIENCE: Duration = Duration::from_millis(4500);

/// How long after its database a tenant may be back.
const BACK_WITHIN: Duration = Duration::from_secs(6);

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
    pub(super) async fn is_refused(&self) {
        let began = Instant::now();
        while self.ask_within(PATIENCE).await.status != 503 {
            assert!(began.elapsed() < PATIENCE, "a broken database serves");
        }
        for _ in 0..30 {
            self.others_are_served().await;
            // One caller a second pays for the try.
            let answer = self.ask_within(PATIENCE).await;
            assert_eq!(answer.status, 503);
        }
        let mut quick = 0;
        for _ in 0..20 {
            let began = Instant::now();
            assert_eq!(self.ask_within(PATIENCE).await.status, 503);
            quick += u32::from(began.elapsed() < AT_ONCE);
        }
        assert!(quick >= 18, "only {quick} of 20 were refused at once");
    }

    /// The tenant that is not broken is served as ever. On a machine so loaded that this takes longer, another time: who waits
    /// for the broken database waits every time.
    pub(super) async fn others_are_served(&self) {
        let mut took = Duration::MAX;
        for _ in 0..5 {
            let began = Instant::now();
            assert_eq!(self.globex.get("/api/v1/form").send().await.status, 200, "the other tenant");
            took = took.min(began.elapsed());
            if took < AT_ONCE {
                break;
            }
        }
        assert!(took < AT_ONCE, "the other tenant waits {took:?}");
    }

    /// The tenant is served again, by itself.
    pub(super) async fn comes_back(&self) {
        let mended = Instant::now();
        while self.acme.get("/api/v1/form").send().await.status != 200 {
            assert!(mended.elapsed() < BACK_WITHIN, "still refused");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.others_are_served().await;
    }

    /// How often the log says something.
    pub(super) fn said(&mut self, text: &str) -> usize {
        self.node.log().lines().filter(|line| line.contains(text)).count()
    }

    /// A series of the metrics.
    pub(super) async fn count(&mut self, series: &str) -> u64 {
        operator_count(self.node.operator_address(), series).await
    }

    /// Waits until a series has a value.
    pub(super) async fn wait_until(&mut self, limit: Duration, series: &str, value: u64) {
        let began = Instant::now();
        loop {
            let found = self.count(series).await;
            if found == value {
                return;
            }
            assert!(began.elapsed() < limit, "{series} is {found} after {limit:?}, and not {value}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

//! Tests of which certificates are read, when and how often, and of files that change.

use std::fmt::Write;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rcgen::{CertifiedKey, KeyPair};
use tempfile::TempDir;

use super::{Certificates, CheckIntervals, ServedCertificate};
use crate::background;
use crate::config::Config;
use crate::host::HostName;
use crate::metrics::Metrics;
use crate::metrics::TaskMetrics;
use crate::tenant::Directory;

/// Well above what a test waits for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Compares files at every handshake and remembers no failures.
const AT_ONCE: CheckIntervals =
    CheckIntervals { compare: Duration::ZERO, retry: Duration::ZERO, inspect: Duration::from_secs(600) };

struct Scene {
    folder: TempDir,
    metrics: Metrics,
    certificates: Arc<Certificates>,
}

/// Tenants `t0`, `t1` and so on, with a certificate for `forms.tN.org` each.
fn scene(tenants: usize, intervals: CheckIntervals) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let mut text = "[gateway]\nlisten = [\"127.0.0.1:0\"]\n[gateway.tls]\ncache_mib = 1\n\
                    certificate = \"gateway.pem\"\nprivate_key = \"gateway.key\"\n"
        .to_owned();
    let one = issue(&["*.example.com"]);
    put(&folder, "gateway", &one);
    for n in 0..tenants {
        let host = format!("forms.t{n}.org");
        writeln!(
            text,
            "[[tenant]]\nslug = \"t{n}\"\nname = \"T\"\naddress = \"t{n}.example.com\"\ndomains = [\"{host}\"]\n\
             database = \"sqlite:{n}.db\"\n[tenant.tls.\"{host}\"]\ncertificate = \"t{n}.pem\"\nprivate_key = \"t{n}.key\""
        )
        .unwrap();
    }
    let file = folder.path().join("tenants.toml");
    fs::write(&file, text).unwrap();
    let config = Config::load(&file).unwrap_or_else(|problems| panic!("{problems}"));
    let directory = Arc::new(ArcSwap::from_pointee(Directory::new(&config.tenants, &Directory::default())));
    let metrics = Metrics::default();
    let certificates = Certificates::open(&config.gateway, directory, &metrics, intervals, None).unwrap();
    Scene { folder, metrics, certificates: Arc::new(certificates) }
}

fn issue(names: &[&str]) -> CertifiedKey<KeyPair> {
    issue_until(names, 4096)
}

/// Issues a certificate that expires at the start of a year.
fn issue_until(names: &[&str], year: i32) -> CertifiedKey<KeyPair> {
    let mut params = rcgen::CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let key = KeyPair::generate().unwrap();
    CertifiedKey { cert: params.self_signed(&key).unwrap(), signing_key: key }
}

fn put(folder: &TempDir, file: &str, issued: &CertifiedKey<KeyPair>) {
    fs::write(folder.path().join(format!("{file}.pem")), issued.cert.pem()).unwrap();
    fs::write(folder.path().join(format!("{file}.key")), issued.signing_key.serialize_pem()).unwrap();
}

impl Scene {
    async fn choose(&self, host: &str) -> Result<Arc<ServedCertificate>, String> {
        let chosen = self.certificates.choose(Some(&HostName::parse(host).unwrap())).await;
        chosen.map_err(|error| error.to_string()).map(|chosen| chosen.expect("a name of a tenant"))
    }

    /// Requests the certificate of a host until it differs from an earlier one.
    async fn wait_for_another_than(&self, host: &str, before: &Arc<ServedCertificate>) -> Arc<ServedCertificate> {
        let began = Instant::now();
        loop {
            let now = self.choose(host).await.expect("there is always one to serve");
            if !Arc::ptr_eq(&now, before) {
                return now;
            }
            assert!(began.elapsed() < PATIENCE, "still the same");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the certificate of a host has a name.
    async fn wait_for_name(&self, host: &str, name: &str) {
        let began = Instant::now();
        while !covers(&self.choose(host).await.expect("there is always one to serve"), name) {
            assert!(began.elapsed() < PATIENCE, "{name} is not served");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn loads(&self, result: &str) -> u64 {
        self.metrics.certificates.loads.with_label_values(&[result]).get()
    }
}

fn covers(served: &ServedCertificate, host: &str) -> bool {
    served.names.covers(&HostName::parse(host).unwrap())
}

#[tokio::test]
async fn unrequested_certificates_are_not_read() {
    let scene = scene(3000, CheckIntervals::default());
    put(&scene.folder, "t7", &issue(&["forms.t7.org"]));
    assert!(covers(&scene.choose("forms.t7.org").await.unwrap(), "forms.t7.org"));
    assert!(covers(&scene.choose("t2999.example.com").await.unwrap(), "t2999.example.com"), "the gateway's");
    let nobody = scene.certificates.choose(Some(&HostName::parse("forms.t3000.org").unwrap())).await;
    assert!(matches!(nobody, Ok(None)));
    assert_eq!((scene.loads("done"), scene.loads("failed")), (1, 0));
    assert_eq!(scene.metrics.certificates.cached.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_reads_a_certificate_however_many_wait_for_it() {
    let scene = Arc::new(scene(1, CheckIntervals::default()));
    put(&scene.folder, "t0", &issue(&["forms.t0.org"]));
    let ask = |_| {
        let scene = Arc::clone(&scene);
        tokio::spawn(async move { scene.choose("forms.t0.org").await.unwrap() })
    };
    let asked: Vec<_> = (0..200).map(ask).collect();
    let first = scene.choose("forms.t0.org").await.unwrap();
    for asked in asked {
        assert!(Arc::ptr_eq(&asked.await.unwrap(), &first));
    }
    assert_eq!(scene.loads("done"), 1);
}

#[tokio::test]
async fn cached_certificates_stay_within_the_byte_limit() {
    const MANY: usize = 400;
    let scene = scene(MANY, CheckIntervals::default());
    for n in 0..MANY {
        put(&scene.folder, &format!("t{n}"), &issue(&[&format!("forms.t{n}.org")]));
        scene.choose(&format!("forms.t{n}.org")).await.unwrap();
        assert!(scene.metrics.certificates.cache_bytes.get() <= 1024 * 1024);
    }
    let cached = scene.metrics.certificates.cached.get();
    assert!((50..MANY as i64).contains(&cached), "{cached}");
    assert_eq!(scene.loads("done"), MANY as u64);
}

#[tokio::test]
async fn a_renewed_pair_replaces_the_previous_one_once_it_is_complete() {
    let scene = scene(1, AT_ONCE);
    put(&scene.folder, "t0", &issue(&["forms.t0.org"]));
    let before = scene.choose("forms.t0.org").await.unwrap();
    let renewed = issue(&["forms.t0.org", "renewed.t0.org"]);

    // Half a renewal: the new chain with the old key, then an incomplete chain.
    for half in [renewed.cert.pem(), renewed.cert.pem()[..300].to_owned()] {
        let failed = scene.loads("failed");
        fs::write(scene.folder.path().join("t0.pem"), half).unwrap();
        let began = Instant::now();
        while scene.loads("failed") < failed + 2 {
            assert!(Arc::ptr_eq(&scene.choose("forms.t0.org").await.unwrap(), &before));
            assert!(began.elapsed() < PATIENCE, "it is tried again");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    put(&scene.folder, "t0", &renewed);
    let after = scene.wait_for_another_than("forms.t0.org", &before).await;
    assert!(covers(&after, "renewed.t0.org"));
    assert_eq!(scene.metrics.certificates.cached.get(), 1, "in the place of the one before");
}

#[tokio::test]
async fn certificates_due_together_are_each_compared_with_their_own_files() {
    const MANY: usize = 100;
    let scene = scene(MANY, CheckIntervals { compare: Duration::from_millis(500), ..AT_ONCE });
    let (host, file) = (|n| format!("forms.t{n}.org"), |n| format!("t{n}"));
    let mut before = Vec::new();
    for n in 0..MANY {
        put(&scene.folder, &file(n), &issue(&[&host(n)]));
        before.push(scene.choose(&host(n)).await.unwrap());
    }
    let renewed = |n: usize| n.is_multiple_of(10);
    (0..MANY).filter(|n| renewed(*n)).for_each(|n| put(&scene.folder, &file(n), &issue(&[&host(n)])));
    for n in (0..MANY).filter(|n| renewed(*n)) {
        scene.wait_for_another_than(&host(n), &before[n]).await;
    }
    for n in (0..MANY).filter(|n| !renewed(*n)) {
        assert!(Arc::ptr_eq(&scene.choose(&host(n)).await.unwrap(), &before[n]), "it did not change");
    }
    assert_eq!(scene.loads("done"), (MANY + MANY / 10) as u64);
}

#[tokio::test]
async fn the_gateways_certificate_is_renewed_too() {
    let scene = scene(1, AT_ONCE);
    let before = scene.choose("t0.example.com").await.unwrap();
    put(&scene.folder, "gateway", &issue(&["*.example.com", "renewed.example.org"]));
    let after = scene.wait_for_another_than("t0.example.com", &before).await;
    assert!(covers(&after, "renewed.example.org"));
}

#[tokio::test]
async fn an_expired_pair_never_replaces_a_valid_certificate() {
    let scene = scene(1, AT_ONCE);
    let host = "forms.t0.org";
    put(&scene.folder, "t0", &issue_until(&[host], 2021));
    let expired = scene.choose(host).await.expect("it is better than none");
    put(&scene.folder, "t0", &issue_until(&[host], 2022));
    scene.wait_for_another_than(host, &expired).await;
    put(&scene.folder, "t0", &issue(&[host, "sound.t0.org"]));
    scene.wait_for_name(host, "sound.t0.org").await;

    put(&scene.folder, "t0", &issue_until(&[host], 2023));
    let began = Instant::now();
    while scene.loads("failed") < 2 {
        // The same pair may have been read again.
        assert!(covers(&scene.choose(host).await.unwrap(), "sound.t0.org"));
        assert!(began.elapsed() < PATIENCE, "it is tried again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    put(&scene.folder, "t0", &issue(&[host, "renewed.t0.org"]));
    scene.wait_for_name(host, "renewed.t0.org").await;
}

#[tokio::test]
async fn the_inspection_finds_expired_certificates_and_faults_of_the_gateways_own() {
    let scene = scene(2, CheckIntervals::default());
    put(&scene.folder, "t0", &issue(&["forms.t0.org"]));
    put(&scene.folder, "t1", &issue_until(&["forms.t1.org"], 2021));
    let _inspection = background::start(scene.certificates.inspection(), &TaskMetrics::unregistered());
    let wait_for = async |expected: &[(&str, &str)]| {
        let began = Instant::now();
        loop {
            let faulty = scene.certificates.faulty();
            let pairs = || faulty.iter().zip(expected);
            if faulty.len() == expected.len()
                && pairs().all(|((owner, fault), (whose, text))| &**owner == *whose && fault.contains(text))
            {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{faulty:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let expired = ("t1", "t1.pem` is out of date: it expired on 2021-01-01 00:00 UTC");
    wait_for(&[expired]).await;
    let metrics = String::from_utf8(scene.metrics.encode()).unwrap();
    assert!(metrics.contains("seconds{tenant=\"t1\"} 1609459200\n"), "it is told when it did:\n{metrics}");

    fs::write(scene.folder.path().join("gateway.key"), "half").unwrap();
    scene.certificates.compare().await;
    wait_for(&[("gateway", "gateway.key` holds no private key"), expired]).await;
    put(&scene.folder, "gateway", &issue_until(&["*.example.com"], 2021));
    scene.certificates.compare().await;
    wait_for(&[("gateway", "gateway.pem` is out of date"), expired]).await;
    put(&scene.folder, "gateway", &issue(&["*.example.com"]));
    put(&scene.folder, "t1", &issue(&["forms.t1.org"]));
    scene.certificates.compare().await;
    wait_for(&[]).await;
}

#[tokio::test]
async fn all_cached_certificates_are_compared_when_a_folder_changed() {
    let scene = scene(2, CheckIntervals { compare: PATIENCE * 100, ..AT_ONCE });
    for file in ["t0", "t1"] {
        put(&scene.folder, file, &issue(&[&format!("forms.{file}.org")]));
    }
    let (first, second) = (scene.choose("forms.t0.org").await.unwrap(), scene.choose("forms.t1.org").await.unwrap());
    put(&scene.folder, "t1", &issue(&["forms.t1.org"]));
    scene.certificates.compare().await;
    assert!(Arc::ptr_eq(&scene.choose("forms.t0.org").await.unwrap(), &first), "it did not change");
    assert!(!Arc::ptr_eq(&scene.choose("forms.t1.org").await.unwrap(), &second));
}

#[tokio::test]
async fn a_broken_certificate_is_retried_only_after_the_retry_interval() {
    let retry = Duration::from_millis(200);
    let scene = scene(2, CheckIntervals { retry, ..CheckIntervals::default() });
    let began = Instant::now();
    let fault = scene.choose("forms.t0.org").await.expect_err("there is no file");
    assert!(fault.contains("t0.pem"), "{fault}");
    put(&scene.folder, "t0", &issue(&["forms.t0.org"]));
    put(&scene.folder, "t1", &issue(&["forms.t1.org"]));
    let again = scene.choose("forms.t0.org").await;
    assert!(again.is_err() || began.elapsed() >= retry, "the fault is remembered");
    assert!(scene.choose("forms.t1.org").await.is_ok(), "another tenant's");
    while scene.choose("forms.t0.org").await.is_err() {
        assert!(began.elapsed() < PATIENCE, "it heals");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(scene.loads("done"), 2);
}

#[tokio::test]
async fn only_the_certificates_that_expire_soonest_are_published() {
    let scene = scene(15, CheckIntervals::default());
    let issue = |n: i32| issue_until(&[&format!("forms.t{n}.org")], 2030 + n);
    (0..15).for_each(|n| put(&scene.folder, &format!("t{n}"), &issue(n)));
    let _inspection = background::start(scene.certificates.inspection(), &TaskMetrics::unregistered());
    let told = |n: i32, year: i32| {
        let expires = rcgen::date_time_ymd(year, 1, 1).unix_timestamp();
        format!("formgate_certificate_expiry_timestamp_seconds{{tenant=\"t{n}\"}} {expires}\n")
    };
    let wait_for = async |text: &str| {
        let began = Instant::now();
        loop {
            let metrics = String::from_utf8(scene.metrics.encode()).unwrap();
            if metrics.contains(text) {
                return metrics;
            }
            assert!(began.elapsed() < PATIENCE, "{text} is not in\n{metrics}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let metrics = wait_for(&told(0, 2030)).await;
    assert!((0..10).all(|n| metrics.contains(&told(n, 2030 + n))), "{metrics}");
    assert_eq!(metrics.matches("formgate_certificate_expiry_timestamp_seconds{").count(), 10, "{metrics}");

    put(&scene.folder, "t0", &issue(40));
    scene.certificates.compare().await;
    let metrics = wait_for(&told(10, 2040)).await;
    assert!(!metrics.contains("tenant=\"t0\""), "it is renewed:\n{metrics}");
}

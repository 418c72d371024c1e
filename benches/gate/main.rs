//! What the steps of a request cost that need no socket and no database: resolve, verify, admit, route; and counting it.
//!
//! Each is a microsecond or so. They are measured to notice when one stops being that, not to make them faster.

use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use formgate::api;
use formgate::config::Config;
use formgate::host::HostName;
use formgate::metrics::{Metrics, RateDecision, TenantLabels, TenantMeter, TokenCheck};
use formgate::quota::{Account, Interface, LimitedToken, Quota, ReportUsage};
use formgate::store::DatabaseIdentity;
use formgate::tenant::Directory;
use formgate::tenant::token::PresentedToken;
use futures_util::FutureExt;
use http::{Method, StatusCode};

/// As many tenants as one node is to hold.
const TENANTS: usize = 10_000;

fn resolve(criterion: &mut Criterion) {
    let directory = directory();
    let mut group = criterion.benchmark_group("resolve");
    for (name, authority) in [
        ("one of 10,000", "t5000.example.com:8443"),
        ("mixed case", "T5000.Example.COM"),
        ("unicode", "bücher5000.example.com"),
        ("nobody's", "nobody.example.com"),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let host = HostName::parse_authority(black_box(authority)).expect("a host");
                directory.resolve(&host).is_some()
            });
        });
    }
}

fn verify(criterion: &mut Criterion) {
    let token = PresentedToken::generate();
    let good = format!("Bearer {}", token.expose());
    let mistyped = good.replace("fg_", "fg_0")[..good.len()].to_owned();
    let mut group = criterion.benchmark_group("verify");
    group.bench_function("a token and its digest", |bencher| {
        bencher.iter(|| PresentedToken::from_authorization(black_box(good.as_bytes())).map(|token| token.digest()));
    });
    group.bench_function("a mistyped token", |bencher| {
        bencher.iter(|| PresentedToken::from_authorization(black_box(mistyped.as_bytes())).is_none());
    });
}

fn admit(criterion: &mut Criterion) {
    const LIMIT: u32 = 60;
    let mut group = criterion.benchmark_group("admit");
    let decide = |quota: &Quota, account: &Account| {
        quota
            .admit(account.limited(LIMIT), LimitedToken { id: 7, limit: None }, ReportUsage::No)
            .now_or_never()
            .expect("the embedded window never waits")
    };
    // A window that is over before the next request, and one that nobody leaves.
    for (name, span) in [("admitted", Duration::from_nanos(1)), ("refused", Duration::from_secs(3600))] {
        let (quota, account) = (
            Quota::new(span, None, Metrics::default()),
            Account::new("acme", &DatabaseIdentity::from("0"), Interface::Api),
        );
        for _ in 0..LIMIT {
            let _ = decide(&quota, &account);
        }
        group.bench_function(name, |bencher| bencher.iter(|| decide(&quota, black_box(&account)).is_ok()));
    }
}

fn route(criterion: &mut Criterion) {
    criterion.bench_function("route", |bencher| {
        bencher.iter(|| api::ENDPOINTS.find(&Method::GET, black_box("/submission/sub_1001")).is_ok());
    });
}

/// What every request counts, by one thread and by two at once, for tenants that have no label of their own.
fn count(criterion: &mut Criterion) {
    let metrics = Metrics::new(TenantLabels::None);
    let meter = Arc::new(TenantMeter::new(&"acme".into()));
    let took = Duration::from_micros(100);
    let count_all = |times: u64| {
        for _ in 0..times {
            metrics.token_checks.count(TokenCheck::KnownByMemory);
            metrics.rate_decisions.count(RateDecision::AdmittedShared);
            metrics.requests.count("GET /me", &Method::GET, StatusCode::OK, black_box(took));
            metrics.tenants.count(&meter, StatusCode::OK, black_box(took));
        }
    };
    let mut group = criterion.benchmark_group("count");
    for threads in [1, 2] {
        group.bench_function(threads.to_string(), |bencher| {
            bencher.iter_custom(|times| {
                let began = Instant::now();
                thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(|| count_all(times)))));
                began.elapsed()
            });
        });
    }
}

/// A directory as a configuration makes it.
fn directory() -> Directory {
    let folder = tempfile::tempdir().expect("a folder for the configuration");
    let gateway =
        "[gateway]\nlisten = [\"127.0.0.1:8443\"]\n[gateway.tls]\ncertificate = \"c.pem\"\nprivate_key = \"k.pem\"\n";
    let tenant = |n| {
        format!(
            "[[tenant]]\nslug = \"t{n}\"\nname = \"Tenant {n}\"\naddress = \"t{n}.example.com\"\n\
             domains = [\"bücher{n}.example.com\"]\ndatabase = \"sqlite:t{n}.db\"\n"
        )
    };
    let certified = rcgen::generate_simple_self_signed(["*.example.com".to_owned()]).expect("a certificate");
    let write = |name: &str, text: String| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("the folder can be written to");
        file
    };
    write("c.pem", certified.cert.pem());
    write("k.pem", certified.signing_key.serialize_pem());
    let text: String = [gateway.to_owned()].into_iter().chain((0..TENANTS).map(tenant)).collect();
    let config = Config::load(&write("tenants.toml", text)).expect("a valid configuration");
    Directory::new(&config.tenants, &Directory::default())
}

criterion_group!(benches, resolve, verify, admit, route, count);
criterion_main!(benches);

//! The process's log, and traces if an OpenTelemetry collector is configured.
//!
//! The log goes to standard error; serving never waits for its reader (`log_queue`). Traces are sent by OTLP over HTTP,
//! and configured by the environment variables of the OpenTelemetry specification: without
//! `OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_ENDPOINT`) no span is created. A span may contain only what the log may:
//! no token, no query, no filter, no answer.

mod access;
mod log_queue;
mod sampling;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{IsTerminal, stderr};
use std::os::fd::AsFd;
use std::panic;
use std::sync::OnceLock;
use std::thread;

use http::{HeaderMap, StatusCode};
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::runtime;
use opentelemetry_sdk::trace::SdkTracerProvider;
use opentelemetry_sdk::trace::span_processor_with_async_runtime::BatchSpanProcessor;
use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

pub use self::access::AccessLine;
use self::log_queue::{FLUSH_LIMIT, LogQueue, MAX_QUEUED};
use self::sampling::{CallerSampler, InvalidSampler};
use crate::metrics;

/// What the log shows unless `FORMGATE_LOG` says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultLog {
    /// For a serving process: what operators watch.
    Serving,
    /// For a drill: the same, and no traces, whatever the environment says.
    Drill,
    /// For a command: nothing. It reports failures in its own output, which log lines would interrupt.
    Command,
}

impl DefaultLog {
    fn filter(self) -> &'static str {
        match self {
            Self::Serving | Self::Drill => "info,sqlx=warn",
            Self::Command => "off",
        }
    }
}

/// The target of all spans. The log leaves it out; without a collector its spans cost nothing.
const TRACE: &str = "formgate::trace";

/// Must be ended so that the last spans are not lost.
#[derive(Debug)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Sets up the log, and traces if a collector is configured. Once per process.
    ///
    /// # Panics
    /// Outside of a Tokio runtime, or when called twice.
    #[must_use]
    pub fn set_up(log: DefaultLog) -> Self {
        let (provider, failure) = match (log != DefaultLog::Drill && collector_is_named()).then(provider) {
            None => (None, None),
            Some(Ok((provider, None))) => (Some(provider), None),
            Some(Ok((provider, Some(fault)))) => {
                (Some(provider), Some(format!("{fault}; using parentbased_always_on")))
            }
            Some(Err(failure)) => (None, Some(failure)),
        };
        let mut layers = vec![layer(log)];
        // Without a collector there is no layer for spans, so none is created.
        layers.extend(provider.as_ref().map(|provider| {
            let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("formgate"));
            let layer =
                layer.with_location(false).with_threads(false).with_target(false).with_tracked_inactivity(false);
            layer.with_filter(Targets::new().with_target(TRACE, LevelFilter::INFO)).boxed()
        }));
        // Not `init`, which also installs a bridge from the crate `log`. sqlx calls `log_enabled!` for each Postgres notice;
        // through the bridge that leaves the per-layer filters in a state that drops the next event of the thread.
        let subscriber = tracing_subscriber::registry().with(layers);
        tracing::subscriber::set_global_default(subscriber).expect("the log is set up once");
        if log != DefaultLog::Command {
            log_panics();
        }
        if let Some(failure) = failure {
            tracing::error!(failure, "OTLP configuration invalid; traces are not exported as configured");
        }
        Self { provider }
    }

    /// Sends the remaining spans.
    pub async fn end(mut self) {
        let Some(provider) = self.provider.take() else { return };
        // Blocks until the collector has received the last spans, or its time limit is over.
        let ended = tokio::task::spawn_blocking(move || provider.shutdown()).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}

/// Flushes the log if a panic ends the process.
impl Drop for Telemetry {
    fn drop(&mut self) {
        if thread::panicking() {
            flush();
        }
    }
}

/// The log of a process that serves.
fn queue() -> &'static LogQueue {
    static QUEUE: OnceLock<LogQueue> = OnceLock::new();
    QUEUE.get_or_init(|| {
        let own = stderr().as_fd().try_clone_to_owned().expect("standard error can be duplicated");
        LogQueue::start(File::from(own), MAX_QUEUED, metrics::dropped_log_lines().clone())
    })
}

/// Before a process that served exits: waits until the log is written, at most a second.
pub fn flush() {
    queue().flush(FLUSH_LIMIT);
}

/// Before a process exits that could not serve: writes why. A slow reader gets all of it.
pub fn write_last(report: &str) {
    queue().push(format!("{report}\n").as_bytes());
    queue().flush_while_read(FLUSH_LIMIT);
}

/// Text on a terminal, otherwise one JSON object per line. `FORMGATE_LOG` filters as `RUST_LOG` does elsewhere.
fn layer(log: DefaultLog) -> Box<dyn Layer<Registry> + Send + Sync> {
    let filter = EnvFilter::try_from_env("FORMGATE_LOG").unwrap_or_else(|_| EnvFilter::new(log.filter()));
    let filter = filter.add_directive(format!("{TRACE}=off").parse().expect("a directive"));
    // A command waits for its reader, as every program does; nobody waits for the command.
    let writer = match log {
        DefaultLog::Serving | DefaultLog::Drill => BoxMakeWriter::new(|| queue().clone()),
        DefaultLog::Command => BoxMakeWriter::new(stderr),
    };
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    if stderr().is_terminal() {
        return layer.with_target(false).with_filter(filter).boxed();
    }
    if log != DefaultLog::Command {
        access::write_json_to(queue().clone());
    }
    layer.json().flatten_event(true).with_current_span(false).with_span_list(false).with_filter(filter).boxed()
}

/// Has panics logged like everything else: the standard library's report would wait for the reader of the log.
fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        // As the standard library, with `RUST_BACKTRACE` only.
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        let reason = panic.payload_as_str().unwrap_or("no text");
        tracing::error!(thread = thread::current().name(), location, backtrace, "a thread panicked: {reason}");
    }));
}

fn collector_is_named() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let disabled = std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    !disabled && (is_set("OTEL_EXPORTER_OTLP_ENDPOINT") || is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
}

fn provider() -> Result<(SdkTracerProvider, Option<InvalidSampler>), String> {
    let exporter = SpanExporter::builder().with_http().build().map_err(|error| error.to_string())?;
    let name = std::env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| "formgate".to_owned());
    let resource = Resource::builder()
        .with_service_name(name)
        .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    // On this runtime, because the client that sends is Tokio's too.
    let processor = BatchSpanProcessor::builder(exporter, runtime::Tokio).build();
    let provider = SdkTracerProvider::builder().with_resource(resource.build()).with_span_processor(processor);
    let variable = |name| std::env::var(name).ok();
    let sampler = CallerSampler::parse(
        variable("OTEL_TRACES_SAMPLER").as_deref(),
        variable("OTEL_TRACES_SAMPLER_ARG").as_deref(),
    );
    let (sampler, fault) = match sampler {
        Ok(sampler) => (sampler, None),
        Err(fault) => (CallerSampler::default(), Some(fault)),
    };
    Ok((provider.with_sampler(sampler).build(), fault))
}

/// The span of one request; a child of the caller's span if it sent a `traceparent` (W3C Trace Context).
#[must_use]
pub fn request_span(headers: &HeaderMap, method: &http::Method) -> Span {
    let span = new_request_span(method);
    if !span.is_disabled() {
        // Fails only without the layer, and then the span is disabled.
        let _ = span.set_parent(caller(headers));
    }
    span
}

/// The span of the current request from its token check on, if only the caller's `traceparent` has it exported.
/// Before the check the caller is unknown, so its sampled flag did not count (`sampling`).
#[must_use]
pub fn authenticated_span(headers: &HeaderMap, method: &http::Method) -> Option<Span> {
    // Without a collector, this check is the only cost.
    if !tracing::enabled!(target: TRACE, tracing::Level::INFO) || is_sampled(&Span::current().context()) {
        return None;
    }
    let caller = Some(caller(headers)).filter(is_sampled)?;
    let span = new_request_span(method);
    span.set_parent(sampling::trusted(&caller)).ok()?;
    is_sampled(&span.context()).then_some(span)
}

fn is_sampled(context: &Context) -> bool {
    context.span().span_context().is_sampled()
}

fn caller(headers: &HeaderMap) -> Context {
    // Without the current span as parent.
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers))
}

/// Maximum number of characters of a method in a span.
///
/// Larger: callers fill traces with invented methods. Smaller: a known method is cut off.
const LONGEST_METHOD: usize = 64;

fn new_request_span(method: &http::Method) -> Span {
    // It is ASCII, as all HTTP tokens are.
    let method = method.as_str().get(..LONGEST_METHOD).unwrap_or(method.as_str());
    tracing::info_span!(
        target: TRACE,
        parent: None,
        "request",
        otel.kind = "server",
        http.request.method = method,
        http.route = tracing::field::Empty,
        http.response.status_code = tracing::field::Empty,
        formgate.tenant = tracing::field::Empty,
        formgate.request_id = tracing::field::Empty,
    )
}

/// Records the outcome of a request.
pub fn end_request(span: &Span, route: Option<&'static str>, status: StatusCode, tenant: Option<&str>, id: &str) {
    if span.is_disabled() {
        return;
    }
    // The route, which names the span, is known only now.
    span.context().span().update_name(route.unwrap_or("no route"));
    span.record("http.route", route);
    span.record("http.response.status_code", status.as_u16());
    span.record("formgate.tenant", tenant);
    span.record("formgate.request_id", id);
}

/// The span of one step of a request, or of one call to a database or Redis.
macro_rules! step {
    ($name:literal $(, $($field:tt)*)?) => {
        tracing::info_span!(target: "formgate::trace", $name $(, $($field)*)?)
    };
}
pub(crate) use step;

/// A request's header fields, for the propagator.
struct Headers<'h>(&'h HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

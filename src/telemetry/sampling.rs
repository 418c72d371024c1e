//! Which requests are traced: the operator decides by `OTEL_TRACES_SAMPLER`, as the OpenTelemetry specification
//! defines it.
//!
//! Any client can send a `traceparent`. Its trace id and parent are kept, so that traces span several services, but
//! it can't make the gateway export a span before the token check. Otherwise a flood could have all its requests
//! exported although the operator samples one in a thousand. So the sampled flag counts from the token check on, and
//! the ratio is not applied to a trace id that the caller chose. An unsampled flag always counts under a
//! `parentbased_…` sampler: it only saves work.

use opentelemetry::trace::{Link, SpanKind, SpanRef, TraceContextExt, TraceId, TraceState};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

/// Marks a parent whose sampled flag counts, as a value in the context of a span.
#[derive(Debug)]
struct Trusted;

/// The parent of a span, for a caller whose token is valid.
pub(super) fn trusted(parent: &Context) -> Context {
    parent.with_value(Trusted)
}

/// The operator's sampler.
#[derive(Clone, Debug)]
pub(super) struct CallerSampler {
    /// Decides about requests whose parent, if any, does not.
    root: Sampler,
    /// Whether a trusted parent decides.
    parent_based: bool,
}

/// The environment names an invalid sampler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidSampler {
    /// An unknown name.
    #[error(
        "OTEL_TRACES_SAMPLER=`{0}` is unknown; there are: always_on, always_off, traceidratio, and each with parentbased_ before it"
    )]
    Unknown(String),
    /// An invalid ratio.
    #[error("OTEL_TRACES_SAMPLER_ARG is no number from 0 to 1")]
    Ratio,
}

impl CallerSampler {
    /// Parses the values of `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`.
    ///
    /// # Errors
    /// [`InvalidSampler`].
    pub(super) fn parse(name: Option<&str>, argument: Option<&str>) -> Result<Self, InvalidSampler> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("parentbased_always_on");
        let (kind, parent_based) = match name.strip_prefix("parentbased_") {
            Some(kind) => (kind, true),
            None => (name, false),
        };
        let root = match kind {
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            "traceidratio" => {
                let ratio = argument.filter(|argument| !argument.is_empty()).unwrap_or("1");
                let ratio = ratio.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
                Sampler::TraceIdRatioBased(ratio.ok_or(InvalidSampler::Ratio)?)
            }
            _ => return Err(InvalidSampler::Unknown(name.to_owned())),
        };
        Ok(Self { root, parent_based })
    }

    /// The sampler if the environment names none.
    pub(super) fn default() -> Self {
        Self { root: Sampler::AlwaysOn, parent_based: true }
    }

    fn decide(&self, parent: Option<&Context>, trace: TraceId) -> SamplingDecision {
        let span = parent.map(TraceContextExt::span).filter(|span| span.span_context().is_valid());
        let Some(caller) = span.as_ref().map(SpanRef::span_context) else { return self.of_root(trace) };
        // A step of a request is sampled if its request is.
        let follows =
            !caller.is_remote() || self.parent_based && parent.is_some_and(|it| it.get::<Trusted>().is_some());
        match caller.is_sampled() {
            true if follows => SamplingDecision::RecordAndSample,
            false if follows || self.parent_based => SamplingDecision::Drop,
            // Not by the trace id, which the caller chose.
            _ => self.of_root(TraceId::from(rand::random::<u128>())),
        }
    }

    fn of_root(&self, trace: TraceId) -> SamplingDecision {
        self.root.should_sample(None, trace, "", &SpanKind::Server, &[], &[]).decision
    }
}

impl ShouldSample for CallerSampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        _name: &str,
        _kind: &SpanKind,
        _attributes: &[KeyValue],
        _links: &[Link],
    ) -> SamplingResult {
        let state = parent.map(|parent| parent.span().span_context().trace_state().clone());
        let trace_state = state.unwrap_or_else(|| TraceState::NONE.clone());
        SamplingResult { decision: self.decide(parent, trace), attributes: Vec::new(), trace_state }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags};

    use super::*;

    /// A trace id that every ratio above 0 samples; a caller could choose it.
    const CHOSEN: TraceId = TraceId::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

    fn parent(sampled: bool, is_remote: bool) -> Context {
        let flags = TraceFlags::default().with_sampled(sampled);
        let span = SpanContext::new(CHOSEN, SpanId::from_bytes([1; 8]), flags, is_remote, TraceState::NONE);
        Context::new().with_remote_span_context(span)
    }

    fn samples(name: &str, argument: &str, parent: Option<&Context>) -> bool {
        let sampler = CallerSampler::parse(Some(name), Some(argument)).unwrap();
        sampler.decide(parent, CHOSEN) == SamplingDecision::RecordAndSample
    }

    #[test]
    fn an_unauthenticated_client_never_switches_sampling_on() {
        for (name, argument) in [
            ("always_off", ""),
            ("parentbased_always_off", ""),
            ("traceidratio", "0.0001"),
            ("parentbased_traceidratio", "0.0001"),
        ] {
            let sampled = (0..100).filter(|_| samples(name, argument, Some(&parent(true, true)))).count();
            assert!(sampled < 5, "{name}: {sampled} of 100");
        }
        assert!(samples("always_on", "", Some(&parent(false, true))));
        assert!(!samples("parentbased_always_on", "", Some(&parent(false, true))));
    }

    #[test]
    fn an_authenticated_client_decides_only_under_a_parent_based_sampler() {
        for (name, expected) in [("parentbased_always_off", true), ("always_off", false)] {
            assert_eq!(samples(name, "", Some(&trusted(&parent(true, true)))), expected, "{name}");
        }
        assert!(!samples("parentbased_always_on", "", Some(&trusted(&parent(false, true)))));
    }

    #[test]
    fn without_a_parent_the_sampler_decides_and_a_step_follows_its_request() {
        for (name, expected) in [("always_on", true), ("always_off", false), ("parentbased_always_on", true)] {
            assert_eq!(samples(name, "", None), expected, "{name}");
            for sampled in [true, false] {
                assert_eq!(samples(name, "", Some(&parent(sampled, false))), sampled, "{name}");
            }
        }
    }

    #[test]
    fn an_unknown_sampler_is_refused() {
        let fault = |name, argument| CallerSampler::parse(Some(name), Some(argument)).unwrap_err();
        assert_eq!(fault("xray", ""), InvalidSampler::Unknown("xray".to_owned()));
        assert_eq!(fault("traceidratio", "2"), InvalidSampler::Ratio);
        assert!(CallerSampler::parse(None, None).is_ok());
    }
}

//! What all scenarios are given: how long they take, numbers from the environment, and where their results go.

use std::cell::RefCell;
use std::str::FromStr;

use anyhow::Context;

use crate::order::{Order, Pace, Protocol, Request};
use crate::results::{Scenario, Source};
use crate::target::Target;

/// Seconds before the clock begins: connections are made and tokens verified.
pub(crate) const WARM_UP: f64 = 1.0;

/// One run of the bench.
pub(crate) struct Bench {
    pub(crate) rounds: usize,
    /// Seconds.
    pub(crate) turn: f64,
    pub(crate) source: Source,
    /// What was measured so far.
    pub(crate) results: RefCell<Vec<Scenario>>,
}

impl Bench {
    /// A turn of 32 connections over HTTP/1.1, as quick as answers come.
    pub(crate) fn order(&self, target: &Target, requests: Vec<Request>) -> Order {
        Order {
            address: target.address,
            protocol: Protocol::Http1,
            connections: 32,
            streams: 1,
            pace: Pace::Answered,
            fresh: false,
            warm_up: WARM_UP,
            turn: self.turn,
            requests,
        }
    }
}

/// A number in the environment.
pub(crate) fn number<T: FromStr<Err: Into<anyhow::Error>>>(name: &str, default: T) -> anyhow::Result<T> {
    std::env::var(name).map_or(Ok(default), |value| value.parse().map_err(Into::into).context(name.to_owned()))
}

//! Redis away, in every way in which it can be, and back again.

mod breaker;
mod policy;
mod scene;
mod strangers;

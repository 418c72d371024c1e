//! Handshakes, the stop, and the operator's listener, of the whole gateway.

mod admin;
mod balancer;
mod certificates;
mod descriptors;
mod generations;
mod handshake;
mod reload;
mod restart;
mod stop;

//! Handshakes, the stop, and the operator's listener, of the whole gateway.

mod admin;
mod balancer;
mod certificates;
mod clients;
mod descriptors;
mod generations;
mod handshake;
mod hanging;
mod hsts;
mod reload;
mod restart;
mod stop;

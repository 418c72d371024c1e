//! Handshakes, the stop, and the operator's listener, of the whole gateway.

mod admin;
mod handshake;
mod reload;
mod stop;

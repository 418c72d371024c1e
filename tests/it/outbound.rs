//! Requests to webhook receivers: which addresses they reach, what receivers can do to them, and who can verify them.
//!
//! The client is the library's own: the receiver, its certificates and the DNS server are real, and on loopback.

mod addresses;
mod answers;
mod hostile;
mod names;
mod pool;
mod probe;
mod scene;
mod signature;
mod tls;

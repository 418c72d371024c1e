//! What DNS shows about a host: one finding for each situation, with real DNS servers on loopback.
//!
//! The same host is claimed in every test, `forms.acme.com`, in the zone `acme.com` of servers 3 and 4, below `com` of
//! server 2. The gateway is at 192.0.2.10 and 2001:db8::10.

mod broken;
mod caa;
mod faults;
mod hostile;
mod ready;
mod scene;

//! The steps of the gate, in their order, as a caller meets them.

mod admit;
mod body;
mod head;
mod hostile;
mod outage;
mod resolve;
mod respond;
mod route;
mod verify;

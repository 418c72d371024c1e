//! Tests of the edge on real sockets, with real certificates and a handler of their own.

mod admin;
mod batching;
mod certificates;
mod client;
mod drain;
mod fixture;
mod floods;
mod fragments;
mod frames;
mod framing;
mod limits;
mod plain;
mod proxy;
mod refused;
mod shutdown;
mod upload;

use std::net::SocketAddr;

use http::Version;

use self::client::{Caller, soon};
use self::fixture::Fixture;
use super::listen;
use crate::config::ConnectionLimits;
use crate::config::ListenConfig;
use crate::systemd::InheritedSockets;

#[tokio::test]
async fn an_address_in_use_is_named() {
    let anywhere = || ListenConfig::from("127.0.0.1:0".parse::<SocketAddr>().unwrap());
    let taken = listen(&[anywhere()], &mut InheritedSockets::default()).await.unwrap();
    let address = taken[0].socket.local_addr().unwrap();
    let error = listen(&[anywhere(), address.into()], &mut InheritedSockets::default()).await.unwrap_err();
    assert_eq!(error.address, address);
    assert_eq!(error.to_string(), format!("can't listen on {address}"));
}

#[tokio::test]
async fn a_handler_that_panics_harms_no_other_request() {
    let fixture = Fixture::start(ConnectionLimits::default()).await;
    let mut caller = Caller::connect(&fixture, Version::HTTP_2).await;
    let slow = caller.send("/slow");
    soon(caller.send("/panic")).await.unwrap_err();
    assert_eq!(slow.await.unwrap().1, "late");
    assert_eq!(caller.send("/").await.unwrap().1, "acme.example.com");
    // Over HTTP/1.1 there is no other request on its connection.
    let mut caller = Caller::connect(&fixture, Version::HTTP_11).await;
    soon(caller.send("/panic")).await.unwrap_err();
    assert_eq!(Caller::connect(&fixture, Version::HTTP_11).await.send("/").await.unwrap().1, "acme.example.com");
    assert_eq!(fixture.open("h2"), 1);
}

//! What callers, operators and other nodes notice while a server that the gateway needs is away: as little as can be.

mod database;
mod redis;

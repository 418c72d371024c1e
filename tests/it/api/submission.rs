//! `POST /submission`, `GET /submission/{id}`.

mod kept;
mod plan;
mod search;
mod show;

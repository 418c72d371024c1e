//! `POST /submission`, `GET /submission/{id}`.

mod search;
mod show;

//! `POST /submission`, `GET /submission/{id}`.

mod index;
mod search;
mod show;

//! Futures that are rarely needed, kept out of the stack frames of others.
//!
//! All of an `async fn` is one function that runs at each poll. Its stack frame has space for each future that it makes,
//! even for one that it boxes at once, and each poll touches every page of a large frame, to detect an overflow of the
//! stack. The future of the administration area, 77 KB, gave the function that serves requests a frame of 92 KB. Now that
//! it is made here, `GET /me` takes 9 % less CPU (`benches/NOTEBOOK.md`).

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

/// Makes a future in a stack frame of its own, and boxes it. Nothing of it is part of the caller's future or frame.
#[inline(never)]
pub(crate) fn boxed<'f, F>(make: impl FnOnce() -> F) -> BoxFuture<'f, F::Output>
where
    F: Future + Send + 'f,
{
    make().boxed()
}

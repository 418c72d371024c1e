//! The methods of `AsyncWrite` that a stream forwards to the one that it wraps.
//!
//! The streams of the edge observe writes only in `poll_write_vectored`; `poll_write` calls it.

/// Implements the named methods for a type whose field `io` is the wrapped stream.
macro_rules! pass_through {
    ($($method:ident),+) => {
        $(pass_through!(@ $method);)+
    };
    (@ poll_write) => {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
        }
    };
    (@ is_write_vectored) => {
        fn is_write_vectored(&self) -> bool {
            self.io.is_write_vectored()
        }
    };
    (@ poll_flush) => {
        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_flush(cx)
        }
    };
    (@ poll_shutdown) => {
        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.io).poll_shutdown(cx)
        }
    };
}
pub(super) use pass_through;

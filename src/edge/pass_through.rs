//! The methods of `AsyncWrite` that a stream passes on to the one that it wraps.
//!
//! Each stream of the edge watches what is written in its `poll_write_vectored`, and nowhere else: `poll_write` goes through it.

/// The named methods, for a type whose field `io` is the stream that it wraps.
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

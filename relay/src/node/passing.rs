//! For wrappers of sockets that only change reading: writes are passed to the inner socket.

/// `AsyncWrite` of a type by that of its field `socket`.
macro_rules! writes_as_its_socket {
    ($of:ident) => {
        impl<S: futures::AsyncWrite + Unpin> futures::AsyncWrite for $of<S> {
            fn poll_write(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bytes: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                std::pin::Pin::new(&mut self.socket).poll_write(cx, bytes)
            }

            fn poll_write_vectored(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                pieces: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                std::pin::Pin::new(&mut self.socket).poll_write_vectored(cx, pieces)
            }

            fn poll_flush(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::pin::Pin::new(&mut self.socket).poll_flush(cx)
            }

            fn poll_close(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::pin::Pin::new(&mut self.socket).poll_close(cx)
            }
        }
    };
}
pub(super) use writes_as_its_socket;

//! Receives a large body into a file: completely, up to a limit, at a minimum rate, and in bounded memory.
//!
//! Owns the decoding and the limits; the caller opens the file, which has the decoded bytes afterwards. So whoever uses the
//! file waits for a disk, and never for a client.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::HeaderMap;
use hyper::body::Body;

use super::body::{BoundedBody, declared_length};
use super::body_buffer::not_gzip;
use super::coding::{Coding, DeclaredFormat};
use crate::config::RequestLimits;
use crate::error::Refusal;

/// How many bytes are collected for one write.
///
/// Larger: more memory for each upload. Smaller: more system calls.
const BUFFER: usize = 256 * 1024;

/// Why a body was not received.
#[derive(Debug)]
pub(crate) enum UploadError {
    /// The client is to blame, or the connection broke.
    Refused(Refusal),
    /// The file can't be written.
    File(io::Error),
}

impl From<Refusal> for UploadError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Writes a body of at most `limit` bytes into a file, before and after decoding. Writing blocks.
///
/// # Errors
/// [`UploadError`]. Then the file has a part of the body.
pub(crate) async fn receive_file(
    headers: &HeaderMap,
    body: impl Body<Data = Bytes, Error = hyper::Error> + Unpin,
    file: File,
    limit: usize,
    limits: &RequestLimits,
) -> Result<(), UploadError> {
    // A body that declares no type, or that of a form as curl does, may be anything else.
    let DeclaredFormat { coding, .. } = DeclaredFormat::of(headers)?;
    if declared_length(headers).is_some_and(|length| length > limit) {
        return Err(Refusal::BodyTooLarge.into());
    }
    let output = BoundedFile { file: BufWriter::with_capacity(BUFFER, file), left: limit, failure: None };
    let mut decoder = Decoder::new(coding, output);
    let mut body = BoundedBody::begin(body, limit, limits);
    while let Some(data) = body.next().await? {
        tokio::task::block_in_place(|| decoder.push(&data))?;
    }
    // A client that declares gzip and sends nothing sends an empty body.
    if body.is_empty() {
        return Ok(());
    }
    tokio::task::block_in_place(|| decoder.end())
}

enum Decoder {
    Identity(BoundedFile),
    Gzip(Box<MultiGzDecoder<BoundedFile>>),
}

impl Decoder {
    fn new(coding: Coding, output: BoundedFile) -> Self {
        match coding {
            Coding::Identity => Self::Identity(output),
            Coding::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(output))),
        }
    }

    fn push(&mut self, data: &[u8]) -> Result<(), UploadError> {
        let pushed = match self {
            Self::Identity(output) => output.write_all(data),
            Self::Gzip(decoder) => decoder.write_all(data),
        };
        pushed.map_err(|_| self.failure())
    }

    fn end(&mut self) -> Result<(), UploadError> {
        let ended = match self {
            Self::Identity(_) => Ok(()),
            Self::Gzip(decoder) => decoder.try_finish(),
        };
        ended.and_then(|()| self.output().flush()).map_err(|_| self.failure())
    }

    fn output(&mut self) -> &mut BoundedFile {
        match self {
            Self::Identity(output) => output,
            Self::Gzip(decoder) => decoder.get_mut(),
        }
    }

    /// What the file says; if it has no fault, the client did not send gzip.
    fn failure(&mut self) -> UploadError {
        self.output().failure.take().unwrap_or_else(|| not_gzip().into())
    }
}

/// The file, with the number of bytes that may still be written.
struct BoundedFile {
    file: BufWriter<File>,
    left: usize,
    /// Why a write failed.
    failure: Option<UploadError>,
}

impl BoundedFile {
    fn note<T>(&mut self, written: io::Result<T>) -> io::Result<T> {
        written.map_err(|error| {
            let kind = error.kind();
            self.failure = Some(UploadError::File(error));
            kind.into()
        })
    }
}

impl Write for BoundedFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let Some(left) = self.left.checked_sub(data.len()) else {
            self.failure = Some(Refusal::BodyTooLarge.into());
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        self.left = left;
        let written = self.file.write_all(data);
        self.note(written).map(|()| data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.note(flushed)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::stream;
    use http::header::CONTENT_ENCODING;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    async fn receive(data: Vec<u8>, is_gzip: bool, limit: usize) -> Result<Vec<u8>, UploadError> {
        let mut file = tempfile::tempfile().unwrap();
        let mut headers = HeaderMap::new();
        if is_gzip {
            headers.insert(CONTENT_ENCODING, "gzip".parse().unwrap());
        }
        let pieces: Vec<_> = data.chunks(7).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
        let body = StreamBody::new(stream::iter(pieces));
        receive_file(&headers, body, file.try_clone().unwrap(), limit, &RequestLimits::default()).await?;
        let mut received = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut received).unwrap();
        Ok(received)
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_body_is_received_up_to_the_limit_plain_or_decoded() {
        let text = b"0123456789".repeat(100);
        let members = [gzip(&text[..400]), gzip(&text[400..])].concat();
        for (sent, is_gzip) in [(text.clone(), false), (gzip(&text), true), (members, true)] {
            assert_eq!(receive(sent.clone(), is_gzip, 1000).await.unwrap(), text);
            let refused = receive(sent, is_gzip, 999).await;
            assert!(matches!(refused, Err(UploadError::Refused(Refusal::BodyTooLarge))), "{refused:?}");
        }
        for is_gzip in [false, true] {
            assert_eq!(receive(Vec::new(), is_gzip, 1000).await.unwrap(), b"");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn gzip_that_ends_early_or_is_none_is_refused() {
        let whole = gzip(&b"0123456789".repeat(100));
        for sent in [whole[..whole.len() - 1].to_vec(), b"no gzip".to_vec()] {
            let refused = receive(sent, true, 1000).await;
            assert!(matches!(refused, Err(UploadError::Refused(Refusal::Invalid(_)))), "{refused:?}");
        }
    }
}

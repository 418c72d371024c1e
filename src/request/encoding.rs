//! Compresses an answer with the content coding that the client prefers: at once, or part by part ([`Encoder`]).

use std::io::Write;

use bytes::Bytes;
use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

/// A content coding (RFC 9110, section 12.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Zstd,
    Brotli,
    Gzip,
}

/// Our order of preference among equally weighted codings: the cheapest first.
const CHOICES: [Encoding; 3] = [Encoding::Zstd, Encoding::Brotli, Encoding::Gzip];

/// Minimum size of a body that is compressed.
///
/// Larger: more bytes on the wire. Smaller: bodies that fit one packet anyway are compressed for nothing.
pub(super) const SMALLEST: usize = 1024;

/// Minimum size of a body that is compressed on a blocking thread.
///
/// Larger: compression holds up other requests. Smaller: more bodies pay for the change of thread.
const LARGE: usize = 128 * 1024;

impl Encoding {
    /// The token in `Content-Encoding`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// The coding that a client prefers; `None` if it accepts none of ours, or prefers identity.
    pub(super) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let mut weights: Vec<(String, f32)> = Vec::new();
        for value in headers.get_all(ACCEPT_ENCODING) {
            for item in value.to_str().ok()?.split(',') {
                let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
                let weight = parameters.trim().strip_prefix(['q', 'Q']).and_then(|rest| rest.strip_prefix('='));
                let weight = weight.map_or(Some(1.0), |weight| weight.trim().parse().ok());
                weights.push((name.trim().to_ascii_lowercase(), weight.unwrap_or(0.0)));
            }
        }
        let weight_of = |name: &str| {
            let exact = weights.iter().find(|(known, _)| known == name || (known == "x-gzip" && name == "gzip"));
            exact
                .or_else(|| weights.iter().find(|(known, _)| known == "*" && name != "identity"))
                .map(|(_, weight)| *weight)
        };
        let plain = weight_of("identity").unwrap_or(0.0);
        let mut best: Option<(Self, f32)> = None;
        for choice in CHOICES {
            let weight = weight_of(choice.name()).unwrap_or(0.0);
            if weight > 0.0 && weight >= plain && best.is_none_or(|(_, most)| weight > most) {
                best = Some((choice, weight));
            }
        }
        best.map(|(choice, _)| choice)
    }

    /// Compresses a body.
    pub(super) async fn compress(self, body: Bytes) -> std::io::Result<Bytes> {
        if body.len() < LARGE {
            return self.compress_now(&body);
        }
        let compressing = tokio::task::spawn_blocking(move || self.compress_now(&body));
        compressing.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic)))
    }

    fn compress_now(self, body: &[u8]) -> std::io::Result<Bytes> {
        // Each level takes about as long as writing the JSON did.
        Ok(match self {
            Self::Zstd => zstd::bulk::compress(body, 1)?.into(),
            Self::Brotli => {
                let mut compressor = brotli::CompressorWriter::new(Vec::new(), 4096, 3, 20);
                compressor.write_all(body)?;
                compressor.into_inner().into()
            }
            Self::Gzip => {
                let mut compressor = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                compressor.write_all(body)?;
                compressor.finish()?.into()
            }
        })
    }
}

/// Compresses an answer part by part.
pub(super) enum Encoder {
    Zstd(Box<zstd::stream::write::Encoder<'static, Vec<u8>>>),
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
    Gzip(Box<flate2::write::GzEncoder<Vec<u8>>>),
}

impl Encoding {
    /// Begins to compress an answer of unknown length.
    pub(super) fn encoder(self) -> std::io::Result<Encoder> {
        Ok(match self {
            Self::Zstd => Encoder::Zstd(Box::new(zstd::stream::write::Encoder::new(Vec::new(), 1)?)),
            // A smaller window than for whole answers: it is held for as long as the client reads.
            Self::Brotli => Encoder::Brotli(Box::new(brotli::CompressorWriter::new(Vec::new(), 4096, 3, 18))),
            Self::Gzip => {
                let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                Encoder::Gzip(Box::new(encoder))
            }
        })
    }
}

impl Encoder {
    /// Adds a part. Returns what is compressed so far, which may be nothing.
    pub(super) async fn write(mut self, part: Bytes) -> std::io::Result<(Self, Bytes)> {
        if part.len() < LARGE {
            let compressed = self.write_now(&part)?;
            return Ok((self, compressed));
        }
        let compressing = tokio::task::spawn_blocking(move || {
            let compressed = self.write_now(&part)?;
            Ok((self, compressed))
        });
        compressing.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic)))
    }

    fn write_now(&mut self, part: &[u8]) -> std::io::Result<Bytes> {
        match self {
            Self::Zstd(encoder) => encoder.write_all(part)?,
            Self::Brotli(encoder) => encoder.write_all(part)?,
            Self::Gzip(encoder) => encoder.write_all(part)?,
        }
        Ok(std::mem::take(self.output()).into())
    }

    fn output(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Zstd(encoder) => encoder.get_mut(),
            Self::Brotli(encoder) => encoder.get_mut(),
            Self::Gzip(encoder) => encoder.get_mut(),
        }
    }

    /// The end of the compressed answer.
    pub(super) fn finish(self) -> std::io::Result<Bytes> {
        Ok(match self {
            Self::Zstd(encoder) => encoder.finish()?.into(),
            Self::Brotli(encoder) => encoder.into_inner().into(),
            Self::Gzip(encoder) => encoder.finish()?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_chooses_and_we_choose_among_equals() {
        let cases = [
            ("", None),
            ("identity", None),
            ("gzip", Some(Encoding::Gzip)),
            ("X-Gzip", Some(Encoding::Gzip)),
            ("gzip, deflate, br, zstd", Some(Encoding::Zstd)),
            ("gzip;q=1.0, br;q=0.5", Some(Encoding::Gzip)),
            ("br;q=0.8, zstd;q=0", Some(Encoding::Brotli)),
            ("*", Some(Encoding::Zstd)),
            ("*;q=0", None),
            ("gzip;Q=0", None),
            ("identity;q=1, gzip;q=0.5", None),
            ("gzip;q=nonsense", None),
        ];
        for (value, expected) in cases {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, value.parse().unwrap())]);
            assert_eq!(Encoding::accepted(&headers), expected, "{value:?}");
        }
        assert_eq!(Encoding::accepted(&HeaderMap::new()), None);
    }
}

//! The floods, each on a thread of its own until it is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use formgate::tenant::token::PresentedToken;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::caller::{dial, shake};
use crate::gateway::{FLOODED, HOST, Reach};

/// How many callers flood at once. More than [`formgate::config::ConnectionLimits::connections_per_address`] for those that hold on.
const QUICK: usize = 16;
const HOLDING: usize = 400;

const FROM: &str = "127.0.0.2:0";

/// A kind of flood.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flood {
    None,
    Silence,
    Handshakes,
    DrippedHeads,
    SlowBodies,
    Pings,
    Resets,
    AmbiguousHeads,
    BadTokens,
}

/// A flood that runs.
pub(crate) struct Flooding {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Flooding {
    /// Ends it; how much was sent.
    pub(crate) fn stop(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sent.load(Ordering::Relaxed);
        self.thread.join().expect("a flood does not panic");
        sent as f64
    }
}

impl Flood {
    pub(crate) const ALL: [Self; 9] = [
        Self::None,
        Self::Silence,
        Self::Handshakes,
        Self::DrippedHeads,
        Self::SlowBodies,
        Self::Pings,
        Self::Resets,
        Self::AmbiguousHeads,
        Self::BadTokens,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Silence => "connections that say nothing",
            Self::Handshakes => "TLS handshakes",
            Self::DrippedHeads => "heads, a byte at a time",
            Self::SlowBodies => "bodies, a byte at a time",
            Self::Pings => "PING frames",
            Self::Resets => "requests, reset at once",
            Self::AmbiguousHeads => "heads with two lengths",
            Self::BadTokens => "invented tokens",
        }
    }

    fn callers(self) -> usize {
        match self {
            Self::None => 0,
            Self::Silence | Self::DrippedHeads | Self::SlowBodies => HOLDING,
            Self::Handshakes | Self::Pings | Self::Resets | Self::AmbiguousHeads | Self::BadTokens => QUICK,
        }
    }

    pub(crate) fn start(self, gateway: &Reach) -> Flooding {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let gateway = gateway.clone();
        let thread = std::thread::spawn({
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(async {
                    let callers = (0..self.callers()).map(|_| async {
                        loop {
                            // That it is refused or cut is what the gateway is for; it comes back at once, or nearly.
                            let _ = self.once(&gateway, &sent).await;
                            sleep(Duration::from_millis(1)).await;
                        }
                    });
                    let flood = futures_util::future::join_all(callers);
                    let stopped = async {
                        while !stop.load(Ordering::Relaxed) {
                            sleep(Duration::from_millis(10)).await;
                        }
                    };
                    tokio::select! {
                        _ = flood, if self.callers() > 0 => {}
                        () = stopped => {}
                    }
                });
            }
        });
        Flooding { stop, sent, thread }
    }

    /// One connection to its end.
    async fn once(self, gateway: &Reach, sent: &AtomicU64) -> anyhow::Result<()> {
        let count = || sent.fetch_add(1, Ordering::Relaxed);
        let (is_http_2, head) = match self {
            Self::None => return Ok(()),
            Self::Silence => {
                let mut stream = dial(gateway, FROM).await?;
                count();
                while stream.read(&mut [0]).await? > 0 {}
                return Ok(());
            }
            Self::Handshakes => (false, String::new()),
            Self::DrippedHeads => (false, "G".to_owned()),
            Self::SlowBodies => (false, Self::request(gateway, "Content-Length: 1000000\r\n")),
            Self::Pings | Self::Resets => (true, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
            Self::AmbiguousHeads => (false, Self::request(gateway, "Content-Length: 2\r\nContent-Length: 2\r\n")),
            Self::BadTokens => (false, String::new()),
        };
        let alpn = if is_http_2 { b"h2".as_slice() } else { b"http/1.1" };
        let mut stream = shake(gateway, FROM, alpn).await?;
        stream.write_all(head.as_bytes()).await?;
        if !matches!(self, Self::Pings | Self::Resets | Self::BadTokens) {
            count();
        }
        let mut scratch = vec![0; 16 * 1024];
        match self {
            Self::None | Self::Silence | Self::Handshakes => return Ok(()),
            Self::AmbiguousHeads => while stream.read(&mut scratch).await? > 0 {},
            Self::DrippedHeads | Self::SlowBodies => loop {
                stream.write_all(b"x").await?;
                stream.flush().await?;
                if let Ok(read) = timeout(Duration::from_secs(1), stream.read(&mut scratch)).await
                    && read? == 0
                {
                    return Ok(());
                }
            },
            Self::BadTokens => loop {
                let token = PresentedToken::generate();
                let request = format!(
                    "GET /api/v1/me HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {}\r\n\r\n",
                    token.expose()
                );
                stream.write_all(request.as_bytes()).await?;
                stream.flush().await?;
                if stream.read(&mut scratch).await? == 0 {
                    return Ok(());
                }
                count();
            },
            Self::Pings | Self::Resets => {
                stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
                let mut next = 1_u32;
                loop {
                    let mut frames = Vec::new();
                    for _ in 0..100 {
                        if matches!(self, Self::Pings) {
                            frames.extend([0, 0, 8, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                            continue;
                        }
                        // GET https / and the authority, all by their places in HPACK's table but the last.
                        let fields = [&[0x82, 0x87, 0x84, 0x41, 17], HOST.as_bytes()].concat();
                        frames.extend([0, 0, u8::try_from(fields.len())?, 1, 5]);
                        frames.extend(next.to_be_bytes());
                        frames.extend(fields);
                        frames.extend([0, 0, 4, 3, 0]);
                        frames.extend(next.to_be_bytes());
                        frames.extend([0, 0, 0, 8]);
                        next += 2;
                    }
                    stream.write_all(&frames).await?;
                    stream.flush().await?;
                    sent.fetch_add(100, Ordering::Relaxed);
                    while let Ok(read) = timeout(Duration::ZERO, stream.read(&mut scratch)).await {
                        if read? == 0 {
                            return Ok(());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A request's head, with a good token.
    fn request(gateway: &Reach, fields: &str) -> String {
        format!(
            "POST /api/v1/submission HTTP/1.1\r\nHost: {FLOODED}\r\nAuthorization: Bearer {}\r\n{fields}\r\n",
            gateway.flooders_token
        )
    }
}

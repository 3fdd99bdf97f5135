//! Requests to the hub: redirects, errors and retries.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::address::{Address, encoded};
use super::exchange::{BodyPiece, Exchange, Head, Request};
use super::pace::Pace;
use super::watch::{TICK, Watch};
use crate::{HubError, ModelName, Settings, Token, Waits};

/// Requests to one hub about one repository.
pub(crate) struct Client {
    agent: Agent,
    endpoint: Address,
    token: Option<Token>,
    waits: Waits,
    repository: String,
    /// True if root certificates exist, so that servers can be authenticated.
    trusts: bool,
    /// True once any server has answered.
    answered: Cell<bool>,
}

/// An answer whose body is not yet read.
pub(crate) struct Answer {
    pub(crate) head: Head,
    /// Address of the answer, after redirects.
    pub(crate) address: Address,
    exchange: Exchange,
    silence: Duration,
    pace: Pace,
}

/// Reason for a failed attempt.
pub(crate) enum Trouble {
    /// Another attempt would fail too.
    Lasting(HubError),
    /// Another attempt may succeed.
    Passing {
        host: String,
        problem: String,
        /// Delay that the server requests.
        wait: Option<Duration>,
    },
}

impl From<HubError> for Trouble {
    fn from(error: HubError) -> Self {
        Self::Lasting(error)
    }
}

/// Limit on the redirects.
const MOST_REDIRECTS: usize = 10;
/// Attempts before any server has answered.
const FIRST_ATTEMPTS: u32 = 2;
/// Replacement for a text that contains the token.
const LEFT_OUT: &str = "(its message is left out, since it holds your token)";
/// Limit on the characters of a server's message.
const LONGEST_MESSAGE: usize = 200;

impl Answer {
    /// The next bytes; `None` at the end.
    pub(crate) fn next(&self, watch: &mut Watch<'_>) -> Result<Option<Vec<u8>>, Trouble> {
        let start = Instant::now();
        match self.piece(watch)? {
            BodyPiece::Bytes(bytes) => {
                if self.pace.is_kept(start.elapsed(), bytes.len() as u64) {
                    Ok(Some(bytes))
                } else {
                    Err(self.trouble(format!(
                        "fewer than {} bytes came in {} s",
                        self.pace.least_bytes,
                        self.pace.window.as_secs_f32()
                    )))
                }
            }
            BodyPiece::Head(_) | BodyPiece::End => Ok(None),
            BodyPiece::Failed(error) => Err(self.trouble(said(&error))),
        }
    }

    /// The whole body, up to `limit_bytes`.
    pub(crate) fn read(&self, limit_bytes: usize, watch: &mut Watch<'_>) -> Result<Vec<u8>, Trouble> {
        let mut body = Vec::new();
        while let Some(bytes) = self.next(watch)? {
            body.extend_from_slice(&bytes);
            if body.len() > limit_bytes {
                return Err(self.refused(format!("the answer is longer than {limit_bytes} bytes")));
            }
            watch.tick()?;
        }
        Ok(body)
    }

    /// Refuses this answer permanently.
    pub(crate) fn refused(&self, problem: String) -> Trouble {
        Trouble::Lasting(HubError::Answer {
            url: self.address.shown(),
            problem,
        })
    }

    /// A failure of this answer that another attempt may avoid.
    pub(crate) fn trouble(&self, problem: String) -> Trouble {
        passing(&self.address, problem)
    }

    fn piece(&self, watch: &mut Watch<'_>) -> Result<BodyPiece, Trouble> {
        piece(&self.exchange, &self.address, self.silence, watch)
    }
}

fn passing(address: &Address, problem: String) -> Trouble {
    Trouble::Passing {
        host: address.host().to_owned(),
        problem,
        wait: None,
    }
}

fn piece(
    exchange: &Exchange,
    address: &Address,
    silence: Duration,
    watch: &mut Watch<'_>,
) -> Result<BodyPiece, Trouble> {
    let start = Instant::now();
    loop {
        if let Some(piece) = exchange.next(TICK) {
            return Ok(piece);
        }
        watch.tick()?;
        if start.elapsed() > silence {
            return Err(passing(
                address,
                format!("nothing came for {} s", silence.as_secs_f32()),
            ));
        }
    }
}

impl Client {
    /// # Errors
    /// [`HubError::Variable`] for an invalid endpoint address.
    pub(crate) fn new(settings: &Settings, name: &ModelName) -> Result<Self, HubError> {
        let endpoint = Address::parse(&settings.endpoint).ok_or_else(|| HubError::Variable {
            variable: "HF_ENDPOINT".to_owned(),
            problem: format!("is {:?}, which is no address", settings.endpoint),
        })?;
        let certificates = rustls_native_certs::load_native_certs().certs;
        let roots: Vec<Certificate<'static>> = certificates
            .iter()
            .map(|certificate| Certificate::from_der(certificate).to_owned())
            .collect();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&roots))
            .unversioned_rustls_crypto_provider(Arc::new(rustls_graviola::default_provider()))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .user_agent(concat!("riffle/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // This client follows redirects itself, because it must control who gets the token.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(settings.waits.silence))
            .timeout_recv_response(Some(settings.waits.silence))
            .timeout_per_read(Some(settings.waits.silence))
            .build();
        Ok(Self {
            agent: config.into(),
            endpoint,
            token: settings.token.clone(),
            waits: settings.waits.clone(),
            repository: name.repository(),
            trusts: !roots.is_empty(),
            answered: Cell::new(false),
        })
    }

    /// Address of the hub's API for this repository; `rest` is appended unchanged.
    pub(crate) fn api(&self, rest: &str) -> Address {
        let path = format!("/api/models/{}/{rest}", self.repository);
        self.below_endpoint(&path)
    }

    /// Address of a file's bytes.
    pub(crate) fn file(&self, commit: &str, path: &str) -> Address {
        self.below_endpoint(&format!("/{}/resolve/{commit}/{}", self.repository, encoded(path)))
    }

    /// True if a name from the hub contains the token.
    pub(crate) fn is_token_in(&self, name: &str) -> bool {
        self.token.as_ref().is_some_and(|token| token.is_in_name(name))
    }

    /// The error, or a replacement if its message contains the token; servers may echo it in addresses.
    pub(crate) fn without_secret(&self, error: HubError) -> HubError {
        match &self.token {
            Some(token) if token.is_in(&error.to_string()) => HubError::Answer {
                url: self.endpoint.host().to_owned(),
                problem: LEFT_OUT.to_owned(),
            },
            _ => error,
        }
    }

    /// True if an address is the hub's own.
    pub(crate) fn is_hub(&self, address: &Address) -> bool {
        address.is_same_origin(&self.endpoint)
    }

    /// Retries `attempt` until it succeeds or fails permanently. It waits twice as long after each temporary failure,
    /// or as long as the server requests. A window's bytes reset the count.
    pub(crate) fn with_tries<T>(
        &self,
        watch: &mut Watch<'_>,
        attempt: &mut dyn FnMut(&mut Watch<'_>) -> Result<T, Trouble>,
    ) -> Result<T, HubError> {
        let mut failed = 0;
        loop {
            let before = watch.progress.bytes_done;
            let (host, problem, wait) = match attempt(watch) {
                Ok(value) => return Ok(value),
                Err(Trouble::Lasting(error)) => return Err(error),
                Err(Trouble::Passing { host, problem, wait }) => (host, problem, wait),
            };
            if watch.progress.bytes_done.saturating_sub(before) >= self.waits.window_bytes.max(1) {
                failed = 0;
            }
            failed += 1;
            if !self.answered.get() && failed >= FIRST_ATTEMPTS.min(self.waits.attempts) {
                return Err(HubError::Unreachable { host, problem });
            }
            if let Some(wait) = wait.filter(|wait| *wait > self.waits.asked) {
                return Err(HubError::Busy { host, wait });
            }
            if failed >= self.waits.attempts {
                return Err(HubError::Connection {
                    host,
                    problem,
                    attempts: failed,
                });
            }
            let doubled = self.waits.first.saturating_mul(1 << (failed - 1).min(16));
            let wait = wait.unwrap_or(doubled.min(self.waits.longest));
            watch.wait(wait, &self.without_token(&format!("{host}: {problem}")))?;
        }
    }

    /// Sends one request and follows redirects. Only the hub receives the token.
    pub(crate) fn ask(&self, address: &Address, from: u64, watch: &mut Watch<'_>) -> Result<Answer, Trouble> {
        let mut address = address.clone();
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.ask_one(&address, from, watch)?;
            match answer.head.status {
                200 | 206 | 416 => return Ok(answer),
                301 | 302 | 303 | 307 | 308 => address = next_address(&answer)?,
                _ => return Err(self.reason(&answer)),
            }
        }
        Err(HubError::Answer {
            url: address.shown(),
            problem: format!("it is behind more than {MOST_REDIRECTS} redirects"),
        }
        .into())
    }

    fn below_endpoint(&self, path: &str) -> Address {
        self.endpoint.below(path)
    }

    fn ask_one(&self, address: &Address, from: u64, watch: &mut Watch<'_>) -> Result<Answer, Trouble> {
        if address.is_encrypted()
            && let Some(missing) = missing_instructions()
        {
            return Err(HubError::Processor {
                missing: missing.to_owned(),
                repository: self.repository.clone(),
            }
            .into());
        }
        if address.is_encrypted() && !self.trusts {
            return Err(HubError::Unreachable {
                host: address.host().to_owned(),
                problem: "this system has no certificates to trust; install its package ca-certificates, or name a file of certificates by SSL_CERT_FILE".to_owned(),
            }
            .into());
        }
        let request = Request {
            address: address.clone(),
            token: self.token.clone().filter(|_| self.is_hub(address)),
            from,
        };
        let no_thread = |error: std::io::Error| passing(address, format!("no thread can be started: {error}"));
        let exchange = Exchange::begin(&self.agent, request).map_err(no_thread)?;
        match piece(&exchange, address, self.waits.silence, watch)? {
            BodyPiece::Head(head) => {
                self.answered.set(true);
                Ok(Answer {
                    head,
                    address: address.clone(),
                    exchange,
                    silence: self.waits.silence,
                    pace: Pace::new(&self.waits),
                })
            }
            BodyPiece::Failed(error) if is_lasting(&error) => Err(HubError::Unreachable {
                host: address.host().to_owned(),
                problem: self.without_token(&said(&error)),
            }
            .into()),
            BodyPiece::Failed(error) => Err(passing(address, self.without_token(&said(&error)))),
            BodyPiece::Bytes(_) | BodyPiece::End => Err(passing(address, "the connection was cut".to_owned())),
        }
    }

    /// The text, or a replacement if it contains the token in a decodable form.
    fn without_token(&self, text: &str) -> String {
        match &self.token {
            Some(token) if token.is_in(text) => LEFT_OUT.to_owned(),
            _ => text.to_owned(),
        }
    }

    /// The reason for a server's status other than success.
    fn reason(&self, answer: &Answer) -> Trouble {
        let status = answer.head.status;
        let (address, repository) = (&answer.address, self.repository.clone());
        let said = answer.head.header("x-error-message").unwrap_or_default();
        let said = self.without_token(said);
        let said: String = said.chars().take(LONGEST_MESSAGE).collect();
        let stated = if said.is_empty() {
            format!("it answers with status {status}")
        } else {
            format!("it answers with status {status}: {said}")
        };
        if matches!(status, 408 | 425 | 429 | 500..) {
            return Trouble::Passing {
                host: address.host().to_owned(),
                problem: stated,
                wait: asked_wait(&answer.head),
            };
        }
        if !self.is_hub(address) {
            // Links to file storage expire after some minutes; another request to the hub returns a new link.
            return passing(address, stated);
        }
        let is_gated = answer.head.header("x-error-code") == Some("GatedRepo");
        let host = address.host().to_owned();
        let error = match status {
            401 | 403 if is_gated => self.gated(),
            401 => match &self.token {
                Some(token) => HubError::Token {
                    host: self.endpoint.below("").to_string().trim_end_matches('/').to_owned(),
                    source_of_token: token.source().to_owned(),
                },
                None => HubError::NotFound { host, repository },
            },
            403 => self.gated(),
            404 if answer.head.header("x-error-code") != Some("EntryNotFound") => {
                HubError::NotFound { host, repository }
            }
            _ => return answer.refused(stated),
        };
        Trouble::Lasting(error)
    }

    fn gated(&self) -> HubError {
        HubError::Gated {
            repository: self.repository.clone(),
            page: self.endpoint.below(&format!("/{}", self.repository)).to_string(),
        }
    }
}

fn next_address(answer: &Answer) -> Result<Address, Trouble> {
    let location = answer.head.header("location").unwrap_or_default();
    let next = answer.address.join(location);
    let next = next.ok_or_else(|| answer.refused("it redirects to what is no address".to_owned()))?;
    if answer.address.is_encrypted() && !next.is_encrypted() {
        Err(answer.refused(format!("it redirects to {} without encryption", next.host())))
    } else {
        Ok(next)
    }
}

/// Delay that a server requests: `Retry-After` in seconds or as a date, or the rest of the hub's rate-limit period.
fn asked_wait(head: &Head) -> Option<Duration> {
    if let Some(asked) = head.header("retry-after") {
        let asked = asked.trim();
        return match asked.parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => {
                let date = httpdate::parse_http_date(asked).ok()?;
                Some(date.duration_since(SystemTime::now()).unwrap_or_default())
            }
        };
    }
    // Example: RateLimit: "api";r=0;t=55
    let period = head
        .header("ratelimit")?
        .split(';')
        .find_map(|part| part.trim().strip_prefix("t="))?;
    period.parse().ok().map(Duration::from_secs)
}

/// True for an error that another attempt would repeat.
fn is_lasting(error: &ureq::Error) -> bool {
    use ureq::Error as E;
    let is_certificate = error.to_string().contains("certificate");
    is_certificate
        || matches!(
            error,
            E::Http(_) | E::BadUri(_) | E::InvalidProxyUrl | E::LargeResponseHeader(..)
        )
}

/// Message of the error without `ureq`'s prefix.
fn said(error: &ureq::Error) -> String {
    let text = match error {
        ureq::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    };
    if text.contains("certificate") {
        format!("{text} (SSL_CERT_FILE names a file of certificates to trust)")
    } else {
        text
    }
}

/// Required instructions of the cryptography that this processor lacks.
fn missing_instructions() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        let all = has!("aes") && has!("ssse3") && has!("avx") && has!("avx2") && has!("adx") && has!("bmi2");
        (!(all && has!("pclmulqdq"))).then_some("AES, AVX2, ADX or BMI2")
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        let all = has!("aes") && has!("sha2") && has!("pmull") && has!("neon");
        (!all).then_some("AES, PMULL or SHA2")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
}

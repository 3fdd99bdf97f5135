//! Addresses of stores: `SCHEME://[USER[:PASSWORD]@]HOST[:PORT][/PATH][?NAME=VALUE&..]`.

use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::OpenError;

/// The parts of an address, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    /// The path without slashes at its ends.
    pub(crate) path: String,
    query: Vec<(String, String)>,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, OpenError> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| OpenError::Scheme(text.to_owned()))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, host) = match authority.rsplit_once('@') {
            Some((login, host)) => (Some(login), host),
            None => (None, authority),
        };
        let mut address = Self {
            scheme: scheme.to_ascii_lowercase(),
            user: None,
            password: None,
            host: host.to_owned(),
            port: None,
            path: path.trim_matches('/').to_owned(),
            query: Vec::new(),
        };
        if let Some(login) = login {
            let (user, password) = login
                .split_once(':')
                .map_or((login, None), |(user, password)| (user, Some(password)));
            address.user = Some(address.decoded(user)?).filter(|user| !user.is_empty());
            address.password = password.map(|password| address.decoded(password)).transpose()?;
        }
        // The colons of [::1] do not precede a port.
        let digits = host.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
        if let Some((host, port)) = digits {
            address.host = host.to_owned();
            let port = port.parse().map_err(|_| address.wrong(format!("{port} is no port")))?;
            address.port = Some(port);
        }
        address.host = address.host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if address.host.is_empty() {
            return Err(address.wrong("a host or a bucket is missing after ://"));
        }
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = address.decoded(value)?;
            address.query.push((name.to_owned(), value));
        }
        Ok(address)
    }

    /// Removes a value from the query; `read` parses it, or refuses it.
    pub(crate) fn take<T>(&mut self, name: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, OpenError> {
        let Some(place) = self.query.iter().position(|(other, _)| other == name) else {
            return Ok(None);
        };
        let (_, value) = self.query.remove(place);
        match read(&value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.wrong(format!(
                "{name}={value} cannot be read: write for example budget=200G, expiry=7d"
            ))),
        }
    }

    /// Refuses unused values.
    pub(crate) fn check_all_taken(&self) -> Result<(), OpenError> {
        match self.query.first() {
            None => Ok(()),
            Some((name, _)) => Err(self.wrong(format!(
                "{name}= is not known here: there are expiry, budget and machines, for s3:// region and endpoint, for valkey:// prefix"
            ))),
        }
    }

    pub(crate) fn wrong(&self, problem: impl Into<String>) -> OpenError {
        let slash = if self.path.is_empty() { "" } else { "/" };
        OpenError::Address {
            address: format!("{}://{}{slash}{}", self.scheme, self.host, self.path),
            problem: problem.into(),
        }
    }

    fn decoded(&self, text: &str) -> Result<String, OpenError> {
        let decoded = percent_decode_str(text).decode_utf8();
        decoded
            .map(|text| text.into_owned())
            .map_err(|_| self.wrong("a part of it is not UTF-8"))
    }
}

/// `200G`, `512M`: bytes in units of 1024.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text)?;
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

/// `90s`, `30m`, `12h`, `7d`; a number without a unit means seconds.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text)?;
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return None,
    };
    let seconds = number.checked_mul(seconds)?;
    // A century is practically unlimited, and fits the stores' counters.
    (seconds > 0).then(|| Duration::from_secs(seconds.min(100 * 365 * 24 * 3600)))
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_parts_decoded() {
        let address = Address::parse("rediss://me:p%40ss%3A@[::1]:7000/3/?prefix=a%2Fb&expiry=2h").unwrap();
        assert_eq!(
            (address.scheme.as_str(), address.host.as_str(), address.port),
            ("rediss", "::1", Some(7000))
        );
        assert_eq!(
            (address.user.as_deref(), address.password.as_deref()),
            (Some("me"), Some("p@ss:"))
        );
        assert_eq!((address.path.as_str(), address.query[0].1.as_str()), ("3", "a/b"));
        let plain = Address::parse("s3://bucket/some/folder").unwrap();
        assert_eq!(
            (plain.host.as_str(), plain.path.as_str(), plain.port),
            ("bucket", "some/folder", None)
        );
        assert_eq!(
            Address::parse("valkey://:word@host").unwrap().password.as_deref(),
            Some("word")
        );
    }

    #[test]
    fn wrong_addresses_are_refused_without_their_passwords() {
        for text in [
            "valkey://",
            "valkey://u:secret@host:port",
            "redis://u:secret@:6379",
            "s3:///x",
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn amounts_and_times_are_read_with_their_units_or_refused() {
        assert_eq!(
            [bytes("200G"), bytes("7"), bytes("3k")],
            [Some(200 << 30), Some(7), Some(3072)]
        );
        assert_eq!(bytes("99999999999T"), None);
        assert_eq!([bytes(""), bytes("0"), bytes("G"), bytes("3X"), bytes("-1")], [None; 5]);
        let seconds = |text| duration(text).map(|time| time.as_secs());
        assert_eq!(
            [seconds("90s"), seconds("5"), seconds("2h"), seconds("7d")],
            [Some(90), Some(5), Some(7200), Some(604_800)]
        );
        assert_eq!([seconds("0"), seconds("1w"), seconds("d")], [None; 3]);
    }
}

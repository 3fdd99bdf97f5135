//! Addresses with the parts that redirects need.

use std::fmt::{self, Display};
use std::net::Ipv6Addr;

/// An `http` or `https` address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    scheme: String,
    /// Host and port, in small letters.
    authority: String,
    /// Path from the slash on, with the query.
    path: String,
}

impl Address {
    /// Parses an address; `None` for another scheme, an invalid host, a user name, or characters that a request
    /// cannot contain.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.split('#').next().unwrap_or_default();
        if !text.chars().all(|c| c.is_ascii_graphic()) {
            return None;
        }
        let (scheme, rest) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let authority = rest[..end].to_ascii_lowercase();
        let path = if rest[end..].starts_with('/') {
            rest[end..].to_owned()
        } else {
            format!("/{}", &rest[end..])
        };
        let is_known = scheme == "http" || scheme == "https";
        (is_known && is_host_and_port(&authority)).then_some(Self {
            scheme,
            authority,
            path,
        })
    }

    /// Resolves a redirect's `location` against this address.
    pub(crate) fn join(&self, location: &str) -> Option<Self> {
        if location.contains("://") && !location.starts_with(['/', '?', '.']) {
            return Self::parse(location);
        }
        let Self {
            scheme,
            authority,
            path,
        } = self;
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{scheme}://{rest}"));
        }
        if location.starts_with('/') {
            return Self::parse(&format!("{scheme}://{authority}{location}"));
        }
        let folder = path.split('?').next().unwrap_or_default();
        let folder = &folder[..=folder.rfind('/').unwrap_or(0)];
        Self::parse(&format!("{scheme}://{authority}{folder}{location}"))
    }

    /// The address of `path` on this server. The path begins with a slash.
    pub(crate) fn below(&self, path: &str) -> Self {
        Self {
            path: format!("{}{path}", self.path.trim_end_matches('/')),
            ..self.clone()
        }
    }

    /// The address for a message, without the query, which may contain a secret.
    pub(crate) fn shown(&self) -> String {
        let shown = self.to_string();
        shown.split('?').next().unwrap_or_default().to_owned()
    }

    /// True if both have the same scheme, host and port.
    pub(crate) fn is_same_origin(&self, other: &Self) -> bool {
        self.scheme == other.scheme && self.host_and_port() == other.host_and_port()
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.scheme == "https"
    }

    /// The host, with the port if given.
    pub(crate) fn host(&self) -> &str {
        &self.authority
    }

    fn host_and_port(&self) -> &str {
        let usual = if self.is_encrypted() { ":443" } else { ":80" };
        self.authority.strip_suffix(usual).unwrap_or(&self.authority)
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)
    }
}

/// True for `name`, `name:port`, `1.2.3.4` and `[::1]:port`.
fn is_host_and_port(authority: &str) -> bool {
    let (is_host, rest) = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, rest)) => (host.parse::<Ipv6Addr>().is_ok(), rest),
            None => return false,
        },
        None => {
            let end = authority.find(':').unwrap_or(authority.len());
            (is_host_name(&authority[..end]), &authority[end..])
        }
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    is_host && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
}

fn is_host_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        let mut bytes = label.bytes();
        (1..=63).contains(&label.len()) && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Percent-encodes a path: every byte except letters, digits, `-._~` and slashes.
pub(crate) fn encoded(path: &str) -> String {
    let mut result = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            result.push(byte as char)
        } else {
            result += &format!("%{byte:02X}")
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn locations_are_followed_as_browsers_do() {
        let here = address("https://Hub.co/a/b/c?x=1");
        for (location, there) in [
            ("https://cdn.co/f?sig=a/b", "https://cdn.co/f?sig=a/b"),
            ("//cdn.co/f", "https://cdn.co/f"),
            ("/d/e?y=https://z", "https://hub.co/d/e?y=https://z"),
            ("d", "https://hub.co/a/b/d"),
            ("HTTPS://CDN.co", "https://cdn.co/"),
            ("http://[::1]:80/f", "http://[::1]:80/f"),
            ("http://1.2.3.4:65535/f", "http://1.2.3.4:65535/f"),
            ("https://my_bucket.s3-eu.cdn.co./f", "https://my_bucket.s3-eu.cdn.co./f"),
        ] {
            let found = here.join(location).unwrap_or_else(|| panic!("{location}"));
            assert_eq!(found.to_string(), there);
        }
        for location in [
            "ftp://a/b",
            "file:///etc/passwd",
            "https://",
            "https://a/b c",
            "https:///x",
            "https://a/\r\nX: y",
            "http://[::1",
            "http://[::g]/",
            "http://[::1]x/",
            "http://a\\@b/",
            "http://user@b/",
            "http://user:secret@b/",
            "http://a..b/",
            "http://.b/",
            "http://a:65536/",
            "http://a:+1/",
            "http://a:/",
            "http://a:1:2/",
            "http://a%2eb/",
            "http://-a<b/",
            "//[::1",
        ] {
            assert_eq!(here.join(location), None, "{location:?}");
        }
    }

    #[test]
    fn another_scheme_host_or_port_is_another_origin() {
        let here = address("https://hub.co/a");
        for same in ["https://hub.co/b", "https://HUB.co:443/"] {
            assert!(here.is_same_origin(&address(same)), "{same}");
        }
        for other in [
            "http://hub.co/",
            "https://hub.co:444/",
            "https://cdn.hub.co/",
            "https://hub.co.evil.co/",
            "https://evil.co/hub.co",
        ] {
            assert!(!here.is_same_origin(&address(other)), "{other}");
        }
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encoded("a b/ü#?%.gguf"), "a%20b/%C3%BC%23%3F%25.gguf");
    }
}

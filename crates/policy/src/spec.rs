use std::fmt;
use std::str::FromStr;

use crate::catalogue::find;
use crate::parameter::Parameters;
use crate::{PolicyError, PolicyInfo};

/// A policy of the catalogue with the values of all its parameters, spelled `name` or `name:key=value,key=value`.
///
/// Parsing checks names and values and fills in the defaults, so a spec that exists can be built in every phase that
/// its policy supports. It prints with all its parameters.
#[derive(Clone, PartialEq)]
pub struct PolicySpec {
    info: &'static PolicyInfo,
    parameters: Parameters,
}

impl PolicySpec {
    /// Dense attention.
    pub fn full() -> Self {
        "full"
            .parse()
            .expect("the catalogue has full, which needs no parameters")
    }

    /// The policy's name.
    pub fn name(&self) -> &'static str {
        self.info.name
    }

    /// The policy in the catalogue.
    pub fn info(&self) -> &'static PolicyInfo {
        self.info
    }

    pub(crate) fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl FromStr for PolicySpec {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let (name, list) = match text.split_once(':') {
            Some((name, list)) => (name.trim(), Some(list)),
            None => (text.trim(), None),
        };
        let info = find(name)?;
        let mut given: Vec<(&str, &str)> = Vec::new();
        for part in list.into_iter().flat_map(|list| list.split(',')) {
            let (key, value) = part
                .split_once('=')
                .map(|(key, value)| (key.trim(), value.trim()))
                .unwrap_or_default();
            if key.is_empty() || value.is_empty() {
                return Err(PolicyError::Syntax { text: text.to_owned() });
            }
            if given.iter().any(|(known, _)| *known == key) {
                return Err(PolicyError::RepeatedParameter {
                    policy: info.name,
                    parameter: key.to_owned(),
                });
            }
            given.push((key, value));
        }
        Ok(Self {
            info,
            parameters: Parameters::new(info.name, info.parameters, &given)?,
        })
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info.name)?;
        for (n, (parameter, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{parameter}={value}", if n == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicySpec({self})")
    }
}

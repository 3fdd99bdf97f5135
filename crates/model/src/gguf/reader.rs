//! A cursor over the header of a GGUF file.

use super::header::Metadata;
use super::list::List;
use crate::weights::check_name;

/// Largest header, so that a forged one cannot request unlimited memory. The largest vocabularies with their merges
/// take a tenth.
const LARGEST_HEADER_BYTES: usize = 256 << 20;
/// Maximum number of values of all metadata arrays together. The largest vocabularies with their merges have a third.
const LARGEST_METADATA: u64 = 1 << 22;
/// The value type of texts and of lists.
pub(super) const TEXT: u32 = 8;
pub(super) const LIST: u32 = 9;

/// A cursor that never leaves the file and checks counts against its remaining bytes.
pub(super) struct Reader<'a> {
    file: &'a [u8],
    position: usize,
    values_left: u64,
}

impl<'a> Reader<'a> {
    /// A cursor at the start of a file.
    pub(super) fn new(file: &'a [u8]) -> Reader<'a> {
        Reader {
            file: &file[..file.len().min(LARGEST_HEADER_BYTES)],
            position: 0,
            values_left: LARGEST_METADATA,
        }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let rest = &self.file[self.position..];
        let Some(taken) = rest.get(..bytes) else {
            return Err(match self.file.len() {
                LARGEST_HEADER_BYTES => format!("its header takes more than {LARGEST_HEADER_BYTES} bytes"),
                length => format!("it ends within its header, at byte {length}"),
            });
        };
        self.position += bytes;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of items with at least `least_bytes` each.
    pub(super) fn count(&mut self, least_bytes: u64) -> Result<usize, String> {
        let count = self.u64()?;
        let left = (self.file.len() - self.position) as u64;
        if count > left / least_bytes {
            return Err(format!("it claims {count} entries but only {left} bytes follow"));
        }
        Ok(count as usize)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, String> {
        let length = self.count(1)?;
        std::str::from_utf8(self.take(length)?).map_err(|_| "a text is not valid UTF-8".to_owned())
    }

    /// The name of a tensor or of metadata, safe to show.
    pub(super) fn name(&mut self) -> Result<&'a str, String> {
        let name = self.text()?;
        check_name(name)?;
        Ok(name)
    }

    /// A value of GGUF type number `kind`.
    pub(super) fn value(&mut self, kind: u32) -> Result<Metadata<'a>, String> {
        Ok(match kind {
            0 => Metadata::Integer(self.take(1)?[0].into()),
            1 => Metadata::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => Metadata::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => Metadata::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => Metadata::Integer(self.u32()?.into()),
            5 => Metadata::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => Metadata::Float(f32::from_le_bytes(self.array()?).into()),
            7 => match self.take(1)?[0] {
                flag @ (0 | 1) => Metadata::Flag(flag == 1),
                other => return Err(format!("{other} is neither true (1) nor false (0)")),
            },
            TEXT => Metadata::Text(self.text()?),
            LIST => Metadata::List(self.list(0)?),
            10 => Metadata::Integer(self.u64()?.into()),
            11 => Metadata::Integer(i64::from_le_bytes(self.array()?).into()),
            12 => Metadata::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("value type {other} does not exist")),
        })
    }

    /// Skips over a list and returns its location.
    fn list(&mut self, depth: usize) -> Result<List<'a>, String> {
        if depth == 2 {
            return Err("lists are nested too deep".into());
        }
        let kind = self.u32()?;
        let value_bytes = value_bytes(kind)?;
        let count = self.count(value_bytes.unwrap_or(8) as u64)?;
        let Some(left) = self.values_left.checked_sub(count as u64) else {
            return Err(format!("more than {LARGEST_METADATA} values are not plausible"));
        };
        self.values_left = left;
        let start = self.position;
        match (kind, value_bytes) {
            (_, Some(bytes)) => _ = self.take(count * bytes)?,
            (TEXT, _) => {
                for _ in 0..count {
                    let length = self.count(1)?;
                    self.take(length)?;
                }
            }
            _ => {
                for _ in 0..count {
                    self.list(depth + 1)?;
                }
            }
        }
        Ok(List::new(kind, count, &self.file[start..self.position]))
    }
}

/// Bytes of a value of a type; `None` for texts and lists, whose lengths differ.
pub(super) fn value_bytes(kind: u32) -> Result<Option<usize>, String> {
    match kind {
        0 | 1 | 7 => Ok(Some(1)),
        2 | 3 => Ok(Some(2)),
        4..=6 => Ok(Some(4)),
        10..=12 => Ok(Some(8)),
        TEXT | LIST => Ok(None),
        other => Err(format!("value type {other} does not exist")),
    }
}

//! Reads Protocol Buffers: fields by number, without copies, from untrusted input.

/// A message whose fields are read one by one.
#[derive(Debug, Clone)]
pub(crate) struct Message<'a> {
    rest: &'a [u8],
}

/// The value of a field, in its four encodings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FieldValue<'a> {
    Number(u64),
    Long([u8; 8]),
    Bytes(&'a [u8]),
    Short([u8; 4]),
}

impl<'a> Message<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Message<'a> {
        Message { rest: bytes }
    }

    fn field(&mut self) -> Result<(u64, FieldValue<'a>), String> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => FieldValue::Number(self.number()?),
            1 => FieldValue::Long(self.chunk()?),
            2 => {
                let length = self.number()?;
                FieldValue::Bytes(self.take(length)?)
            }
            5 => FieldValue::Short(self.chunk()?),
            kind => return Err(format!("field {} is of the unknown type {kind}", tag >> 3)),
        };
        Ok((tag >> 3, value))
    }

    /// A number of up to 64 bits, in groups of seven bits per byte.
    fn number(&mut self) -> Result<u64, String> {
        let mut number = 0;
        for place in 0..10 {
            let [byte] = self.chunk()?;
            let bits = u64::from(byte & 0x7f);
            if place == 9 && bits > 1 {
                break;
            }
            number |= bits << (7 * place);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number has more than 64 bits".into())
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (chunk, rest) = self.rest.split_first_chunk().ok_or(ENDS_EARLY)?;
        self.rest = rest;
        Ok(*chunk)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], String> {
        let taken = usize::try_from(length)
            .ok()
            .and_then(|length| self.rest.split_at_checked(length));
        let (taken, rest) = taken.ok_or(ENDS_EARLY)?;
        self.rest = rest;
        Ok(taken)
    }
}

const ENDS_EARLY: &str = "it ends in the middle of a field";

impl<'a> Iterator for Message<'a> {
    type Item = Result<(u64, FieldValue<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> FieldValue<'a> {
    pub(crate) fn number(self) -> Result<u64, String> {
        match self {
            FieldValue::Number(number) => Ok(number),
            _ => Err("a field that must be a number is none".into()),
        }
    }

    pub(crate) fn flag(self) -> Result<bool, String> {
        self.number().map(|number| number != 0)
    }

    pub(crate) fn float(self) -> Result<f32, String> {
        match self {
            FieldValue::Short(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err("a field that must be a number of 32 bits is none".into()),
        }
    }

    pub(crate) fn bytes(self) -> Result<&'a [u8], String> {
        match self {
            FieldValue::Bytes(bytes) => Ok(bytes),
            _ => Err("a field that must hold bytes holds none".into()),
        }
    }

    pub(crate) fn text(self) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "a text is not valid UTF-8".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Vec<Result<(u64, FieldValue<'_>), String>> {
        Message::new(bytes).collect()
    }

    #[test]
    fn every_type_of_field_is_read() {
        let bytes = b"\x08\x96\x01\x12\x02ab\x1d\0\0\x80\x3f\x21\x01\0\0\0\0\0\0\0\xa2\x06\0";
        let read: Vec<_> = fields(bytes).into_iter().map(Result::unwrap).collect();
        assert_eq!(read[0], (1, FieldValue::Number(150)));
        assert_eq!(read[1].1.text().unwrap(), "ab");
        assert_eq!(read[2].1.float().unwrap(), 1.0);
        assert_eq!(read[3], (4, FieldValue::Long([1, 0, 0, 0, 0, 0, 0, 0])));
        assert_eq!(read[4], (100, FieldValue::Bytes(b"")));
        assert!(read[0].1.text().is_err() && read[0].1.float().is_err() && read[1].1.flag().is_err());
        let largest = [&[0x08][..], &[0xff; 9], &[1]].concat();
        assert_eq!(fields(&largest)[0], Ok((1, FieldValue::Number(u64::MAX))));
    }

    #[test]
    fn damaged_messages_end_with_an_error() {
        let long = [&[0x08][..], &[0xff; 9], &[2]].concat();
        let endless = [0x08].iter().chain(&[0x80; 20]).copied().collect::<Vec<u8>>();
        let damaged: [&[u8]; 8] = [
            b"\x08",
            b"\x80",
            b"\x12\x03ab",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x1d\0\0\0",
            b"\x0b",
            &long,
            &endless,
        ];
        for bytes in damaged {
            let read = fields(bytes);
            assert!(matches!(read.as_slice(), [Err(_)]), "{bytes:?}: {read:?}");
        }
    }
}

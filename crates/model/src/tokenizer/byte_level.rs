//! Maps bytes to printable characters, as GPT-2's vocabulary does.

/// The character of each byte: itself if printable; the others count up from U+0100.
const fn characters() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut next = 0x100u32;
    let mut byte = 0;
    while byte < 256 {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { byte as u32 } else { next };
        if !printable {
            next += 1;
        }
        table[byte] = match char::from_u32(code) {
            Some(character) => character,
            None => '\0',
        };
        byte += 1;
    }
    table
}

const CHARACTERS: [char; 256] = characters();

/// The unprintable bytes, in the order of their characters from U+0100 on.
const fn unprintable() -> [u8; 68] {
    let mut table = [0; 68];
    let mut byte = 0;
    while byte < 256 {
        let code = CHARACTERS[byte] as usize;
        if code >= 0x100 {
            table[code - 0x100] = byte as u8;
        }
        byte += 1;
    }
    table
}

const UNPRINTABLE: [u8; 68] = unprintable();

/// Appends the characters of the bytes of `text`.
pub(crate) fn push_bytes(text: &str, output: &mut String) {
    output.extend(text.bytes().map(|byte| CHARACTERS[usize::from(byte)]));
}

/// Appends the character of a byte.
pub(crate) fn push_byte(byte: u8, output: &mut String) {
    output.push(CHARACTERS[usize::from(byte)]);
}

/// The byte of a character, if it has one.
pub(crate) fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character) as usize;
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        _ => UNPRINTABLE.get(code.checked_sub(0x100)?).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(CHARACTERS[usize::from(byte)]), Some(byte));
        }
        assert_eq!(CHARACTERS[usize::from(b' ')], 'Ġ');
        assert_eq!(CHARACTERS[usize::from(b'\n')], 'Ċ');
        assert_eq!((byte_of(' '), byte_of('\u{144}'), byte_of('語')), (None, None, None));
    }
}

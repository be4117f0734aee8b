//! Fields of a message of Protocol Buffers, as they stand on the wire. Knows no message.

/// Types of a field on the wire.
const VARINT: u64 = 0;
const BYTES: u64 = 2;
const FIXED_32: u64 = 5;

/// A message that is being written.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn integer(&mut self, field: u64, value: i64) -> &mut Self {
        self.varint((field << 3) | VARINT);
        self.varint(value.cast_unsigned());
        self
    }

    pub(super) fn float(&mut self, field: u64, value: f32) -> &mut Self {
        self.varint((field << 3) | FIXED_32);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn bytes(&mut self, field: u64, value: &[u8]) -> &mut Self {
        self.varint((field << 3) | BYTES);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub(super) fn text(&mut self, field: u64, value: &str) -> &mut Self {
        self.bytes(field, value.as_bytes())
    }

    pub(super) fn message(&mut self, field: u64, value: &Self) -> &mut Self {
        self.bytes(field, &value.0)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the encoding's documentation: 150 in field 1, "testing" in field 2.
    #[test]
    fn fields_are_those_of_the_wire_format() {
        let mut message = Message::default();
        message.integer(1, 150).text(2, "testing").float(20, 1.0);
        let want = b"\x08\x96\x01\x12\x07testing\xa5\x01\x00\x00\x80\x3f";
        assert_eq!(message.into_bytes(), want);
        let mut negative = Message::default();
        negative.integer(3, -1);
        assert_eq!(negative.into_bytes(), b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    }
}

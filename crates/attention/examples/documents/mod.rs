//! Documents of pages in one format, filled with noise.

use riffle_attention::*;

use crate::noise::noise;

pub(crate) const PAGE: usize = 256;

pub(crate) enum Buffer {
    Half(Vec<u16>),
    Bytes(Vec<u8>),
}

impl Buffer {
    fn new(format: Format, head_dim: usize) -> Self {
        let len = format.plane_len(PAGE, head_dim);
        match format {
            Format::Q8_0 | Format::Q4_0 => Self::Bytes(vec![0; len]),
            _ => Self::Half(vec![0; len]),
        }
    }

    fn plane(&self, format: Format) -> Plane<'_> {
        match (self, format) {
            (Self::Half(data), Format::Bf16) => Plane::Bf16(data),
            (Self::Half(data), _) => Plane::F16(data),
            (Self::Bytes(data), Format::Q8_0) => Plane::Q8_0(data),
            (Self::Bytes(data), _) => Plane::Q4_0(data),
        }
    }

    fn plane_mut(&mut self, format: Format) -> PlaneMut<'_> {
        match (self, format) {
            (Self::Half(data), Format::Bf16) => PlaneMut::Bf16(data),
            (Self::Half(data), _) => PlaneMut::F16(data),
            (Self::Bytes(data), Format::Q8_0) => PlaneMut::Q8_0(data),
            (Self::Bytes(data), _) => PlaneMut::Q4_0(data),
        }
    }
}

/// Keys and values of the pages of all KV heads of one document.
pub(crate) struct Document {
    format: Format,
    heads: Vec<Vec<(Buffer, Buffer)>>,
}

impl Document {
    pub(crate) fn new(tokens: usize, format: Format, (heads, head_dim): (usize, usize), seed: usize) -> Self {
        let source = noise(PAGE * head_dim + 64);
        let page = |number: usize| {
            let source = &source[(seed * 5 + number * 3) % 64..];
            let (mut keys, mut values) = (Buffer::new(format, head_dim), Buffer::new(format, head_dim));
            write_keys(&mut keys.plane_mut(format), head_dim, 0, PAGE, source, head_dim).unwrap();
            write_values(&mut values.plane_mut(format), head_dim, 0, PAGE, source, head_dim).unwrap();
            (keys, values)
        };
        let head = |_| (0..tokens / PAGE).map(page).collect();
        let heads = (0..heads).map(head).collect();
        Self { format, heads }
    }

    pub(crate) fn pages(&self, head: usize) -> Vec<PageView<'_>> {
        let pages = self.heads[head].iter().enumerate();
        pages
            .map(|(number, (keys, values))| PageView {
                start: number * PAGE,
                tokens: PAGE,
                keys: keys.plane(self.format),
                values: values.plane(self.format),
            })
            .collect()
    }
}

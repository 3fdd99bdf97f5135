//! Documents of pages in one format, filled with noise.

use riffle_attention::*;

use crate::noise::noise;

pub(crate) const PAGE: usize = 256;

/// Keys and values of the pages of all KV heads of one document.
pub(crate) struct Document {
    heads: Vec<Vec<(PlaneBuf, PlaneBuf)>>,
}

impl Document {
    pub(crate) fn new(tokens: usize, format: Format, (heads, head_dim): (usize, usize), seed: usize) -> Self {
        let source = noise(PAGE * head_dim + 64);
        let page = |number: usize| {
            let source = &source[(seed * 5 + number * 3) % 64..];
            let new = || PlaneBuf::new(format, PAGE, head_dim);
            let (mut keys, mut values) = (new(), new());
            write_keys(&mut keys.plane_mut(), head_dim, 0, PAGE, source, head_dim).unwrap();
            write_values(&mut values.plane_mut(), head_dim, 0, PAGE, source, head_dim).unwrap();
            (keys, values)
        };
        let head = |_| (0..tokens / PAGE).map(page).collect();
        let heads = (0..heads).map(head).collect();
        Self { heads }
    }

    pub(crate) fn pages(&self, head: usize) -> Vec<PageView<'_>> {
        let pages = self.heads[head].iter().enumerate();
        pages
            .map(|(number, (keys, values))| PageView {
                start: number * PAGE,
                tokens: PAGE,
                keys: keys.plane(),
                values: values.plane(),
            })
            .collect()
    }
}

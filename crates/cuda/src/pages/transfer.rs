//! Transfers of pages from main memory to the device.

use riffle_attention::{Format, LANES, PageView, Plane};
use riffle_kv::PageVersion;

use super::heads_of;
use super::memory::PagePlace;
use super::residence::Residence;
use super::staging::{PageKey, Staged, Staging};
use crate::ops::{PlaneKind, PlaneLayout, PlaneMove, arrange_planes};
use crate::{CudaError, Region, Stream};

/// Tokens of a page to load.
pub(super) struct Waiting<'a> {
    place: PagePlace,
    source: Source<'a>,
}

enum Source<'a> {
    /// A page in main memory, from a token of the page on.
    Main {
        first_token: usize,
        keys: &'a [u8],
        values: &'a [u8],
    },
    /// A whole page on the device that was read ahead.
    Ahead(Staged),
}

/// A staged page on the device, and its place.
struct Arrival {
    place: PagePlace,
    staged: Staged,
    first_token: usize,
    key_bytes: usize,
    value_bytes: usize,
}

impl Staging {
    /// Adds the page's tokens after its first `has` tokens to `waiting`. The caller starts the transfer when it is
    /// [full](Self::half_pages).
    pub(super) fn bring<'a>(
        &mut self,
        version: PageVersion,
        place: PagePlace,
        has: usize,
        view: &PageView<'a>,
        waiting: &mut Vec<Waiting<'a>>,
    ) {
        if has >= view.tokens {
            return;
        }
        let ahead = if has == 0 { self.take_ahead(version) } else { None };
        let source = match ahead {
            Some(staged) => {
                self.transferred.pages_ahead += 1;
                Source::Ahead(staged)
            }
            None => {
                let first_token = has / LANES * LANES;
                let [keys, values] = self.planes(view, first_token);
                Source::Main {
                    first_token,
                    keys,
                    values,
                }
            }
        };
        waiting.push(Waiting { place, source });
    }

    /// Bytes of keys and of values of a page from a token on.
    pub(super) fn planes<'a>(&self, view: &PageView<'a>, first_token: usize) -> [&'a [u8]; 2] {
        let shape = &self.shape;
        let until = view.tokens.next_multiple_of(LANES);
        let part = |plane: &Plane<'a>, format: Format| {
            let at = |tokens: usize| format.plane_bytes(tokens, heads_of(shape).key_width);
            &plane.bytes()[at(first_token)..at(until)]
        };
        [
            part(&view.keys, shape.key_format),
            part(&view.values, shape.value_format),
        ]
    }

    /// Copies the waiting pages to the device and converts them there, after the work queued on `compute`. The copies
    /// run while earlier kernels read other pages. `reading` is the page that an ordered call has reached.
    pub(super) fn transfer(
        &mut self,
        residence: &Residence,
        compute: &Stream,
        reading: Option<PageKey>,
        waiting: &mut Vec<Waiting<'_>>,
    ) -> Result<(), CudaError> {
        if waiting.is_empty() {
            return Ok(());
        }
        // Pages read ahead must leave their half of the memory before it is filled again.
        self.arrange_ahead(residence, compute, waiting)?;
        self.copy_and_arrange(residence, compute, reading, waiting)?;
        waiting.clear();
        Ok(())
    }

    fn arrange_ahead(
        &mut self,
        residence: &Residence,
        compute: &Stream,
        waiting: &[Waiting<'_>],
    ) -> Result<(), CudaError> {
        let layout = self.layout;
        let arrivals = waiting.iter().filter_map(|waiting| match waiting.source {
            Source::Ahead(staged) => Some(Arrival {
                place: waiting.place,
                staged,
                first_token: 0,
                key_bytes: layout.key_bytes,
                value_bytes: layout.value_bytes,
            }),
            Source::Main { .. } => None,
        });
        let arrivals: Vec<Arrival> = arrivals.collect();
        let mut halves: Vec<usize> = arrivals.iter().map(|arrival| arrival.staged.half).collect();
        halves.sort_unstable();
        halves.dedup();
        for half in &halves {
            compute.wait(self.copied(*half))?;
        }
        self.arrange(residence, compute, &arrivals)?;
        let mut halves = halves.into_iter();
        halves.try_for_each(|half| self.arranged(compute, half))
    }

    fn copy_and_arrange(
        &mut self,
        residence: &Residence,
        compute: &Stream,
        reading: Option<PageKey>,
        waiting: &[Waiting<'_>],
    ) -> Result<(), CudaError> {
        let from_main = waiting.iter().filter_map(|waiting| match &waiting.source {
            Source::Main {
                first_token,
                keys,
                values,
            } => Some((waiting.place, *first_token, *keys, *values)),
            Source::Ahead(_) => None,
        });
        let from_main: Vec<(PagePlace, usize, &[u8], &[u8])> = from_main.collect();
        if from_main.is_empty() {
            return Ok(());
        }
        let half = self.next_half(reading);
        self.wait_for(half)?;
        let (mut copies, mut arrivals) = (Vec::new(), Vec::new());
        for (number, (place, first_token, keys, values)) in from_main.into_iter().enumerate() {
            let staged = Staged { half, number };
            copies.extend(self.staged_planes(staged, [keys, values]));
            arrivals.push(Arrival {
                place,
                staged,
                first_token,
                key_bytes: keys.len(),
                value_bytes: values.len(),
            });
        }
        self.copy.upload_all(&copies)?;
        let bytes = bytes_of(&copies);
        self.transferred.count(arrivals.len(), bytes);
        self.arrange(residence, compute, &arrivals)?;
        self.arranged(compute, half)
    }

    /// Regions of a staged page's planes, each with its plane.
    pub(super) fn staged_planes<'a>(
        &self,
        staged: Staged,
        [keys, values]: [&'a [u8]; 2],
    ) -> [(Region<'_>, &'a [u8]); 2] {
        let (at, values_at) = (self.ring.at(staged), self.layout.values_at);
        [
            (at.part(0..keys.len()), keys),
            (at.part(values_at..values_at + values.len()), values),
        ]
    }

    /// Queues the conversion of staged pages into their places.
    fn arrange(&mut self, residence: &Residence, compute: &Stream, arrivals: &[Arrival]) -> Result<(), CudaError> {
        let (layout, shape) = (self.layout, self.shape);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for arrival in arrivals {
            let (from, to) = (self.ring.at(arrival.staged), residence.at(arrival.place));
            let first_token = arrival.first_token;
            keys.push(PlaneMove {
                to: to.part(0..layout.key_bytes),
                from: from.part(0..arrival.key_bytes),
                first_token,
            });
            values.push(PlaneMove {
                to: to.part(layout.values_at..layout.values_at + layout.value_bytes),
                from: from.part(layout.values_at..layout.values_at + arrival.value_bytes),
                first_token,
            });
        }
        let [key_moves, value_moves] = &mut self.moves;
        let both = [
            (key_moves, PlaneKind::Keys, shape.key_format, keys),
            (value_moves, PlaneKind::Values, shape.value_format, values),
        ];
        both.into_iter().try_for_each(|(list, kind, format, moves)| {
            let layout = PlaneLayout {
                kind,
                format,
                head_dim: heads_of(&shape).key_width,
                page_tokens: shape.page_tokens,
            };
            arrange_planes(compute, list, &layout, &moves)
        })
    }
}

pub(super) fn bytes_of(copies: &[(Region<'_>, &[u8])]) -> usize {
    copies.iter().map(|(_, from)| from.len()).sum()
}

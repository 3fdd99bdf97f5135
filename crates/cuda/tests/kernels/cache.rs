//! Appending to pages and the mass their keys receive.

use std::ops::Range;

use riffle_attention::{
    AttendOptions, Format, KvView, QueryTile, Selection, Span, reference, rotate_heads, write_keys, write_values,
};
use riffle_cuda::ops::{
    AppendTargets, AttentionOptions, HeadRows, NewTokens, PlaneKind, Queries, Reads, TileReads, append, column_mass,
    plane_to_cpu,
};
use riffle_cuda::{DeviceBuffer, Gpu, Stream, ops};

use crate::paged::{Cache, plane_mut};
use crate::testing::{noise, on_every_device};

#[test]
fn appended_tokens_are_written_as_the_cpu_writes_them_to_the_bit() {
    on_every_device(|gpu, stream| {
        for format in [Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0] {
            for (head_dim, rotated) in [(64, false), (48, true), (128, true), (80, false), (256, true)] {
                append_in_pieces(gpu, stream, [format, Format::F16], head_dim, [rotated, !rotated]);
                append_in_pieces(gpu, stream, [Format::Bf16, format], head_dim, [rotated, rotated]);
            }
        }
    });
}

/// Two KV heads, the second of which holds a few tokens already, and whose second page is away.
fn append_in_pieces(gpu: &Gpu, stream: &Stream, formats: [Format; 2], head_dim: usize, rotated: [bool; 2]) {
    let (kv_heads, page_tokens, pages, before) = (2, 32, 3, [0, 21]);
    let (tokens, stride) = (70, kv_heads * head_dim + 6);
    let plane_bytes = formats.map(|format| format.plane_bytes(page_tokens, head_dim));
    let plane = |bytes: usize| gpu.upload(&vec![0u8; bytes]).unwrap();
    let planes: Vec<[DeviceBuffer; 2]> = (0..kv_heads * pages).map(|_| plane_bytes.map(plane)).collect();
    let is_away = |head: usize, page: usize| head == 1 && page == 1;
    let sources = [4, 5].map(|seed| {
        let mut source = noise(tokens * stride, seed);
        // A block of zeros, and one with a tie between magnitudes.
        source[..16].fill(0.0);
        (source[stride + 3], source[stride + 5]) = (1.5, -1.5);
        source
    });
    let uploaded = sources.each_ref().map(|source| gpu.upload(source).unwrap());
    // What the CPU makes of it, from place 0 of each head on; what lies before the first token is zero.
    let expected = |kind: usize, head: usize| {
        let mut rows = vec![0.0; (before[head] + tokens) * head_dim];
        for token in 0..tokens {
            let to = &mut rows[(before[head] + token) * head_dim..][..head_dim];
            to.copy_from_slice(&sources[kind][token * stride + head * head_dim..][..head_dim]);
            if rotated[kind] {
                rotate_heads(to, head_dim);
            }
        }
        let mut bytes = vec![0u16; formats[kind].plane_bytes(128, head_dim) / 2];
        let mut target = plane_mut(formats[kind], &mut bytes);
        let (slot, rows) = (before[head], &rows[before[head] * head_dim..]);
        match kind {
            0 => write_keys(&mut target, head_dim, slot, tokens, rows, head_dim),
            _ => write_values(&mut target, head_dim, slot, tokens, rows, head_dim),
        }
        .unwrap();
        bytes
    };
    // Pages, stripes and planes are begun and gone on with; nothing is written behind the last.
    for (first, rows) in [(0, 37), (37, 1), (38, 32)] {
        let new = |source| HeadRows {
            data: source,
            rows,
            heads: kv_heads,
            head_dim,
            stride,
        };
        let [keys, values] = uploaded
            .each_ref()
            .map(|source| new(source.region(4 * first * stride..4 * tokens * stride)));
        let new = NewTokens {
            keys,
            values,
            formats,
            rotated,
        };
        let mut list = Vec::new();
        for head in 0..kv_heads {
            let start = before[head] + first;
            list.push(start as u64);
            for kind in 0..2 {
                for page in start / page_tokens..start / page_tokens + 3 {
                    let plane = planes[head * pages..][..pages]
                        .get(page)
                        .filter(|_| !is_away(head, page));
                    list.push(plane.map_or(0, |planes| planes[kind].all().address()));
                }
            }
        }
        let list = gpu.upload(&list).unwrap();
        let targets = AppendTargets {
            list: list.all(),
            pages: 3,
            page_tokens,
            stripes: 4,
        };
        let stripes = gpu.allocate(new.stripe_bytes(4)).unwrap();
        append(stream, stripes.all(), &targets, &new).unwrap();
        let stripes: Vec<u8> = gpu.download(stripes.all(), stream).unwrap();
        let mut stripes = &stripes[..];
        for kind in 0..2 {
            let plane_bytes = formats[kind].plane_bytes(64, head_dim);
            for head in 0..kv_heads {
                let (found, rest) = stripes.split_at(plane_bytes);
                stripes = rest;
                let start = before[head] + first;
                let (whole, found) = (expected(kind, head), aligned(found));
                let read = |plane: &[u16], from: usize| read(formats[kind], kind, head_dim, plane, from..from + rows);
                assert!(
                    read(&whole, start) == read(&found, start % 16),
                    "{formats:?} {kind} {head_dim} head {head} from {first}"
                );
            }
        }
    }
    for (number, planes) in planes.iter().enumerate() {
        let (head, page) = (number / pages, number % pages);
        for (kind, plane) in planes.iter().enumerate() {
            let found: Vec<u8> = gpu.download(plane.all(), stream).unwrap();
            let mut back = vec![0u8; plane_bytes[kind]];
            let plane_kind = [PlaneKind::Keys, PlaneKind::Values][kind];
            plane_to_cpu(plane_kind, formats[kind], head_dim, &found, &mut back).unwrap();
            if is_away(head, page) {
                assert!(found.iter().all(|byte| *byte == 0));
                continue;
            }
            let first = page * page_tokens;
            let written = before[head].max(first)..(before[head] + tokens).min(first + page_tokens);
            let here = written.start - first..written.end - first;
            assert!(
                read(formats[kind], kind, head_dim, &aligned(&back), here)
                    == read(formats[kind], kind, head_dim, &expected(kind, head), written),
                "{formats:?} {kind} {head_dim} page {page}"
            );
        }
    }
}

/// Bits of some tokens of a plane of the CPU's.
fn read(format: Format, kind: usize, head_dim: usize, plane: &[u16], tokens: Range<usize>) -> Vec<u32> {
    let (plane, mut out) = (as_plane(format, plane), vec![0.0; tokens.len() * head_dim]);
    match kind {
        0 => riffle_attention::read_keys(&plane, head_dim, tokens.start, tokens.len(), &mut out, head_dim),
        _ => riffle_attention::read_values(&plane, head_dim, tokens.start, tokens.len(), &mut out, head_dim),
    }
    .unwrap();
    out.iter().map(|x| x.to_bits()).collect()
}

fn aligned(bytes: &[u8]) -> Vec<u16> {
    bytes
        .chunks(2)
        .map(|pair| u16::from_ne_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))
        .collect()
}

fn as_plane(format: Format, data: &[u16]) -> riffle_attention::Plane<'_> {
    match format {
        Format::F16 => riffle_attention::Plane::F16(data),
        Format::Bf16 => riffle_attention::Plane::Bf16(data),
        Format::Q8_0 => riffle_attention::Plane::Q8_0(bytemuck::cast_slice(data)),
        _ => riffle_attention::Plane::Q4_0(bytemuck::cast_slice(data)),
    }
}

#[test]
fn heads_rotate_as_on_the_cpu_to_the_bit() {
    on_every_device(|gpu, stream| {
        for head_dim in [16, 48, 64, 96, 128, 256] {
            let mut values = noise(7 * 2 * head_dim, 2);
            let device = gpu.upload(&values).unwrap();
            let rows = HeadRows {
                data: device.all(),
                rows: 7,
                heads: 2,
                head_dim,
                stride: 2 * head_dim,
            };
            ops::rotate_heads(stream, &rows).unwrap();
            rotate_heads(&mut values, head_dim);
            assert_eq!(gpu.download::<f32>(device.all(), stream).unwrap(), values, "{head_dim}");
        }
    });
}

#[test]
fn column_mass_equals_the_reference() {
    on_every_device(|gpu, stream| {
        for (format, group, soft_cap) in [
            (Format::F16, 3, None),
            (Format::Bf16, 1, Some(0.5)),
            (Format::Q8_0, 2, None),
        ] {
            let (head_dim, kv_heads, tokens, rows, tile_rows) = (64, 2, 200, 60, 25);
            let cache = Cache::new(gpu, head_dim, kv_heads, tokens, 80, [format, Format::F16]);
            let (start, heads) = (tokens - rows, kv_heads * group);
            let width = heads * head_dim;
            let queries = noise(rows * width, 6);
            let selections = [
                Selection::full(tokens),
                Selection::from_spans([Span::new(0, 30), Span::new(70, 90)])
                    .with_row_window(9)
                    .with_diagonals([40, 64]),
            ];
            let mut tiles = Vec::new();
            let (mut sums, mut mass) = (vec![0.0f32; rows * heads], vec![0.0f64; kv_heads * tokens]);
            for kv_head in 0..kv_heads {
                for (number, row) in (0..rows).step_by(tile_rows).enumerate() {
                    let selection = &selections[(number + kv_head) % 2];
                    let rows = tile_rows.min(rows - row);
                    tiles.push(TileReads {
                        kv_head,
                        start: start + row,
                        row,
                        rows,
                        selection,
                    });
                    let views = cache.views(kv_head);
                    let kv = KvView {
                        head_dim,
                        pages: &views,
                    };
                    let data = &queries[row * width + kv_head * group * head_dim..];
                    let tile = QueryTile {
                        data,
                        rows,
                        row_stride: width,
                        group,
                        head_dim,
                        start: start + row,
                    };
                    let options = AttendOptions::new(0.5).with_soft_cap(soft_cap);
                    let found = reference::attend(&tile, &kv, selection, &options, None).unwrap();
                    for (at, sum) in found.log_sum_exp.iter().enumerate() {
                        sums[(row + at / group) * heads + kv_head * group + at % group] = *sum as f32;
                    }
                    for (total, mass) in mass[kv_head * tokens..].iter_mut().zip(&found.column_mass) {
                        *total += mass;
                    }
                }
            }
            let mut reads = Reads::new(gpu, head_dim, group).unwrap();
            reads.set(stream, &tiles, None).unwrap();
            let (device, sums) = (gpu.upload(&queries).unwrap(), gpu.upload(&sums).unwrap());
            let source = Queries {
                data: device.all(),
                rows,
                row_stride: width,
            };
            let options = AttentionOptions {
                scale: 0.5,
                soft_cap,
                sinks: None,
            };
            for keys in [0..tokens, 64..150] {
                let out = gpu.allocate(4 * kv_heads * keys.len()).unwrap();
                let pages = cache.pages();
                column_mass(
                    stream,
                    out.all(),
                    keys.len(),
                    keys.clone(),
                    sums.all(),
                    &source,
                    &pages,
                    &reads,
                    &options,
                )
                .unwrap();
                let found: Vec<f32> = gpu.download(out.all(), stream).unwrap();
                for (at, found) in found.iter().enumerate() {
                    let expected = mass[at / keys.len() * tokens + keys.start + at % keys.len()];
                    let tolerance = if format == Format::Bf16 { 3e-2 } else { 4e-3 };
                    assert!(
                        (f64::from(*found) - expected).abs() <= tolerance * expected.max(0.1),
                        "{at}: {found} {expected}"
                    );
                }
            }
        }
    });
}

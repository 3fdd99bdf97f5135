//! Appending to pages and the mass their keys receive.

use riffle_attention::{
    AttendOptions, Format, KvView, PlaneMut, QueryTile, Selection, Span, reference, rotate_heads, write_keys,
    write_values,
};
use riffle_cuda::ops;
use riffle_cuda::ops::{
    AttentionOptions, HeadRows, Pages, PlaneKind, Queries, Reads, TileReads, append, column_mass, plane_to_cpu,
};

use crate::paged::Cache;
use crate::testing::{noise, on_every_device};

#[test]
fn appended_tokens_are_written_as_the_cpu_writes_them_to_the_bit() {
    on_every_device(|gpu, stream| {
        for format in [Format::F16, Format::Bf16, Format::Q8_0, Format::Q4_0] {
            for (head_dim, rotated) in [(64, false), (48, true), (128, true), (80, false), (256, true)] {
                let (kv_heads, page_tokens, pages) = (2, 32, 3);
                let bytes = format.plane_bytes(page_tokens, head_dim);
                let planes: Vec<_> = (0..kv_heads * pages)
                    .map(|_| gpu.upload(&vec![0u8; bytes]).unwrap())
                    .collect();
                let addresses: Vec<u64> = planes.iter().map(|plane| plane.all().address()).collect();
                let table = gpu.upload(&addresses).unwrap();
                let view = Pages {
                    keys: table.all(),
                    values: table.all(),
                    kv_heads,
                    pages_per_head: pages,
                    page_tokens,
                    head_dim,
                    key_format: format,
                    value_format: format,
                };
                let (tokens, stride) = (70, kv_heads * head_dim + 6);
                let mut source = noise(tokens * stride, 4);
                // A block of zeros, and one with a tie between magnitudes.
                source[..16].fill(0.0);
                (source[stride + 3], source[stride + 5]) = (1.5, -1.5);
                let device = gpu.upload(&source).unwrap();
                for kind in [PlaneKind::Keys, PlaneKind::Values] {
                    // In two pieces: pages and stripes are begun and gone on with.
                    for (first, rows) in [(0, 37), (37, 33)] {
                        let data = device.region(4 * first * stride..4 * tokens * stride);
                        let new = HeadRows {
                            data,
                            rows,
                            heads: kv_heads,
                            head_dim,
                            stride,
                        };
                        append(stream, &view, kind, &new, first, rotated).unwrap();
                    }
                    for head in 0..kv_heads {
                        for page in 0..pages {
                            let first = page * page_tokens;
                            let count = page_tokens.min(tokens - first);
                            let mut rows: Vec<f32> = (first..first + count)
                                .flat_map(|t| source[t * stride + head * head_dim..][..head_dim].to_vec())
                                .collect();
                            if rotated {
                                rotate_heads(&mut rows, head_dim);
                            }
                            let mut expected = vec![0u16; bytes.div_ceil(2)];
                            let mut target = match format {
                                Format::F16 => PlaneMut::F16(&mut expected),
                                Format::Bf16 => PlaneMut::Bf16(&mut expected),
                                Format::Q8_0 => PlaneMut::Q8_0(bytemuck::cast_slice_mut(&mut expected)),
                                _ => PlaneMut::Q4_0(bytemuck::cast_slice_mut(&mut expected)),
                            };
                            match kind {
                                PlaneKind::Keys => write_keys(&mut target, head_dim, 0, count, &rows, head_dim),
                                PlaneKind::Values => write_values(&mut target, head_dim, 0, count, &rows, head_dim),
                            }
                            .unwrap();
                            let found: Vec<u8> = gpu.download(planes[head * pages + page].all(), stream).unwrap();
                            let mut back = vec![0; bytes];
                            plane_to_cpu(kind, format, head_dim, &found, &mut back).unwrap();
                            let read = |plane: &[u8]| {
                                let mut out = vec![0.0; count * head_dim];
                                let plane = aligned(plane);
                                let plane = as_plane(format, &plane);
                                match kind {
                                    PlaneKind::Keys => {
                                        riffle_attention::read_keys(&plane, head_dim, 0, count, &mut out, head_dim)
                                    }
                                    PlaneKind::Values => {
                                        riffle_attention::read_values(&plane, head_dim, 0, count, &mut out, head_dim)
                                    }
                                }
                                .unwrap();
                                out.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
                            };
                            let expected: &[u8] = &bytemuck::cast_slice(&expected)[..bytes];
                            assert!(
                                read(&back) == read(expected),
                                "{format:?} {kind:?} {head_dim} page {page}"
                            );
                        }
                    }
                }
            }
        }
    });
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

//! Tables of speed and memory measurements.

use super::label;
use crate::numbers::{milliseconds, percent, short, tokens};
use crate::{AttentionReport, BatchTable, ContextTable, DraftRates, KeyKind, KvRates, ModelRates, PolicyRates, Table};

pub(super) fn speeds(table: &ContextTable) -> Table {
    let caption = match table.repeats {
        1 => format!(
            "Speed on {}, answers of {} tokens, one run each",
            table.text, table.generated_tokens
        ),
        repeats => format!(
            "Speed on {}, answers of {} tokens, best of {repeats} runs",
            table.text, table.generated_tokens
        ),
    };
    let columns = [
        "policy",
        "tokens",
        "first token",
        "prompt, tokens/s",
        "answer, tokens/s",
        "attention, a token",
        "of it choosing",
        "pairs read",
        "by the answer",
    ];
    Table::from_rows(caption, &columns, &table.rows, |row| {
        let answer = row.answer_attention;
        vec![
            label(&row.settings),
            tokens(row.context_tokens as f64),
            milliseconds(row.time_to_first_token_ms),
            short(row.prefill_tokens_per_s),
            short(row.decode_tokens_per_s),
            answer.map_or("–".to_owned(), |answer| {
                milliseconds(answer.select_ms + answer.attend_ms)
            }),
            answer.map_or("–".to_owned(), |answer| milliseconds(answer.select_ms)),
            percent(row.density),
            answer.map_or("–".to_owned(), |answer| percent(answer.density)),
        ]
    })
}

pub(super) fn drafts(table: &DraftRates) -> Table {
    let caption = format!(
        "Answers with drafts, {}, {}: {} tokens, best of {} runs; answers are the same to the byte",
        table.text,
        label(&table.settings),
        table.generated_tokens,
        table.repeats
    );
    let columns = [
        "draft",
        "depth",
        "tokens/s",
        "beside none",
        "drafted tokens agreed",
        "tokens a pass",
        "pairs a token",
        "loaded a token",
    ];
    Table::from_rows(caption, &columns, &table.rows, |row| {
        let agreed = match row.drafted {
            0 => "–".to_owned(),
            drafted => format!("{} of {drafted}", row.accepted),
        };
        vec![
            row.draft.clone(),
            tokens(row.depth as f64),
            short(row.tokens_per_s),
            format!("{:.2}", row.beside_none),
            agreed,
            format!("{:.2}", row.tokens_a_pass),
            short(row.pairs_a_token),
            riffle_engine::human_bytes(row.loaded_bytes_a_token as u64),
        ]
    })
}

pub(super) fn memory(table: &ContextTable) -> Table {
    let bytes = riffle_engine::human_bytes;
    let columns = [
        "policy",
        "tokens",
        "weights",
        "recurrent state",
        "workspace (planned)",
        "KV device",
        "KV RAM",
        "KV disk",
        "page tables",
        "peak RSS",
    ];
    Table::from_rows("Peak memory by part", &columns, &table.rows, |row| {
        vec![
            label(&row.settings),
            tokens(row.context_tokens as f64),
            bytes(row.weights_bytes),
            bytes(row.recurrent_bytes),
            bytes(row.workspace_bytes),
            bytes(row.kv_device_bytes),
            bytes(row.kv_ram_bytes),
            bytes(row.kv_disk_bytes),
            bytes(row.kv_bookkeeping_bytes),
            row.peak_resident_bytes.map_or("–".to_owned(), bytes),
        ]
    })
}

pub(super) fn batch(table: &BatchTable) -> Vec<Table> {
    let shared = match table.shared_tokens {
        0 => String::new(),
        shared => format!(", {shared} of them shared"),
    };
    let title = format!(
        "Sequences in one pass, {}: prompts of {} tokens{shared}, answers of {}, best of {}",
        label(&table.settings),
        table.prompt_tokens,
        table.generated_tokens,
        table.repeats
    );
    let mut together = Table::new(
        title,
        &[
            "sequences",
            "prompts, tokens/s",
            "answers, tokens/s",
            "each, tokens/s",
            "KV",
        ],
    );
    let mut waiting = Table::new(
        "Answers while a prompt is read".to_owned(),
        &[
            "answers",
            "prompt tokens",
            "prompt, tokens/s",
            "answers, tokens/s",
            "longest gap",
            "median gap",
            "longest piece of the prompt",
        ],
    );
    for row in &table.rows {
        let (prefill, decode) = (
            format!("{:.1}", row.prefill_tokens_per_s),
            format!("{:.1}", row.decode_tokens_per_s),
        );
        let sequences = row.sequences.to_string();
        match &row.waiting {
            None => {
                let each = format!("{:.1}", row.decode_tokens_per_s / row.sequences.max(1) as f64);
                let kv = riffle_engine::human_bytes(row.kv_bytes);
                together.rows.push(vec![sequences, prefill, decode, each, kv]);
            }
            Some(row) => waiting.rows.push(vec![
                sequences,
                tokens(row.prompt_tokens as f64),
                prefill,
                decode,
                milliseconds(row.longest_gap_ms),
                milliseconds(row.median_gap_ms),
                milliseconds(row.longest_piece_ms),
            ]),
        }
    }
    let tables = [together, waiting].into_iter();
    tables.filter(|table| !table.rows.is_empty()).collect()
}

pub(super) fn model(rates: &ModelRates) -> Table {
    let columns = [
        "tokens before",
        "prompt, tokens/s",
        "answer, tokens/s",
        "weights, GB/s",
        "memory read, GB/s",
        "share",
        "KV",
    ];
    Table::from_rows(
        format!(
            "Rates of {}: prompts of {} tokens, answers of {}, best of {}",
            label(&rates.settings),
            rates.prompt_tokens,
            rates.generated_tokens,
            rates.repeats
        ),
        &columns,
        &rates.rates,
        |rate| {
            vec![
                tokens(rate.depth as f64),
                format!("{:.1}", rate.prefill_tokens_per_s),
                format!("{:.1}", rate.decode_tokens_per_s),
                format!("{:.1}", rate.weight_gigabytes_per_s),
                format!("{:.1}", rate.read_gigabytes_per_s),
                percent(rate.weight_read_share),
                riffle_engine::human_bytes(rate.kv_bytes),
            ]
        },
    )
}

pub(super) fn policies(rates: &PolicyRates) -> Table {
    let [keys, values] = &rates.formats;
    let kind = match rates.keys {
        KeyKind::Random => "random",
        KeyKind::Peaked => "peaked",
    };
    let columns = [
        "policy",
        "phase",
        "dense",
        "select",
        "attend",
        "times as fast",
        "over all layers",
        "pairs read",
        "selecting, of time saved",
    ];
    Table::from_rows(
        format!(
            "One layer at the end of {} tokens, {} query and {} KV heads of {}, {keys}:{values}, {kind} keys, {} threads, beside dense attention from f16",
            tokens(rates.tokens as f64),
            rates.heads,
            rates.kv_heads,
            rates.head_dim,
            rates.threads
        ),
        &columns,
        &rates.rates,
        |rate| {
            vec![
                super::short_policy(&rate.policy),
                rate.phase.clone(),
                milliseconds(rate.dense_ms),
                milliseconds(rate.select_ms),
                milliseconds(rate.attend_ms),
                format!("{:.1}", rate.speed()),
                format!("{:.1} of {}", rate.model_speed(), rate.layers),
                percent(rate.density),
                percent(rate.share_of_saved()),
            ]
        },
    )
}

pub(super) fn attention(report: &AttentionReport) -> Table {
    let columns = [
        "case",
        "median, ms",
        "GFLOP/s",
        "of peak",
        "GB/s",
        "of read",
        "pairs read",
        "error",
    ];
    Table::from_rows(
        format!(
            "{}, {} threads: multiply-add peak {:.0} GFLOP/s, memory read at {:.1} GB/s",
            report.instructions, report.threads, report.peak_gflops, report.read_gigabytes_per_s
        ),
        &columns,
        &report.rates,
        |rate| {
            vec![
                rate.name.clone(),
                format!("{:.3}", rate.median_ms),
                format!("{:.1}", rate.gflops),
                percent(rate.peak_share),
                format!("{:.1}", rate.gigabytes_per_s),
                percent(rate.read_share),
                percent(rate.density),
                format!("{:.0e}", rate.relative_error),
            ]
        },
    )
}

pub(super) fn kv(rates: &KvRates) -> [Table; 3] {
    let columns = ["tier", "format", "page", "bytes", "by format and shape", "bookkeeping"];
    let bytes = Table::from_rows("Bytes of keys and values a token", &columns, &rates.bytes, |row| {
        vec![
            row.tier.clone(),
            row.format.clone(),
            row.page_tokens.to_string(),
            format!("{:.1}", row.bytes_per_token),
            format!("{:.1}", row.formula_bytes_per_token),
            format!("{:.2}%", row.bookkeeping_share * 100.0),
        ]
    });
    let columns = ["path", "GB/s", "plain, GB/s", "share"];
    let streams = Table::from_rows(
        format!("Pages streamed, {} threads", rates.threads),
        &columns,
        &rates.streams,
        |row| {
            vec![
                row.path.clone(),
                format!("{:.2}", row.gigabytes_per_s),
                format!("{:.2}", row.plain_gigabytes_per_s),
                percent(row.share),
            ]
        },
    );
    let columns = ["older pages in", "median, ms", "times resident"];
    let decode = Table::from_rows(
        format!("A decode step at {} tokens", tokens(rates.tokens as f64)),
        &columns,
        &rates.decode,
        |row| {
            vec![
                row.older_pages.clone(),
                format!("{:.2}", row.median_ms),
                format!("{:.2}", row.ratio),
            ]
        },
    );
    [bytes, streams, decode]
}

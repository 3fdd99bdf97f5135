//! A simulation of many workers behind a router: what is read again, what moves, what it costs, by policy of the router.
//!
//! A request is a question about a document. Requests arrive at random at a constant rate for each worker of the fleet; documents are asked
//! for by Zipf's law. A worker takes one request after the other: it reads what it does not hold of the document, or loads it from the
//! store where there is one and loading is faster, reads the question, and writes the answer. It holds whole documents, and the one used
//! longest ago leaves first. A router knows at once what workers hold and have to do. The store holds everything that was ever read.

mod held;
mod options;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::{EvalError, Table};
use held::Held;
pub use options::{FleetOptions, FleetRates, RouterPolicy};

/// What came of one fleet under one policy.
#[derive(Debug, Clone, Serialize)]
pub struct FleetRow {
    /// Workers.
    pub workers: usize,
    /// Who decides which worker answers.
    pub policy: RouterPolicy,
    /// Whether workers share what they have read through a store.
    pub has_store: bool,
    /// Share of the prompt tokens that a worker held.
    pub held_share: f64,
    /// Share of the prompt tokens that came from the store.
    pub loaded_share: f64,
    /// Bytes that went to and from the store for a request.
    pub moved_bytes_per_request: f64,
    /// Share of the time that workers had work.
    pub busy_share: f64,
    /// Work of the worker with most of it, over the mean.
    pub busiest_over_mean: f64,
    /// Mean seconds to the first token.
    pub first_token_mean_s: f64,
    /// Seconds to the first token that one request of twenty exceeds.
    pub first_token_p95_s: f64,
    /// Price of a million tokens of prompts and answers, where workers have work all the time.
    pub cost_per_million_tokens: f64,
}

/// A fleet's rows, with what they were computed from.
#[derive(Debug, Clone, Serialize)]
pub struct FleetTable {
    /// What was asked for.
    pub options: FleetOptions,
    /// For each size of the fleet, each policy without a store and with one.
    pub rows: Vec<FleetRow>,
}

impl FleetTable {
    /// For people.
    pub fn table(&self) -> Table {
        let columns = [
            "workers",
            "router",
            "store",
            "held",
            "loaded",
            "moved/request",
            "busy",
            "busiest/mean",
            "first token, mean s",
            "95th percentile s",
            "cost/million tokens",
        ];
        let percent = |share: f64| format!("{:.1}%", 100.0 * share);
        Table::of("a fleet, simulated", &columns, &self.rows, |row| {
            vec![
                row.workers.to_string(),
                row.policy.name().to_owned(),
                if row.has_store { "yes" } else { "no" }.to_owned(),
                percent(row.held_share),
                percent(row.loaded_share),
                format!("{:.0} MB", row.moved_bytes_per_request / 1e6),
                percent(row.busy_share),
                format!("{:.2}", row.busiest_over_mean),
                format!("{:.1}", row.first_token_mean_s),
                format!("{:.1}", row.first_token_p95_s),
                format!("{:.3}", row.cost_per_million_tokens),
            ]
        })
    }
}

/// Simulates each size of fleet under each policy, without a store and with one.
///
/// # Errors
/// [`EvalError::Option`] for numbers that make no fleet.
pub fn simulate_fleet(options: &FleetOptions) -> Result<FleetTable, EvalError> {
    check(options)?;
    let cumulative = zipf(options.documents, options.zipf);
    let mut rows = Vec::new();
    for workers in &options.workers {
        for policy in RouterPolicy::ALL {
            for has_store in [false, true] {
                rows.push(Fleet::new(options, *workers, policy, has_store).run(&cumulative));
            }
        }
    }
    Ok(FleetTable {
        options: options.clone(),
        rows,
    })
}

/// Documents and requests that a simulation holds at a time at most.
const MOST_DOCUMENTS: usize = 1_000_000;
const MOST_REQUESTS: usize = 2_000_000;

fn check(options: &FleetOptions) -> Result<(), EvalError> {
    let rates = &options.rates;
    let positive = [
        ("--prompt-rate", rates.prompt_tokens_per_s),
        ("--answer-rate", rates.answer_tokens_per_s),
        ("--bytes-per-token", rates.bytes_per_token),
        ("--link", rates.link_bytes_per_s),
        ("--store", rates.store_bytes_per_s),
        ("--arrivals", options.arrivals_per_hour),
        ("--documents", options.documents as f64),
        ("--document-tokens", options.document_tokens as f64),
        ("--requests", options.requests_per_worker as f64),
        ("--workers", options.workers.iter().copied().min().unwrap_or(0) as f64),
    ];
    for (option, value) in positive {
        if !(value > 0.0 && value.is_finite()) {
            return Err(EvalError::Option(format!("{option} {value}: it must be above 0")));
        }
    }
    if options.documents > MOST_DOCUMENTS {
        let problem = format!("--documents {}: it must be at most {MOST_DOCUMENTS}", options.documents);
        return Err(EvalError::Option(problem));
    }
    let most_workers = options.workers.iter().copied().max().unwrap_or(0);
    let requests = most_workers.saturating_mul(options.requests_per_worker);
    if requests > MOST_REQUESTS {
        let problem = format!(
            "--requests {}: {most_workers} workers get {requests} requests, and {MOST_REQUESTS} are the most",
            options.requests_per_worker
        );
        return Err(EvalError::Option(problem));
    }
    if !(0.0..=10.0).contains(&options.zipf) {
        let problem = format!("--zipf {}: it must be from 0 to 10", options.zipf);
        return Err(EvalError::Option(problem));
    }
    Ok(())
}

/// The chance that a request is about one of the first documents, for each.
fn zipf(documents: usize, exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let mut cumulative: Vec<f64> = (1..=documents)
        .map(|number| {
            sum += (number as f64).powf(-exponent);
            sum
        })
        .collect();
    cumulative.iter_mut().for_each(|share| *share /= sum);
    cumulative
}

struct Fleet<'a> {
    options: &'a FleetOptions,
    policy: RouterPolicy,
    has_store: bool,
    workers: Vec<Worker>,
    /// The workers that hold each document.
    holders: Vec<Vec<usize>>,
    stored: Vec<bool>,
    /// When the store has sent everything that was asked of it.
    store_free_s: f64,
    next: usize,
    sums: Sums,
}

struct Worker {
    held: Held,
    /// When it has done everything that it was given.
    free_s: f64,
    busy_s: f64,
}

#[derive(Default)]
struct Sums {
    held_tokens: f64,
    loaded_tokens: f64,
    prompt_tokens: f64,
    moved_bytes: f64,
    first_token_s: Vec<f64>,
}

impl<'a> Fleet<'a> {
    fn new(options: &'a FleetOptions, workers: usize, policy: RouterPolicy, has_store: bool) -> Self {
        let most = options.rates.worker_tokens / options.document_tokens;
        let worker = |_| Worker {
            held: Held::new(most),
            free_s: 0.0,
            busy_s: 0.0,
        };
        Self {
            options,
            policy,
            has_store,
            workers: (0..workers).map(worker).collect(),
            holders: vec![Vec::new(); options.documents],
            stored: vec![false; options.documents],
            store_free_s: 0.0,
            next: 0,
            sums: Sums::default(),
        }
    }

    fn run(mut self, cumulative: &[f64]) -> FleetRow {
        let options = self.options;
        let count = self.workers.len();
        let mut random = ChaCha8Rng::seed_from_u64(options.seed);
        let rate = options.arrivals_per_hour / 3600.0 * count as f64;
        let mut now_s = 0.0;
        for _ in 0..options.requests_per_worker * count {
            now_s += -(1.0 - random.random::<f64>()).ln() / rate;
            let draw = random.random::<f64>();
            let document = cumulative
                .partition_point(|share| *share < draw)
                .min(options.documents - 1);
            let worker = self.choose(document, now_s);
            self.serve(worker, document, now_s);
        }
        self.row(now_s)
    }

    /// The worker that answers.
    fn choose(&mut self, document: usize, now_s: f64) -> usize {
        let count = self.workers.len();
        match self.policy {
            RouterPolicy::RoundRobin => {
                self.next = (self.next + 1) % count;
                self.next
            }
            RouterPolicy::LeastLoaded => self.least_loaded(),
            RouterPolicy::PrefixHash => {
                // Neighbouring numbers go to workers far from each other.
                let hash = (document as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
                (hash % count as u64) as usize
            }
            RouterPolicy::PrefixAware => {
                let free = |worker: usize| self.workers[worker].free_s.max(now_s);
                let holders = self.holders[document].iter().copied();
                let holder = holders.min_by(|a, b| free(*a).total_cmp(&free(*b)));
                let other = self.least_loaded();
                match holder {
                    Some(holder) if free(holder) <= free(other) + self.document_s(document, now_s) => holder,
                    _ => other,
                }
            }
        }
    }

    fn least_loaded(&self) -> usize {
        let workers = self.workers.iter().enumerate();
        let least = workers.min_by(|(_, a), (_, b)| a.free_s.total_cmp(&b.free_s));
        least.map_or(0, |(worker, _)| worker)
    }

    /// Seconds until a worker that does not hold a document has it.
    fn document_s(&self, document: usize, now_s: f64) -> f64 {
        let rates = &self.options.rates;
        let read_s = self.options.document_tokens as f64 / rates.prompt_tokens_per_s;
        match self.has_store && self.stored[document] {
            true => self.load_s(now_s).min(read_s),
            false => read_s,
        }
    }

    fn document_bytes(&self) -> f64 {
        self.options.document_tokens as f64 * self.options.rates.bytes_per_token
    }

    /// Seconds to load a document from the store, from `now_s` on.
    fn load_s(&self, now_s: f64) -> f64 {
        let (rates, bytes) = (&self.options.rates, self.document_bytes());
        let sent_s = (self.store_free_s - now_s).max(0.0) + bytes / rates.store_bytes_per_s;
        sent_s.max(bytes / rates.link_bytes_per_s)
    }

    fn serve(&mut self, worker: usize, document: usize, now_s: f64) {
        let options = self.options;
        let (rates, document_tokens) = (&options.rates, options.document_tokens as f64);
        let begins_s = self.workers[worker].free_s.max(now_s);
        let mut document_s = 0.0;
        if self.workers[worker].held.has(document) {
            self.sums.held_tokens += document_tokens;
        } else {
            let read_s = document_tokens / rates.prompt_tokens_per_s;
            document_s = self.document_s(document, begins_s);
            if document_s < read_s {
                let from_s = self.store_free_s.max(begins_s);
                self.store_free_s = from_s + self.document_bytes() / rates.store_bytes_per_s;
                self.sums.loaded_tokens += document_tokens;
                self.sums.moved_bytes += self.document_bytes();
            } else if self.has_store && !self.stored[document] {
                // It is written behind while other work goes on.
                self.stored[document] = true;
                self.store_free_s = self.store_free_s.max(begins_s) + self.document_bytes() / rates.store_bytes_per_s;
                self.sums.moved_bytes += self.document_bytes();
            }
            self.holders[document].push(worker);
        }
        if let Some(left) = self.workers[worker].held.put(document) {
            self.holders[left].retain(|holder| *holder != worker);
        }
        let first_s = document_s + options.question_tokens as f64 / rates.prompt_tokens_per_s;
        let work_s = first_s + options.answer_tokens as f64 / rates.answer_tokens_per_s;
        let worker = &mut self.workers[worker];
        worker.free_s = begins_s + work_s;
        worker.busy_s += work_s;
        self.sums.prompt_tokens += document_tokens + options.question_tokens as f64;
        self.sums.first_token_s.push(begins_s + first_s - now_s);
    }

    fn row(mut self, end_s: f64) -> FleetRow {
        let sums = &mut self.sums;
        let requests = sums.first_token_s.len();
        sums.first_token_s.sort_by(f64::total_cmp);
        let busy = || self.workers.iter().map(|worker| worker.busy_s);
        let mean_s = busy().sum::<f64>() / self.workers.len() as f64;
        let tokens = sums.prompt_tokens + (requests * self.options.answer_tokens) as f64;
        let hours = busy().sum::<f64>() / 3600.0;
        FleetRow {
            workers: self.workers.len(),
            policy: self.policy,
            has_store: self.has_store,
            held_share: sums.held_tokens / sums.prompt_tokens,
            loaded_share: sums.loaded_tokens / sums.prompt_tokens,
            moved_bytes_per_request: sums.moved_bytes / requests as f64,
            busy_share: mean_s / end_s,
            busiest_over_mean: busy().fold(0.0, f64::max) / mean_s,
            first_token_mean_s: sums.first_token_s.iter().sum::<f64>() / requests as f64,
            first_token_p95_s: sums.first_token_s[requests * 95 / 100],
            cost_per_million_tokens: hours * self.options.rates.worker_hour / tokens * 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> FleetOptions {
        FleetOptions {
            workers: vec![1],
            documents: 200,
            requests_per_worker: 20_000,
            arrivals_per_hour: 1.0,
            rates: FleetRates {
                worker_tokens: 40 * 16_384,
                ..FleetRates::default()
            },
            ..FleetOptions::default()
        }
    }

    /// Share of documents that a cache of the latest `most` holds when they are asked for, by Che's approximation.
    fn che(documents: usize, exponent: f64, most: f64) -> f64 {
        let cumulative = zipf(documents, exponent);
        let shares: Vec<f64> = (0..documents)
            .map(|at| cumulative[at] - if at > 0 { cumulative[at - 1] } else { 0.0 })
            .collect();
        let held = |time: f64| -> f64 { shares.iter().map(|share| 1.0 - (-share * time).exp()).sum() };
        let (mut low, mut high) = (0.0, 1e9);
        for _ in 0..200 {
            let middle = (low + high) / 2.0;
            if held(middle) < most {
                low = middle
            } else {
                high = middle
            }
        }
        shares.iter().map(|share| share * (1.0 - (-share * low).exp())).sum()
    }

    #[test]
    fn one_worker_holds_what_che_s_approximation_says_under_every_router() {
        for exponent in [0.6, 1.0, 1.3] {
            let options = FleetOptions {
                zipf: exponent,
                ..options()
            };
            let table = simulate_fleet(&options).unwrap();
            let whole = options.document_tokens as f64 / (options.document_tokens + options.question_tokens) as f64;
            let expected = che(options.documents, exponent, 40.0) * whole;
            for row in &table.rows {
                assert!(
                    (row.held_share - expected).abs() < 0.02,
                    "{} {expected} {row:?}",
                    row.held_share
                );
            }
        }
    }

    #[test]
    fn a_lightly_loaded_worker_waits_as_a_queue_with_a_single_server_does() {
        // Nothing is held and every request takes the same time: Pollaczek and Khinchine say how long it waits.
        let mut options = options();
        options.rates.worker_tokens = 0;
        let rates = &options.rates;
        let first_s = (16_384.0 + 64.0) / rates.prompt_tokens_per_s;
        let work_s = first_s + 128.0 / rates.answer_tokens_per_s;
        options.arrivals_per_hour = 0.5 * 3600.0 / work_s;
        let wait_s = 0.5 * work_s / (2.0 * (1.0 - 0.5));
        let row = simulate_fleet(&options).unwrap().rows.remove(0);
        assert!((row.busy_share - 0.5).abs() < 0.02, "{row:?}");
        assert!(
            (row.first_token_mean_s - first_s - wait_s).abs() < 0.05 * wait_s,
            "{row:?} {wait_s}"
        );
        let tokens = 16_384.0 + 64.0 + 128.0;
        let cost = work_s / 3600.0 * options.rates.worker_hour / tokens * 1e6;
        assert!((row.cost_per_million_tokens - cost).abs() < 1e-9);
    }

    #[test]
    fn routers_that_know_prefixes_hold_more_and_a_store_reads_each_document_once() {
        let options = FleetOptions {
            workers: vec![10],
            requests_per_worker: 400,
            ..options()
        };
        let table = simulate_fleet(&options).unwrap();
        let row = |policy, has_store| {
            let mut rows = table.rows.iter();
            rows.find(|row| (row.policy, row.has_store) == (policy, has_store))
                .unwrap()
        };
        let aware = row(RouterPolicy::PrefixAware, false);
        assert!(aware.held_share > row(RouterPolicy::RoundRobin, false).held_share + 0.1);
        assert!(row(RouterPolicy::PrefixHash, false).busiest_over_mean > aware.busiest_over_mean);
        let stored = row(RouterPolicy::RoundRobin, true);
        // All but the first reading of each document is held or loaded.
        let read = 1.0 - stored.held_share - stored.loaded_share;
        let least = 200.0 / 4000.0 + 64.0 / (16_384.0 + 64.0);
        assert!(read <= least + 0.005, "{read} {least}");
        assert_eq!(row(RouterPolicy::RoundRobin, false).moved_bytes_per_request, 0.0);
    }

    #[test]
    fn numbers_that_make_no_fleet_are_refused_by_name() {
        let error = |change: fn(&mut FleetOptions)| {
            let mut options = options();
            change(&mut options);
            simulate_fleet(&options).unwrap_err().to_string()
        };
        assert!(error(|options| options.workers = vec![0]).contains("--workers"));
        assert!(error(|options| options.rates.link_bytes_per_s = f64::NAN).contains("--link"));
        assert!(error(|options| options.zipf = -1.0).contains("--zipf"));
    }
}

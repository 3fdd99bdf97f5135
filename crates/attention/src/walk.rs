//! Walks a call over pages and their blocks, in an order that does not depend on the distribution of pages over
//! calls.

use crate::Span;
use crate::block::{Block, Next, Runs, active, block_of};
use crate::call::{BLOCK_ROWS, Call, Output, QueryBlock};
use crate::kernel::{KEY_BLOCK, STRIPES, Slot};
use crate::parts::parts_of_page;
use crate::selection::{diagonal_spans, merge_spans};
use crate::visible::{Visible, low_bits};
use crate::workspace::Workspace;

/// A query block and the spans it reads.
struct Reading<'a> {
    queries: QueryBlock,
    needs: &'a [Span],
    /// True if the queries are packed; the first block read packs them.
    packed: bool,
}

/// The positions of a page that are read: all, or those in one part of the cache.
#[derive(Clone, Copy)]
struct PagePart {
    page: usize,
    within: Span,
}

impl<V: Visible> Call<'_, V> {
    pub(crate) fn run(&self, workspace: &mut Workspace, mut output: Output) {
        let group = self.queries.group;
        if group == 0 || self.range.is_empty() {
            return;
        }
        let positions = (BLOCK_ROWS / group).max(1);
        let mut first = 0;
        while first < self.queries.rows {
            let positions = positions.min(self.queries.rows - first);
            self.query_block(workspace, QueryBlock { first, positions }, &mut output);
            first += positions;
        }
    }

    fn query_block(&self, workspace: &mut Workspace, queries: QueryBlock, output: &mut Output) {
        let (start, positions) = (self.queries.start + queries.first, queries.positions);
        let mut needs = core::mem::take(&mut workspace.needs);
        self.visible.needs(start, positions, &mut needs);
        let mut visits = core::mem::take(&mut workspace.visits);
        visits.clear();
        visits.extend_from_slice(&needs);
        for distance in self.visible.diagonals() {
            visits.extend(diagonal_spans(start, positions, *distance, self.visible.causal()));
        }
        if !self.visible.diagonals().is_empty() {
            merge_spans(&mut visits);
            workspace.diagonals.begin();
        }
        let mut reading = Reading {
            queries,
            needs: &needs,
            packed: false,
        };
        let mut next = 0;
        for visit in &visits {
            let visit = visit.intersect(&self.range);
            if visit.is_empty() {
                continue;
            }
            let pages = self.kv.pages;
            let mut index = pages
                .partition_point(|page| page.start + page.tokens <= visit.start)
                .max(next);
            while let Some(page) = pages.get(index).filter(|page| page.start < visit.end) {
                if matches!(output, Output::Parts(_)) || self.only_part.is_some() {
                    for (number, within) in parts_of_page(page) {
                        let visited = visits.partition_point(|visit| visit.end <= within.start);
                        let visited = visits.get(visited).is_some_and(|visit| visit.start < within.end);
                        if !visited || self.only_part.is_some_and(|only| only != number) {
                            continue;
                        }
                        if let Output::Parts(parts) = output {
                            parts.turn_to(number);
                        }
                        self.page(workspace, &mut reading, PagePart { page: index, within }, output);
                    }
                } else {
                    let within = Span::new(page.start, page.start + page.tokens);
                    self.page(workspace, &mut reading, PagePart { page: index, within }, output);
                }
                index += 1;
            }
            next = index;
        }
        (workspace.needs, workspace.visits) = (needs, visits);
    }

    /// Reads a part of a page: blocks, then diagonals.
    fn page(&self, workspace: &mut Workspace, reading: &mut Reading, part: PagePart, output: &mut Output) {
        self.blocks_of_page(workspace, reading, part, output);
        if !self.visible.diagonals().is_empty() {
            let mut diagonals = core::mem::take(&mut workspace.diagonals);
            let page = &self.kv.pages[part.page];
            self.diagonals_of_page(&mut diagonals, reading.queries, page, part.within, output);
            workspace.diagonals = diagonals;
        }
    }

    /// The blocks of a page that overlap the needed spans. Blocks are counted from the page's own start. The same
    /// blocks are then summed in the same order for any distribution of pages over calls.
    fn blocks_of_page(&self, workspace: &mut Workspace, reading: &mut Reading, part: PagePart, output: &mut Output) {
        let Reading { queries, needs, packed } = reading;
        let page = &self.kv.pages[part.page];
        let within = part.within.intersect(&self.range);
        let looks_ahead = self.looks_ahead(queries.positions * self.queries.group);
        let mut next = 0;
        let from = needs.partition_point(|need| need.end <= within.start);
        for (number, need) in needs.iter().enumerate().skip(from) {
            if need.start >= within.end {
                break;
            }
            let end = need.end.min(self.range.end);
            let need = need.intersect(&within);
            if need.is_empty() {
                continue;
            }
            let blocks = ((need.start - page.start) / KEY_BLOCK).max(next)..(need.end - page.start).div_ceil(KEY_BLOCK);
            next = blocks.end.max(next);
            for block in blocks {
                if !*packed {
                    self.pack(workspace, *queries);
                    *packed = true;
                }
                let mut current = block_of(page, block, self.widths());
                let next = || self.next_block(part.page, current.span.end, &needs[number..]);
                if looks_ahead && self.reads_in_part(current.span) {
                    current.next = Next::Scattered(next().map(|next| self.runs_of(&next)).unwrap_or_default());
                } else if looks_ahead || self.rounds(&current, output) {
                    let following = next().filter(|next| next.span.start < end);
                    current.next = Next::Following(following.map(|next| (next.keys, next.values)));
                }
                self.block(workspace, *queries, &current, output);
            }
        }
    }

    /// True if the shared spans read some tokens of a block and leave out others. A row's own rules are unknown here.
    fn reads_in_part(&self, block: Span) -> bool {
        let shared = self.visible.block_bits(block);
        shared != 0 && shared != low_bits(block.len())
    }

    /// The stripes of a block that the shared spans read.
    fn runs_of<'b>(&self, block: &Block<'b>) -> [Runs<'b>; 2] {
        let mut stripes = [Slot::default(); STRIPES];
        let shared = self.visible.block_bits(block.span);
        let len = active(shared, block.span.len(), &mut stripes);
        block.runs(&stripes[..len], self.widths())
    }

    /// The first block with a needed position from `start` on, in page `index` or later.
    fn next_block(&self, index: usize, start: usize, needs: &[Span]) -> Option<Block<'_>> {
        let need = needs.iter().find(|need| need.end > start)?;
        let first = need.start.max(start);
        let mut pages = self.kv.pages.get(index..)?.iter();
        let page = pages.find(|page| page.start + page.tokens > first)?;
        if first < page.start || first >= self.range.end {
            return None;
        }
        Some(block_of(page, (first - page.start) / KEY_BLOCK, self.widths()))
    }
}

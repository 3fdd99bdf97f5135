//! Converts bytes of memory to slots of one expert each.

use riffle_files::PartBuffer;

use super::loader::LOADERS;

/// Experts of one size that can be loaded from a model's files on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertClass {
    /// Layers with such experts.
    pub layers: usize,
    /// Experts per layer.
    pub experts: usize,
    /// Bytes of an expert in memory.
    pub expert_bytes: u64,
    /// Bytes of an expert in the files.
    pub file_bytes: u64,
    /// Bytes of an expert's largest matrix in the files.
    pub largest_part_bytes: u64,
}

impl ExpertClass {
    /// Experts of all these layers.
    pub fn count(&self) -> usize {
        self.layers * self.experts
    }

    /// Bytes of all these experts in memory.
    pub fn bytes(&self) -> u64 {
        self.count() as u64 * self.expert_bytes
    }

    /// Bytes of all these experts in the files.
    pub fn all_file_bytes(&self) -> u64 {
        self.count() as u64 * self.file_bytes
    }
}

/// The smallest budget of a cache: one expert of each size, and the buffers of the loaders.
pub fn least_expert_cache_bytes(classes: &[ExpertClass]) -> u64 {
    on_their_way_bytes(classes) + classes.iter().map(|class| class.expert_bytes).sum::<u64>()
}

/// Bytes that a cache of experts uses of a budget.
pub fn expert_cache_bytes(classes: &[ExpertClass], budget_bytes: u64) -> u64 {
    let slots = expert_slots(classes, budget_bytes).into_iter().zip(classes);
    let held: u64 = slots.map(|(slots, class)| slots as u64 * class.expert_bytes).sum();
    held + on_their_way_bytes(classes)
}

/// Bytes of the loaders' buffers, which hold parts that are read but not packed.
fn on_their_way_bytes(classes: &[ExpertClass]) -> u64 {
    let parts = classes.iter().map(|class| class.largest_part_bytes);
    let largest = parts.max().unwrap_or(0);
    (LOADERS * PartBuffer::memory_bytes(largest as usize)) as u64
}

/// Experts of each size that fit a budget at a time. They are in proportion to the bytes of all experts, with at least
/// one of each size.
pub fn expert_slots(classes: &[ExpertClass], budget_bytes: u64) -> Vec<usize> {
    let mut left = budget_bytes.saturating_sub(least_expert_cache_bytes(classes));
    let further = |class: &ExpertClass| (class.count().saturating_sub(1)) as u64 * class.expert_bytes;
    let all: u64 = classes.iter().map(further).sum();
    let share = left;
    let mut slots: Vec<usize> = classes
        .iter()
        .map(|class| {
            let own = u128::from(share) * u128::from(further(class)) / u128::from(all.max(1));
            let more = (own as u64 / class.expert_bytes.max(1)).min(class.count().saturating_sub(1) as u64);
            left -= more * class.expert_bytes;
            1 + more as usize
        })
        .collect();
    for (slots, class) in slots.iter_mut().zip(classes) {
        let more = (left / class.expert_bytes.max(1)).min((class.count() - (*slots).min(class.count())) as u64);
        left -= more * class.expert_bytes;
        *slots += more as usize;
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_never_take_more_than_the_budget_and_no_expert_has_two() {
        let class = |layers, experts, expert_bytes| ExpertClass {
            layers,
            experts,
            expert_bytes,
            file_bytes: expert_bytes,
            largest_part_bytes: expert_bytes / 3,
        };
        for classes in [
            vec![class(4, 8, 3000)],
            vec![class(4, 8, 3000), class(2, 8, 5000)],
            vec![class(1, 1, 10), class(40, 128, 2_654_208), class(8, 128, 3_100_000)],
        ] {
            let least = least_expert_cache_bytes(&classes);
            let all = classes.iter().map(ExpertClass::bytes).sum::<u64>() + on_their_way_bytes(&classes);
            for budget in [least, least + 1, (least + all) / 3, all - 1, all, all * 2] {
                let budget = budget.max(least);
                assert!(expert_cache_bytes(&classes, budget) <= budget);
                let slots = expert_slots(&classes, budget);
                for (slots, class) in slots.iter().zip(&classes) {
                    assert!((1..=class.count()).contains(slots), "{slots:?} of {class:?}");
                }
                if budget >= all {
                    assert_eq!(expert_cache_bytes(&classes, budget), all);
                }
            }
        }
        assert_eq!(expert_slots(&[], 0), Vec::<usize>::new());
    }
}

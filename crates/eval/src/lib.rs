//! Measurements of what a model and a policy keep, cost and lose

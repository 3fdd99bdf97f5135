//! Dynamo's own test kit for workers.

use dynamo_backend_common::testing::run_conformance;

use crate::testing::worker;

#[tokio::test]
async fn it_does_what_dynamo_expects_of_a_worker() {
    run_conformance(|| worker(&[])).await.unwrap();
}

#[tokio::test]
async fn it_does_so_without_kv_events_and_with_a_cache_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    run_conformance(|| worker(&["--no-kv-events", "--prefix-cache", folder]))
        .await
        .unwrap();
}

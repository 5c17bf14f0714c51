#pragma once
// Which kernel of the backward family is compiled (layout/sm90.cuh), and its numbers under their names in tiles.
//
// config.cuh: kConfig (a BackwardConfig).
#include "layout/sm90.cuh"
#include "ptx/mbarrier.cuh"
#include "tile/dq_sum.cuh"

#include "config.cuh"

namespace foveal::device {

constexpr BackwardFamily kFamily = kConfig.shape();
static_assert(kConfig.block_kv == kFamily.block_kv);
constexpr int kConsumers = kFamily.consumers, kThreads = kFamily.threads;
constexpr int kBlockKv = kFamily.block_kv, kClusterSize = kFamily.cluster_size, kTaskKeys = kFamily.task_keys();
constexpr int kKeyStep = kFamily.key_step(kDqSum);  // columns from chunk to chunk of K

}  // namespace foveal::device

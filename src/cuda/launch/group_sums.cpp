#include "cuda/launch/group_sums.h"

#include "base/check.h"
#include "base/divide.h"
#include "cuda/device/group_sums_args.cuh"
#include "cuda/device/layout/agreed.cuh"
#include "cuda/device/layout/sm90.cuh"
#include "cuda/jit/driver.h"
#include "cuda/launch/attention_args.h"

namespace foveal::cuda {
GroupSums::GroupSums(const problem::Problem& p, const Sm90BackwardConfig& config, Workspace& workspace, jit::KernelSet& kernels)
    : packed_(p.varlen), batch_(p.batch), heads_(p.heads_kv), longest_(p.seqlen_kv) {
  if (config.group_tasks == 1) return;
  FOVEAL_CHECK(device::kRowStep % config.task_keys() == 0, "tasks write beyond the end of a sequence");
  const std::int64_t keys =
      base::round_up(packed_ ? p.total_kv : p.seqlen_kv, device::kRowStep) + (packed_ ? device::kRowStep * p.batch : 0);
  const auto add = [&](bool present, auto gradient, std::int64_t dim) {
    if (!present) return;
    jit::Constants constants = attention_constants(p);
    constants.set_struct("kConfig", "GroupSumsConfig", "group_sums_args.cuh", device::GroupSumsConfig{.columns = static_cast<int>(dim)});
    const std::int64_t of_head = keys / device::GroupSumShape::rows * device::GroupSumShape(static_cast<int>(dim)).floats;
    const auto bytes = static_cast<std::size_t>((packed_ ? 1 : batch_) * heads_ * of_head) * sizeof(float);
    sums_.push_back({.gradient = gradient,
                     .of_head = of_head,
                     .offset = workspace.reserve(bytes),
                     .bytes = bytes,
                     .kernel = kernels.add({.stem = "group_sums_sm90", .constants = constants})});
  };
  add(p.dk.present, &device::AttentionArgs::dk, p.head_dim);
  add(p.dv.present, &device::AttentionArgs::dv, p.head_dim_v);
}

device::Tensor GroupSums::tensor(const Sum& sum, void* workspace) const {
  device::Tensor sums{};
  sums.data = Workspace::at<float>(workspace, sum.offset);
  sums.batch = packed_ ? 0 : heads_ * sum.of_head, sums.head = sum.of_head;
  return sums;
}

void GroupSums::begin(device::AttentionArgs& args, void* workspace, Stream stream) const {
  for (const Sum& sum : sums_) {
    args.*sum.gradient = tensor(sum, workspace);
    driver::fill((args.*sum.gradient).data, 0, sum.bytes, stream);
  }
}

void GroupSums::finish(const device::AttentionArgs& args, void* workspace, Stream stream) const {
  for (const Sum& sum : sums_)
    sum.kernel->launch({.grid_x = static_cast<unsigned>(base::divide_up(longest_, device::GroupSumShape::rows)),
                        .grid_y = static_cast<unsigned>(heads_),
                        .grid_z = static_cast<unsigned>(batch_),
                        .threads = device::kConvertThreads},
                       device::GroupSumsArgs{args, tensor(sum, workspace), args.*sum.gradient}, stream);
}

}  // namespace foveal::cuda

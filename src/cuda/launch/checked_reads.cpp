#include "cuda/launch/checked_reads.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "cuda/cuda_memory.h"
#include "cuda/device/outside_args.cuh"
#include "cuda/launch/attention_args.h"
#include "cuda/launch/wrapped_pass.h"
#include "cuda/score/score_emit.h"
#include "problem/outside.h"

namespace foveal::cuda {
namespace {

class CheckedReads : public WrappedPass {
 public:
  CheckedReads(const problem::Problem& problem, std::unique_ptr<GpuExecutable> pass) : WrappedPass(problem, std::move(pass)) {
    first_offset_ = workspace_.reserve(sizeof(unsigned long long));
    read_offset_ = workspace_.reserve(sizeof(device::OutsideRead));
    find_ = kernels_.add(outside_reads_source(problem));
  }

  void describe(Explanation& e) const override {
    pass_->describe(e);
    e.details.emplace_back("checked", "indices of all pairs that are kept, before each run, which waits for the device");
  }

  void run(const problem::Buffers& buffers, void* workspace, Stream stream) const override {
    refuse_outside(buffers, workspace, stream);
    pass_->run(buffers, workspace, stream);
  }

 private:
  void refuse_outside(const problem::Buffers& buffers, void* workspace, Stream stream) const {
    const problem::Problem& p = p_;
    const driver::Current current(p.device.index);
    auto* first = Workspace::at<unsigned long long>(workspace, first_offset_);
    auto* read = Workspace::at<device::OutsideRead>(workspace, read_offset_);
    driver::fill(first, 0xff, sizeof *first, stream);
    device::OutsideArgs args{attention_args(p, buffers), -1, first, read};
    find(args, stream);
    const auto pair = fetch(first, stream);
    if (pair > static_cast<unsigned long long>(std::numeric_limits<std::int64_t>::max())) return;
    args.wanted = static_cast<long long>(pair);
    find(args, stream);
    const device::OutsideRead found = fetch(read, stream);
    const Param& param = p.params[static_cast<std::size_t>(found.param)].param;
    const std::int64_t kv = args.wanted % p.seqlen_kv, row = args.wanted / p.seqlen_kv;
    const std::int64_t q = row % p.seqlen_q, head = row / p.seqlen_q % p.heads_q, batch = row / p.seqlen_q / p.heads_q;
    base::fail(ErrorCode::invalid_argument,
               problem::describe({param.name(), found.index, found.dimension, param.shape()[static_cast<std::size_t>(found.dimension)] - 1,
                                  batch, head, p.attention.q_offset + q, p.attention.kv_offset + kv}));
  }

  void find(const device::OutsideArgs& args, Stream stream) const {
    constexpr std::int64_t most_blocks = 1 << 20;  // a block loops over rows where there are more
    const auto blocks = static_cast<unsigned>(std::min(p_.batch * p_.heads_q * p_.seqlen_q, most_blocks));
    find_->launch({.grid_x = blocks, .threads = device::kOutsideThreads}, args, stream);
  }

  template <class T>
  T fetch(const T* on_device, Stream stream) const {
    planning::DeviceMemory& memory = cuda_memory(p_.device.index);
    memory.synchronize(stream);
    T value{};
    memory.to_host(&value, on_device, sizeof value);
    return value;
  }

  std::size_t first_offset_ = 0, read_offset_ = 0;
  jit::KernelHandle find_;
};

}  // namespace

std::unique_ptr<GpuExecutable> with_checked_reads(const problem::Problem& problem, std::unique_ptr<GpuExecutable> pass) {
  if (!problem.attention.checked || !reads_may_leave(problem)) return pass;
  return std::make_unique<CheckedReads>(problem, std::move(pass));
}

jit::KernelSource outside_reads_source(const problem::Problem& p) {
  return {.stem = "outside_reads", .constants = attention_constants(p), .score = emit_score(p) + emit_outside_reads(p)};
}

}  // namespace foveal::cuda

#include "cuda/launch/move_rows.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/divide.h"
#include "base/wide_type.h"
#include "cuda/jit/load_together.h"
#include "cuda/launch/attention_args.h"

namespace foveal::cuda {
namespace {

constexpr std::int64_t most_row_ctas = 4096;

const char* type_of(DType dtype) {
  if (dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16) return jit::device_type(dtype);
  base::fail(ErrorCode::unsupported, "rows of ", to_string(dtype), "; expected f64, f32, bf16 or f16");
}

/// May `count` neighbours along dim be read or written at once?
bool in_pieces(const DeviceRows& rows, const RowSizes& sizes, std::int64_t count) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(size_of(rows.dtype));
  const auto multiple = [&](std::int64_t stride, std::int64_t size) { return size <= 1 || stride % count == 0; };
  return rows.dim == 1 && sizes.dim % count == 0 && reinterpret_cast<std::uintptr_t>(rows.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
         multiple(rows.batch, sizes.batch) && multiple(rows.token, sizes.tokens) && multiple(rows.head, sizes.heads);
}

/// Elements that a thread moves at once: at most 16 bytes of the wider type.
int vector_of(const DeviceRows& a, const DeviceRows& b, const RowSizes& sizes) {
  const std::size_t widest = std::max(size_of(a.dtype), size_of(b.dtype));
  for (int count = static_cast<int>(16 / widest); count > 1; count /= 2)
    if (in_pieces(a, sizes, count) && in_pieces(b, sizes, count)) return count;
  return 1;
}

jit::Constants move_constants(DType from, DType to, int vector, bool tokens_last) {
  jit::Constants constants;
  constants.set_type("From", type_of(from))
      .set_type("To", type_of(to))
      .set_struct("kConfig", "MoveRowsConfig", "rows_args.cuh", device::MoveRowsConfig{.vector = vector, .tokens_last = tokens_last});
  return constants;
}
jit::Constants finish_constants(DType element, DType sink, bool has_sink, int vector) {
  jit::Constants constants;
  constants.set_type("Element", type_of(element)).set_type("Wide", type_of(base::wide_type(element))).set_type("Sink", type_of(sink));
  constants.set_struct("kConfig", "FinishRowsConfig", "rows_args.cuh", device::FinishRowsConfig{.has_sink = has_sink, .vector = vector});
  return constants;
}
jit::Constants sink_gradient_constants(DType element, DType sink) {
  jit::Constants constants;
  constants.set_type("Element", type_of(element)).set_type("Wide", type_of(base::wide_type(element))).set_type("Sink", type_of(sink));
  return constants;
}

jit::LaunchShape shape_of(std::int64_t work, std::int64_t batch) {
  const std::int64_t ctas = std::clamp<std::int64_t>(base::divide_up(work, device::kRowThreads), 1, most_row_ctas);
  return {.grid_x = static_cast<unsigned>(ctas), .grid_y = static_cast<unsigned>(batch), .threads = device::kRowThreads};
}

/// The grid takes at most 65535 batches, and kernels count rows in 32 bits.
void check(const RowSizes& sizes) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  FOVEAL_CHECK(sizes.batch <= 65535, "batch: ", sizes.batch, "; expected at most 65535 on a GPU");
  FOVEAL_CHECK(sizes.tokens <= most && sizes.heads <= most && sizes.dim <= most, "a size exceeds 32 bits");
}
bool empty(const RowSizes& sizes) { return sizes.batch == 0 || sizes.tokens == 0 || sizes.heads == 0 || sizes.dim == 0; }

}  // namespace

/// Within LoadTogether null, where it is not loaded yet: nothing is launched there.
const jit::Kernel* RowKernels::kernel(const std::string& stem, const jit::Constants& constants) const {
  const std::string key = stem + '\n' + constants.text();
  const auto find = [&]() -> const jit::Kernel* {
    const std::lock_guard lock(mutex_);
    const auto found = kernels_.find(key);
    return found == kernels_.end() ? nullptr : &found->second;
  };
  if (const jit::Kernel* found = find()) return found;
  const driver::DeviceFacts& facts = driver::device_facts(device_);
  const jit::KernelSource source{.stem = stem, .constants = constants, .arch = jit::arch_of(facts.major, facts.minor)};
  if (jit::LoadTogether* together = jit::LoadTogether::of_thread()) {
    together->add(source, [this, stem, constants] { kernel(stem, constants); });
    return nullptr;
  }
  jit::Kernel loaded(jit::compile(source), device_, 0);
  const std::lock_guard lock(mutex_);
  return &kernels_.emplace(key, std::move(loaded)).first->second;
}

void RowKernels::move(const DeviceRows& from, const DeviceRows& to, const RowSizes& sizes, bool adds, RowStream stream) const {
  move(from, {}, to, sizes, adds, stream);
}

void RowKernels::sum(const DeviceRows& from, const std::vector<DeviceRows>& more, const DeviceRows& to, const RowSizes& sizes,
                     RowStream stream) const {
  move(from, more, to, sizes, false, stream);
}

void RowKernels::move(const DeviceRows& from, const std::vector<DeviceRows>& more, const DeviceRows& to, const RowSizes& sizes, bool adds,
                      RowStream stream) const {
  FOVEAL_CHECK(more.size() <= most_sums, "rows: sums of ", more.size() + 1, "; expected at most ", most_sums + 1);
  if (empty(sizes)) return;
  check(sizes);
  const driver::Current current(device_);
  int vector = vector_of(from, to, sizes);
  device::MoveRowsArgs args{.from = from.view(),
                            .to = to.view(),
                            .more = {},
                            .batch = static_cast<int>(sizes.batch),
                            .tokens = static_cast<int>(sizes.tokens),
                            .heads = static_cast<int>(sizes.heads),
                            .dim = static_cast<int>(sizes.dim),
                            .adds = adds,
                            .more_count = static_cast<int>(more.size())};
  for (std::size_t i = 0; i < more.size(); ++i) vector = std::min(vector, vector_of(more[i], to, sizes)), args.more[i] = more[i].view();
  const jit::Kernel* loaded = kernel("move_rows", move_constants(from.dtype, to.dtype, vector, sizes.dim == 1));
  if (!stream.only_loads) loaded->launch(shape_of(sizes.tokens * sizes.heads * (sizes.dim / vector), sizes.batch), args, stream.stream);
}

void RowKernels::finish(const DeviceRows& wide, const DeviceRows& sums, const DeviceRows& out, const DeviceRows& lse,
                        const DeviceRows& sink, const RowSizes& sizes, RowStream stream) const {
  if (empty(sizes)) return;
  check(sizes);
  const driver::Current current(device_);
  const int vector = vector_of(wide, out, sizes);
  const device::FinishRowsArgs args{out.view(),
                                    wide.view(),
                                    lse.view(),
                                    sums.view(),
                                    sink.data,
                                    sink.head,
                                    static_cast<int>(sizes.batch),
                                    static_cast<int>(sizes.tokens),
                                    static_cast<int>(sizes.heads),
                                    static_cast<int>(sizes.dim)};
  const jit::Kernel* loaded = kernel("finish_rows", finish_constants(out.dtype, sink.dtype, sink.data != nullptr, vector));
  if (!stream.only_loads) loaded->launch(shape_of(sizes.tokens * sizes.heads * 32, sizes.batch), args, stream.stream);
}

void RowKernels::sink_gradient(const DeviceRows& out, const DeviceRows& dout, const DeviceRows& lse, const DeviceRows& dlse,
                               const DeviceRows& sink, double* gradient, const RowSizes& sizes, RowStream stream) const {
  check(sizes);
  const driver::Current current(device_);
  const device::SinkGradientArgs args{out.view(),
                                      dout.view(),
                                      lse.view(),
                                      dlse.view(),
                                      sink.data,
                                      sink.head,
                                      gradient,
                                      static_cast<int>(sizes.batch),
                                      static_cast<int>(sizes.tokens),
                                      static_cast<int>(sizes.heads),
                                      static_cast<int>(sizes.dim)};
  const jit::Kernel* loaded = kernel("sink_gradient", sink_gradient_constants(out.dtype, sink.dtype));
  if (!stream.only_loads)
    loaded->launch({.grid_x = static_cast<unsigned>(sizes.heads), .threads = device::kSinkThreads}, args, stream.stream);
}

const RowKernels& row_kernels(int device) {
  static std::mutex mutex;
  static std::map<int, RowKernels> all;
  const std::lock_guard lock(mutex);
  return all.try_emplace(device, device).first->second;
}

std::vector<jit::KernelSource> row_kernel_sources(DType element) {
  std::vector<jit::KernelSource> sources;
  const auto add = [&](const char* stem, const jit::Constants& constants) { sources.push_back({.stem = stem, .constants = constants}); };
  const DType wide = base::wide_type(element);
  for (const auto& [from, to] : {std::pair{element, element}, std::pair{wide, element}, std::pair{wide, wide}, std::pair{DType::f64, wide}})
    for (const int vector : {1, static_cast<int>(16 / std::max(size_of(from), size_of(to)))})
      add("move_rows", move_constants(from, to, vector, vector == 1));
  add("finish_rows", finish_constants(element, DType::f32, true, 1)), add("finish_rows", finish_constants(element, element, false, 2));
  add("sink_gradient", sink_gradient_constants(element, DType::f32));
  return sources;
}

}  // namespace foveal::cuda

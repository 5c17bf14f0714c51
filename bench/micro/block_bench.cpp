// What each block operation of a target costs, alone and with its data in the caches: nanoseconds for one tile of lanes and one block of
// keys, and for the products the share of the peak. Shows which part binds a kernel where there is no profiler.
//
//   block_bench [head_dim]...
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cpu/dispatch.h"
#include "cpu/kernels/block_ops.h"
#include "peaks.h"

namespace {

using namespace foveal;
using cpu::BlockOps;

template <class Fn>
double nanoseconds(Fn fn) {
  fn();
  int calls = 1;
  for (double spent = 0; spent < 100e-6; calls *= 2) {
    const double start = micro::thread_seconds();
    for (int i = 0; i < calls; ++i) fn();
    spent = micro::thread_seconds() - start;
  }
  std::vector<double> times(15);
  for (double& time : times) {
    const double start = micro::thread_seconds();
    for (int i = 0; i < calls; ++i) fn();
    time = (micro::thread_seconds() - start) / calls * 1e9;
  }
  std::ranges::sort(times);
  return times[times.size() / 4];
}

class Memory {
 public:
  template <class T>
  T* take(std::size_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    char* p = static_cast<char*>(std::aligned_alloc(256, bytes));
    std::fill_n(p, bytes, char{0});
    owned_.emplace_back(p, std::free);
    return reinterpret_cast<T*>(p);
  }

 private:
  std::vector<std::unique_ptr<char, void (*)(void*)>> owned_;
};

void measure(const BlockOps<float>& ops, DType dtype, int dim) {
  Memory memory;
  const int lanes = ops.tile_lanes, keys = ops.block_kv;
  const std::size_t cells = static_cast<std::size_t>(lanes * keys), element = size_of(dtype);
  const std::int64_t row_stride = dim * 12;  // heads interleaved
  auto* tensor = memory.take<char>(static_cast<std::size_t>(row_stride) * static_cast<std::size_t>(std::max(lanes, keys)) * element);
  const cpu::KeyRows key_rows{tensor, row_stride, 1, dtype};
  const void* rows[64] = {};
  void* rows_out[64] = {};
  for (int lane = 0; lane < lanes; ++lane) rows[lane] = rows_out[lane] = tensor + lane * row_stride * static_cast<std::int64_t>(element);
  const cpu::LaneRows lane_rows{rows, lanes, 1, dtype};
  void* panel = memory.take<char>(ops.panel_bytes(dim));
  void* packed = memory.take<char>(ops.rows_bytes(dim));
  void* scratch = memory.take<char>(ops.operand_bytes(dim));
  auto* scores = memory.take<float>(cells * 4);
  auto* tile = memory.take<float>(cells * 4);
  auto* acc = memory.take<float>(static_cast<std::size_t>(cpu::padded_dim(dim) * std::max(lanes, keys)) * 4);
  auto *max = memory.take<float>(256), *sum = memory.take<float>(256), *factor = memory.take<float>(256);
  for (std::size_t i = 0; i < cells; ++i) scores[i] = 0.01f * static_cast<float>(i % 400) - 2;
  std::fill_n(max, lanes, 4.0f);
  std::fill_n(factor, lanes, 1.0f);
  const cpu::Weights weights =
      ops.weights_in_tile ? cpu::Weights{} : cpu::Weights{memory.take<char>(cells * 2), memory.take<char>(cells * 2)};
  const cpu::Weights for_mix{weights.mix, nullptr}, for_spread{nullptr, weights.spread};
  const void* mixed = ops.weights_in_tile ? tile : weights.mix;
  const void* spread = ops.weights_in_tile ? tile : weights.spread;
  const cpu::KeyRange range{0, keys};

  const std::string kernel = std::string("cpu.") + ops.name + ".";
  const auto unit = micro::unit_of_kernel(kernel);
  const double peak = unit ? micro::peak(*unit).best : 0;  // 0: not measured
  const double flops = 2.0 * static_cast<double>(cells) * dim;
  std::printf("%s, head_dim %d, tiles of %d lanes x %d keys", ops.name, dim, lanes, keys);
  peak > 0 ? std::printf(", peak %.0f GFLOP/s\n", peak) : std::printf("\n");
  const auto product = [&](const char* name, double ns) {
    std::printf("  %-16s %9.0f ns  ", name, ns);
    peak > 0 ? std::printf("%5.2f of peak\n", flops / ns / peak) : std::printf("%5.1f GFLOP/s\n", flops / ns);
  };
  const auto other = [&](const char* name, double ns) {
    std::printf("  %-16s %9.0f ns", name, ns);
    if (peak > 0) std::printf("  %5.2f of the time of a product at peak", ns * peak / flops);
    std::printf("\n");
  };
  if (ops.enter) ops.enter();
  const cpu::Operand operand = ops.prepare(key_rows, keys, dim, {.dot = true, .mix = true}, scratch);
  product("dot", nanoseconds([&] { ops.dot(operand, panel, range, lanes, dim, tile); }));
  product("mix", nanoseconds([&] { ops.mix(operand, mixed, range, lanes, dim, acc); }));
  product("spread", nanoseconds([&] { ops.spread(spread, packed, range, lanes, dim, acc); }));
  // These work in place: their input comes back each time, and the cost of that goes off.
  const double copy = nanoseconds([&] { std::copy_n(scores, cells, tile); });
  const auto in_place = [&](const char* name, auto&& fn) {
    other(name, nanoseconds([&] {
                  std::copy_n(scores, cells, tile);
                  fn();
                }) - copy);
  };
  in_place("softmax", [&] { ops.softmax(tile, range, lanes, cpu::ScoreScale<float>::of_dots(1), {}, nullptr, max, sum, factor, for_mix); });
  in_place("probabilities",
           [&] { ops.probabilities(tile, range, lanes, cpu::ScoreScale<float>::of_dots(1), {}, nullptr, max, for_spread); });
  in_place("score_gradient", [&] { ops.score_gradient(scores, tile, range, lanes, sum, weights); });
  other("scale_lanes", nanoseconds([&] { ops.scale_lanes(acc, dim, lanes, factor); }));
  other("prepare dot", nanoseconds([&] { ops.prepare(key_rows, keys, dim, {.dot = true}, scratch); }));
  other("prepare mix", nanoseconds([&] { ops.prepare(key_rows, keys, dim, {.mix = true}, scratch); }));
  other("pack_panel", nanoseconds([&] { ops.pack_panel(lane_rows, dim, 1, panel); }));
  other("pack_rows", nanoseconds([&] { ops.pack_rows(lane_rows, dim, packed); }));
  other("row_dots", nanoseconds([&] { ops.row_dots(lane_rows, lane_rows, dim, factor); }));
  other("write_lanes", nanoseconds([&] { ops.write_lanes(acc, dim, factor, {rows_out, lanes, 1, dtype}); }));
  other("write_keys", nanoseconds([&] { ops.write_keys(acc, keys, dim, 1, {tensor, row_stride, 1, dtype}); }));
  if (ops.leave) ops.leave();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> dims;
  for (int i = 1; i < argc; ++i) dims.push_back(std::atoi(argv[i]));
  if (dims.empty()) dims = {64, 128};
  for (const cpu::Target& target : cpu::all_targets()) {
    if (!target.available) continue;
    for (const int dim : dims) {
      if (dim < 1 || dim > 512) {
        std::fprintf(stderr, "usage: block_bench [head_dim]...   1 to 512 each\n");
        return 2;
      }
      if (target.bf16)
        measure(*target.bf16, DType::bf16, dim);
      else if (target.f16)
        measure(*target.f16, DType::f16, dim);
      else if (target.f32)
        measure(*target.f32, DType::f32, dim);
    }
  }
}

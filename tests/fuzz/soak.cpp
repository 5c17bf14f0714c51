// Training steps with random shapes, programs, types and layouts, for so many minutes: memory must stay flat within 1 %, and the first problems
// must give the same bits at the end. Writes one JSON object, again after every measurement; fails where either does not hold.
//
//   soak FIRST_SEED MINUTES [FILE] [--device cuda] [--programs N]
//
// On a GPU memory of the device counts too: all that the library has allocated there, and the kernels that it has loaded. A problem there has
// one of so many programs (40), as each has kernels of its own, which take seconds to compile.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "base/hash.h"
#include "check/run.h"
#include "cuda/jit/driver.h"
#include "on_device.h"
#include "problem/random_line.h"

using namespace foveal;

namespace {

constexpr int steps = 3;              // of gradient descent, for each problem
constexpr std::uint64_t warm = 1000;  // problems before memory is looked at

/// Along the gradient of every tensor that has one.
void descend(problem::CaseData& data) {
  const auto step = [](const TensorView& value, const TensorView& gradient) {
    if (!value.present() || !gradient.present()) return;
    std::vector<double> values = problem::values_of(value);
    const std::vector<double> slopes = problem::values_of(gradient);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (std::isfinite(slopes[i])) values[i] -= 1e-3 * slopes[i];
    problem::set_values(value, values);
  };
  for (const char* role : {"q", "k", "v"}) step(data.view(role), data.view(std::string("d") + role));
  for (std::size_t i = 0; i < data.line().params.size(); ++i)
    if (data.line().params[i].grad) step(data.param(i), data.dparam(i));
}

struct Options {
  explicit Options(const fuzz::Arguments& given)
      : first(given.first_seed()),
        programs(given.number("programs", 40)),
        minutes(given.limit(15)),
        file(given.file()),
        device{given.device(), 0} {}
  std::uint64_t first, programs;
  double minutes;
  std::string file;
  Device device;
  bool on_gpu() const { return device.kind == DeviceKind::cuda; }
};

/// Larger than every random one: threads keep the largest workspace that they needed.
std::vector<problem::Line> largest(const Options& options) {
  std::vector<problem::Line> lines;
  if (options.on_gpu()) {
    lines.push_back(problem::parse_line("backward bf16 b4 h24:6 q1024 d128"));
  } else {
    for (const char* strategy : {"fused", "split", "two_scan"})
      lines.push_back(
          problem::parse_line(std::string("backward f64 b3 h12:3 q160 d512 score=\"tanh(score) + bias[head, q_idx, kv_idx] * score\" ") +
                              "param=\"bias: real[12, 160, 160] f64 grad=f64\" dropout=0.1 strategy=" + strategy));
  }
  for (problem::Line& line : lines) line.device = options.device;
  return lines;
}

/// `same_bits`: each time that it is run.
problem::Line line_of(const Options& options, std::uint64_t seed, bool same_bits) {
  base::Random random(seed);
  if (!options.on_gpu()) return problem::random_line(random);
  problem::Line line = fuzz::line_on_device(seed, options.programs, options.device);
  if (same_bits) line.attention.determinism = Determinism::reproducible;
  return line;
}

/// The bits of everything that the steps of a problem gave. What no kernel of a GPU serves is refused.
std::string train(const problem::Line& line, std::uint64_t& refused) {
  problem::CaseData data(line);
  std::string bits;
  for (int i = 0; i < steps; ++i) {
    try {
      check::run_case(data, {.backend = line.device.kind == DeviceKind::cuda ? "cuda" : "cpu"});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported || line.device.kind != DeviceKind::cuda) throw;
      ++refused;
      return bits;
    }
    for (const auto& [name, block] : data.blocks())
      bits += std::to_string(base::hash64({reinterpret_cast<const char*>(block.bytes.get()), block.size}));
    if (data.line().pass == Pass::backward) descend(data);
  }
  if (const std::string damaged = data.damage(); !damaged.empty())
    throw Error(ErrorCode::device, "memory beside " + damaged + " was written");
  return bits;
}

/// Bytes that were allocated and not freed.
double in_use() {
  const struct mallinfo2 now = mallinfo2();
  return static_cast<double>(now.uordblks + now.hblkhd);
}

/// What the library holds on a device, by the calls that it makes: others who use the device do not count.
namespace held {

using namespace cuda::driver;
Api real, counting;
std::map<DevicePointer, std::size_t> blocks;
std::size_t bytes = 0;
long kernels = 0, most_kernels = 0;

Result allocate(DevicePointer* pointer, std::size_t size) {
  const Result result = real.memory_alloc(pointer, size);
  if (result == 0) blocks[*pointer] = size, bytes += size;
  return result;
}
Result release(DevicePointer pointer) {
  const Result result = real.memory_free(pointer);
  if (const auto block = blocks.find(pointer); result == 0 && block != blocks.end()) bytes -= block->second, blocks.erase(block);
  return result;
}
Result load(Library* library, const void* image, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
  const Result result = real.library_load(library, image, a, b, c, d, e, f);
  if (result == 0) most_kernels = std::max(most_kernels, ++kernels);
  return result;
}
Result unload(Library library) {
  const Result result = real.library_unload(library);
  if (result == 0) --kernels;
  return result;
}

/// Calls of this thread are counted as long as it lives.
std::unique_ptr<Redirected> count() {
  real = counting = api();
  counting.memory_alloc = allocate, counting.memory_free = release, counting.library_load = load, counting.library_unload = unload;
  return std::make_unique<Redirected>(counting, device_facts(0));
}

}  // namespace held

/// One amount of memory, MB, each time that it was measured.
struct Measured {
  std::vector<double> all;
  double least() const { return *std::min_element(all.begin(), all.end()); }
  double most() const { return *std::max_element(all.begin(), all.end()); }
  bool flat() const { return most() <= 1.01 * least(); }
  void write(std::ostream& out, const char* prefix) const {
    out << ", \"" << prefix << "first_mb\": " << all.front() << ", \"" << prefix << "least_mb\": " << least() << ", \"" << prefix
        << "most_mb\": " << most() << ", \"" << prefix << "last_mb\": " << all.back();
  }
};

}  // namespace

int main(int argc, char** argv) {
  const Options options(fuzz::Arguments(argc, argv, {"programs", "device"}));
  const std::uint64_t first = options.first;
  const double minutes = options.minutes;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 60; };
  if (options.on_gpu() && !cuda::driver::unavailable().empty()) {
    std::fprintf(stderr, "%s\n", cuda::driver::unavailable().c_str());
    return 1;
  }
  const auto counting = options.on_gpu() ? held::count() : nullptr;

  const bool short_run = minutes < 1;                   // of the tests: memory is not judged
  const std::uint64_t repeated = short_run ? 40 : 600;  // problems that are run again and again: more than there are plans in the cache
  // Memory is compared where the same problems came last, so that the caches hold the same plans.
  std::vector<std::string> before;
  std::uint64_t changed = 0, compared = 0, refused = 0, seed = first + repeated;
  Measured host, device;
  const auto repeat = [&] {
    for (std::uint64_t i = 0; i < repeated; ++i) {
      std::string bits = train(line_of(options, first + i, true), refused);
      if (before.size() <= i) {
        before.push_back(std::move(bits));
      } else {
        ++compared, changed += bits != before[i];
      }
    }
  };
  const auto go_on = [&](std::uint64_t count) {
    for (; count > 0 && elapsed() < minutes; --count) train(line_of(options, seed++, false), refused);
  };
  const auto is_judged = [&] { return !short_run && host.all.size() > 1; };
  const auto write = [&](std::ostream& out) {
    out << "{\"first_seed\": " << first << ", \"minutes\": " << std::round(10 * elapsed()) / 10 << ", \"problems\": " << seed - first
        << ", \"steps\": " << (seed - first - repeated + before.size() + compared) * steps
        << ", \"memory_judged\": " << (is_judged() ? "true" : "false");
    host.write(out, "");
    if (options.on_gpu()) {
      device.write(out, "device_");
      out << ", \"programs\": " << options.programs << ", \"kernels\": " << held::most_kernels << ", \"refused_problems\": " << refused;
    }
    out << ", \"compared\": " << compared << ", \"changed\": " << changed << "}\n";
  };
  const auto measure = [&] {
    if (options.on_gpu()) cuda::driver::give_back(true);
    host.all.push_back(in_use() / 1e6), device.all.push_back(static_cast<double>(held::bytes) / 1e6);
    std::fprintf(stderr, "%.1f min: seed %llu, %.3f MB, on the device %.3f MB and %ld kernels, %llu of %llu results changed\n", elapsed(),
                 static_cast<unsigned long long>(seed), host.all.back(), device.all.back(), held::kernels,
                 static_cast<unsigned long long>(changed), static_cast<unsigned long long>(compared));
    if (options.file.empty()) return;
    const std::string unfinished = options.file + ".unfinished";
    std::ofstream out(unfinished);
    write(out);
    out.close();
    std::filesystem::rename(unfinished, options.file);
  };
  if (!short_run)
    for (const problem::Line& line : largest(options)) train(line, refused);
  repeat();
  go_on(warm);
  repeat();
  measure();
  while (elapsed() < minutes) {
    go_on(2000);
    repeat();
    measure();
  }
  if (options.file.empty()) write(std::cout);
  const bool flat = !is_judged() || (host.flat() && device.flat());
  if (!flat)
    std::fprintf(stderr, "memory in use went from %.3f to %.3f MB, on the device from %.3f to %.3f MB\n", host.least(), host.most(),
                 device.least(), device.most());
  if (changed > 0) std::fprintf(stderr, "%llu problems gave other bits\n", static_cast<unsigned long long>(changed));
  return flat && changed == 0 ? 0 : 1;
}

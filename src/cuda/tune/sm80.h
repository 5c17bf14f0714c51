#pragma once
// Tiles of the portable kernels: pure functions from a problem to a configuration.
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device/sm80_config.cuh"
#include "cuda/jit/source.h"
#include "cuda/tune/chosen.h"
#include "problem/problem.h"

namespace foveal::cuda {

/// two_scan: dq and dkdv in one launch. reads: the dq kernel without dq, for gradients of parameters alone. measure: measures far rows.
enum class Sm80Kernel { forward, dq, dkdv, two_scan, reads, pairs, measure };
/// Of its file under device/kernels, and the kernel's name.
const char* sm80_stem(Sm80Kernel kernel);

struct Sm80Config : device::PortableConfig {
  Sm80Config() = default;
  explicit(false) Sm80Config(const device::PortableConfig& config) : PortableConfig(config) {}
  std::string text() const;  ///< "64x64 warps 4 stages 2"
  std::size_t shared_bytes(const problem::Problem& problem, Sm80Kernel kernel) const;
  void set(jit::Constants& constants) const;
};

/// What a choice depends on beside the problem.
struct Sm80Device {
  std::size_t shared_bytes;  ///< of a CTA, at most
  std::string name{};        ///< for tuned configurations; "" for none
  Sm80Device(std::size_t bytes) : shared_bytes(bytes) {}
  Sm80Device(std::size_t bytes, std::string named) : shared_bytes(bytes), name(std::move(named)) {}
};

/// The name of a kernel's configurations in files of tuned ones; "" for kernels that have none.
const char* sm80_family(Sm80Kernel kernel);

/// The table's configurations for this element type and head dim, best first.
std::vector<Sm80Config> sm80_candidates(const problem::Problem& problem, Sm80Kernel kernel);

/// The device's tuned configuration, or else the first candidate that fits the shared memory of a CTA; and why it was chosen.
std::optional<Chosen<Sm80Config>> sm80_choice(const problem::Problem& problem, Sm80Kernel kernel, const Sm80Device& device);

/// Every legal configuration of the tables, the candidates first: the search space of `foveal tune`.
std::vector<Sm80Config> sm80_space(const problem::Problem& problem, Sm80Kernel kernel, std::size_t shared_bytes_per_block);

constexpr int sm80_max_head_dim = 512;

}  // namespace foveal::cuda

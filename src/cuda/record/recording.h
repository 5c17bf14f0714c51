#pragma once
// A plan recorded instead of executed: its kernels, its tables, and the launches and fills of one run, with every address resolved to a
// named block. Needs no driver and no device, only machine code. For programs that repeat the run without foveal (emit_c.h).
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cuda/jit/compile.h"
#include "foveal/attention.h"
#include "problem/problem.h"

namespace foveal::cuda {

struct Recording {
  /// Memory that addresses point into: a tensor of the caller, the workspace, or a table that the plan uploads.
  struct Block {
    std::string name;   ///< "q", "param_rel", "dparam_rel", "workspace"; "" for a table
    std::string about;  ///< "bf16 [2, 128, 8, 64]"
    std::string bytes;  ///< of a table
    bool written = false;
  };
  struct Address {
    int block = 0;
    std::uint64_t offset = 0;  ///< bytes
  };
  /// A call of cuTensorMapEncodeTiled, with `address` in place of its pointer.
  struct TensorMap {
    Address address;
    int type = 0;
    std::vector<std::uint64_t> dims, strides_bytes;
    std::vector<unsigned> box, element_strides;
    int interleave = 0, swizzle = 0, l2_promotion = 0, outside = 0;
  };
  struct Launch {
    int kernel = 0;  ///< of `kernels`
    unsigned grid[3] = {1, 1, 1};
    unsigned threads = 1, shared_bytes = 0;
    bool cooperative = false;
    std::string argument;                                    ///< the kernel's argument struct, with zeros in place of addresses and maps
    std::vector<std::pair<std::size_t, Address>> addresses;  ///< byte offset in `argument`, and the address there
    std::vector<std::pair<std::size_t, TensorMap>> maps;
  };
  struct Fill {
    Address address;
    unsigned char value = 0;
    std::size_t bytes = 0;
  };

  std::string problem, kernel;                              ///< the problem's line; the plan's kernel
  std::string arch;                                         ///< "sm_80", "sm_90a"
  int multiprocessors = 0;                                  ///< of the device that the plan was made for
  std::vector<std::pair<std::string, std::int64_t>> shape;  ///< "batch", "heads_q", ... of the problem
  std::vector<std::shared_ptr<const jit::Image>> kernels;
  std::vector<unsigned> shared_bytes;  ///< most dynamic shared memory of each kernel's launches
  std::vector<Block> blocks;           ///< the caller's, the workspace, tables
  std::size_t workspace_bytes = 0;
  std::vector<std::variant<Launch, Fill>> steps;
};

/// arch, target and multiprocessors as for executable_of(). Needs NVRTC. Throws unsupported for a run that plain driver calls
/// cannot repeat.
Recording record(const problem::Problem& problem, const std::string& arch, const std::string& target, int multiprocessors = 0);

/// What a plan on such a device would say of itself. Needs NVRTC, as some of it is the compiler's to say. Throws unsupported when no target
/// can.
Explanation explain(const problem::Problem& problem, const std::string& arch, const std::string& target, int multiprocessors = 0);

}  // namespace foveal::cuda

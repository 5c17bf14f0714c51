#pragma once
// What a backend is. `plan` asks each backend in order; the first that says yes prepares an Executable.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "foveal/attention.h"
#include "plan/device_memory.h"
#include "problem/problem.h"

namespace foveal::planning {

/// A prepared computation. run() is const, thread-safe (different workspaces), allocates nothing.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual std::size_t workspace_bytes() const = 0;
  /// Fills backend-independent and own fields: kernel, strategy, reduction, flops, tiles, details.
  virtual void describe(Explanation& explanation) const = 0;
  virtual std::string kernel() const = 0;
  /// Of Part::keeps_rows, which all others refuse.
  virtual KeptRows kept_rows(std::int64_t /*rows*/) const { return {}; }
  virtual void run(const problem::Buffers& buffers, void* workspace, Stream stream) const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual DeviceKind device_kind() const = 0;
  virtual std::vector<TargetInfo> targets() const = 0;
  /// nullopt = yes; otherwise the reason, e.g. "head_dim 600 exceeds 512". Does no work.
  virtual std::optional<std::string> refuses(const problem::Problem& problem, const PlanOptions& options) const = 0;
  virtual std::unique_ptr<Executable> prepare(const problem::Problem& problem, const PlanOptions& options) const = 0;
  /// Memory of one of this backend's devices, where forward() and backward() take their workspace.
  virtual DeviceMemory& memory(Device) const { return host_memory(); }
  /// Called before a run: where the stream's work is captured, to be repeated later, the plan must live as long as that may happen.
  virtual void keep_while_captured(Stream, const std::shared_ptr<const void>& /*plan*/) const {}
};

}  // namespace foveal::planning

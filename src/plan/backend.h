#pragma once
// The interface of backends. plan() tries them in order; the first that does not refuse answers with an Executable.
#include <memory>
#include <string>
#include <vector>

#include "foveal/attention.h"
#include "plan/device_memory.h"
#include "problem/problem.h"

namespace foveal::planning {

/// A prepared computation. run() allocates nothing and is thread-safe; concurrent runs need different workspaces.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual std::size_t workspace_bytes() const = 0;
  /// Fills kernel, strategy, reduction, flops, tiles and details.
  virtual void describe(Explanation& explanation) const = 0;
  virtual std::string kernel() const = 0;
  /// For Part::keeps_rows, on backends that support it.
  virtual KeptRows kept_rows(std::int64_t /*rows*/) const { return {}; }
  virtual void run(const problem::Buffers& buffers, void* workspace, Stream stream) const = 0;
};

/// A backend's answer to a problem.
struct Answer {
  std::string refusal{};                     ///< such as "head_dim 600 exceeds 512"; empty if the problem is supported
  std::unique_ptr<Executable> executable{};  ///< null if it is refused
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual DeviceKind device_kind() const = 0;
  virtual std::vector<TargetInfo> targets() const = 0;
  /// Refusals are cheap.
  virtual Answer prepare(const problem::Problem& problem, const PlanOptions& options) const = 0;
  /// Memory of a device of this backend, from which forward() and backward() take their workspace.
  virtual DeviceMemory& memory(Device) const { return host_memory(); }
  /// Called before a run. If the stream is being captured into a graph, keeps the plan alive as long as the graph may be replayed.
  virtual void keep_while_captured(Stream, const std::shared_ptr<const void>& /*plan*/) const {}
};

}  // namespace foveal::planning

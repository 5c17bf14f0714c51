#pragma once
// A Program: one attention as Python runs it again and again. Calls that were planned before are found by what their arrays look like, so
// that a call costs a look at each array, the allocation of its results, and the launch.
#include <nanobind/nanobind.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/recent.h"
#include "call.h"

namespace foveal::python {

class Program {
 public:
  /// key: all that the rest says, as text. heads_first: arrays are [batch, heads, seqlen, dim], as torch's own attention takes them, results too (in memory seqlen comes first).
  Program(std::string key, Attention attention, std::vector<Param> params, PlanOptions options, bool heads_first)
      : key_(std::move(key)),
        attention_(std::move(attention)),
        params_(std::move(params)),
        options_(std::move(options)),
        heads_first_(heads_first) {}

  const std::string& key() const { return key_; }
  bool heads_first() const { return heads_first_; }
  const Attention& attention() const { return attention_; }
  const std::vector<Param>& params() const { return params_; }
  std::int64_t planned() const { return planned_; }

  /// What a call brings: arrays by slot, then both cu_seqlens, None for absent ones; a sequence of one array for each parameter.
  struct Arguments {
    Pass pass;
    std::vector<nanobind::handle> arrays;
    nanobind::handle params;
    std::vector<bool> wanted;  ///< forward: lse; backward: dq, dk, dv, then each parameter's gradient
    std::int64_t max_seqlen_q = 0, max_seqlen_kv = 0;
    bool rounded = false;  ///< gradients of parameters in their own dtype instead of fp32 or wider
    bool trains = false;   ///< forward: a backward pass for the arrays that require gradients follows
    DropoutRng rng{};
  };

  /// Makes the results in the arrays' own framework and runs. A tuple of (out, lse) or (dq, dk, dv, gradients...), None where not wanted.
  nanobind::tuple run(const Arguments& arguments);

  /// Plans without running. out, lse and dout may be absent too: contiguous ones are planned for.
  std::shared_ptr<Call> plan(const Arguments& arguments);

  /// Called with each new Call and the seconds that planning took, when set.
  static nanobind::object& observer();

 private:
  struct Site;

  static std::int64_t next_number();
  static base::Recent<Site>& sites();
  TensorView view(nanobind::handle array, const char* name, std::size_t slot) const;
  std::vector<TensorView> read(const Arguments& arguments) const;
  void add_results(const Arguments& arguments, std::vector<TensorView>& tensors) const;
  std::shared_ptr<Call> plan(const Arguments& arguments, std::vector<TensorView> tensors);
  void plan_gradients_ahead(const Arguments& forward, const std::vector<TensorView>& tensors) const;
  std::shared_ptr<const Site> find(const Arguments& arguments, const std::vector<TensorView>& tensors);

  const std::string key_;
  const Attention attention_;
  const std::vector<Param> params_;
  const PlanOptions options_;
  const bool heads_first_;
  const std::int64_t number_ = next_number();  ///< tells its calls from other programs'
  std::int64_t planned_ = 0;
  std::array<std::shared_ptr<const Site>, 2> last_;  ///< of each pass: most calls are like the one before
};

}  // namespace foveal::python

#pragma once
// A Program: one attention that Python runs repeatedly. Planned calls are cached by the shapes, dtypes and strides of their arrays, so that
// a call costs reading each array's metadata, allocating the results, and the launch.
#include <nanobind/nanobind.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/lru_cache.h"
#include "call.h"

namespace foveal::python {

class Program {
 public:
  /// key: the other arguments as text. heads_first: arrays and results are [batch, heads, seqlen, dim], as in torch's SDPA; results are
  /// stored in the order of their tensors.
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
  const PlanOptions& options() const { return options_; }
  std::int64_t planned() const { return planned_; }
  /// Positions of parameters that no derivative leads to: only the mask, conditions and the like read them.
  const std::vector<std::size_t>& constants() const {
    if (!constants_) constants_ = constants_of(attention_, params_);
    return *constants_;
  }

  /// Arguments of a call: arrays by slot (tensors, then lengths; None: absent), and a sequence with one array per parameter.
  struct Arguments {
    Pass pass;
    std::vector<nanobind::handle> arrays;
    nanobind::handle params;
    std::vector<bool> wanted;  ///< forward: lse; backward: dq, dk, dv, then each parameter's gradient
    std::int64_t max_seqlen_q = 0, max_seqlen_kv = 0;
    bool rounded = false;  ///< parameter gradients in the parameter's dtype instead of fp32 or wider
    bool trains = false;   ///< forward: a backward pass will follow for arrays that require gradients
    DropoutRng rng{};
  };

  /// Allocates the results in the arrays' framework and runs. Returns (out, lse) or (dq, dk, dv, gradients...), None for those not wanted.
  nanobind::tuple run(const Arguments& arguments);

  /// Plans without running. For absent out, lse and dout, contiguous tensors are assumed.
  std::shared_ptr<Call> plan(const Arguments& arguments);

  /// If set, called with each new Call and the seconds that planning took.
  static nanobind::object& observer();

 private:
  struct Site;

  static std::int64_t next_number();
  static std::vector<std::size_t> constants_of(const Attention& attention, const std::vector<Param>& params);
  static base::LruCache<Site>& sites();
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
  const std::int64_t number_ = next_number();  ///< distinguishes its calls from those of other programs
  std::int64_t planned_ = 0;
  mutable std::optional<std::vector<std::size_t>> constants_;  ///< once asked for, with the GIL held
  std::array<std::shared_ptr<const Site>, 2> last_;            ///< the last site of each pass, which the next call most likely uses
};

}  // namespace foveal::python

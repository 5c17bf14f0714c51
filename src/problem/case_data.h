#pragma once
// The tensors of a line, allocated in its layout and filled from its seed, for checks, tests, benchmarks and fuzzing.
//
// Bytes outside of elements (gaps of strided layouts, a margin before and after) and outputs are initialised to 0xFF, a NaN in every
// floating type: reading them shows in the result, and damage() finds writes.
#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "problem/line.h"
#include "problem/problem.h"

namespace foveal::problem {

/// What other allocations throw, with a message.
class NoMemory : public std::bad_alloc {
 public:
  explicit NoMemory(const std::string& message) : message_(std::make_shared<const std::string>(message)) {}
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  std::shared_ptr<const std::string> message_;  // copies do not allocate
};

class CaseData {
 public:
  /// The tensors of a forward pass, and for a backward line those of both passes. Throws NoMemory where they do not fit this machine.
  explicit CaseData(Line line);

  const Line& line() const { return line_; }

  /// As public calls take it; absent if the line has no such tensor.
  TensorView view(const std::string& role) const;
  TensorView param(std::size_t i) const { return params_[i]; }
  TensorView dparam(std::size_t i) const { return dparams_[i]; }

  ForwardInputs forward_inputs() const;
  ForwardOutputs forward_outputs() const;
  BackwardInputs backward_inputs() const;
  BackwardOutputs backward_outputs() const;

  /// Paged keys: the row (page * page_size + row of the page) of a key.
  std::int64_t pool_row(std::int64_t sequence, std::int64_t key) const;
  /// Replaces block table and lengths by others of the same sizes.
  void set_pages(const std::vector<double>& block_table, const std::vector<double>& seqlens_kv);

  /// The same inputs in contiguous f64 tensors; integer parameters are unchanged.
  CaseData as_f64() const;

  /// Sets all outputs of the pass to 0xFF.
  void clear_outputs(Pass pass);
  /// The name of a tensor next to which memory was written, or "".
  std::string damage() const;

  /// An allocation; all views point into these, so that a case can be copied to a device and back as a whole.
  struct Block {
    std::shared_ptr<std::byte[]> bytes;
    std::size_t size = 0;
  };
  const std::vector<std::pair<std::string, Block>>& blocks() const { return blocks_; }

 private:
  CaseData(Line line, const CaseData* source);

  TensorView allocate(const std::string& name, DType dtype, const std::vector<std::int64_t>& sizes,
                      const std::vector<std::int64_t>& strides);
  std::size_t total_bytes() const;
  TensorView place(const Block& block, std::int64_t first, DType dtype, const std::vector<std::int64_t>& sizes,
                   const std::vector<std::int64_t>& strides) const;
  void allocate_tensors();
  void allocate_packed(const char* q, const char* k, const char* v);
  const TensorView& allocate_role(const std::string& role);
  bool has_lengths() const { return !line_.lengths.empty() && static_cast<std::int64_t>(line_.lengths.size()) == line_.batch; }
  void fill_lengths();
  void fill_table();
  void allocate_rng_state();
  void fill();
  void clear_unsampled();
  void spoil_unheld();
  void copy_values(const CaseData& source);

  Line line_;
  template <class Make>
  auto arguments(Pass pass, Make make) const;

  std::map<std::string, TensorView> views_;  ///< by role, in their logical form
  std::vector<TensorView> params_, dparams_;
  TensorView rng_state_;
  std::vector<std::pair<std::string, Block>> blocks_;
};

/// use(inputs, outputs) with the arguments of the line's pass. Data: CaseData, or the same tensors on a device.
template <class Data, class Use>
auto with_arguments(const Line& line, const Data& data, Use&& use) {
  return line.pass == Pass::forward ? use(data.forward_inputs(), data.forward_outputs())
                                    : use(data.backward_inputs(), data.backward_outputs());
}
template <class Data>
Plan plan_of(const Line& line, const Data& data) {
  return with_arguments(line, data,
                        [&](const auto& inputs, const auto& outputs) { return plan(line.attention, inputs, outputs, line.options); });
}
template <class Data>
Problem problem_of(const Line& line, const Data& data) {
  return with_arguments(line, data, [&](const auto& inputs, const auto& outputs) { return make_problem(line.attention, inputs, outputs); });
}

/// The elements of a view, in row-major order.
std::vector<double> values_of(const TensorView& view);
void set_values(const TensorView& view, const std::vector<double>& values);

}  // namespace foveal::problem

#pragma once
// A line made real: tensors allocated as the line says and filled from its seed. Shared by checks, tests, benchmarks and fuzzing.
//
// Every byte that belongs to no element (gaps of strided layouts, a margin before and after) and every output is set to 0xFF first: a NaN
// in each floating type, so that reading a gap shows in the result and writing one is found by damage().
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "problem/line.h"

namespace foveal::problem {

class CaseData {
 public:
  /// Both passes' tensors: q, k, v, out, lse, and for a backward line dout, dlse, dq, dk, dv and the wanted parameter gradients.
  explicit CaseData(Line line);

  const Line& line() const { return line_; }

  /// An absent view where the line has no such tensor. Packed tensors have rank 3, as the public calls take them.
  TensorView view(const std::string& role) const;
  TensorView param(std::size_t i) const { return params_[i]; }
  TensorView dparam(std::size_t i) const { return dparams_[i]; }

  ForwardInputs forward_inputs() const;
  ForwardOutputs forward_outputs() const;
  BackwardInputs backward_inputs() const;
  BackwardOutputs backward_outputs() const;

  /// Of keys in pages: the row of the pool, page * page_size and on, where a key of a sequence lies.
  std::int64_t pool_row(std::int64_t sequence, std::int64_t key) const;
  /// Takes another table and lengths of the same sizes.
  void set_pages(const std::vector<double>& block_table, const std::vector<double>& seqlens_kv);

  /// The same values in contiguous f64 tensors, integer parameters as they are; outputs are not copied.
  CaseData as_f64() const;

  /// Sets all outputs of the pass back to 0xFF.
  void clear_outputs(Pass pass);
  /// Names a tensor beside which memory was written; empty when none was.
  std::string damage() const;

  /// What was allocated: views point into these, so that a case can be copied to a device and back whole.
  struct Block {
    std::shared_ptr<std::byte[]> bytes;
    std::size_t size = 0;
  };
  const std::vector<std::pair<std::string, Block>>& blocks() const { return blocks_; }

 private:
  CaseData(Line line, const CaseData* source);

  TensorView allocate(const std::string& name, DType dtype, const std::vector<std::int64_t>& sizes,
                      const std::vector<std::int64_t>& strides);
  TensorView place(const Block& block, std::int64_t first, DType dtype, const std::vector<std::int64_t>& sizes,
                   const std::vector<std::int64_t>& strides) const;
  void allocate_tensors();
  void allocate_packed(const char* q, const char* k, const char* v);
  void allocate_role(const char* role);
  void allocate_lengths();
  void allocate_table();
  void allocate_rng_state();
  void fill();
  void clear_unsampled();
  void spoil_unheld();
  void copy_values(const CaseData& source);

  Line line_;
  std::map<std::string, TensorView> views_;  ///< by role; packed tensors in their logical rank 4
  std::vector<TensorView> params_, dparams_;
  TensorView cu_seqlens_q_, cu_seqlens_kv_, block_table_, seqlens_kv_, rng_state_;
  std::vector<std::pair<std::string, Block>> blocks_;
};

/// The elements of a view, in row-major order.
std::vector<double> values_of(const TensorView& view);
void set_values(const TensorView& view, const std::vector<double>& values);

}  // namespace foveal::problem
